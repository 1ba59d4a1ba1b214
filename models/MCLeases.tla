------------------------------ MODULE MCLeases ------------------------------
EXTENDS Leases, TLC
CONSTANTS w1, w2, net
OneRange == <<"left">>
TwoChanges == <<"left", "right">>
Symmetry == Permutations(Workers \ {net})
\* Versions only have to differ: who still knows the newest counts, and not what the number is.
View == <<[id \in Ids |-> [lease[id] EXCEPT !.version = 0]],
          [w \in Workers |-> IF work[w].id = "none" THEN work[w] ELSE
              [work[w] EXCEPT !.version = IF @ = lease[work[w].id].version THEN 1 ELSE 0,
                              !.request.version = IF @ = lease[work[w].id].version THEN 1 ELSE 0]],
          handled, stray, world, tenures, crashes, lost, asked>>
=============================================================================
