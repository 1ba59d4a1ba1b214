"""The protocol as TLA+ modules, and what runs TLC on them: `make model`, README.md."""
