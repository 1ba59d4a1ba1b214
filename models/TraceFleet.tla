----------------------------- MODULE TraceFleet ------------------------------
(* What the emulators saw of processes that are killed, frozen and drained,  *)
(* accepted when it is a behaviour of Relay. A trace is of one range of the  *)
(* container, and of the leases of it and of its parts; an actor is a        *)
(* tenure. tests/chaos/traced_fleet.py writes them.                          *)
(*                                                                           *)
(* A process reads on while what it has is sent, and saves what is done of   *)
(* it, so pages overlap here, which they do not in Relay.                    *)
EXTENDS TraceRelay

FleetOf(trace) ==
    LET table == trace[1].leases
        rows == DOMAIN table
    IN  [id \in {table[n].id : n \in rows} |->
            LET row == table[CHOOSE n \in rows : table[n].id = id] IN {row.keys[n] : n \in DOMAIN row.keys}]
Fleets == [n \in DOMAIN Traces |-> FleetOf(Traces[n])]
FleetLeases == DOMAIN Fleets[run]
FleetKeysOf(lease) == Fleets[run][lease]

\* What a position passes is in the topic. No \A: TLC would go as deep as there are events.
IsCovered(lease, position) ==
    {event \in Events : event.key \in KeysOf(lease) /\ LsnOf(event) <= position} \subseteq remembered

Creates ==
    /\ Says("creates") /\ ~leases[Line.lease].there
    /\ IsCovered(Line.lease, Line.position)
    /\ leases' = [leases EXCEPT ![Line.lease] = [there |-> TRUE, tenure |-> 0, position |-> Line.position, names |-> {}]]
    /\ UNCHANGED <<broker, cured, store, work, probe, budgets>>

\* Its range was split: each of its keys has another lease, which begins where nothing is skipped.
Deletes ==
    /\ Says("deletes") /\ leases[Line.lease].there
    /\ \A key \in KeysOf(Line.lease) : \E other \in LeaseIds \ {Line.lease} : leases[other].there /\ key \in KeysOf(other)
    /\ leases' = [leases EXCEPT ![Line.lease].there = FALSE]
    /\ UNCHANGED <<broker, cured, store, work, probe, budgets>>

\* An operator deletes leases.
Wiped ==
    /\ Says("wiped") /\ leases[Line.lease].there
    /\ leases' = [leases EXCEPT ![Line.lease].there = FALSE]
    /\ UNCHANGED <<broker, cured, store, work, probe, budgets>>

TakesOne(w) == Says("takes") /\ Line.position = leases[Line.lease].position /\ Take(w, Line.lease)

ReadsOn(w) ==
    /\ Says("reads") /\ IsBusy(w) /\ Line.to > work[w].to
    /\ Change(w, [work[w] EXCEPT !.to = Line.to,
           !.due = @ \cup UNION {PageEvents(key, work[w].to, Line.to) : key \in KeysOf(work[w].lease)}])
    /\ UNCHANGED <<broker, cured, leases, store, probe, budgets>>

\* What is sent is the next of its key, or in the topic already.
Sent(w) ==
    /\ Says("sent") /\ Line.entered = (Event \notin remembered)
    /\ IF Event \in Due(w, Line.key)
       THEN Send(w, Line.key) /\ work'[w].due = work[w].due \ {Event}
       ELSE Event \in remembered /\ UNCHANGED vars

\* Its owner saves: nothing before the position is still to be sent.
SavesOne(w) ==
    LET lease == work[w].lease IN
    /\ Says("saves") /\ IsBusy(w) /\ leases[lease].there /\ leases[lease].tenure = work[w].tenure
    /\ Line.position > leases[lease].position /\ Line.position <= work[w].to
    /\ {event \in work[w].due : LsnOf(event) <= Line.position} = {}
    /\ IsCovered(lease, Line.position)
    /\ leases' = [leases EXCEPT ![lease].position = Line.position]
    /\ Change(w, [work[w] EXCEPT !.position = Line.position])
    /\ UNCHANGED <<broker, cured, store, probe, budgets>>

Stops(w) == Says("stops") /\ Crash(w)

FleetNext ==
    \/ \E w \in Workers : line <= Len(Trace) /\ w = Line.actor /\
        (TakesOne(w) \/ ReadsOn(w) \/ Sent(w) \/ Enters_(w) \/ SavesOne(w) \/ Stops(w))
    \/ Creates \/ Deletes \/ Wiped
FleetReached == PrintT(<<"reached", run, line, TRUE>>)
=============================================================================
