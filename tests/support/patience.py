"""
Patience: how long a test waits for what real processes and sockets do, before it says that they hang.

No verdict is one on speed: a busy machine takes ten times as long for everything, and nothing is wrong with it. A test that
waits for a fact ends as soon as that is one, so that this much is only ever waited for nothing.
"""

from __future__ import annotations

HUNG_SECONDS = 300.0
