"""
`python -m worker`: relay the events of a container to a topic until SIGTERM.
"""

from __future__ import annotations

import gc
import signal
import sys

if __name__ == "__main__":
    for _number in (signal.SIGTERM, signal.SIGINT):
        # Before the slow imports below: until the processor runs, the worker owns nothing that it would have to drain.
        signal.signal(_number, lambda *_: sys.exit(0))
    gc.disable()  # modules stay, and to look for garbage while they are loaded is a quarter of the start

from cosmos_outbox.service.main import main

if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
