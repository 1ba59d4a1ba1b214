"""
How long a test waits for real processes and sockets before it reports that they hang.

The time is long, because no test may fail only because the machine is busy and everything takes ten times as long. A
test that waits for a condition ends as soon as the condition holds. Only a test whose condition never holds waits for
the whole time.
"""

from __future__ import annotations

HUNG_SECONDS = 300.0
