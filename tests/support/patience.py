"""
Patience: how long a test waits for real processes and sockets before it reports that they hang.

No test judges speed: a busy machine takes ten times as long for everything, and that is no failure. A test that waits for a
fact ends as soon as the fact holds. Only a test whose fact never holds waits for the whole time.
"""

from __future__ import annotations

HUNG_SECONDS = 300.0
