"""`python -m cosmos_outbox_worker`: the command, where its script is not on the path."""

from __future__ import annotations

from cosmos_outbox_worker.cli import main

if __name__ == "__main__":
    main()
