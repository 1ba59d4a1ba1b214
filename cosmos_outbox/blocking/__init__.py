"""
The write side for code without an event loop: Flask, Django, scripts. Each call blocks until its work on a loop is done.
"""

from cosmos_outbox.blocking.outbox import BlockingOutbox
from cosmos_outbox.blocking.unit_of_work import BlockingDocuments, BlockingRepository, BlockingUnitOfWork

__all__ = ["BlockingDocuments", "BlockingOutbox", "BlockingRepository", "BlockingUnitOfWork"]
