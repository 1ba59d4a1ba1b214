"""TLA+ models of the protocol, and the program that runs the model checker TLC on them: see README.md."""
