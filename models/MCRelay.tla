------------------------------ MODULE MCRelay ------------------------------
EXTENDS Relay, TLC
CONSTANTS w1, w2, net
\* Two keys, four events, of which two are of one commit.
E(key, number) == [key |-> key, number |-> number]
FourEvents == << <<E("a", 1)>>, <<E("a", 2), E("a", 3)>>, <<E("b", 1)>> >>
A1 == {E("a", 1)}
A2 == {E("a", 2)}
Nothing == {}
Symmetry == Permutations(Workers \ {net})
=============================================================================
