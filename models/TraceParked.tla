----------------------------- MODULE TraceParked -----------------------------
(* A trace of the code is accepted when it is a behaviour of Parked. Each    *)
(* line is one action; the first has the number of the key's events, and the *)
(* holders and releases. tests/simulation/traced_parking.py writes them.     *)
(*                                                                           *)
(* `seen` is the version of the partition on which a program acts: that of   *)
(* the etag under which it writes, or 0 where it writes under none.          *)
EXTENDS Parked, Recorded, TLC

VARIABLES
    run, line,
    past,       \* the partition by version: a read may be any of them
    late        \* events whose sender gave them up, and that may still arrive
traceVars == <<vars, run, line, past, late>>

Trace == Traces[run]
All(field) == UNION {{Traces[n][1][field][m] : m \in DOMAIN Traces[n][1][field]} : n \in DOMAIN Traces}
TraceHolders == All("holders")
TraceReleases == All("releases")
TraceEvents == 1..Trace[1].count
Unbounded == 1000000

Line == Trace[line]
\* Before the next line, what an owner has done is behind it. In Parked each event is saved on its own, here the page when all of it is done.
Says(action) ==
    /\ line <= Len(Trace) /\ Line.action = action /\ \A w \in Holders : hold[w].phase # "passed"
    /\ line' = line + 1 /\ UNCHANGED run
IsAsSeen == Line.seen = key.version
TraceReadable == IF Line.seen \in DOMAIN past THEN {past[Line.seen]} ELSE {}
TraceSees(state) == UNCHANGED stale
TraceEditedBy(r) == {Line.edits[n] : n \in DOMAIN Line.edits}
TraceFirstOf(events) == Line.due
IsPrefix(one, other) == Len(one) <= Len(other) /\ one = SubSeq(other, 1, Len(one))
Gone == {Line.numbers[n] : n \in DOMAIN Line.numbers}

Passes(w) ==
    /\ hold[w].phase = "passed"
    /\ Set(w, [hold[w] EXCEPT !.phase = "next", !.next = @ + 1, !.seen = 0, !.isParked = FALSE])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, budgets, run, line, late>>

(* ------------------------------ The holder ------------------------------ *)

Takes(w) == Says("takes") /\ Take(w) /\ UNCHANGED late

Enters(w) == Says("enters") /\ hold[w].next = Line.number /\ LoseSend(w) /\ UNCHANGED late

\* A probe, and what an earlier tenure of the same process had sent, are due no more.
Accepted(w) ==
    /\ Says("accepted") /\ UNCHANGED late
    /\ IF hold[w].phase = "next" /\ hold[w].next = Line.number /\ ~hold[w].named
       THEN Send(w) /\ first' = first ELSE UNCHANGED vars

Turns(w, phase, named) ==
    /\ Line.number <= hold[w].next
    /\ Set(w, [hold[w] EXCEPT !.phase = phase, !.next = Line.number, !.named = named])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, budgets, late>>

\* What was sent without an answer may be refused when it is sent again.
Refused(w) == Says("refused") /\ hold[w].phase \in {"next", "failed"} /\ ~hold[w].named /\ Turns(w, "failed", FALSE)

\* It holds what it need not send: a list says that the key is parked, or holding failed before.
Learns(w) == Says("learns") /\ Turns(w, "next", TRUE)

Looks(w) == Says("looks") /\ IsAsSeen /\ hold[w].next = Line.number /\ Look(w) /\ UNCHANGED late
Appends(w) == Says("appends") /\ hold[w].next = Line.number /\ Hold(w) /\ key' # key /\ UNCHANGED late

\* A deletion that finds nothing.
Proves(w) ==
    /\ Says("proves") /\ ~key.parked
    /\ Set(w, [hold[w] EXCEPT !.named = FALSE])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, budgets, late>>

\* All up to here is done, by whom ever; what is left is sent, which only a proof allows.
Holds(w) ==
    /\ Says("holds") /\ \A event \in Line.number..Line.done : IsDone(event)
    /\ Line.left # 0 => ~hold[w].named
    /\ Set(w, [hold[w] EXCEPT !.phase = "next", !.next = IF Line.left = 0 THEN Line.done + 1 ELSE Line.left])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, budgets, late>>

Saves(w) ==
    /\ Says("saves") /\ owner = w
    /\ Line.position < hold[w].next /\ (hold[w].named => Line.named)
    /\ saved' = [position |-> Line.position, named |-> Line.named]
    /\ UNCHANGED <<kept, effects, edited, cured, owner, hold, release, budgets, late>>

\* Not in Parked: a batch that arrives when its sender has given it up. Where it creates the key, what a release sent may wait again.
ParksLate(w) ==
    /\ Says("parks late") /\ Line.number <= hold[w].next /\ Line.number \notin Queued \cup records
    /\ Write(Line.seen, [key EXCEPT !.parked = TRUE], Append(queue, Line.number), records)
    /\ UNCHANGED <<effects, edited, cured, saved, owner, hold, release, budgets, late>>

(* ------------------------------- Releases ------------------------------- *)

Claims(r) == Says("claims") /\ IsAsSeen /\ Claim(r) /\ UNCHANGED late

\* The key is read, then the queue: an event of it may have been dropped between the two.
Reads(r) ==
    /\ Says("reads")
    /\ \A state \in TraceReadable :
         IsPrefix(Line.due, state.queue) \/ IsPrefix(Line.due, SelectSeq(state.queue, LAMBDA event : event \notin records))
    /\ ReadQueue(r) /\ UNCHANGED late

\* What it sends enters the topic; that it was accepted is known when the answer comes.
EntersOf(r) ==
    /\ Says("enters") /\ release[r].phase = "due"
    /\ \E n \in DOMAIN release[r].due :
         release[r].due[n] = Line.number /\ \A m \in 1..(n - 1) : outcome[release[r].due[m]] > 0
    /\ TakesEffect(Line.number)
    /\ UNCHANGED <<kept, edited, cured, saved, owner, hold, release, budgets, late>>
Sent(r) == Says("sent") /\ release[r].due[release[r].sent + 1] = Line.number /\ SendHeld(r) /\ first' = first /\ UNCHANGED late

\* The topic refuses what it likes, and when.
RefusedOf(r) ==
    /\ Says("refused") /\ release[r].phase = "due"
    /\ IF release[r].sent = 0 THEN Takeover(r) ELSE SetRelease(r, [release[r] EXCEPT !.phase = "off"])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, hold, budgets, late>>

TakesOff(r) ==
    /\ Says("takes off") /\ IsAsSeen /\ TakeOff(r) /\ UNCHANGED late
    /\ key' # key /\ queue' = SelectSeq(queue, LAMBDA event : event \notin Gone)
HandsBack(r) == Says("hands back") /\ HandBack(r) /\ key' # key /\ UNCHANGED late

\* Not in Parked, where a release that ended leaves its claim.
Stops(r) ==
    /\ Says("stops") /\ Write(Line.seen, [key EXCEPT !.claim = Nobody], queue, records) /\ Takeover(r)
    /\ UNCHANGED <<effects, edited, cured, saved, owner, hold, budgets, late>>

(* ------------------------------- The others ----------------------------- *)

Drops == Says("drops") /\ IsAsSeen /\ Drop(Line.number) /\ UNCHANGED late

\* Not in Parked: a key without an event is parked by hand, and a write that changes nothing of what is modelled.
Writes ==
    /\ \/ Says("parks") /\ ~key.parked /\ Write(Line.seen, [key EXCEPT !.parked = TRUE], queue, records)
       \/ Says("touches") /\ Write(Line.seen, key, queue, records)
    /\ UNCHANGED <<effects, edited, cured, saved, owner, hold, release, budgets, late>>

\* Not in Parked: a message that arrives when its sender has given it up.
SendsLate ==
    /\ Says("sends late")
    /\ \/ \E w \in Holders : w = Line.actor /\ (hold[w].next <= Line.number => hold[w].phase = "next" /\ ~hold[w].named)
       \/ \E r \in Releases : r = Line.actor /\ \E n \in DOMAIN release[r].due : release[r].due[n] = Line.number
    /\ late' = late \cup {Line.number} /\ UNCHANGED vars
ArrivesLate ==
    /\ Says("arrives late") /\ Line.number \in late /\ TakesEffect(Line.number)
    /\ UNCHANGED <<kept, edited, cured, saved, owner, hold, release, budgets, late>>

TraceInit == run \in DOMAIN Traces /\ line = 2 /\ late = {} /\ Init /\ past = <<Now>>
TraceNext ==
    /\ \/ \E w \in Holders : line <= Len(Trace) /\ w = Line.actor /\
           (Takes(w) \/ Enters(w) \/ Accepted(w) \/ Refused(w) \/ Learns(w) \/ Looks(w) \/ Appends(w) \/ Proves(w) \/ Holds(w) \/ Saves(w) \/ ParksLate(w))
       \/ \E r \in Releases : line <= Len(Trace) /\ r = Line.actor /\
           (Claims(r) \/ Reads(r) \/ EntersOf(r) \/ Sent(r) \/ RefusedOf(r) \/ TakesOff(r) \/ HandsBack(r) \/ Stops(r))
       \/ Drops \/ Writes \/ SendsLate \/ ArrivesLate
       \/ \E w \in Holders : Passes(w)
    /\ past' = IF key' = key THEN past ELSE Append(past, Now')

\* How far each trace was followed, and whether what holds did: python reads it.
Reached == PrintT(<<"reached", run, line, G2_NoLoss /\ G2_NoGap /\ G3_Order /\ G3_Queue /\ I1_OneEffect>>)
=============================================================================
