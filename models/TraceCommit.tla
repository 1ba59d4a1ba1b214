----------------------------- MODULE TraceCommit -----------------------------
(* A trace of the code is accepted when it is a behaviour of Commit. Each    *)
(* line is one action; the first says who writes, and whether they create    *)
(* the entity. Recorded has many traces; tests/simulation/traced_commits.py  *)
(* writes them.                                                              *)
EXTENDS Commit, Recorded, TLC

VARIABLES run, line
traceVars == <<vars, run, line>>

Trace == Traces[run]
TraceWriters == UNION {{Traces[n][1].writers[m] : m \in DOMAIN Traces[n][1].writers} : n \in DOMAIN Traces}
TraceCreates == Trace[1].creates
Unbounded == 1000000

Line == Trace[line]
Says(action) == line <= Len(Trace) /\ Line.action = action /\ line' = line + 1 /\ UNCHANGED run
Who == Line.actor

Reads_(w) == Says("reads") /\ Read(w)
\* What is in the batch: events, then the entity.
KindOf(write) == IF write.id = Entity THEN "entity" ELSE "event"
Sends(w) == Says("sends") /\ Send(w) /\ Line.writes = [n \in DOMAIN Batch(w).writes |-> KindOf(Batch(w).writes[n])]
Written(w) == Says("written") /\ Answer(w) /\ phase'[w] = "written"
Refused(w) == Says("refused") /\ Answer(w) /\ phase'[w] = "judging" /\ refused'[w] = Line.named
Throttled(w) == Says("throttled") /\ Throttle(w)
Again(w) == Says("again") /\ CommitAgain(w)
Minute(w) == Says("minute") /\ CloseWindow(w)
Deletes(w) == Says("deletes") /\ DeleteEvent(w)
Arrives(w) == Says("arrives") /\ ArriveLate(w) /\ (applied'[w] # applied[w]) = Line.applied
Elsewhere == Says("elsewhere") /\ WriteElsewhere

Lost(w) ==
    /\ Says("lost") /\ Lose(w)
    /\ (applied'[w] # applied[w]) = (Line.how = "applied")
    /\ (late'[w] # late[w]) = (Line.how = "late")

\* The event is read: after a lost answer, or to judge a refusal. What is read after the verdict explains it to the caller.
Looks(w) ==
    /\ Says("looks")
    /\ IF phase[w] = "looking" THEN Look(w) /\ (phase'[w] = "written") = Line.found
       ELSE IF phase[w] = "judging" /\ refused[w] # "entity" THEN Judge(w) /\ (phase'[w] = "written") = Line.found
       ELSE UNCHANGED vars

\* Not in Commit after a lost answer: a read without one. It shows nothing, so the commit is sent again, or the event looked for again.
LookFails(w) ==
    /\ Says("look fails")
    /\ IF phase[w] = "looking"
       THEN End(w, "paused")
            /\ UNCHANGED <<storeVars, etag, token, inDoubt, window, late, refused, applied, lost, others, deletions, stale>>
       ELSE UNCHANGED vars

\* The verdict that the caller hears is the one of the model; it takes a step where nothing is asked of the service for it.
Ends(w) ==
    /\ Says("ends")
    /\ \/ phase[w] = Line.verdict /\ UNCHANGED vars
       \/ Judge(w) /\ phase'[w] = Line.verdict /\ Line.verdict # "written"
       \/ GiveUp(w) /\ phase'[w] = Line.verdict

TraceInit == run \in DOMAIN Traces /\ line = 2 /\ Init
TraceNext ==
    \/ \E w \in Writers : line <= Len(Trace) /\ w = Who /\
        \/ Reads_(w) \/ Sends(w) \/ Written(w) \/ Refused(w) \/ Throttled(w) \/ Again(w) \/ Minute(w) \/ Deletes(w)
        \/ Arrives(w) \/ Lost(w) \/ Looks(w) \/ LookFails(w) \/ Ends(w)
    \/ Elsewhere

\* How far each trace was followed, and whether what holds did: python reads it.
Reached == PrintT(<<"reached", run, line, G1_Atomic /\ G1_AtMostOnce /\ G1_Verdict>>)
=============================================================================
