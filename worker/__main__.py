"""
`python -m worker`: relay the events of a container to a topic, until SIGTERM.
"""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    for _number in (signal.SIGTERM, signal.SIGINT):
        # The imports below take a second. Until the processor runs nothing is owned, so there is nothing to drain.
        signal.signal(_number, lambda *_: sys.exit(0))

from cosmos_outbox.service.main import main

if __name__ == "__main__":
    sys.exit(main())
