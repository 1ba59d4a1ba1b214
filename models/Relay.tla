------------------------------- MODULE Relay -------------------------------
(* From the change feed into the topic: pages, lanes, sends whose answers   *)
(* are lost, duplicate detection, parking, checkpoints, and owners that     *)
(* overlap. cosmos_outbox/relay, and changefeed/polling.py.                 *)
(*                                                                          *)
(* The lease is weaker here than it is (module Leases): any worker may take *)
(* it at any time, as a .NET processor does, and an owner learns of its     *)
(* loss only when it writes. Parking is one step here (module Parked).      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Workers,        \* those of ours, and a .NET processor, which parks nothing
    DotNet,
    Log,            \* the commits in the order of their LSNs: each a sequence of events of one key, as raised
    Poison,         \* events that the topic refuses, until an operator has cured it
    MostTenures,    \* acquisitions of a lease, of all workers
    MostCrashes,
    MostLost,       \* answers of the broker
    MostForgotten,  \* ids that duplicate detection forgets
    Probes,         \* whether a worker that met refusals sends again what the topic took last
    Splits,         \* whether the range is split, once
    Mistake

VARIABLES
    topic,          \* by key: what entered the topic, copies too, in order
    remembered,     \* ids that duplicate detection still knows
    late,           \* sends without an answer that may still reach the broker
    cured,          \* the topic takes the poison by now
    leases,         \* by lease: there or not, its owner's tenure, position, and the names of parked keys
    queue,          \* by key: what the parked store holds, oldest first
    parked,         \* the keys that have a document there
    work,           \* by worker: the tenure at hand
    probe,          \* by worker: the event that the topic took last, and whether that was its first copy; or no event
    tenures, crashes, lost, forgotten

vars == <<topic, remembered, late, cured, leases, queue, parked, work, probe, tenures, crashes, lost, forgotten>>
broker == <<topic, remembered, late>>
store == <<queue, parked>>
budgets == <<tenures, crashes, lost, forgotten>>

None == [key |-> "none", number |-> 0]
NoProbe == [event |-> None, isFirst |-> FALSE]
Lsns == 1..Len(Log)
Events == UNION {{Log[lsn][n] : n \in DOMAIN Log[lsn]} : lsn \in Lsns}
Keys == {event.key : event \in Events}
LsnByEvent == [event \in Events |-> CHOOSE lsn \in Lsns : \E n \in DOMAIN Log[lsn] : Log[lsn][n] = event]
LsnOf(event) == LsnByEvent[event]
Entered == UNION {{topic[key][n] : n \in DOMAIN topic[key]} : key \in Keys}
Held(key) == {queue[key][n] : n \in DOMAIN queue[key]}

\* A lease of all keys, and its children: one for each key.
Parent == "parent"
LeaseIds == {Parent} \cup Keys
KeysOf(lease) == IF lease = Parent THEN Keys ELSE {lease}

\* The events of a key in a page, in order: those of one commit as they were raised, although the feed mixes them up.
PageEvents(key, from, to) ==
    {event \in Events : event.key = key /\ LsnOf(event) > from /\ LsnOf(event) <= to}
Before(one, other) ==
    IF Mistake = "events of one commit go out as the feed returns them" /\ LsnOf(one) = LsnOf(other)
    THEN one.number > other.number ELSE one.number < other.number
First(events) == CHOOSE event \in events : \A other \in events : event = other \/ Before(event, other)

Idle == [lease |-> "none", tenure |-> 0, position |-> 0, to |-> 0, due |-> {}, names |-> {}]
IsBusy(w) == work[w].lease # "none"
HasPage(w) == IsBusy(w) /\ work[w].to > work[w].position
Due(w, key) == {event \in work[w].due : event.key = key}
Change(w, with) == work' = [work EXCEPT ![w] = with]

(* ------------------------------ The worker ------------------------------ *)

\* A worker takes a lease: free, expired, or seized. The write that takes it reads the position and the names of parked keys.
Take(w, lease) ==
    /\ ~IsBusy(w) /\ leases[lease].there /\ tenures < MostTenures
    /\ tenures' = tenures + 1
    /\ leases' = [leases EXCEPT ![lease].tenure = tenures + 1]
    /\ Change(w, [Idle EXCEPT !.lease = lease, !.tenure = tenures + 1, !.position = leases[lease].position,
                              !.to = leases[lease].position,
                              !.names = IF Mistake = "a new owner forgets the names" THEN {} ELSE leases[lease].names])
    /\ UNCHANGED <<broker, cured, store, probe, crashes, lost, forgotten>>

\* A page ends anywhere: what its replica lacks, or what is committed later, is in a later page.
ReadUpTo(w, to) ==
    /\ IsBusy(w) /\ ~HasPage(w) /\ to > work[w].position
    /\ Change(w, [work[w] EXCEPT !.to = to,
           !.due = UNION {PageEvents(key, work[w].position, to) : key \in KeysOf(work[w].lease)}])
    /\ UNCHANGED <<broker, cured, leases, store, probe, budgets>>
ReadPage(w) == \E to \in Lsns : ReadUpTo(w, to)

\* The id of a message is that of its event, whoever sends it, and however often.
IsKnown(event) == event \in remembered /\ Mistake # "an id is made anew at each attempt"

\* The broker takes a message, unless it knows the id.
Enters(event) ==
    IF IsKnown(event) THEN UNCHANGED <<topic, remembered>>
    ELSE topic' = [topic EXCEPT ![event.key] = Append(@, event)] /\ remembered' = remembered \cup {event}

IsRefused(event) == event \in Poison /\ ~cured

\* What is sent next of a key: the first of its events; of different keys, on their lanes, in any order.
Next1(w, key) ==
    IF Mistake = "a key is spread over two lanes" THEN Due(w, key) ELSE {First(Due(w, key))}
ToBeSent(w, key) == Due(w, key) # {} /\ (key \notin work[w].names \/ w = DotNet)

Accept(w, event) ==
    /\ Change(w, [work[w] EXCEPT !.due = @ \ {event}])
    /\ probe' = IF Probes THEN [probe EXCEPT ![w] = [event |-> event, isFirst |-> ~IsKnown(event)]] ELSE probe

Send(w, key) ==
    /\ HasPage(w) /\ ToBeSent(w, key)
    /\ \E event \in Next1(w, key) :
         /\ ~IsRefused(event)
         /\ Enters(event)
         /\ Accept(w, event)
    /\ UNCHANGED <<late, cured, leases, store, budgets>>

\* The answer is lost: the message entered, or did not, or will. The same message is sent again, before any later one of its key.
LoseAnswer(w, key) ==
    /\ HasPage(w) /\ ToBeSent(w, key) /\ lost < MostLost
    /\ lost' = lost + 1
    /\ \E event \in Next1(w, key) :
         /\ ~IsRefused(event)
         /\ \/ Enters(event) /\ UNCHANGED late
            \/ late' = late \cup {event} /\ UNCHANGED <<topic, remembered>>
         /\ IF Mistake = "the lane goes on behind a message without an answer"
            THEN Accept(w, event) ELSE UNCHANGED <<work, probe>>
    /\ UNCHANGED <<cured, leases, store, tenures, crashes, forgotten>>

\* A refused event parks its key: the queue gets what it does not know yet of the page's events of the key. One step here.
\* What stands before an event that is held already is done: it was sent, or it is held as well.
New(w, key) ==
    LET due == Due(w, key)
        known == Held(key) \cap due
    IN  IF Mistake = "hold does not look at what is there" THEN due
        ELSE {event \in due : \A other \in known : Before(other, event)}
RECURSIVE InOrder(_)
InOrder(events) == IF events = {} THEN <<>> ELSE <<First(events)>> \o InOrder(events \ {First(events)})

HoldEvents(w, key) ==
    /\ queue' = [queue EXCEPT ![key] = @ \o InOrder(New(w, key))]
    /\ parked' = parked \cup {key}
    /\ LET left == IF Mistake = "events behind a parked one are sent" THEN Due(w, key) \ {First(Due(w, key))} ELSE {}
           names == IF Mistake = "a parked key gets no name" \/ left # {} THEN work[w].names ELSE work[w].names \cup {key}
       IN  Change(w, [work[w] EXCEPT !.due = (@ \ Due(w, key)) \cup left, !.names = names])

Park(w, key) ==
    /\ HasPage(w) /\ ToBeSent(w, key) /\ w # DotNet
    /\ IsRefused(First(Due(w, key)))
    /\ HoldEvents(w, key)
    /\ UNCHANGED <<broker, cured, leases, probe, budgets>>

\* A key with a name: append if its document is there; if not, it was handed back, and its events are sent.
AppendHeld(w, key) ==
    /\ HasPage(w) /\ Due(w, key) # {} /\ key \in work[w].names /\ w # DotNet
    /\ IF key \in parked THEN HoldEvents(w, key)
       ELSE Change(w, [work[w] EXCEPT !.names = @ \ {key}]) /\ UNCHANGED store
    /\ UNCHANGED <<broker, cured, leases, probe, budgets>>

\* After refusals a message that the topic took is sent again: under its id, while duplicate detection knows it.
Probe(w) ==
    /\ HasPage(w) /\ w # DotNet /\ probe[w] # NoProbe
    /\ \E event \in work[w].due : IsRefused(event)
    /\ Enters(probe[w].event)
    /\ UNCHANGED <<late, cured, leases, store, work, probe, budgets>>

\* All of the page is accepted or held: save the position and the names, under the etag of the owner's last write.
Checkpoint(w) ==
    /\ HasPage(w)
    /\ work[w].due = {} \/ Mistake = "the position is saved before the send"
    /\ LET lease == work[w].lease IN
       IF leases[lease].there /\ (leases[lease].tenure = work[w].tenure \/ Mistake = "a lease is written without its etag")
       THEN /\ leases' = [leases EXCEPT ![lease].position = work[w].to,
                   ![lease].names = IF w = DotNet \/ Mistake = "names are saved by a request of their own" THEN @ ELSE work[w].names]
            /\ Change(w, [work[w] EXCEPT !.position = work[w].to, !.due = {}])
       ELSE Change(w, Idle) /\ UNCHANGED leases
    /\ UNCHANGED <<broker, cured, store, probe, budgets>>

\* Only a mistake saves the names by a request of its own, after the position.
SaveNames(w) ==
    /\ Mistake = "names are saved by a request of their own"
    /\ IsBusy(w) /\ ~HasPage(w) /\ leases[work[w].lease].there /\ leases[work[w].lease].tenure = work[w].tenure
    /\ leases' = [leases EXCEPT ![work[w].lease].names = work[w].names]
    /\ UNCHANGED <<broker, cured, store, work, probe, budgets>>

\* An owner that is drained gives the lease up; here it just stops.
Stop(w) ==
    /\ IsBusy(w) /\ ~HasPage(w)
    /\ leases[work[w].lease].tenure # work[w].tenure \/ ~leases[work[w].lease].there
    /\ Change(w, Idle)
    /\ UNCHANGED <<broker, cured, leases, store, probe, budgets>>

Crash(w) ==
    /\ IsBusy(w) /\ crashes < MostCrashes
    /\ crashes' = crashes + 1
    /\ Change(w, Idle) /\ probe' = [probe EXCEPT ![w] = NoProbe]
    /\ UNCHANGED <<broker, cured, leases, store, tenures, lost, forgotten>>

\* The range is gone: the owner creates a child for each key, where the work was saved and with the notes, then deletes the lease.
SplitLease(w) ==
    /\ Splits /\ work[w].lease = Parent /\ leases[Parent].there /\ leases[Parent].tenure = work[w].tenure
    /\ leases' = [lease \in LeaseIds |->
           IF lease = Parent THEN [leases[Parent] EXCEPT !.there = FALSE]
           ELSE [there |-> TRUE, tenure |-> 0, position |-> leases[Parent].position,
                 names |-> IF Mistake = "children forget what their parent noted" THEN {} ELSE leases[Parent].names \cap {lease}]]
    /\ Change(w, Idle)
    /\ UNCHANGED <<broker, cured, store, probe, budgets>>

(* ------------------------------ The others ------------------------------ *)

ArriveLate ==
    \E event \in late :
        /\ late' = late \ {event} /\ Enters(event)
        /\ UNCHANGED <<cured, leases, store, work, probe, budgets>>

\* The window of an id is over. A worker counts from the answer to its send, for less than the window: by then the message is none of
\* its probes any more, if what it sent was the first copy. The broker counts from the first copy, which another worker may have sent.
Forget(event) ==
    /\ event \in remembered /\ forgotten < MostForgotten
    /\ forgotten' = forgotten + 1
    /\ remembered' = remembered \ {event}
    /\ probe' = [w \in Workers |->
           IF probe[w].event = event /\ probe[w].isFirst /\ Mistake # "a probe is sent after the window" THEN NoProbe ELSE probe[w]]
    /\ UNCHANGED <<topic, late, cured, leases, store, work, tenures, crashes, lost>>

Cure == Poison # {} /\ ~cured /\ cured' = TRUE
        /\ UNCHANGED <<broker, leases, store, work, probe, budgets>>

\* An operator's release sends the queue from its beginning, and deletes the key's document once it is empty.
ReleaseNext(key) ==
    /\ key \in parked /\ queue[key] # <<>> /\ ~IsRefused(Head(queue[key]))
    /\ Enters(Head(queue[key]))
    /\ queue' = [queue EXCEPT ![key] = Tail(@)]
    /\ UNCHANGED <<late, cured, leases, parked, work, probe, budgets>>

HandBack(key) ==
    /\ key \in parked /\ (queue[key] = <<>> \/ Mistake = "a key is handed back with events in its queue")
    /\ parked' = parked \ {key}
    /\ queue' = [queue EXCEPT ![key] = <<>>]
    /\ UNCHANGED <<broker, cured, leases, work, probe, budgets>>

Init ==
    /\ topic = [key \in Keys |-> <<>>] /\ remembered = {} /\ late = {} /\ cured = FALSE
    /\ leases = [lease \in LeaseIds |-> [there |-> lease = Parent, tenure |-> 0, position |-> 0, names |-> {}]]
    /\ queue = [key \in Keys |-> <<>>] /\ parked = {}
    /\ work = [w \in Workers |-> Idle] /\ probe = [w \in Workers |-> NoProbe]
    /\ tenures = 0 /\ crashes = 0 /\ lost = 0 /\ forgotten = 0

Progress(w) ==
    \/ ReadPage(w) \/ Checkpoint(w) \/ SaveNames(w) \/ Stop(w)
    \/ \E key \in Keys : Send(w, key) \/ Park(w, key) \/ AppendHeld(w, key)

Next ==
    \/ \E w \in Workers :
        \/ Progress(w) \/ Probe(w) \/ Crash(w) \/ SplitLease(w)
        \/ \E lease \in LeaseIds : Take(w, lease)
        \/ \E key \in Keys : LoseAnswer(w, key)
    \/ ArriveLate \/ Cure
    \/ \E event \in Events : Forget(event)
    \/ \E key \in Keys : ReleaseNext(key) \/ HandBack(key)

Spec == Init /\ [][Next]_vars
\* For liveness: a worker that can go on does, and a lease finds an owner.
Lives == \A w \in Workers : WF_vars(Progress(w)) /\ WF_vars(\E lease \in LeaseIds : Take(w, lease))

(* ------------------------------ What holds ------------------------------ *)

IsDone(event) == event \in Entered \/ event \in Held(event.key)

\* What a position has passed is in the topic, or held.
G2_NoLoss ==
    \A lease \in LeaseIds : leases[lease].there =>
        \A event \in Events :
            (event.key \in KeysOf(lease) /\ LsnOf(event) <= leases[lease].position) => IsDone(event)

\* When a message first enters, all earlier ones of its key are in the topic.
FirstPlace(event) ==
    LET its == topic[event.key] IN CHOOSE n \in DOMAIN its : its[n] = event /\ \A m \in 1..(n - 1) : its[m] # event
G3_Order ==
    \A event \in Entered : \A other \in Events :
        (other.key = event.key /\ other.number < event.number)
            => other \in Entered /\ FirstPlace(other) < FirstPlace(event)

\* A queue has its events in order, and each once.
G3_Queue == \A key \in Keys : \A n \in 2..Len(queue[key]) : queue[key][n - 1].number < queue[key][n].number

\* Duplicate detection drops each copy, while it remembers the id; a probe never enters as a copy.
Copies(event) == Cardinality({n \in DOMAIN topic[event.key] : topic[event.key][n] = event})
G4_Identity == forgotten = 0 => \A event \in Events : Copies(event) <= 1
G4_ProbeIsNoCopy == [][\A w \in Workers : Probe(w) => topic' = topic]_vars

\* A position moves by a write of its owner only, forwards, and never past what that owner had sent or held.
G5_Checkpoint ==
    [][\A lease \in LeaseIds : leases'[lease].position # leases[lease].position /\ leases[lease].there =>
        /\ leases'[lease].position > leases[lease].position
        /\ \E w \in Workers : work[w].lease = lease /\ work[w].tenure = leases[lease].tenure /\ work[w].due = {}]_vars

\* Each event is sent, or waits behind a failure.
G2_Sent == Lives => <>[](\A event \in Events : IsDone(event))
=============================================================================
