"""
The write side for code without an event loop: Flask, Django, scripts. Each call blocks until its work on a loop is done.

    outbox         the entry point
    unit_of_work   a unit of work of one thread
    background_loop  the event loop in a thread of its own, and calls from others
"""

from cosmos_outbox.blocking.outbox import BlockingOutbox
from cosmos_outbox.blocking.unit_of_work import BlockingDocuments, BlockingRepository, BlockingUnitOfWork

__all__ = ["BlockingDocuments", "BlockingOutbox", "BlockingRepository", "BlockingUnitOfWork"]
