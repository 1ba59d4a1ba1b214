----------------------------- MODULE TraceRelay ------------------------------
(* A trace of the code is accepted when it is a behaviour of Relay. Each     *)
(* line of TRACE is one action; the first has the log of the container, and  *)
(* the tenures of the lease, each of which is a worker here.                 *)
(* tests/simulation/traced_relay.py writes them.                             *)
(*                                                                           *)
(* A message that enters is a send whose answer is lost, until the answer    *)
(* comes: then it is sent again under an id that the topic knows.            *)
EXTENDS Relay, Json, IOUtils, TLC

Trace == ndJsonDeserialize(IOEnv.TRACE)
TraceTenures == {Trace[1].tenures[n] : n \in DOMAIN Trace[1].tenures}
TraceLog == Trace[1].log
Unbounded == 1000000

VARIABLE line
traceVars == <<vars, line>>

Line == Trace[line]
Says(action) == line <= Len(Trace) /\ Line.action = action /\ line' = line + 1
Event == [key |-> Line.key, number |-> Line.number]

\* The topic refuses what it likes, and when: what is held was refused.
AsTheTopicLikes(event) == Line.action = "holds"

Takes(w) == Says("takes") /\ Take(w, Parent)
Reads(w) == Says("reads") /\ ReadPage(w) /\ work'[w].to = Line.to
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
    /\ \A other \in Events : other.key = Line.key /\ other.number < Line.number => other \in Entered
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

TraceInit == Init /\ line = 2
TraceNext ==
    \/ \E w \in Workers : line <= Len(Trace) /\ w = Line.actor /\
        (Takes(w) \/ Reads(w) \/ Enters_(w) \/ SendsLate(w) \/ Accepted_(w) \/ Holds(w) \/ Saves(w))
    \/ ArrivesLate \/ ArrivesBehind \/ Stores

\* How far the trace was followed: all of it, or it is refused.
Reached == TLCSet(1, IF line > TLCGet(1) THEN line ELSE TLCGet(1))
Started == TLCSet(1, 0)
ASSUME Started
Accepted == PrintT(<<"reached", TLCGet(1) - 1, "of", Len(Trace)>>) /\ TLCGet(1) > Len(Trace)
=============================================================================
