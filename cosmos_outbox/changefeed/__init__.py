"""
A change feed processor: several workers share the ranges of a container and hand every change to a handler.

Theory of operation
-------------------
A container is divided into *ranges* of effective partition keys, one for each physical partition. For every range there is
one *lease*: a small document in a lease container that names the range, its owner, and the *continuation* up to which
all changes are done. Leases are written in the format of the .NET SDK v3, so its estimator and KEDA read them.

    processor          the worker: prepares, balances every acquire interval, stops
      bootstrap        the leases' names; create the missing ones, once, under a lock document; notice that all are lost
      range_coverage   what no lease covers, and which partition serves a range
      balancing        decide from the listed leases which to take, ask for or hand over, and when to look again
      owned_leases     the leases that this worker owns; the life of each: taken, worked on, then released, split or lost
        owned_lease    all writes of an owned lease: renewal, checkpoint, release; how far the work is
        polling        read a page, have it handled, note how far we are; repeat
          read_ahead   the pages of a lease, within the memory that all leases share
    leases             the lease document and its rules: start, handover, children
    options            every knob

Read these when they happen: splits (the range of a lease is gone: create its children, delete it), lease_ahead (the position lies
ahead of its range, as after a restore). Beside the processor stands lag_estimator: how many changes wait, for each lease.

                 free or expired --acquire--> OWNED --stop, or another worker asks--> drain --> released
                                               |  \\---- renewal fails, or another owner ----> lost: nothing is written
                                               \\------- range gone --> children created --> parent deleted

What holds, and why
-------------------
*At least once.* The continuation is saved after the handler returned, never before. The next owner of a lease starts at
or before the first change that was not handled.

*One trusted owner.* An owner trusts its lease from when it *sent* the last successful write until shortly before the
lease expires for others; then it stops by itself, even if it cannot reach the store. Expiry is judged on the
service's clock alone (`_ts` of the document against the `Date` of the answer), so wrong clocks of workers do no harm.
Between workers of this library a lease changes hands only by release or expiry: a worker that wants the lease of a
live owner writes a handover request into the lease, and the owner drains and releases. A .NET processor ignores requests
and takes a lease at once; then both may handle the same page once, and order per key still holds.

*Nothing is written after a loss.* Every write carries the etag of the one before. Another owner's write makes ours
fail, we read the lease again, see the other owner, and stop.

*Order.* Changes of one partition key lie in one range and are handled in feed order, page after page.

Failures: if the handler raises, it gets the same page again after a back-off, while the lease is kept and renewed. A
request to a failing store is repeated until trust runs out. After a crash the lease expires. A container that was
recreated is read from the start, with an alarm.
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
