"""
Fleets of workers for tests of the status page: healthy, in trouble, very large, empty, and with texts that try to
inject HTML.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox.parking.keys_by_cause import by_cause
from cosmos_outbox.parking.parked_documents import Failure, ParkedKey
from cosmos_outbox_worker.causes import Cause, cause_of
from cosmos_outbox_worker.heartbeats import Heartbeat, Phase
from cosmos_outbox_worker.recent_errors import RecentError
from cosmos_outbox_worker.shared_health import ParkedSummary
from cosmos_outbox_worker.worker_health import Snapshot
from tests.support.lease_statuses import status

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
PODS = [f"prod-orders-7c9f4d9b6-{name}" for name in ("2xkqp", "9wzlt", "hd4mv", "x8rkc")]


def lag(name: str, owner: str | None, transactions: int = 0, age: float | None = None) -> LeaseLag:
    oldest = None if age is None else timedelta(seconds=age)
    return LeaseLag(lease=f"p..{name}", token=name, owner=owner, transactions=transactions, oldest_age=oldest)


def beat(
    worker: str,
    *causes: Cause,
    ago: float = 4,
    unready: str | None = None,
    error: str | None = None,
) -> Heartbeat:
    return Heartbeat(
        worker=worker,
        every=timedelta(seconds=15),
        phase=Phase.RUNNING,
        unready=() if unready is None else (unready,),
        errors=() if error is None else (error,),
        causes=causes,
        silent_for=timedelta(seconds=ago),
    )


def parked(key: str, error: str, *, held: int = 3) -> ParkedKey:
    failure = Failure(event_id="6f1c2b7e-0c9a-4d65", reason="MessageRejected", error=error, attempts=3)
    return ParkedKey(
        partition_key=key,
        partition=key,
        scope=None,
        epoch="1",
        parked_at="2026-11-21T11:22:00Z",
        failure=failure,
        held=held,
    )


def seen(*keys: ParkedKey) -> ParkedSummary:
    return ParkedSummary(
        count=len(keys),
        keys=keys,
        causes=by_cause(keys),
        events=sum(key.held for key in keys),
        oldest_at=AT - timedelta(minutes=38),
    )


HEALTHY = Snapshot(
    at=AT,
    started_at=AT - timedelta(hours=31),
    instance=PODS[0],
    processor="outbox",
    container="shop/orders",
    topic="order-events",
    phase=Phase.RUNNING,
    mine=(status("0"), status("1"), status("2")),
    lag=Lag(
        leases=(
            *(lag("0", PODS[0], 2, 0.4), lag("1", PODS[0]), lag("2", PODS[0], 1, 1.1)),
            *(lag("3", PODS[1]), lag("4", PODS[1], 4, 0.8), lag("5", PODS[1])),
        )
    ),
    lag_at=AT,
    unseen=timedelta(0),
    event_ttl=timedelta(days=10),
    parked=ParkedSummary(count=0),
    parked_at=AT,
    sent=4_218_377,
    sent_per_second=38.4,
    errors=(),
    others=(beat(PODS[1]), beat(PODS[2], ago=11)),
)

NO_TOPIC = (
    "TopicUnavailable: Topic 'order-events' cannot be sent to: create it if it is missing. Service Bus said: The messaging entity "
    "sb://shop.servicebus.windows.net/order-events could not be found."
)
BUSY = "TooManyRequests: the parked container takes no more requests for now (429)"
REFUSED = "AccessDenied: Forbidden (403): blocked by your firewall"
_KEYS = (
    *(parked(f"order-{number:05}", f"{200_000 + number} bytes are too much") for number in range(374, 377)),
    parked("customer-ada@example.org", "the session id is not valid", held=41),
)
TROUBLED = replace(
    HEALTHY,
    mine=(
        status("0"),
        status("1", stalled=True, idle_seconds=312, failed_attempts=14, error=NO_TOPIC),
        status("2"),
    ),
    lag=Lag(
        leases=(
            *(lag("0", PODS[0], 12, 4), lag("1", PODS[0], 1204, 1290), lag("2", PODS[0], 1, 1.1)),
            *(lag("3", PODS[1]), replace(lag("4", PODS[1], 77, 360), standstill=f"No progress for 355 s, 12 attempts failed: {BUSY}"), lag("5", None, 31, 95)),
        )
    ),
    parked=seen(*_KEYS),
    errors=(
        RecentError(at=AT, event="PublishFailed", text=f"lease=1 attempt=14 error={NO_TOPIC}", times=14),
        RecentError(
            at=AT - timedelta(minutes=38),
            event="KeyParked",
            text="lease=2 partition_key=order-00376 error=MessageRejected: 200376 bytes are too much",
            times=4,
        ),
    ),
    failing=(cause_of(NO_TOPIC, since=AT - timedelta(seconds=312)),),
    sent_per_second=22.9,
    others=(
        beat(PODS[1], cause_of(BUSY, since=AT - timedelta(seconds=355), stops=((PODS[1], "range 4"),), stands=True), error=f"PageFailed lease=4 outcome=halted error={BUSY}"),
        beat(PODS[2], cause_of(REFUSED, since=AT - timedelta(seconds=90), unready=True), unready=REFUSED, error=f"LeasesBalanced error={REFUSED}"),
        beat(PODS[3], ago=190),
    ),
)  # fmt: skip

LARGE = replace(
    HEALTHY,
    mine=(),
    lag=Lag(
        leases=tuple(
            lag(str(number), None if number == 417 else PODS[number % 3], number % 3, 1.0 if number % 3 else None)
            for number in range(1000)
        )
    ),
)  # fmt: skip

EMPTY = replace(HEALTHY, mine=(), lag=Lag(leases=()), parked=None, parked_at=None, others=())

_SCRIPT = (
    "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script></style></table>&amp;"
)
_LONG = "0123456789abcdef" * 24
_HEBREW = "\u202eהזמנה-1234 \u0627\u0644\u0637\u0644\u0628"
HOSTILE = replace(
    TROUBLED,
    instance=_LONG,
    container=f"{_SCRIPT}/{_HEBREW}",
    topic=_LONG,
    processor=_SCRIPT,
    mine=(status("1", stalled=True, idle_seconds=312, failed_attempts=14, error=f"ValueError: {_SCRIPT}{_LONG}"),),
    lag=Lag(leases=(lag("1", _LONG, 10**15, 9e7), lag(_LONG, _HEBREW, 1), lag("3F-9F", _SCRIPT, 2, 900))),
    parked=seen(parked(_SCRIPT, _LONG, held=10**9), parked(_HEBREW, _HEBREW + _SCRIPT), parked(_LONG, _SCRIPT)),
    errors=(RecentError(at=AT, event=_LONG, text=_SCRIPT + _LONG, times=10**9),),
    failing=tuple(Cause(kind="starting", said=text, unready=True) for text in (_SCRIPT, _LONG, _HEBREW)),
    others=(beat(_HEBREW, error=_SCRIPT), beat(_LONG[:64], unready=_LONG, error=_LONG)),
)  # fmt: skip

ALL = {"healthy": HEALTHY, "troubled": TROUBLED, "large": LARGE, "empty": EMPTY, "hostile": HOSTILE}
