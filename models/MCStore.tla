------------------------------ MODULE MCStore ------------------------------
(* Clients that write and read at every consistency, and what they may see: *)
(* at least what AnomaliesCosmosDB of the published specification shows.    *)
(* Each `Never…` is broken on purpose: its counterexample is the anomaly.   *)
EXTENDS Store, TLC

CONSTANTS Keys, Values, MostBatches, MostEpochs, MostSeen

Symmetry == Permutations(Keys) \cup Permutations(Values)

VARIABLES
    seen,       \* what reads have returned: [level, key, value]
    told,       \* what the writer of each place of the log was told: "nothing", "written", "failed"
    paged,      \* what pages of the feed have brought, and up to which position a reader has read
    position

vars == <<storeVars, seen, told, paged, position>>
clientVars == <<seen, told, paged, position>>

Value(document) == IF document = Absent THEN Absent ELSE document.value

Write(key, value) ==
    LET unconditional == [id |-> "doc", kind |-> "replace", etag |-> Absent, value |-> value]
        creation == [id |-> "doc", kind |-> "create", etag |-> Absent, value |-> value]
        write == IF Document("doc", key) = Absent THEN creation ELSE unconditional
    IN  /\ Last < MostBatches
        /\ Apply([key |-> key, writes |-> <<write>>])
        /\ told' = Append(told, "nothing")
        /\ UNCHANGED <<seen, paged, position>>

\* An answer says what became of the batch, says that it failed (it may be applied all the same), or is lost.
Answer ==
    \E place \in DOMAIN told :
        /\ told[place] = "nothing"
        /\ \E said \in {"written", "failed"} : told' = [told EXCEPT ![place] = said]
        /\ UNCHANGED <<storeVars, seen, paged, position>>

Read(level, key) ==
    /\ \E found \in Reads("doc", key, level, NoToken) :
           seen' = seen \cup {[level |-> level, key |-> key, value |-> Value(found)]}
    /\ Cardinality(seen') <= MostSeen
    /\ UNCHANGED <<storeVars, told, paged, position>>

ReadPage ==
    \E range \in ranges : \E place \in readIndex..Last : \E page \in Pages(range, position, place) :
        /\ range = Keys /\ place > position
        /\ paged' = paged \cup {<<change.lsn, change.key>> : change \in page.changes}
        /\ position' = page.to
        /\ UNCHANGED <<storeVars, seen, told>>

Failover ==
    /\ epoch < MostEpochs
    /\ LoseTheEnd
    /\ told' = SubSeq(told, 1, Len(log'))
    /\ UNCHANGED <<seen, paged, position>>

Init == StoreInit(Keys) /\ seen = {} /\ told = <<>> /\ paged = {} /\ position = 0

Next ==
    \/ \E key \in Keys, value \in Values : Write(key, value)
    \/ Answer
    \/ \E level \in Levels, key \in Keys : Read(level, key)
    \/ ReadPage
    \/ Failover
    \/ (Replicate \/ Split) /\ UNCHANGED clientVars

Spec == Init /\ [][Next]_vars

(* ------------------------------ What holds ------------------------------ *)

Ordered == readIndex <= commitIndex /\ commitIndex <= Last
Partition == UNION ranges = Keys /\ \A one, other \in ranges : one = other \/ one \cap other = {}

\* Without a failover, a reader of the feed misses no document that nothing has overwritten.
FeedIsComplete ==
    epoch = 1 => \A j \in 1..position :
        (j <= Last /\ Document("doc", log[j].key) = log[j].docs["doc"]) => <<j, log[j].key>> \in paged

\* What every session sees is at least as new as its token.
SessionIsFresh ==
    \A j \in 1..Last, key \in Keys : \A found \in Reads("doc", key, "session", TokenAt(j)) :
        found \in {DocumentAt("doc", key, place) : place \in j..Last}

(* ------------- The published anomalies, each to be reached ------------- *)

Saw(level, key, value) == [level |-> level, key |-> key, value |-> value] \in seen
May(level, key) == {Value(found) : found \in Reads("doc", key, level, NoToken)}
MayAfter(place, key) == {Value(found) : found \in Reads("doc", key, "session", TokenAt(place))}
Wrote(place, key, value) == Last >= place /\ log[place].key = key /\ log[place].docs["doc"].value = value

\* StrongConsistencyDirtyReads: a read has seen what a failover then took, and a strong read never saw.
NeverDirtyReads ==
    ~(\E key \in Keys, value \in Values :
        /\ Saw("eventual", key, value) /\ Saw("strong", key, Absent)
        /\ epoch = 2 /\ log = <<>> /\ May("eventual", key) = {Absent})

\* BoundedStalenessAllowsDirtyReads
NeverBoundedDirtyRead ==
    ~(\E key \in Keys, value \in Values : commitIndex = 0 /\ Wrote(1, key, value) /\ May("bounded", key) = {Absent, value})

\* ReadNonEquivalencies: the levels may see different things at one time.
NeverDifferentLevels ==
    ~(\E key \in Keys, one, two \in Values :
        /\ one # two /\ Wrote(1, key, one) /\ Wrote(2, key, two) /\ commitIndex = 1 /\ told[1] = "written"
        /\ May("strong", key) = {one} /\ May("bounded", key) = {one, two} /\ MayAfter(2, key) = {two}
        /\ May("prefix", key) = {Absent, one, two} /\ May("eventual", key) = {Absent, one, two})

\* DurableDirtyRead: a write that was said to have failed is there, and stays.
NeverDurableFailure ==
    ~(\E key \in Keys, value \in Values :
        Wrote(1, key, value) /\ told[1] = "failed" /\ commitIndex = 1 /\ May("strong", key) = {value})

\* BoundedStalenessAtStrongConsistencyDoesNotEnforceBounds: nothing limits how old a bounded read is here.
NeverUnboundedStaleness ==
    ~(\E key \in Keys : Cardinality(May("bounded", key)) = 1 + MostBatches)

\* PastedFromTrace
NeverStaleBesideNew ==
    ~(\E key \in Keys, value \in Values : May("bounded", key) = {Absent, value} /\ readIndex = 0)

\* show521677: who was told of a write by the writer reads with a session of its own, and finds nothing.
NeverPublishedOutage ==
    ~(\E key \in Keys, value \in Values : Wrote(1, key, value) /\ told[1] = "written" /\ Saw("session", key, Absent))
=============================================================================
