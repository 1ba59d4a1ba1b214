------------------------------ MODULE MCParked ------------------------------
EXTENDS Parked, TLC
CONSTANTS w1, w2, r1, r2
\* Versions only have to differ: who read counts, and not what the number is.
View == <<[key EXCEPT !.version = 0], queue, records, IF stale = MostStale THEN 0 ELSE [before EXCEPT !.key.version = IF @ = key.version THEN 1 ELSE 0],
          effects, edited, cured, saved, owner,
          [w \in Holders |-> [hold[w] EXCEPT !.seen = IF @ = key.version THEN 1 ELSE 0]],
          [r \in Releases |-> [release[r] EXCEPT !.seen = IF @ = key.version THEN 1 ELSE 0]], budgets>>
Symmetry == Permutations(Holders) \cup Permutations(Releases)
=============================================================================
