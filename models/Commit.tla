------------------------------- MODULE Commit -------------------------------
(* The judge of a lost answer: units of work commit an entity and an event  *)
(* in one batch, answers are lost, requests arrive late, and each commit    *)
(* ends with a verdict. cosmos_outbox/write/commit.py, decision 5.          *)
EXTENDS Store

CONSTANTS
    Writers,        \* units of work, each of a process of its own
    Creates,        \* whether they create the entity, or change one that is there
    MostLost,       \* answers that are lost, of all
    MostOthers,     \* writes of a program that is not ours: changes of the entity
    MostDeletions,  \* of the entity, by that program
    MostStale       \* reads that are as old as their session allows

VARIABLES
    phase,          \* of each writer
    etag,           \* of the entity, as the writer read it
    token,          \* of the writer's session
    inDoubt,        \* an attempt may have been applied, or may still be
    window,         \* "open": within a minute of the first attempt, a missing event proves that the commit was not applied
    late,           \* requests of earlier attempts that may still arrive
    refused,        \* what the service named: "event", "entity", or "unnamed"
    applied,        \* how often the batch was applied
    lost, others, deletions, stale

vars == <<storeVars, phase, etag, token, inDoubt, window, late, refused, applied, lost, others, deletions, stale>>
budgets == <<lost, others, deletions, stale>>

IsCreated == Creates    \* a trace says it of each run
Key == "key"
Event(w) == <<"event", w>>
Entity == <<"entity", "of all">>

\* Events come first, so that a repeated commit fails at its event, and never at an etag, which proves nothing.
Batch(w) ==
    LET event == [id |-> Event(w), kind |-> "create", etag |-> Absent, value |-> w]
        kind == IF IsCreated THEN "create" ELSE "replace"
        guard == IF Mistake = "a change has no condition" THEN Absent ELSE etag[w]
        entity == [id |-> Entity, kind |-> kind, etag |-> guard, value |-> w]
    IN  [key |-> Key, writes |-> CASE Mistake = "entities come before events" -> <<entity, event>>
                                   [] Mistake = "a batch writes the entity without its event" -> <<entity>>
                                   [] Mistake = "a batch writes the event without its entity" -> <<event>>
                                   [] OTHER -> <<event, entity>>]

AbsenceProves(w) == window[w] = "open" \/ Mistake = "absence proves for ever"

\* A read sees the newest state, or spends the budget of stale reads and sees what its session allows.
ReadsOf(w, id, found) ==
    \E place \in Places("session", token[w]) :
        /\ found = DocumentAt(id, Key, place)
        /\ \/ place = Last /\ UNCHANGED stale
           \/ place # Last /\ stale < MostStale /\ stale' = stale + 1

End(w, verdict) == phase' = [phase EXCEPT ![w] = verdict]
IsWaiting(w) == phase[w] \in {"waiting", "waiting for the last"}
NoAnswer(w) == IF inDoubt[w] THEN "unknown" ELSE "failed"

(* ------------------------------ The writer ------------------------------ *)

Read(w) ==
    /\ phase[w] = "new"
    /\ \E found \in Reads(Entity, Key, "session", token[w]) :
           /\ ReadsOf(w, Entity, found)
           /\ IsCreated \/ found # Absent
           /\ etag' = [etag EXCEPT ![w] = IF IsCreated THEN Absent ELSE found.etag]
    /\ End(w, "ready")
    /\ UNCHANGED <<storeVars, token, inDoubt, window, late, refused, applied, lost, others, deletions>>

\* The first attempt opens the window; it is never opened again.
Send(w) ==
    /\ phase[w] \in {"ready", "paused"}
    /\ window' = [window EXCEPT ![w] = IF @ = "unsent" THEN "open" ELSE @]
    /\ End(w, "waiting")
    /\ UNCHANGED <<storeVars, etag, token, inDoubt, late, refused, applied, budgets>>

\* The service applies the batch, or refuses it, and the writer hears so.
Answer(w) ==
    /\ IsWaiting(w)
    /\ LET first == FirstRefused(Batch(w)) IN
       IF first = 0
       THEN /\ Apply(Batch(w))
            /\ applied' = [applied EXCEPT ![w] = @ + 1]
            /\ token' = [token EXCEPT ![w] = TokenAt(Last + 1)]
            /\ End(w, "written")
            /\ UNCHANGED refused
       ELSE /\ \E named \in {IF Batch(w).writes[first].id = Entity THEN "entity" ELSE "event", "unnamed"} :
                   refused' = [refused EXCEPT ![w] = named]
            /\ token' = IF Mistake = "the session of a refusal is dropped" THEN token
                        ELSE [token EXCEPT ![w] = TokenAt(Last)]
            /\ End(w, "judging")
            /\ UNCHANGED <<storeVars, applied>>
    /\ UNCHANGED <<etag, inDoubt, window, late, budgets>>

\* The answer is lost: the request was executed, never arrives, or is still on its way.
Lose(w) ==
    /\ IsWaiting(w) /\ lost < MostLost
    /\ lost' = lost + 1
    /\ \/ /\ Apply(Batch(w)) /\ applied' = [applied EXCEPT ![w] = @ + 1] /\ UNCHANGED late
       \/ UNCHANGED <<storeVars, applied, late>>
       \/ late' = [late EXCEPT ![w] = @ + 1] /\ UNCHANGED <<storeVars, applied>>
    /\ inDoubt' = [inDoubt EXCEPT ![w] = Mistake # "no answer counts as not written"]
    /\ End(w, "looking")
    /\ UNCHANGED <<etag, token, window, refused, others, deletions, stale>>

\* 429: nothing was applied.
Throttle(w) ==
    /\ IsWaiting(w)
    /\ End(w, IF phase[w] = "waiting" THEN "paused" ELSE NoAnswer(w))
    /\ UNCHANGED <<storeVars, etag, token, inDoubt, window, late, refused, applied, budgets>>

\* After a lost answer the event is looked for; a stored one proves the commit, and a missing one only sends it again.
Look(w) ==
    /\ phase[w] = "looking"
    /\ \E found \in Reads(Event(w), Key, "session", token[w]) :
           /\ ReadsOf(w, Event(w), found)
           /\ End(w, IF found # Absent THEN "written" ELSE "paused")
    /\ UNCHANGED <<storeVars, etag, token, inDoubt, window, late, refused, applied, lost, others, deletions>>

\* Was a refused commit written by an earlier attempt?
Judge(w) ==
    /\ phase[w] = "judging"
    /\ IF refused[w] = "entity"
       THEN /\ End(w, IF inDoubt[w] /\ ~AbsenceProves(w) THEN "unknown" ELSE "refused")
            /\ UNCHANGED stale
       ELSE \/ \E found \in Reads(Event(w), Key, "session", token[w]) :
                  /\ ReadsOf(w, Event(w), found)
                  /\ IF found # Absent THEN End(w, "written")
                     ELSE IF refused[w] = "unnamed" /\ AbsenceProves(w) THEN End(w, "refused")
                     ELSE End(w, "unknown") \/ UNCHANGED phase      \* the time is up, or it is looked for again
            \/ /\ End(w, IF Mistake = "a read without an answer counts as absence" /\ refused[w] = "unnamed" THEN "refused"
                          ELSE "unknown")                           \* no read was answered in time
               /\ UNCHANGED stale
    /\ UNCHANGED <<storeVars, etag, token, inDoubt, window, late, refused, applied, lost, others, deletions>>

\* The time of one call is up, in a pause or during an attempt: no attempt follows one that is throttled.
GiveUp(w) ==
    /\ phase[w] \in {"paused", "waiting"} /\ Mistake # "no deadline ends a commit"
    /\ End(w, IF phase[w] = "waiting" THEN "waiting for the last" ELSE NoAnswer(w))
    /\ UNCHANGED <<storeVars, etag, token, inDoubt, window, late, refused, applied, budgets>>

\* The caller commits the same unit of work again, which looks for the event before it sends anything.
CommitAgain(w) ==
    /\ phase[w] = "unknown"
    /\ inDoubt' = [inDoubt EXCEPT ![w] = TRUE]
    /\ End(w, "looking")
    /\ UNCHANGED <<storeVars, etag, token, window, late, refused, applied, budgets>>

(* ------------------------------ The others ------------------------------ *)

\* A request of an earlier attempt arrives; its sender hears nothing of it. None is on its way for longer than the window.
ArriveLate(w) ==
    /\ late[w] > 0
    /\ late' = [late EXCEPT ![w] = @ - 1]
    /\ IF FirstRefused(Batch(w)) = 0
       THEN Apply(Batch(w)) /\ applied' = [applied EXCEPT ![w] = @ + 1]
       ELSE UNCHANGED <<storeVars, applied>>
    /\ UNCHANGED <<phase, etag, token, inDoubt, window, refused, budgets>>

CloseWindow(w) ==
    /\ window[w] = "open" /\ late[w] = 0
    /\ window' = [window EXCEPT ![w] = "closed"]
    /\ UNCHANGED <<storeVars, phase, etag, token, inDoubt, late, refused, applied, budgets>>

\* The event was sent and deleted, or its time to live is over: never before the window closed.
DeleteEvent(w) ==
    /\ window[w] = "closed" \/ (Mistake = "an event is deleted at once" /\ window[w] = "open")
    /\ Apply([key |-> Key, writes |-> <<[id |-> Event(w), kind |-> "delete", etag |-> Absent, value |-> w]>>])
    /\ UNCHANGED <<phase, etag, token, inDoubt, window, late, refused, applied, budgets>>

\* Another program changes the entity, or deletes it for good.
WriteElsewhere ==
    \E kind \in {"replace", "delete"} :
        /\ IF kind = "replace" THEN others < MostOthers ELSE deletions < MostDeletions
        /\ Apply([key |-> Key, writes |-> <<[id |-> Entity, kind |-> kind, etag |-> Absent, value |-> "another program"]>>])
        /\ IF kind = "replace" THEN others' = others + 1 /\ UNCHANGED deletions
           ELSE deletions' = deletions + 1 /\ UNCHANGED others
        /\ UNCHANGED <<phase, etag, token, inDoubt, window, late, refused, applied, lost, stale>>

\* Replicas catch up when they like: how old a read may be is bounded by its session alone, and by the budget of stale reads.
Init ==
    /\ log = IF IsCreated THEN <<>>
             ELSE <<[key |-> Key, docs |-> [id \in {Entity} |-> [value |-> "before", etag |-> <<1, 1>>]]]>>
    /\ commitIndex = 0 /\ readIndex = 0 /\ epoch = 1 /\ ranges = {{Key}}
    /\ phase = [w \in Writers |-> "new"] /\ etag = [w \in Writers |-> Absent]
    /\ token = [w \in Writers |-> NoToken] /\ inDoubt = [w \in Writers |-> FALSE]
    /\ window = [w \in Writers |-> "unsent"] /\ late = [w \in Writers |-> 0]
    /\ refused = [w \in Writers |-> "nothing"] /\ applied = [w \in Writers |-> 0]
    /\ lost = 0 /\ others = 0 /\ deletions = 0 /\ stale = 0

Act(w) == Read(w) \/ Send(w) \/ Answer(w) \/ Look(w) \/ Judge(w) \/ GiveUp(w)
Next ==
    \/ \E w \in Writers : Act(w) \/ Lose(w) \/ Throttle(w) \/ CommitAgain(w) \/ ArriveLate(w) \/ CloseWindow(w) \/ DeleteEvent(w)
    \/ WriteElsewhere

Ended == {"written", "refused", "failed", "unknown"}
Spec == Init /\ [][Next]_vars /\ \A w \in Writers : WF_vars(Act(w)) /\ WF_vars(GiveUp(w))

(* ------------------------------ What holds ------------------------------ *)

Has(place, id, w) == id \in DOMAIN log[place].docs /\ log[place].docs[id] # Absent /\ log[place].docs[id].value = w

\* A batch has both the entity of a unit of work and its event, or neither, and goes over the version of the entity that was read.
\* An event that was sent is deleted by a batch of its own.
G1_Atomic ==
    \A w \in Writers : \A place \in 1..Last :
        /\ Has(place, Entity, w) <=> Has(place, Event(w), w)
        /\ Has(place, Entity, w) => IsCreated \/ DocumentAt(Entity, Key, place - 1).etag = etag[w]

\* However many attempts arrive, one is applied.
G1_AtMostOnce == \A w \in Writers : applied[w] <= 1

\* What the caller is told is true, then and later.
G1_Verdict ==
    \A w \in Writers :
        /\ phase[w] = "written" => applied[w] = 1
        /\ phase[w] \in {"refused", "failed"} => applied[w] = 0

\* Each commit ends with a verdict.
CommitEnds == \A w \in Writers : (phase[w] # "new") ~> (phase[w] \in Ended)
=============================================================================
