----------------------------- MODULE TraceLeases -----------------------------
(* A trace of the code is accepted when it is a behaviour of Leases. Each    *)
(* line is one action; the first has the tenures of the lease, each of which *)
(* is a worker here. A tick is a millisecond, and many may pass at once.     *)
(* tests/simulation/traced_leases.py writes them.                            *)
EXTENDS Leases, Recorded, Sequences, TLC

VARIABLES run, line
traceVars == <<vars, run, line>>

Trace == Traces[run]
TraceTenures == UNION {{Traces[n][1].tenures[m] : m \in DOMAIN Traces[n][1].tenures} : n \in DOMAIN Traces}
TraceChanges == [n \in 1..500 |-> "child"]
Unbounded == 1000000

Line == Trace[line]
Says(action) == line <= Len(Trace) /\ Line.action = action /\ line' = line + 1 /\ UNCHANGED run

\* A lease counts from the whole second of its write. A process that gave a lease up may take it before others may.
TraceWritten(id, with) == lease' = [lease EXCEPT ![id] = [with EXCEPT !.version = @ + 1, !.age = Line.age]]
TraceIsFree(id) == lease[id].owner = Nobody \/ lease[id].age > Expiration \/ lease[id].owner = Line.before
TraceAfter(id, position) == position + 1

Passes ==
    /\ Says("passes")
    /\ work' = [w \in Workers |->
           IF work[w].id = "none" THEN work[w]
           ELSE [work[w] EXCEPT !.age = @ + Line.ms, !.request.age = @ + Line.ms]]
    /\ lease' = [lease EXCEPT ![Parent].age = @ + Line.ms]
    /\ UNCHANGED <<handled, stray, world, tenures, crashes, lost, asked>>

Takes(w) == Says("takes") /\ Take(w, Parent)

\* The process of a worker is about to take the lease again, so its earlier work has ended, for example because it was told untruly that the
\* lease was deleted.
Ends(w) ==
    /\ Says("ends") /\ Set(w, Idle)
    /\ UNCHANGED <<lease, handled, stray, world, tenures, crashes, lost, asked>>

\* A page that failed is handled again.
Handles(w) ==
    /\ Says("handles") /\ MayAct(w)
    /\ IF Line.number <= work[w].done THEN UNCHANGED vars ELSE Handle(w) /\ work'[w].done = Line.number

\* In Leases a write has the position of all work that is done; here that of the pages that are. A worker that stops releases without being asked.
Sends(w) ==
    /\ Says("sends") /\ MayWrite(w) /\ work[w].request.kind = "none" /\ (work[w].ended => Line.kind = "release")
    /\ Line.position <= work[w].done /\ Line.position >= work[w].saved
    /\ Set(w, [work[w] EXCEPT !.ended = (Line.kind = "release"),
           !.request = [kind |-> Line.kind, version |-> work[w].version, age |-> 0, slow |-> 0, said |-> "sent", position |-> Line.position]])
    /\ UNCHANGED <<lease, handled, stray, world, tenures, crashes, lost, asked>>

Served(w) == Says("served") /\ Serve(w) /\ (work'[w].request.said = "written") = Line.written
Hears(w) == Says("hears") /\ Hear(w)

\* No answer came, whether or not the request was carried out.
HearsNothing(w) ==
    /\ Says("hears nothing")
    /\ IF work[w].request.kind = "none" THEN UNCHANGED work ELSE Set(w, [work[w] EXCEPT !.request = NoRequest])
    /\ UNCHANGED <<lease, handled, stray, world, tenures, crashes, lost, asked>>

\* Another worker asks for the lease, or an operator writes it as it is.
Touched ==
    /\ Says("touched")
    /\ TraceWritten(Parent, [lease[Parent] EXCEPT !.wanted = IF Line.asks THEN "another worker" ELSE @])
    /\ UNCHANGED <<work, handled, stray, world, tenures, crashes, lost, asked>>

TraceInit == run \in DOMAIN Traces /\ line = 2 /\ Init
TraceNext ==
    \/ \E w \in Workers : line <= Len(Trace) /\ w = Line.actor /\
        (Takes(w) \/ Ends(w) \/ Handles(w) \/ Sends(w) \/ Served(w) \/ Hears(w) \/ HearsNothing(w))
    \/ Passes \/ Touched

\* How far each trace was followed, and whether what holds did: python reads it.
Reached == PrintT(<<"reached", run, line, G5_OneTrustedOwner /\ G5_NoWriteAfterLoss /\ 1..lease[Parent].position \subseteq handled>>)
=============================================================================
