"""
A change feed processor: several workers share the ranges of a container and hand every change to a handler.

Theory of operation
-------------------
A container is divided into *ranges* of effective partition keys, one for each physical partition. For every range there
is one *lease*: a small document in a lease container that names the range, its owner, and the *continuation* up to
which all changes were handled. Leases are written in the format of the .NET SDK v3, so the SDK's lag estimator and the
autoscaler KEDA can read them.

    processor          the worker: prepares the leases, balances them at every acquire interval, and stops
      bootstrap        creates the missing leases, once, under a lock document; notices when all leases were lost
      range_coverage   finds the ranges that no lease covers, and the physical partition that serves a range
      balancing        decides from the listed leases which to take, ask for or hand over, and when to list them again
      owned_leases     the leases that this worker owns, from their acquisition until they are released, split or lost
        owned_lease    all writes of an owned lease (renewal, checkpoint, release), and the progress of the work on it
        polling        reads a page, calls the handler with it, notes the new position, and repeats
          read_ahead   reads the pages of a lease, within the memory that all leases share
    leases             the lease document and its rules: start, handover, children
    options            all options of the processor

Two modules are for rare events. `splits`: the range of a lease is gone, so its children are created and the lease is
deleted. `lease_ahead`: the position of a lease lies beyond the newest change of its range, as after a restore. Beside
the processor stands `lag_estimator`, which counts for each lease how many transactions wait.

                 free or expired --acquire--> OWNED --stop, or another worker asks--> drain --> released
                                               |  \\---- renewal fails, or another owner ----> lost: nothing is written
                                               \\------- range gone --> children created --> parent deleted

What the processor guarantees, and why
--------------------------------------
*At least once.* The continuation is saved after the handler returned, never before. So the next owner of a lease starts
at or before the first change that was not handled.

*One trusted owner.* An owner trusts its lease from the moment at which it *sent* the last successful write until
shortly before the lease expires for other workers. Then the owner stops by itself, even if it cannot reach the lease
container. Only the service's clock decides whether a lease has expired: `_ts` of the document is compared with the
`Date` header of the answer. So wrong clocks of workers do no harm. Between workers of this library a lease changes
hands only by release or expiry: a worker that wants the lease of a live owner writes a handover request into the lease,
and the owner drains and releases it. A .NET processor ignores such requests and takes a lease at once. Then the
same page may be handled twice, once by each processor, and the order within each partition key still holds.

*Nothing is written after a loss.* Every write of a lease carries the etag of the write before. When another owner has
written the lease, the next write of the old owner fails. The old owner reads the lease again, sees the other owner, and
stops.

*Order.* All changes of one partition key lie in one range. They are handled in the order of the feed, page after page.

Failures: if the handler raises, the page is read and handed to it again after a back-off, while the worker keeps
renewing the lease. A request to a lease container that fails is repeated until the owner's trust in its lease runs out.
After a crash of a worker its leases expire. A container that was deleted and created again is read from the start, and
an alarm is raised.
"""

from cosmos_outbox.changefeed.lag_estimator import Lag, LeaseLag, estimate_lag
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.owned_leases import CloseReason, LeaseStatus
from cosmos_outbox.changefeed.processor import ChangeFeedProcessor

__all__ = [
    "ChangeFeedProcessor",
    "CloseReason",
    "Lag",
    "LeaseLag",
    "LeaseStatus",
    "ProcessorOptions",
    "estimate_lag",
]
