"""
The figures of the benchmarks: what each measures, and its bound (the goal). Some figures are ratios, which `benchmarks.all --guard`
compares with the committed figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """
    One figure that a benchmark prints, and its bound. A figure without a bound is only shown for comparison with another figure.

    says: what the figure measures. Each text is a row in a table of docs/reference/figures.md, and has to be clear without the other rows.
    """

    benchmark: str
    key: str
    says: str
    at_most: float | None = None
    at_least: float | None = None
    ratio: bool = True  # False for an absolute figure; only ratios can be compared between machines
    why: str = ""  # the reason that a profiler showed, printed if the figure misses its bound

    def of(self, figures: Mapping[str, Mapping[str, Any]]) -> float | None:
        """Find this figure in the results of all benchmarks. Return None if it was not measured."""
        value = figures.get(self.benchmark, {}).get(self.key)
        return float(value) if isinstance(value, int | float) else None

    def is_met_by(self, value: float) -> bool:
        """Say whether a figure is within the bound."""
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is None or value >= self.at_least

    def worsened(self, before: float, now: float) -> float:
        """Return by which fraction a figure became worse. This is negative if it became better, and 0 if the figure has no bound."""
        change = now / before - 1 if before else 0.0
        if self.at_most is not None:
            return change
        return 0.0 if self.at_least is None else -change

    @property
    def bound(self) -> str:
        """Return the bound as a text, such as `<= 1.5`."""
        if self.at_most is not None:
            return f"<= {self.at_most}"
        return "none" if self.at_least is None else f">= {self.at_least}"


BENCHMARKS = (
    "commit",
    "relay",
    "latency",
    "changefeed",
    "processor",
    "consume",
    "growth",
    "priority",
    "emulators",
)

_EFFECTS = {
    "sdk": (
        "The SDK sleeps 450 ms while it opens a session's receiver and up to a second while it closes one "
        "([reports](../explanation/sdk-reports.md)). A waiting receiver notices its session up to 50 ms late. At 100 events per second, "
        "consumer and commits need more than a core, so a backlog grows."
    ),
    "lean": (
        "At 100 events per second, consumer and commits take 70 % of a core, the worker and the emulators 80 %. So they often wait for "
        "each other."
    ),
}

_POLL = "A poll takes 0.4 to 0.5 ms, of which 0.3 are a bare GET of aiohttp. The SDK's renewals of a lease take 0.1 ms per second."

_READ = (
    "With a bare SDK loop, which takes 87 % of our processor's CPU time, these would be 5.1, 8.5 and 5.1. The other 13 % call the handler "
    "and keep positions."
)
_TOPIC = (
    "By a trace at 50 events per second, commit and pause take 6 of 13 ms, the read of the feed 4 and the send 3. Some changes come just "
    "after a poll and wait for two pauses. At p99 a bare loop takes 27 ms, at 500 events per second 37 to 55."
)
_RELAYED = (
    "By samples, encoding messages takes 17 % of the relay's CPU time, making them from documents 23 %, the SDK's read of the feed 16 %, "
    "and its send 13 %."
)
_RECEIVED = "from an event's commit to receipt at"
_BUSY = (
    "In long sessions a core handles 350 (SDK) or 510 (lean) messages per second. Here it also sends 500, so a backlog grows. At 50 per "
    "second the median is 7 to 8 ms."
)
_LONG_SESSIONS = (
    "The unit of work, the record of the message and their commit add 0.5 ms to the loop's 2.2, tasks and time limits 0.3, and reading "
    "several messages at once saves 0.3 (samples; [decision 33](../decisions/0033-what-a-message-of-a-long-session-costs.md)). That "
    "explains 1.23, the lowest run; the rest is unexplained."
)
_SHORT = {
    "sdk": (
        "A bare SDK loop takes 8.6 ms. By samples, half of the time is the opening and closing of receivers, each with a "
        "connection of its own. So a core handles 110 messages per second; 400 sessions end before enough receivers are open."
    ),
    "lean": (
        "By samples, the handler and its commit take 1.5 ms, of which 1.0 is the SDK's batch, and the session 0.5. "
        "So a core handles 400 messages per second."
    ),
}
_RECEIVERS = (("sdk", "the SDK's receiver"), ("lean", "our lean receiver"))


def _percentiles(
    benchmark: str, key: str, says: str, most: tuple[float, float], *, why: str = ""
) -> Iterator[Goal]:
    """Yield the goals of a median and of a 99th percentile, in ms. `key` is the key of the median, with "p50" in it."""
    keys, texts = (key, key.replace("p50", "p99")), (f"median ms {says}", f"p99 ms {says}")
    for one, text, at_most in zip(keys, texts, most, strict=True):
        yield Goal(benchmark=benchmark, key=one, says=text, at_most=at_most, ratio=False, why=why)


GOALS = (
    Goal(
        benchmark="commit",
        key="commit_overhead",
        says="CPU time of a commit: our library ÷ the same batch with the bare SDK",
        at_most=1.1,
    ),
    Goal(
        benchmark="commit",
        key="commit_overhead_our_client",
        says="CPU time of a commit: our library ÷ the same batch with the SDK on our `open_cosmos_client`",
        at_most=1.25,
        why=(
            "By callgrind, the SDK takes 2.2 of 3.0 million instructions. Of the rest, 35 % make and check the "
            "documents, 15 % find values that would change, 12 % make the two "
            "events, 7 % are the time limit, and 7 % look for unsaved changes."
        ),
    ),
    Goal(
        benchmark="commit",
        key="concurrent_ratio",
        says="commits/s of 64 tasks: our library ÷ the same batches with the bare SDK",
        at_least=0.9,
    ),
    Goal(
        benchmark="commit",
        key="concurrent_ratio_our_client",
        says="commits/s of 64 tasks: our library ÷ the same batches with the SDK on our `open_cosmos_client`",
        at_least=0.9,
        why="One process uses one core, and our commit takes more CPU than a bare batch.",
    ),
    Goal(
        benchmark="relay",
        key="ceiling_ratio",
        says="messages sent per second: our relay ÷ bare loop over the SDKs",
        at_least=3.0,
        why=_RELAYED,
    ),
    Goal(
        benchmark="relay",
        key="encoder_ratio",
        says="CPU time of the relay per event: with our message encoder ÷ with the SDK's encoder",
        at_most=0.4,
    ),
    Goal(
        benchmark="relay",
        key="cpu_ms_per_event",
        says="CPU ms of the relay per event, with pages of 1,000 events and batches of 1 MB",
        at_most=0.055,
        ratio=False,
        why=_RELAYED,
    ),
    Goal(
        benchmark="relay",
        key="cpu_ms_per_event_page100",
        says="CPU ms of the relay per event, with pages of 100 events and batches of 256 KB",
        at_most=0.09,
        ratio=False,
        why=_RELAYED,
    ),
    *(
        Goal(
            benchmark="latency",
            key=f"p50_ratio_{rate}",
            says=f"median time {_RECEIVED} {rate} events/s: our relay ÷ bare SDK loop",
            at_most=1.25,
            why="Beyond the loop, the worker orders events by key and saves its position.",
        )
        for rate in (50, 500)
    ),
    *_percentiles("latency", "p50_ms_50", f"{_RECEIVED} 50 events/s", (15, 30), why=_TOPIC),
    *_percentiles("latency", "p50_ms_500", f"{_RECEIVED} 500 events/s", (18, 40), why=_TOPIC),
    *(
        goal
        for rate in (1, 5, 20)
        for goal in (
            *_percentiles(
                "latency",
                f"seldom_p50_ms_{rate}",
                f"{_RECEIVED} {rate} events/s in four ranges",
                (60, 150),
                why="A range is polled at least every 75 ms for 7.5 s after an event. Commit and send take the rest.",
            ),
            Goal(
                benchmark="latency",
                key=f"seldom_reads_{rate}",
                says=f"the relay's reads per second of each of four ranges at {rate} events/s",
                at_most=25,
                ratio=False,
            ),
        )
    ),
    Goal(
        benchmark="changefeed",
        key="feed_ratio",
        says="documents/s read from the change feed: our processor ÷ bare SDK loop",
        at_least=0.8,
    ),
    Goal(
        benchmark="changefeed",
        key="idle_cpu_ms_per_lease_s",
        says="CPU ms per second for each idle lease that is polled every second",
        at_most=0.2,
        ratio=False,
        why=_POLL,
    ),
    Goal(
        benchmark="changefeed",
        key="idle_cpu_ms_per_lease_s_5s",
        says="CPU ms per second for each idle lease that is polled every 5 s",
        at_most=0.07,
        ratio=False,
        why=_POLL,
    ),
    Goal(
        benchmark="changefeed",
        key="leases_1000_acquire_intervals",
        says="time until one worker owns 1,000 leases ÷ time between two acquire passes (13 s)",
        at_most=0.3,
        ratio=False,
        why=(
            "The SDK sends five requests for each lease, of 1.5 to 2 ms of CPU each: to find its partition, create it, acquire it, read its "
            "first page and save its position."
        ),
    ),
    Goal(
        benchmark="changefeed",
        key="leases_1000_idle_cpu_ms_per_s_5s",
        says="CPU ms per second of a worker with 1,000 idle leases that are polled every 5 s",
        at_most=300,
        ratio=False,
    ),
    Goal(
        benchmark="processor",
        key="java_docs_ratio",
        says="documents/s read: our processor ÷ the Java SDK's processor",
        at_least=4.9,
        why=_READ,
    ),
    Goal(
        benchmark="processor",
        key="java_cpu_ratio",
        says="documents read per CPU second: our processor ÷ the Java SDK's processor",
        at_least=9.6,
        why=_READ,
    ),
    Goal(
        benchmark="processor",
        key="java_takeover_ratio",
        says="seconds until a killed worker's leases have a new owner: our processor ÷ the Java SDK's",
        at_most=1.0,
    ),
    Goal(
        benchmark="processor",
        key="java_handover_ratio",
        says="seconds until a worker's leases have a new owner after SIGTERM: our processor ÷ the Java SDK's",
        at_most=0.6,
    ),
    Goal(
        benchmark="processor",
        key="java_balance_ratio",
        says="seconds until five workers share 100 leases evenly: our processor ÷ the Java SDK's",
        at_most=1.0,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_docs_ratio",
        says="documents/s read: our processor ÷ the .NET SDK's processor",
        at_least=3.5,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_cpu_ratio",
        says="documents read per CPU second: our processor ÷ the .NET SDK's processor",
        at_least=5.0,
        why=_READ,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_takeover_ratio",
        says="seconds until a killed worker's leases have a new owner: our processor ÷ the .NET SDK's",
        at_most=1.0,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_handover_ratio",
        says="seconds until a worker's leases have a new owner after SIGTERM: our processor ÷ the .NET SDK's",
        at_most=0.6,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_balance_ratio",
        says="seconds until five workers share 100 leases evenly: our processor ÷ the .NET SDK's",
        at_most=0.085,
    ),
    Goal(
        benchmark="consume",
        key="short_per_s_sdk",
        says="messages/s of a consumer with the SDK's receiver, in one-message sessions",
        at_least=150,
        ratio=False,
        why=_SHORT["sdk"],
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ms_sdk",
        says="CPU ms per message of a consumer with the SDK's receiver, in one-message sessions",
        at_most=5,
        ratio=False,
        why=_SHORT["sdk"],
    ),
    Goal(
        benchmark="consume",
        key="short_per_s_lean",
        says="messages/s of a consumer with our lean receiver, in one-message sessions",
        at_least=600,
        ratio=False,
        why=_SHORT["lean"],
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ms_lean",
        says="CPU ms per message of a consumer with our lean receiver, in one-message sessions",
        at_most=1.6,
        ratio=False,
        why=_SHORT["lean"],
    ),
    *(
        Goal(
            benchmark="consume",
            key=f"many_{key}_{receiver}",
            says=f"{what} of {named} while 10,000 one-message sessions wait",
            at_least=least,
            at_most=most,
            ratio=False,
            why=_SHORT[receiver],
        )
        for (receiver, named), rate, cost in zip(_RECEIVERS, (150, 600), (5, 1.6), strict=True)
        for key, what, least, most in (
            ("per_s", "messages/s", rate, None),
            ("cpu_ms", "CPU ms per message", None, cost),
        )
    ),
    Goal(
        benchmark="consume",
        key="short_rate_ratio_sdk",
        says="messages/s in one-message sessions: consumer with the SDK's receiver ÷ bare SDK loop",
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ratio_sdk",
        says="CPU time per message in one-message sessions: consumer with the SDK's receiver ÷ bare SDK loop",
    ),
    Goal(
        benchmark="consume",
        key="short_rate_ratio_lean",
        says="messages/s in one-message sessions: consumer with our lean receiver ÷ bare SDK loop",
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ratio_lean",
        says="CPU time per message in one-message sessions: consumer with our lean receiver ÷ bare SDK loop",
    ),
    Goal(
        benchmark="consume",
        key="long_rate_ratio_sdk",
        says="messages/s in long sessions: consumer with the SDK's receiver ÷ bare SDK loop",
        at_least=1.0,
        why=_LONG_SESSIONS,
    ),
    Goal(
        benchmark="consume",
        key="long_cpu_ratio_sdk",
        says="CPU time per message in long sessions: consumer with the SDK's receiver ÷ bare SDK loop",
        at_most=1.25,
        why=_LONG_SESSIONS,
    ),
    Goal(
        benchmark="consume",
        key="long_rate_ratio_lean",
        says="messages/s in long sessions: consumer with our lean receiver ÷ bare SDK loop",
        at_least=1.0,
    ),
    Goal(
        benchmark="consume",
        key="long_cpu_ratio_lean",
        says="CPU time per message in long sessions: consumer with our lean receiver ÷ bare SDK loop",
    ),
    *(
        goal
        for receiver, named in _RECEIVERS
        for goal in _percentiles(
            "consume",
            f"p50_ms_500_{receiver}",
            f"from a message's due time to its handler's commit at 500 messages/s with {named}",
            (15, 35),
            why=_BUSY,
        )
    ),
    *(
        goal
        for receiver, named in _RECEIVERS
        for rate, most in ((20, (40, 120)), (100, (60, 200)))
        for goal in _percentiles(
            "consume",
            f"effect_p50_ms_{rate}_{receiver}",
            f"from an event's commit to its handler's commit at {rate} events/s with {named}",
            most,
            why=_EFFECTS[receiver],
        )
    ),
    *(
        Goal(
            benchmark=benchmark,
            key=key,
            says=f"peak MB of {says}",
            at_most=160,
            ratio=False,
            why=(
                "Python and the SDKs take 82 MB before the first event, and the pages of 100 leases take the rest. All pages together "
                "may take two fifths of a container's memory, so in a smaller container a worker takes less."
            ),
        )
        for benchmark, key, says in (
            ("relay", "peak_mb_large", "a worker with 100 leases that sends events of 40 KB"),
            ("consume", "peak_mb_sdk", "a consumer that handles 10,000 sessions with the SDK's receiver"),
            ("consume", "peak_mb_lean", "a consumer that handles 10,000 sessions with our lean receiver"),
        )
    ),
    Goal(
        benchmark="growth",
        key="cpu_ratio_64_partitions",
        says="CPU time per event: worker that reads 64 partitions ÷ worker that reads one partition",
        at_most=2.5,
    ),
    Goal(
        benchmark="growth",
        key="cpu_ratio_64_sessions",
        says="CPU time per message: consumer of 64 sessions ÷ consumer of one session",
    ),
    Goal(
        benchmark="growth",
        key="rate_ratio_two_workers",
        says="events/s, if each reply takes 30 ms and emulators share the two cores: two workers ÷ one worker",
    ),
    Goal(
        benchmark="priority",
        key="commit_p99_ratio",
        says="p99 of commit times: while a worker catches up at low priority ÷ while the worker is idle",
        at_most=1.2,
    ),
    Goal(
        benchmark="priority",
        key="commit_p99_ratio_without",
        says="p99 of commit times: while a worker catches up at default priority ÷ while the worker is idle",
    ),
    Goal(
        benchmark="emulators",
        key="least_ratio",
        says="operations per CPU second in the kind of work with the lowest ratio: emulators ÷ SDKs",
        at_least=1.0,
    ),
)
