"""
`python -m cosmos_outbox.cli`: the command, where its script is not on the path.
"""

from __future__ import annotations

from cosmos_outbox.cli import main

if __name__ == "__main__":
    main()
