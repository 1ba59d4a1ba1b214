---------------------------- MODULE TraceConsumer ----------------------------
(* A trace of a consumer, of one session: accepted when it is a behaviour of *)
(* Parked on that side. A holder is a process for as long as it has the      *)
(* session; tests/simulation/traced_consumers.py writes them.                *)
EXTENDS TraceParked

\* A holder has asked for nothing yet, so it knows of no proof that the key is not parked.
Begins(w) ==
    /\ Says("takes") /\ hold[w].phase = "idle" /\ owner' = w
    /\ Set(w, [Idle EXCEPT !.phase = "next", !.next = saved.position + 1, !.named = TRUE])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, release, budgets, late>>

\* The next message, or a copy of one that was settled.
Receives(w) == Says("receives") /\ Line.number <= saved.position + 1
    /\ Set(w, [hold[w] EXCEPT !.phase = "next", !.next = Line.number])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, budgets, late>>

\* The batch of an effect leaves the process. It may be carried out when its sender has given it up, but never beside a record.
Commits(w) ==
    /\ Says("sends") /\ hold[w].phase = "next" /\ hold[w].next = Line.number /\ ~hold[w].named
    /\ late' = late \cup {Line.number} /\ UNCHANGED vars
CommitsOf(r) ==
    /\ Says("sends") /\ release[r].phase = "due"
    /\ \E n \in DOMAIN release[r].due :
         release[r].due[n] = Line.number /\ \A m \in 1..(n - 1) : outcome[release[r].due[m]] > 0
    /\ late' = late \cup {Line.number} /\ UNCHANGED vars
Applied ==
    /\ Says("enters") /\ Line.number \in late \ inbox /\ TakesEffect(Line.number)
    /\ UNCHANGED <<kept, edited, cured, saved, owner, hold, release, budgets, late>>

\* Wider than Parked: what the inbox said before a hold may be old. The release asks it again.
LooksFirst(w) ==
    /\ Says("looks") /\ IsAsSeen /\ hold[w].next = Line.number /\ UNCHANGED late
    /\ IF Line.number \notin inbox THEN Look(w)
       ELSE /\ hold[w].named \/ hold[w].phase = "failed"
            /\ Set(w, [hold[w] EXCEPT !.phase = IF @ = "failed" THEN "parking" ELSE "appending",
                   !.seen = key.version, !.isParked = key.parked])
            /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, budgets>>

\* A decision of an operator belongs to the time for which the key was parked. A message that comes later was sent again on purpose.
IsOfEarlierTime(event) == event \in records /\ \E version \in DOMAIN past : ~past[version].key.parked /\ event \in past[version].records
HoldsAgain(event, seen) == IsOfEarlierTime(event) /\ Write(seen, [key EXCEPT !.parked = TRUE], Append(queue, event), records \ {event})

\* What its sender knows of it, it knows when the hold ends.
Stores(w) ==
    /\ Says("appends") /\ hold[w].next = Line.number /\ UNCHANGED late
    /\ \/ LoseHold(w)
       \/ /\ HoldsAgain(Line.number, hold[w].seen)
          /\ Set(w, [hold[w] EXCEPT !.phase = IF @ = "parking" THEN "failed" ELSE "next"])
          /\ UNCHANGED <<effects, edited, cured, saved, owner, release, budgets>>
StoresLate(w) ==
    /\ Says("parks late") /\ HoldsAgain(Line.number, Line.seen)
    /\ UNCHANGED <<effects, edited, cured, saved, owner, hold, release, budgets, late>>

HasHeld(w) ==
    /\ Says("holds") /\ \A event \in Line.number..Line.done : IsDone(event)
    /\ Line.named \/ ~hold[w].named
    /\ Set(w, [hold[w] EXCEPT !.phase = "next", !.named = Line.named])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, budgets, late>>

Settles(w) ==
    /\ Says("settles") /\ owner = w /\ IsDone(Line.number) /\ Line.number <= saved.position + 1
    /\ saved' = [saved EXCEPT !.position = IF Line.number > @ THEN Line.number ELSE @]
    /\ UNCHANGED <<kept, effects, edited, cured, owner, hold, release, budgets, late>>

ConsumerNext ==
    /\ \/ \E w \in Holders : line <= Len(Trace) /\ w = Line.actor /\
           (Begins(w) \/ Receives(w) \/ Commits(w) \/ Refused(w) \/ Learns(w) \/ LooksFirst(w) \/ Stores(w) \/ Proves(w) \/ HasHeld(w)
             \/ Settles(w) \/ ParksLate(w) \/ StoresLate(w))
       \/ \E r \in Releases : line <= Len(Trace) /\ r = Line.actor /\
           (Claims(r) \/ Reads(r) \/ CommitsOf(r) \/ Sent(r) \/ RefusedOf(r) \/ TakesOff(r) \/ HandsBack(r) \/ Stops(r))
       \/ Applied \/ Drops \/ Writes
    /\ past' = IF key' = key THEN past ELSE Append(past, Now')

\* What an operator dropped, and comes again, keeps no order.
InOrder ==
    /\ \A n \in DOMAIN first : \A event \in (1..(first[n] - 1)) \ (records \cup drops) : \E m \in 1..(n - 1) : first[m] = event
    /\ \A m \in DOMAIN queue : \A n \in 1..(m - 1) :
         queue[n] # queue[m] /\ (queue[m] < queue[n] => outcome[queue[m]] > 0 \/ queue[m] \in drops)
ConsumerReached == PrintT(<<"reached", run, line, G2_NoLoss /\ G2_NoGap /\ I1_OneEffect /\ InOrder>>)
=============================================================================
