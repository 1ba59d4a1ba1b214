"""Run the command line as `python -m cosmos_outbox_worker`, for machines on which the script `cosmos-outbox` is not on the PATH."""

from __future__ import annotations

from cosmos_outbox_worker.cli import main

if __name__ == "__main__":
    main()
