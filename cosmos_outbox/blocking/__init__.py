"""
The write side for code without an event loop: Flask, Django, scripts. Each call blocks until an event loop in another thread has done it.

    outbox             BlockingOutbox, the entry point
    unit_of_work       the unit of work of one thread
    background_loop    an event loop in a thread of its own, and calls to it from other threads
"""

from cosmos_outbox.blocking.outbox import BlockingOutbox
from cosmos_outbox.blocking.unit_of_work import BlockingDocuments, BlockingRepository, BlockingUnitOfWork

__all__ = ["BlockingDocuments", "BlockingOutbox", "BlockingRepository", "BlockingUnitOfWork"]
