------------------------------- MODULE Parked -------------------------------
(* One parked key: what met a failure holds its events, operators edit,     *)
(* drop and release them, processes die between any two writes, answers are *)
(* lost, reads are behind, and new events arrive meanwhile.                 *)
(* cosmos_outbox/parking; the relay's side and the consumer's.              *)
(*                                                                          *)
(* Each write to the key's partition is one batch under the etag of the     *)
(* key's document. So `version` stands for the whole partition: a write     *)
(* whose reader saw an older version is refused.                            *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Holders,        \* owners of the lease, or processes that have the session: they may overlap
    Releases,       \* commands of operators; each runs once
    Count,          \* events of the key, numbered in their order
    Poison,         \* the events that are refused, until they are cured or edited
    Side,           \* "relay": events are sent to a topic; "consumer": messages take effect, with an inbox
    MostDue,        \* events that a release sends before it takes them off
    MostTenures, MostCrashes, MostLost, MostStale, MostDrops, MostExpired,
    Edits,          \* whether the first release edits the event that it sends first
    Mistake

VARIABLES
    key,            \* the document: parked or not, the claim, and the version of the partition
    queue,          \* its events, oldest first
    records,        \* events with a record: dropped, or sent edited
    before,         \* what the partition was one write ago: what a read that is behind sees
    outcome,        \* by event: whether it was sent; how often it took effect
    first,          \* the events in the order in which they first did
    inbox,          \* the consumer's records
    edited,         \* the events that an operator gave another payload
    cured,
    saved,          \* the position of the lease, or what the broker has settled, and whether the lease names the key
    owner,          \* whose tenure counts
    hold,           \* by holder
    release,        \* by release
    tenures, crashes, lost, stale, drops, expired

kept == <<key, queue, records, before>>
effects == <<outcome, first, inbox>>
budgets == <<tenures, crashes, lost, stale, drops, expired>>
vars == <<kept, effects, edited, cured, saved, owner, hold, release, budgets>>

Events == 1..Count
Nobody == "none"
Idle == [phase |-> "idle", next |-> 0, named |-> FALSE, seen |-> 0, isParked |-> FALSE]
Unborn == [phase |-> "new", seen |-> 0, due |-> <<>>, sent |-> 0]

Queued == {queue[n] : n \in DOMAIN queue}
IsRefused(event) == event \in Poison /\ ~cured

\* What becomes of an event that is sent, or handled. An inbox lets a message take effect once.
TakesEffect(event) ==
    IF Side = "consumer" /\ event \in inbox THEN UNCHANGED effects
    ELSE /\ outcome' = [outcome EXCEPT ![event] = IF Side = "relay" THEN 1 ELSE @ + 1]
         /\ first' = IF outcome[event] = 0 THEN Append(first, event) ELSE first
         /\ inbox' = IF Side = "consumer" THEN inbox \cup {event} ELSE inbox

Now == [key |-> key, queue |-> queue, records |-> records]

\* A write of the partition: refused where its reader saw an older version.
Write(seen, newKey, newQueue, newRecords) ==
    /\ seen = key.version
    /\ before' = Now
    /\ key' = [newKey EXCEPT !.version = key.version + 1]
    /\ queue' = newQueue /\ records' = newRecords

\* A read sees the partition as it is, or as it was one write ago, as often as the budget of stale reads allows.
Readable == {before, Now}

Sees(state) ==
    \/ state = Now /\ UNCHANGED stale
    \/ state = before /\ before.key.version # key.version /\ stale < MostStale /\ stale' = stale + 1

Set(w, with) == hold' = [hold EXCEPT ![w] = with]
SetRelease(r, with) == release' = [release EXCEPT ![r] = with]

(* ------------------ The holder: a relay or a consumer ------------------ *)

\* A new owner begins at the saved position. The lease names the key; a consumer asks, and proves it by a write.
Take(w) ==
    /\ hold[w].phase = "idle" /\ tenures < MostTenures
    /\ tenures' = tenures + 1 /\ owner' = w
    /\ Set(w, [Idle EXCEPT !.phase = "next", !.next = saved.position + 1,
                           !.named = IF Side = "relay" THEN saved.named
                                     ELSE IF Mistake = "a missing key is believed without proof"
                                     THEN before.key.parked ELSE key.parked])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, release, crashes, lost, stale, drops, expired>>

\* The next event of a key without a name is sent. A consumer's message is settled before the next is handled.
Send(w) ==
    /\ hold[w].phase = "next" /\ hold[w].next \in Events /\ ~hold[w].named
    /\ IF IsRefused(hold[w].next)
       THEN Set(w, [hold[w] EXCEPT !.phase = "failed"]) /\ UNCHANGED effects
       ELSE /\ TakesEffect(hold[w].next)
            /\ Set(w, [hold[w] EXCEPT !.phase = "passed"])
    /\ UNCHANGED <<kept, edited, cured, saved, owner, release, budgets>>

\* The answer is lost: it is sent again, or found in the inbox.
LoseSend(w) ==
    /\ hold[w].phase = "next" /\ hold[w].next \in Events /\ ~hold[w].named /\ lost < MostLost
    /\ ~IsRefused(hold[w].next)
    /\ lost' = lost + 1
    /\ TakesEffect(hold[w].next)
    /\ UNCHANGED <<kept, edited, cured, saved, owner, hold, release, tenures, crashes, stale, drops, expired>>

\* Hold, first half: read the key and what is there. A consumer looks into the inbox before.
Look(w) ==
    /\ hold[w].phase \in {"next", "failed"} /\ hold[w].next \in Events
    /\ hold[w].named \/ hold[w].phase = "failed"
    /\ IF Side = "consumer" /\ hold[w].next \in inbox
       THEN Set(w, [hold[w] EXCEPT !.phase = "passed"]) /\ UNCHANGED stale
       ELSE \E state \in Readable :
            /\ Sees(state)
            /\ Set(w, [hold[w] EXCEPT !.phase = IF hold[w].phase = "failed" THEN "parking" ELSE "appending",
                   !.seen = state.key.version, !.isParked = state.key.parked])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, release, tenures, crashes, lost, drops, expired>>

\* Hold, second half: one batch of the key and the event, under what was read. What is known already is done.
Hold(w) ==
    /\ hold[w].phase \in {"parking", "appending"}
    /\ LET event == hold[w].next
           parks == hold[w].phase = "parking"
           known == event \in Queued \cup records /\ Mistake # "hold does not look at what is there"
           done == [hold[w] EXCEPT !.phase = "passed", !.named = TRUE]
           again == [hold[w] EXCEPT !.phase = IF parks THEN "failed" ELSE "next"]
           seen == IF Mistake = "an append has no condition" THEN key.version ELSE hold[w].seen
       IN  IF ~hold[w].isParked /\ ~parks
           THEN \* It was handed back, which a write has to prove: then its events are sent.
                /\ UNCHANGED kept
                /\ IF ~key.parked \/ Mistake = "a missing key is believed without proof"
                   THEN Set(w, [hold[w] EXCEPT !.phase = "next", !.named = FALSE])
                   ELSE Set(w, again)
           ELSE \/ seen # key.version /\ UNCHANGED kept /\ Set(w, again)
                \/ /\ seen = key.version
                   /\ known /\ UNCHANGED kept /\ Set(w, done)
                \/ /\ ~known
                   /\ Write(seen, IF parks THEN [key EXCEPT !.parked = TRUE] ELSE key, Append(queue, event), records)
                   /\ Set(w, done)
    /\ UNCHANGED <<effects, edited, cured, saved, owner, release, budgets>>

\* The write happened and its answer is lost: it is read again, and the event found.
LoseHold(w) ==
    /\ hold[w].phase \in {"parking", "appending"} /\ lost < MostLost
    /\ hold[w].isParked \/ hold[w].phase = "parking"
    /\ hold[w].next \notin Queued \cup records
    /\ Write(hold[w].seen, [key EXCEPT !.parked = TRUE], Append(queue, hold[w].next), records)
    /\ lost' = lost + 1
    /\ Set(w, [hold[w] EXCEPT !.phase = IF hold[w].phase = "parking" THEN "failed" ELSE "next"])
    /\ UNCHANGED <<effects, edited, cured, saved, owner, release, tenures, crashes, stale, drops, expired>>

\* The event is done: a checkpoint with the key's name, or a settlement. An owner that lost the lease writes nothing. A consumer
\* that lost its session does not handle the next message.
Save(w) ==
    /\ hold[w].phase = "passed"
    /\ IF owner = w
       THEN /\ saved' = [position |-> hold[w].next,
                         named |-> hold[w].named /\ Mistake # "a key is held without its name"]
            /\ Set(w, [hold[w] EXCEPT !.phase = "next", !.next = @ + 1, !.seen = 0, !.isParked = FALSE])
       ELSE /\ Set(w, IF Side = "consumer" THEN Idle
                      ELSE [hold[w] EXCEPT !.phase = "next", !.next = @ + 1, !.seen = 0, !.isParked = FALSE])
            /\ UNCHANGED saved
    /\ UNCHANGED <<kept, effects, edited, cured, owner, release, budgets>>

Crash(w) ==
    /\ hold[w].phase # "idle" /\ crashes < MostCrashes
    /\ crashes' = crashes + 1
    /\ Set(w, Idle)
    /\ owner' = IF owner = w THEN Nobody ELSE owner
    /\ UNCHANGED <<kept, effects, edited, cured, saved, release, tenures, lost, stale, drops, expired>>

(* ------------------------- What operators do ------------------------- *)

EditedBy(r) == IF Edits /\ edited = {} /\ queue # <<>> THEN {Head(queue)} ELSE {}
FirstOf(events) == SubSeq(events, 1, IF MostDue < Len(events) THEN MostDue ELSE Len(events))

\* A release writes its claim, and the other payload, before it sends anything. The newest claim counts.
Claim(r) ==
    /\ release[r].phase = "new" /\ key.parked
    /\ Write(key.version, [key EXCEPT !.claim = r], queue, records)
    /\ edited' = edited \cup EditedBy(r)
    /\ SetRelease(r, [Unborn EXCEPT !.phase = "reading"])
    /\ UNCHANGED <<effects, cured, saved, owner, hold, budgets>>

Takeover(r) == SetRelease(r, [Unborn EXCEPT !.phase = "ended"])

\* It reads the key, and its queue's beginning. What is behind fails at the next write; a queue with a gap is read again.
ReadQueue(r) ==
    /\ release[r].phase = "reading"
    /\ \E state \in Readable :
         /\ Sees(state)
         /\ IF ~state.key.parked \/ (state.key.claim # r /\ Mistake # "a release does not ask for its claim")
            THEN Takeover(r)
            ELSE SetRelease(r, [Unborn EXCEPT !.seen = state.key.version, !.due = FirstOf(state.queue),
                     !.phase = IF state.queue = <<>> THEN "empty"
                               ELSE IF Mistake = "the document is taken off before the effect" THEN "off" ELSE "due"])
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, hold, tenures, crashes, lost, drops, expired>>

\* It sends the events in order, or has them handled. An answer that is lost has it sent again.
SendHeld(r) ==
    /\ release[r].phase = "due"
    /\ LET sent == release[r].sent
           event == release[r].due[sent + 1]
       IN  IF IsRefused(event) /\ event \notin edited
           THEN UNCHANGED effects /\ IF sent = 0 /\ Mistake = "a release that was refused begins again"
                                     THEN SetRelease(r, [Unborn EXCEPT !.phase = "reading"])
                                     ELSE IF sent = 0 THEN Takeover(r)   \* the release stops, and the key stays parked
                                     ELSE SetRelease(r, [release[r] EXCEPT !.phase = "off"])
           ELSE /\ TakesEffect(event)
                /\ IF sent + 1 < Len(release[r].due) THEN SetRelease(r, [release[r] EXCEPT !.sent = @ + 1])
                   ELSE IF Mistake = "the document is taken off before the effect"
                   THEN SetRelease(r, [Unborn EXCEPT !.phase = "reading"])
                   ELSE SetRelease(r, [release[r] EXCEPT !.sent = @ + 1, !.phase = "off"])
    /\ UNCHANGED <<kept, edited, cured, saved, owner, hold, budgets>>

\* Then it takes them off: under its claim, so an older release stops here. An edited event leaves its record.
TakeOff(r) ==
    /\ release[r].phase = "off"
    /\ LET asks == key.claim = r \/ Mistake = "a release does not ask for its claim"
           early == Mistake = "the document is taken off before the effect"
           gone == {release[r].due[n] : n \in 1..(IF early THEN Len(release[r].due) ELSE release[r].sent)}
       IN  IF ~key.parked \/ ~asks THEN Takeover(r) /\ UNCHANGED kept
           ELSE /\ Write(key.version, key, SelectSeq(queue, LAMBDA other : other \notin gone),
                         (records \ gone) \cup (edited \cap gone))
                /\ SetRelease(r, IF early THEN [release[r] EXCEPT !.phase = "due"] ELSE [Unborn EXCEPT !.phase = "reading"])
    /\ UNCHANGED <<effects, edited, cured, saved, owner, hold, budgets>>

\* The queue was seen empty: the deletion of the key's document, if nothing was appended since, hands the key back.
HandBack(r) ==
    /\ release[r].phase = "empty"
    /\ IF release[r].seen = key.version \/ Mistake = "the hand-back has no condition"
       THEN /\ Write(key.version, [key EXCEPT !.parked = FALSE, !.claim = Nobody], <<>>, records)
            /\ Takeover(r)
       ELSE UNCHANGED kept /\ SetRelease(r, [Unborn EXCEPT !.phase = "reading"])
    /\ UNCHANGED <<effects, edited, cured, saved, owner, hold, budgets>>

Kill(r) ==
    /\ release[r].phase \notin {"new", "ended"} /\ crashes < MostCrashes
    /\ crashes' = crashes + 1
    /\ Takeover(r)
    /\ UNCHANGED <<kept, effects, edited, cured, saved, owner, hold, tenures, lost, stale, drops, expired>>

\* A drop leaves a record in the event's place, and ends a release.
Drop(event) ==
    /\ key.parked /\ event \in Queued /\ Cardinality(drops) < MostDrops
    /\ drops' = drops \cup {event}
    /\ Write(key.version, [key EXCEPT !.claim = Nobody], SelectSeq(queue, LAMBDA other : other # event), records \cup {event})
    /\ UNCHANGED <<effects, edited, cured, saved, owner, hold, release, tenures, crashes, lost, stale, expired>>

Cure == ~cured /\ Poison # {} /\ cured' = TRUE
        /\ UNCHANGED <<kept, effects, edited, saved, owner, hold, release, budgets>>

\* A record of the inbox is deleted: only once no copy of its message can come, and never while the parked store has it.
ExpireRecord(event) ==
    /\ event \in inbox /\ expired < MostExpired
    /\ \/ Mistake = "the inbox record expires first"
       \/ event <= saved.position /\ event \notin Queued /\ \A w \in Holders : hold[w].next # event
    /\ inbox' = inbox \ {event} /\ expired' = expired + 1
    /\ UNCHANGED <<kept, outcome, first, edited, cured, saved, owner, hold, release, tenures, crashes, lost, stale, drops>>

Fresh == [parked |-> FALSE, claim |-> Nobody, version |-> 1]
Init ==
    /\ key = Fresh /\ queue = <<>> /\ records = {}
    /\ before = [key |-> Fresh, queue |-> <<>>, records |-> {}]
    /\ outcome = [event \in Events |-> 0] /\ first = <<>> /\ inbox = {}
    /\ edited = {} /\ cured = FALSE
    /\ saved = [position |-> 0, named |-> FALSE] /\ owner = Nobody
    /\ hold = [w \in Holders |-> Idle] /\ release = [r \in Releases |-> Unborn]
    /\ tenures = 0 /\ crashes = 0 /\ lost = 0 /\ stale = 0 /\ drops = {} /\ expired = 0

Step(w) == Send(w) \/ Look(w) \/ Hold(w) \/ Save(w)
Work(r) == ReadQueue(r) \/ SendHeld(r) \/ TakeOff(r) \/ HandBack(r)
Next ==
    \/ \E w \in Holders : Take(w) \/ Step(w) \/ LoseSend(w) \/ LoseHold(w) \/ Crash(w)
    \/ \E r \in Releases : Claim(r) \/ Work(r) \/ Kill(r)
    \/ \E event \in Events : Drop(event) \/ ExpireRecord(event)
    \/ Cure

Spec == Init /\ [][Next]_vars
\* For liveness: a program that can go on does, and the lease, or the session, finds an owner.
Lives == (\A w \in Holders : WF_vars(Step(w)) /\ WF_vars(Take(w))) /\ \A r \in Releases : WF_vars(Work(r))

(* ------------------------------ What holds ------------------------------ *)

IsDone(event) == outcome[event] > 0 \/ event \in Queued \cup records

\* What a position or settlement has passed took effect, is held, or has the record of an operator's decision.
G2_NoLoss == \A event \in 1..saved.position : IsDone(event)

\* No event is first sent before an earlier one, unless that was dropped.
G3_Order ==
    \A n \in DOMAIN first : \A event \in 1..(first[n] - 1) :
        event \in records \/ \E m \in 1..(n - 1) : first[m] = event

\* A message takes effect once.
I1_OneEffect == Side = "consumer" => \A event \in Events : outcome[event] <= 1

\* A consumer's messages take effect in order, and none is settled that neither did nor waits.
I2_InOrder == Side = "consumer" => G3_Order
I3_NoneLost == Side = "consumer" => G2_NoLoss

\* A key is handed back empty: while it is not parked, nothing waits in its queue.
G2_NoGap == ~key.parked => queue = <<>>

\* A queue has each event once, and in order what was never sent: one that a release has sent may be held again, by an owner that
\* met its refusal before.
G3_Queue ==
    \A m \in DOMAIN queue : \A n \in 1..(m - 1) :
        queue[n] # queue[m] /\ (queue[m] < queue[n] => outcome[queue[m]] > 0)

\* What an operator dropped keeps its record.
G2_DecisionStays == drops \subseteq records

\* Each event takes effect, or waits, as long as some owner lives.
G2_Sent == Lives => <>[](\A event \in Events : IsDone(event))

\* A release ends: the key is handed back, or it met a refusal, another release, or its death.
ReleaseEnds == Lives => \A r \in Releases : (release[r].phase # "new") ~> (release[r].phase = "ended")
=============================================================================
