------------------------------- MODULE Store -------------------------------
(* What a client of one container of Cosmos DB may see.                     *)
(*                                                                          *)
(* The container is a log of transactional batches; the place of a batch is *)
(* its LSN, which all its documents share. A write is checked against the   *)
(* whole log, so it is never behind. A read sees the log up to some place,  *)
(* and how old that may be is what the consistency of the read says.        *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Absent,             \* what a read returns where there is no document
    Mistake             \* the planted one, or "none"

VARIABLES
    log,                \* the batches that were applied: [key, docs], docs by id
    commitIndex,        \* up to here nothing can be lost any more
    readIndex,          \* up to here every replica has everything
    epoch,              \* grows when the end of the log is lost: a failover
    ranges              \* the ranges of the container: sets of partition keys

storeVars == <<log, commitIndex, readIndex, epoch, ranges>>

Levels == {"strong", "bounded", "session", "prefix", "eventual"}
NoToken == [epoch |-> 0, lsn |-> 0]
Newest(numbers) == CHOOSE n \in numbers : \A m \in numbers : m <= n
Last == Len(log)

(* ------------------------------- Reading ------------------------------- *)

\* The document under an id as the log had it at a place.
DocumentAt(id, key, place) ==
    LET writes == {j \in 1..place : log[j].key = key /\ id \in DOMAIN log[j].docs}
    IN  IF writes = {} THEN Absent ELSE log[Newest(writes)].docs[id]

Document(id, key) == DocumentAt(id, key, Last)

\* The places that a read may see. A token of an epoch that is over has none: the read fails.
Places(level, token) ==
    CASE level = "strong"  -> {commitIndex}
      [] level = "bounded" -> commitIndex..Last
      [] level = "session" -> IF token.epoch \in {0, epoch}
                              THEN (IF Mistake = "a session does not ask for what it saw" THEN readIndex ELSE Newest({token.lsn, readIndex}))..Last
                              ELSE {}
      [] OTHER             -> readIndex..Last

\* What a read of a document may return.
Reads(id, key, level, token) ==
    {DocumentAt(id, key, place) : place \in Places(level, token)}

\* The token of a session that got an answer which speaks of a place.
TokenAt(place) == [epoch |-> epoch, lsn |-> place]

(* ------------------------------- Writing ------------------------------- *)

\* A write is [id, kind, etag, value]: create, replace or delete. The etag is Absent where the write has no condition.
IsRefused(write, key) ==
    LET stored == Document(write.id, key)
    IN  IF write.kind = "create" THEN stored # Absent
        ELSE \/ stored = Absent
             \/ write.etag # Absent /\ stored.etag # write.etag

\* The first write of a batch that is refused; 0 where none is. The service checks them in their order.
FirstRefused(batch) ==
    LET refused == {n \in DOMAIN batch.writes : IsRefused(batch.writes[n], batch.key)}
    IN  IF refused = {} THEN 0 ELSE CHOOSE n \in refused : \A m \in refused : n <= m

Stored(write) ==
    IF write.kind = "delete" THEN Absent
    ELSE [value |-> write.value, etag |-> <<epoch, Last + 1>>]

\* All writes of a batch, or none of them.
Apply(batch) ==
    /\ FirstRefused(batch) = 0
    /\ log' = Append(log, [key |-> batch.key,
           docs |-> [id \in {batch.writes[n].id : n \in DOMAIN batch.writes} |->
               Stored(batch.writes[CHOOSE n \in DOMAIN batch.writes : batch.writes[n].id = id])]])
    /\ UNCHANGED <<commitIndex, readIndex, epoch, ranges>>

(* ----------------------------- Change feed ----------------------------- *)

\* What the feed of a range returns after a position, from a replica that has the log up to a place: of each document its
\* latest version. Documents of one batch share their LSN, and no page cuts them apart.
Changes(range, position, place) ==
    LET Ids(j) == DOMAIN log[j].docs
    IN  UNION {{[lsn |-> j, key |-> log[j].key, id |-> id] : id \in
                   {id \in Ids(j) : /\ log[j].docs[id] # Absent
                                    /\ DocumentAt(id, log[j].key, place) = log[j].docs[id]}}
               : j \in {j \in (position + 1)..place : log[j].key \in range}}

\* A page of it may end at any place that the replica has; its continuation is that place.
Pages(range, position, place) ==
    {[to |-> to, changes |-> {change \in Changes(range, position, place) : change.lsn <= to}]
        : to \in {to \in 0..(IF Mistake = "a page passes what its replica lacks" THEN Last ELSE place) : to > position}}

(* ------------------------- What the service does ------------------------ *)

Replicate ==
    /\ commitIndex' \in commitIndex..Last
    /\ readIndex' \in readIndex..(IF Mistake = "replicas show for good what may be lost" THEN Last ELSE commitIndex')
    /\ UNCHANGED <<log, epoch, ranges>>

\* A failover loses what was not committed. Our guarantees rest on its absence; a lease ahead of its range then halts.
LoseTheEnd ==
    \E from \in (commitIndex + 1)..Last :
        /\ log' = SubSeq(log, 1, from - 1)
        /\ epoch' = epoch + 1
        /\ UNCHANGED <<commitIndex, readIndex, ranges>>

\* A range becomes two; from now on a request that names the old one finds nothing. Positions keep their meaning.
Split ==
    \E range \in ranges : \E part \in SUBSET range :
        /\ part # {} /\ part # range
        /\ ranges' = (ranges \ {range}) \cup (IF Mistake = "a split leaves out a part" THEN {part} ELSE {part, range \ part})
        /\ UNCHANGED <<log, commitIndex, readIndex, epoch>>

StoreInit(keys) ==
    /\ log = <<>> /\ commitIndex = 0 /\ readIndex = 0 /\ epoch = 1
    /\ ranges = {keys}
=============================================================================
