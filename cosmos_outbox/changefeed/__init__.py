"""
A change feed processor: several workers share the ranges of a container and hand every change to a handler.

Theory of operation
-------------------
A container is divided into *ranges* of effective partition keys, one a physical partition. For every range there is
one *lease*: a small document in a lease container that names the range, its owner, and the *continuation* up to which
all changes are done. Leases are written in the format of the .NET SDK v3, so its estimator and KEDA read them.

    bootstrap   create the missing leases, once, under a lock document            (bootstrap.py)
    balancing   every acquire interval: list the leases, decide which to take     (balancing.py, processor.py)
    holdings    the leases that this worker owns                                  (holdings.py)
    supervisor  the life of one owned lease: tenure and pump share one fate       (supervisor.py)
    tenure      all writes of an owned lease: renewal, checkpoint, release        (tenure.py)
    pump        read a page, have it handled, report how far we are; repeat       (pump.py, handling.py)
    reader      the pages of one lease, without what the handler does not want    (reader.py)
    budget      how much of the feed all leases have in memory at once            (budget.py)
    progress    how far a range is, and whether it stands still                   (progress.py)
    position    whether a lease lies ahead of its range, as after a restore       (position.py)
    partitions  which physical partition serves a range; all are asked at once    (partitions.py)
    splits      replace the lease of a range that is gone by leases of the new    (splits.py)
    grace       what is asked to end has so many seconds left to do so            (grace.py)
    watchdog    tells what blocks the event loop                                  (watchdog.py)
    estimator   how many changes wait, for each lease                             (estimator.py)

                 free or expired --acquire--> OWNED --stop, or another worker asks--> drain --> released
                                               |  \\---- renewal fails, or another owner ----> lost: nothing is written
                                               \\------- range gone --> children created --> parent deleted

What holds, and why
-------------------
*At least once.* The continuation is saved after the handler returned, never before. Whoever takes a lease starts at
or before the first change that was not handled.

*One trusted owner.* An owner trusts its lease from when it *sent* the last successful write until shortly before the
lease expires for others; then it stops by itself, even if it cannot reach the store. Expiry is judged on the
service's clock alone (`_ts` of the document against the `Date` of the answer), so wrong clocks of workers do no harm.
Between workers of this library a lease changes hands only by release or expiry: a worker that wants the lease of a
live owner writes its wish into the lease, and the owner drains and releases. A .NET processor knows nothing of wishes
and takes a lease at once; then both may handle the same page once, and order per key still holds.

*Nothing is written after a loss.* Every write carries the etag of the one before. Another owner's write makes ours
fail, we read the lease again, see the other owner, and stop.

*Order.* Changes of one partition key lie in one range and are handled in feed order, page after page.

Failures: a handler that raises gets the same page again, after a back-off, while the lease is kept and renewed. A
store that fails is asked again until trust runs out. A crash leaves the lease to expire. A container that was deleted and
created again is read from the start, with an alarm.
"""

from cosmos_outbox.changefeed.estimator import Lag, LeaseLag, estimate_lag
from cosmos_outbox.changefeed.options import FailureHandler, OnPositionAhead, ProcessorOptions
from cosmos_outbox.changefeed.processor import ChangeFeedProcessor
from cosmos_outbox.changefeed.progress import LeaseStatus
from cosmos_outbox.changefeed.supervisor import CloseReason

__all__ = [
    "ChangeFeedProcessor",
    "CloseReason",
    "FailureHandler",
    "Lag",
    "LeaseLag",
    "LeaseStatus",
    "OnPositionAhead",
    "ProcessorOptions",
    "estimate_lag",
]
