----------------------------- MODULE TraceRelay ------------------------------
(* A trace of the code is accepted when it is a behaviour of Relay. Each     *)
(* line is one action; the first has the log of the container, and the       *)
(* tenures of the lease, each of which is a worker here. Recorded has many   *)
(* traces; tests/simulation/traced_relay.py writes them.                     *)
(*                                                                           *)
(* A message that enters is a send whose answer is lost, until the answer    *)
(* comes: then it is sent again under an id that the topic knows.            *)
EXTENDS Relay, Recorded, TLC

VARIABLES run, line
traceVars == <<vars, run, line>>

Trace == Traces[run]
TraceTenures == UNION {{Traces[n][1].tenures[m] : m \in DOMAIN Traces[n][1].tenures} : n \in DOMAIN Traces}
\* What Relay makes of its Log, worked out once for each trace: TLC takes no constant that depends on the run.
NoLog == <<>>
Worked(log) ==
    LET events == UNION {{log[lsn][n] : n \in DOMAIN log[lsn]} : lsn \in DOMAIN log}
    IN  [events |-> events, keys |-> {event.key : event \in events},
         lsns |-> [event \in events |-> CHOOSE lsn \in DOMAIN log : \E n \in DOMAIN log[lsn] : log[lsn][n] = event]]
Logs == [n \in DOMAIN Traces |-> Worked(Traces[n][1].log)]
TraceLsns == DOMAIN Trace[1].log
TraceEvents == Logs[run].events
TraceKeys == Logs[run].keys
TraceLsnByEvent == Logs[run].lsns
Unbounded == 1000000

Line == Trace[line]
Says(action) == line <= Len(Trace) /\ Line.action = action /\ line' = line + 1 /\ UNCHANGED run
Event == [key |-> Line.key, number |-> Line.number]

\* The topic refuses what it likes, and when: what is held was refused.
AsTheTopicLikes(event) == Line.action = "holds"

Takes(w) == Says("takes") /\ Take(w, Parent)
Reads(w) == Says("reads") /\ ReadUpTo(w, Line.to)
Enters_(w) == Says("enters") /\ LoseAnswer(w, Line.key) /\ topic' = [topic EXCEPT ![Line.key] = Append(@, Event)]
SendsLate(w) ==
    /\ Says("sends late")
    /\ IF Event \in Due(w, Line.key) /\ Event \notin remembered
       THEN LoseAnswer(w, Line.key) /\ late' = late \cup {Event} /\ topic' = topic
       ELSE UNCHANGED vars

\* A probe, and what another tenure of the same process had sent, are due no more.
Accepted_(w) ==
    /\ Says("accepted")
    /\ IF Event \in Due(w, Line.key)
       THEN Send(w, Line.key) /\ topic' = topic /\ work'[w].due = work[w].due \ {Event}
       ELSE UNCHANGED vars

ArrivesLate == Says("arrives late") /\ ArriveLate /\ late' = late \ {Event}
               /\ topic' = [topic EXCEPT ![Line.key] = Append(@, Event)]

\* Not in Relay, where each message is a send: what a batch that is late has behind the first of a key, comes with that one.
ArrivesBehind ==
    /\ Says("arrives behind") /\ Event \notin Entered
    /\ {other \in Events : other.key = Line.key /\ other.number < Line.number} \subseteq Entered
    /\ Enters(Event)
    /\ UNCHANGED <<late, cured, leases, store, work, probe, budgets>>

\* Not in Relay, where parking is one step: its writes. That they are all there when it ends is what `Holds` asks.
Stores ==
    /\ Says("stores")
    /\ queue' = [queue EXCEPT ![Line.key] = Append(@, Event)]
    /\ parked' = parked \cup {Line.key}
    /\ UNCHANGED <<broker, cured, leases, work, probe, budgets>>

Holds(w) ==
    /\ Says("holds")
    /\ IF Line.left = <<>> THEN Park(w, Line.key) \/ AppendHeld(w, Line.key)
       ELSE IF Line.key \in work[w].names THEN Line.key \notin parked /\ AppendHeld(w, Line.key)
       ELSE UNCHANGED vars
    /\ UNCHANGED store

Saves(w) ==
    /\ Says("saves") /\ Checkpoint(w)
    /\ IF Line.saved THEN /\ leases'[Parent].position = Line.position
                          /\ leases'[Parent].names = {Line.names[n] : n \in DOMAIN Line.names}
       ELSE leases' = leases

TraceInit == run \in DOMAIN Traces /\ line = 2 /\ Init
TraceNext ==
    \/ \E w \in Workers : line <= Len(Trace) /\ w = Line.actor /\
        (Takes(w) \/ Reads(w) \/ Enters_(w) \/ SendsLate(w) \/ Accepted_(w) \/ Holds(w) \/ Saves(w))
    \/ ArrivesLate \/ ArrivesBehind \/ Stores

\* How far each trace was followed, and whether what holds did: python reads it.
Reached == PrintT(<<"reached", run, line, G3_Queue>>)
=============================================================================
