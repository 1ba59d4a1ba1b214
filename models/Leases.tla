------------------------------- MODULE Leases -------------------------------
(* Who works on a range, and up to where its changes are done: leases are   *)
(* created, acquired, renewed, expire, are seized as .NET does, handed over *)
(* by request, split, and lost. cosmos_outbox/changefeed.                   *)
(*                                                                          *)
(* Time passes in ticks. A lease counts since when it was written, in whole *)
(* seconds of the service; an owner counts since when it sent that write,   *)
(* on a clock of its own that may run slow within a bound.                  *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Workers, DotNet,    \* DotNet: the processor of another make among them, or none
    Changes,            \* by number: the child that has it after a split
    Expiration,         \* ticks after which a lease that was not written is free
    Trust,              \* ticks for which its owner trusts it, since it sent the write
    MostSlow,           \* ticks that the clock of an owner may miss, between two writes
    MostTenures, MostCrashes, MostLost, MostAsked,
    Splits,             \* whether the range is split, once
    Starts,             \* "there": the leases are there; "now": they are created, and begin with what is committed then
    MostLosses,         \* how often all leases are deleted, with what says that there were some
    Mistake

VARIABLES
    lease,              \* by id: there, owner, version (its etag), position, age, and the worker that asks for it
    gone,               \* the range of the parent is split
    work,               \* by worker: what it owns, knows and has sent
    handled,            \* the changes that some owner has handled
    committed,          \* how many changes there are
    began,              \* where the first leases begin: what came before is not owed
    marker, lock,       \* the documents of a bootstrap: `.info` with the start, `.lock` with its holder and age
    seen,               \* something shows that the processor had leases: a worker's memory, a heartbeat, a note
    stray,              \* a write of one that was not the owner was applied
    tenures, crashes, lost, asked, losses

budgets == <<tenures, crashes, lost, asked, losses>>
world == <<gone, committed, began, marker, lock, seen, losses>>
vars == <<lease, work, handled, stray, world, tenures, crashes, lost, asked>>

Numbers == DOMAIN Changes
Parent == "parent"
Children == {Changes[n] : n \in Numbers}
Ids == {Parent} \cup Children
Nobody == "nobody"
Never == 99

Within(id) == IF id = Parent THEN Numbers ELSE {n \in Numbers : Changes[n] = id}
Least(numbers) == CHOOSE n \in numbers : \A m \in numbers : n <= m
\* The next change of a range behind a position; Never where there is none yet.
After(id, position) ==
    LET later == {n \in Within(id) : n > position /\ n <= committed}
    IN  IF later = {} THEN Never ELSE Least(later)

Absent == [there |-> FALSE, owner |-> Nobody, version |-> 0, position |-> 0, age |-> 0, wanted |-> Nobody]
NoRequest == [kind |-> "none", version |-> 0, position |-> 0, said |-> "none", age |-> 0, slow |-> 0]
Idle == [id |-> "none", version |-> 0, done |-> 0, age |-> 0, slow |-> 0, drain |-> FALSE, ended |-> FALSE, saved |-> 0, request |-> NoRequest, step |-> "none"]

Owns(w, id) == work[w].id = id
IsOurs(w) == w # DotNet
Trusts(w) == work[w].id # "none" /\ work[w].age < Trust
MayWrite(w) == Trusts(w) \/ (w = DotNet /\ work[w].id # "none")
MayAct(w) == MayWrite(w) /\ ~work[w].ended
IsFree(id) == lease[id].owner = Nobody \/ lease[id].age > Expiration
Set(w, with) == work' = [work EXCEPT ![w] = with]
\* The service rounds the time of a write down to a second.
Written(id, with) == \E rounded \in {0, 1} : lease' = [lease EXCEPT ![id] = [with EXCEPT !.version = @ + 1, !.age = rounded]]

(* ------------------------------ Ownership ------------------------------ *)

\* A free lease is taken; a .NET processor takes any, and ours take one of a .NET processor at once.
Take(w, id) ==
    /\ work[w].id = "none" /\ lease[id].there /\ tenures < MostTenures
    /\ \/ IsFree(id) \/ w = DotNet \/ lease[id].owner = DotNet
       \/ Mistake = "a lease that is alive is taken"
    /\ lease[id].owner # w
    /\ Written(id, [lease[id] EXCEPT !.owner = w, !.wanted = Nobody])
    /\ Set(w, [Idle EXCEPT !.id = id, !.version = lease[id].version + 1, !.done = lease[id].position, !.saved = lease[id].position])
    /\ tenures' = tenures + 1
    /\ UNCHANGED <<handled, stray, world, crashes, lost, asked>>

\* A change is handled by an owner that trusts its lease; only then does its position move.
Handle(w) ==
    /\ MayAct(w) /\ ~(gone /\ work[w].id = Parent)
    /\ After(work[w].id, work[w].done) # Never
    /\ LET next == After(work[w].id, work[w].done) IN
       /\ handled' = handled \cup {next}
       /\ Set(w, [work[w] EXCEPT !.done = next])
    /\ UNCHANGED <<lease, stray, world, tenures, crashes, lost, asked>>

\* A renewal, a checkpoint and a release are one write, under the etag of the one before. Trust is looked at right before it is sent.
\* The work has ended before the lease is released.
SendWrite(w) ==
    /\ work[w].request.kind = "none"
    /\ MayWrite(w)
    /\ \E kind \in {"save", "release"} :
         /\ kind = "release" => work[w].drain
         /\ work[w].ended => kind = "release"
         /\ Set(w, [work[w] EXCEPT !.ended = (kind = "release"), !.request = [kind |-> kind, version |-> work[w].version, age |-> 0, slow |-> 0, said |-> "sent",
                position |-> IF Mistake = "the position is saved before the work" THEN
                                 (IF After(work[w].id, work[w].done) = Never THEN work[w].done ELSE After(work[w].id, work[w].done))
                             ELSE work[w].done]])
    /\ UNCHANGED <<lease, handled, stray, world, tenures, crashes, lost, asked>>

\* The request reaches the service: at once, or long after its sender was frozen.
Serve(w) ==
    /\ work[w].request.said = "sent"
    /\ LET request == work[w].request
           id == work[w].id
       IN  IF lease[id].there /\ (lease[id].version = request.version \/ Mistake = "a lease is written without its etag")
           THEN /\ Written(id, [lease[id] EXCEPT !.position = request.position,
                                                 !.owner = IF request.kind = "release" THEN Nobody ELSE w])
                /\ stray' = (stray \/ lease[id].owner # w)
                /\ Set(w, [work[w] EXCEPT !.request.said = "written", !.request.version = lease[id].version + 1,
                                             !.saved = request.position])
           ELSE Set(w, [work[w] EXCEPT !.request.said = "refused"]) /\ UNCHANGED <<lease, stray>>
    /\ UNCHANGED <<handled, world, tenures, crashes, lost, asked>>

\* The answer arrives. After a refusal the lease is read: another owner is a loss, a request of another worker or an answer that was
\* lost is none.
Hear(w) ==
    /\ work[w].request.said \in {"written", "refused"}
    /\ LET request == work[w].request
           found == lease[work[w].id]
           goesOn == [work[w] EXCEPT !.request = NoRequest, !.drain = @ \/ found.wanted # Nobody]
           since == IF Mistake = "trust is counted from the answer" THEN 0 ELSE request.age
       IN  IF ~found.there THEN Set(w, Idle)
           ELSE IF request.said = "written" /\ request.kind = "release" THEN Set(w, Idle)
           ELSE IF request.said = "refused" /\ found.owner # w /\ Mistake # "a lease that another owner has is written on" THEN Set(w, Idle)
           ELSE IF request.said = "written" THEN Set(w, [goesOn EXCEPT !.version = request.version, !.age = since, !.slow = request.slow])
           ELSE Set(w, [goesOn EXCEPT !.version = found.version])
    /\ UNCHANGED <<lease, handled, stray, world, tenures, crashes, lost, asked>>

\* The answer is lost; the owner tries again, and meets what it wrote.
LoseAnswer(w) ==
    /\ work[w].request.said = "written" /\ lost < MostLost
    /\ lost' = lost + 1
    /\ Set(w, [work[w] EXCEPT !.request = NoRequest])
    /\ UNCHANGED <<lease, handled, stray, world, tenures, crashes, asked>>

\* A worker asks for the lease of a live owner, which drains and releases it. The request is a write, and delays its expiry.
Ask(w, id) ==
    /\ IsOurs(w) /\ asked < MostAsked /\ lease[id].there /\ lease[id].owner \notin {Nobody, w, DotNet}
    /\ asked' = asked + 1
    /\ Written(id, [lease[id] EXCEPT !.wanted = w])
    /\ UNCHANGED <<work, handled, stray, world, tenures, crashes, lost>>

\* Trust ran out: the owner stops by itself, and writes nothing.
Stop(w) ==
    /\ IsOurs(w) /\ work[w].id # "none" /\ ~Trusts(w) /\ work[w].request.said # "sent"
    /\ Set(w, Idle)
    /\ UNCHANGED <<lease, handled, stray, world, tenures, crashes, lost, asked>>

Crash(w) ==
    /\ work[w] # Idle /\ crashes < MostCrashes
    /\ crashes' = crashes + 1
    /\ Set(w, Idle)
    /\ UNCHANGED <<lease, handled, stray, world, tenures, lost, asked>>

(* -------------------------------- A split ------------------------------- *)

SplitRange ==
    /\ Splits /\ ~gone /\ gone' = TRUE
    /\ UNCHANGED <<lease, work, handled, stray, committed, began, marker, lock, seen, budgets>>

\* The owner of the parent saves, creates each child that is missing where the work was saved, then deletes the parent.
CreateChild(w, child) ==
    /\ gone /\ Owns(w, Parent) /\ MayAct(w) /\ work[w].request.kind = "none" /\ child \in Children
    /\ ~lease[child].there
    /\ work[w].saved = work[w].done
    /\ lease[Parent].there \/ Mistake = "the parent goes before its children are there"
    /\ Mistake = "the parent goes before its children are there" => ~lease[Parent].there
    /\ lease' = [lease EXCEPT ![child] = [Absent EXCEPT !.there = TRUE, !.version = lease[child].version + 1, !.position = work[w].saved]]
    /\ UNCHANGED <<work, handled, stray, world, tenures, crashes, lost, asked>>

DeleteParent(w) ==
    /\ gone /\ Owns(w, Parent) /\ MayAct(w) /\ work[w].request.kind = "none"
    /\ lease[Parent].there /\ lease[Parent].version = work[w].version
    /\ \/ \A child \in Children : lease[child].there
       \/ Mistake = "the parent goes before its children are there"
       \/ Mistake = "the parent goes although a child is missing" /\ \E child \in Children : lease[child].there
    /\ lease' = [lease EXCEPT ![Parent] = [Absent EXCEPT !.version = lease[Parent].version + 1]]
    /\ IF Mistake = "the parent goes before its children are there" THEN UNCHANGED work ELSE Set(w, Idle)
    /\ UNCHANGED <<handled, stray, world, tenures, crashes, lost, asked>>

(* ------------------------------ A bootstrap ----------------------------- *)

NoLease == \A id \in Ids : ~lease[id].there

\* The one that creates the lock creates the leases; a lock that a dead worker left is broken.
TakeLock(w) ==
    /\ IsOurs(w) /\ marker = Never /\ work[w].step = "none" /\ work[w].id = "none"
    /\ lock.holder = Nobody \/ lock.age > Expiration
    /\ lock' = [holder |-> w, age |-> 0]
    /\ Set(w, [work[w] EXCEPT !.step = "creating"])
    /\ UNCHANGED <<lease, handled, stray, gone, committed, began, marker, seen, budgets>>

\* They begin at what is committed now; or at the beginning, where something shows that there were leases before.
CreateFirst(w) ==
    /\ work[w].step = "creating" /\ NoLease
    /\ LET start == IF seen /\ Mistake # "a lost set of leases begins now" THEN 0 ELSE committed
           first == IF gone THEN Children ELSE {Parent}
       IN  /\ lease' = [id \in Ids |-> IF id \in first THEN [Absent EXCEPT !.there = TRUE, !.version = lease[id].version + 1, !.position = start] ELSE lease[id]]
           /\ began' = IF began = Never THEN start ELSE began
    /\ Set(w, [work[w] EXCEPT !.step = "marking"])
    /\ UNCHANGED <<handled, stray, gone, committed, marker, lock, seen, budgets>>

Mark(w) ==
    /\ work[w].step \in {"creating", "marking"} /\ ~NoLease
    /\ marker' = IF marker = Never THEN began ELSE marker
    /\ seen' = TRUE
    /\ lock' = IF lock.holder = w THEN [holder |-> Nobody, age |-> 0] ELSE lock
    /\ Set(w, [work[w] EXCEPT !.step = "none"])
    /\ UNCHANGED <<lease, handled, stray, gone, committed, began, budgets>>

\* An operator, or a restore, takes all of it.
LoseLeases ==
    /\ losses < MostLosses /\ seen
    /\ losses' = losses + 1
    /\ lease' = [id \in Ids |-> [Absent EXCEPT !.version = lease[id].version + 1]] /\ marker' = Never
    /\ UNCHANGED <<work, handled, stray, gone, committed, began, lock, seen, tenures, crashes, lost, asked>>

(* -------------------------------- The rest ------------------------------ *)

Commit ==
    /\ committed < Cardinality(Numbers) /\ committed' = committed + 1
    /\ UNCHANGED <<lease, work, handled, stray, gone, began, marker, lock, seen, budgets>>

Min(one, other) == IF one < other THEN one ELSE other

\* A clock that misses a tick is slow; how many it misses between two writes is bounded.
Tick ==
    /\ \E late \in SUBSET {w \in Workers : work[w].id # "none" /\ work[w].slow < MostSlow} :
         work' = [w \in Workers |->
             LET aged == [work[w] EXCEPT !.age = IF w \in late \/ work[w].id = "none" THEN @ ELSE Min(@ + 1, Expiration + 1),
                                         !.slow = IF w \in late THEN @ + 1 ELSE @]
             IN  IF work[w].request.kind = "none" THEN aged
                 ELSE [aged EXCEPT !.request.age = IF w \in late THEN @ ELSE Min(@ + 1, Expiration + 1),
                                   !.request.slow = IF w \in late THEN @ + 1 ELSE @]]
    /\ lease' = [id \in Ids |-> IF lease[id].owner = Nobody THEN lease[id] ELSE [lease[id] EXCEPT !.age = Min(@ + 1, Expiration + 1)]]
    /\ lock' = IF lock.holder = Nobody THEN lock ELSE [lock EXCEPT !.age = Min(@ + 1, Expiration + 1)]
    /\ UNCHANGED <<handled, stray, gone, committed, began, marker, seen, budgets>>

Init ==
    /\ lease = [id \in Ids |-> IF id = Parent /\ Starts = "there" THEN [Absent EXCEPT !.there = TRUE, !.version = 1] ELSE Absent]
    /\ gone = FALSE /\ handled = {} /\ stray = FALSE
    /\ committed = IF Starts = "there" THEN Cardinality(Numbers) ELSE 0
    /\ began = IF Starts = "there" THEN 0 ELSE Never
    /\ marker = IF Starts = "there" THEN 0 ELSE Never
    /\ seen = (Starts = "there") /\ lock = [holder |-> Nobody, age |-> 0]
    /\ work = [w \in Workers |-> Idle]
    /\ tenures = 0 /\ crashes = 0 /\ lost = 0 /\ asked = 0 /\ losses = 0

Step(w) ==
    \/ Handle(w) \/ SendWrite(w) \/ Serve(w) \/ Hear(w) \/ Stop(w) \/ DeleteParent(w) \/ TakeLock(w) \/ CreateFirst(w) \/ Mark(w)
    \/ \E id \in Ids : Take(w, id) \/ CreateChild(w, id)

Next ==
    \/ \E w \in Workers : Step(w) \/ LoseAnswer(w) \/ Crash(w) \/ \E id \in Ids : Ask(w, id)
    \/ SplitRange \/ LoseLeases \/ Commit \/ Tick

Spec == Init /\ [][Next]_vars

(* ------------------------------ What holds ------------------------------ *)

\* Of our workers at most one trusts a lease, and none trusts one that another of ours owns; unless an operator deleted the leases.
G5_OneTrustedOwner ==
    losses = 0 => \A w \in Workers : IsOurs(w) /\ Trusts(w) /\ ~work[w].ended /\ lease[work[w].id].there /\ lease[work[w].id].owner # DotNet
        => lease[work[w].id].owner \in {w, Nobody}

\* Whatever is written to an owned lease, its owner wrote; a late write of another is refused.
G5_NoWriteAfterLoss == ~stray

\* What a position has passed was handled.
G5_NoCheckpointAhead ==
    \A id \in Ids : lease[id].there =>
        \A n \in Within(id) : (n > began /\ n <= lease[id].position) => n \in handled

\* Each change that is not handled yet lies ahead of a lease that covers it, unless all leases were lost.
G2_Covered ==
    (marker # Never /\ losses = 0) => \A n \in Numbers :
        (n > began /\ n \notin handled) => \E id \in Ids : lease[id].there /\ n \in Within(id) /\ n > lease[id].position
=============================================================================
