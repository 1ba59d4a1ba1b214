"""
How long a contract waits for a fact before it says that the adapter hangs; a fact ends the wait at once.
"""

HUNG_SECONDS = 300.0
