"""
The figures that the project stands for: what each says, what it has to be, and which are compared from landing to landing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure of a benchmark's last line, and its bound. A figure without a bound is shown beside another that has one."""

    benchmark: str
    key: str
    says: str
    at_most: float | None = None
    at_least: float | None = None
    ratio: bool = True  # both sides are measured in the same run, so figures of two machines compare
    why: str = ""  # why it misses the bound, as a profile shows

    def of(self, figures: Mapping[str, Mapping[str, Any]]) -> float | None:
        """Return the figure; None if it was not measured."""
        value = figures.get(self.benchmark, {}).get(self.key)
        return float(value) if isinstance(value, int | float) else None

    def is_met_by(self, value: float) -> bool:
        """Say whether a figure is within the bound."""
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is None or value >= self.at_least

    def worsened(self, before: float, now: float) -> float:
        """Return by which fraction a figure became worse, below zero if it became better; 0 if it has no bound."""
        change = now / before - 1 if before else 0.0
        if self.at_most is not None:
            return change
        return 0.0 if self.at_least is None else -change

    @property
    def bound(self) -> str:
        """Return the bound as people write it."""
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

# What several figures of the SDK's receivers miss their goals by
_OPENING = (
    "Azure's SDK sleeps 450 ms while it opens the receiver of a session and up to a second while it closes one "
    "([reports](../explanation/sdk-reports.md)). "
)

_POLL = (
    "aiohttp takes a third of a poll's CPU, asyncio a sixth, and the library a seventh. The goal was met by HTTP code of our own, which was "
    "deleted for aiohttp."
)

_TOPIC = (
    "A commit, a read of the feed and a send, each of the SDK, take most of it: a bare loop that polls without a pause is "
    "shown by `make bench BENCH=latency` beside it, and the ratio of the medians stands above."
)
_BUSY = (
    "The load is sent by the process that consumes. 500 messages a second take half of its core with the lean receiver and "
    "three quarters with the SDK's, and sending them takes the rest. At 50 a second the median is 5 ms with either."
)
_RECEIVERS = (("sdk", "SDK"), ("lean", "lean receiver"))


def _percentiles(
    benchmark: str, key: str, says: str, most: tuple[float, float], *, why: str = ""
) -> Iterator[Goal]:
    """Yield the goals of a median, whose key has "p50", and of the 99th percentile, whose key has "p99" there. Both are in ms."""
    keys, texts = (key, key.replace("p50", "p99")), (f"{says}: p50 in ms", "... p99")
    for one, text, at_most in zip(keys, texts, most, strict=True):
        yield Goal(benchmark=benchmark, key=one, says=text, at_most=at_most, ratio=False, why=why)


GOALS = (
    Goal(
        benchmark="commit",
        key="commit_overhead",
        says="CPU of a commit over a batch of the SDK as its documentation opens it",
        at_most=1.1,
    ),
    Goal(
        benchmark="commit",
        key="commit_overhead_our_client",
        says="... over a batch of the SDK with the faster client that `open_cosmos_client` opens",
        at_most=1.25,
        why=(
            "Counted by callgrind, a commit takes 3.0 million instructions, of which 2.2 are the SDK's. Of the other 0.8, 35 % make the "
            "documents of events and entity, look at their sizes and for numbers that Cosmos DB would round; 15 % write the entity and "
            "read it back, which finds what could not be read; 12 % make the two events; 7 % are the limit of the attempt, and 7 % look "
            "for changes that no commit wrote. Each is something that a commit promises."
        ),
    ),
    Goal(
        benchmark="commit",
        key="concurrent_ratio",
        says="commits a second of 64 tasks over batches of the SDK as its documentation opens it",
        at_least=0.9,
    ),
    Goal(
        benchmark="commit",
        key="concurrent_ratio_our_client",
        says="... over batches of the SDK with our client",
        at_least=0.9,
        why="One process uses one core, so 64 tasks commit as many more or fewer as a commit takes CPU.",
    ),
    Goal(
        benchmark="relay",
        key="ceiling_ratio",
        says="messages a second of the relay over a bare loop of both SDKs",
        at_least=3.0,
    ),
    Goal(
        benchmark="relay",
        key="encoder_ratio",
        says="CPU of an event with our encoder over that with the SDK's",
        at_most=0.4,
    ),
    Goal(
        benchmark="relay",
        key="cpu_ms_per_event",
        says="CPU ms for an event, pages of 1,000 and large batches",
        at_most=0.055,
        ratio=False,
    ),
    Goal(
        benchmark="relay",
        key="cpu_ms_per_event_page100",
        says="CPU ms for an event, pages of 100 and Standard's batches",
        at_most=0.09,
        ratio=False,
    ),
    *(
        Goal(
            benchmark="latency",
            key=f"p50_ratio_{rate}",
            says=f"median from commit to topic at {rate} a second over that of a bare loop",
            at_most=1.25,
        )
        for rate in (50, 500)
    ),
    *_percentiles("latency", "p50_ms_50", "commit to topic at 50 a second", (15, 30), why=_TOPIC),
    *_percentiles("latency", "p50_ms_500", "commit to topic at 500 a second", (18, 40), why=_TOPIC),
    *(
        goal
        for rate in (1, 5, 20)
        for goal in (
            *_percentiles(
                "latency",
                f"seldom_p50_ms_{rate}",
                f"commit to topic at {rate} a second over four ranges",
                (60, 150),
            ),
            Goal(
                benchmark="latency",
                key=f"seldom_reads_{rate}",
                says="... reads a second of a range",
                at_most=25,
                ratio=False,
            ),
        )
    ),
    Goal(
        benchmark="changefeed",
        key="feed_ratio",
        says="documents a second over a bare loop over the feed",
        at_least=0.8,
    ),
    Goal(
        benchmark="changefeed",
        key="idle_cpu_ms_per_lease_s",
        says="CPU ms of an idle lease a second, polled each second",
        at_most=0.2,
        ratio=False,
        why=_POLL,
    ),
    Goal(
        benchmark="changefeed",
        key="idle_cpu_ms_per_lease_s_5s",
        says="CPU ms of an idle lease a second, polled every 5 s",
        at_most=0.07,
        ratio=False,
        why=_POLL,
    ),
    Goal(
        benchmark="changefeed",
        key="leases_1000_acquire_intervals",
        says="passes until one worker owns 1,000 leases",
        at_most=3,
        ratio=False,
    ),
    Goal(
        benchmark="changefeed",
        key="leases_1000_idle_cpu_ms_per_s_5s",
        says="CPU ms a second of 1,000 idle leases on one worker",
        at_most=300,
        ratio=False,
    ),
    Goal(
        benchmark="processor",
        key="java_docs_ratio",
        says="documents a second over Java's processor",
        at_least=1.0,
    ),
    Goal(
        benchmark="processor",
        key="java_cpu_ratio",
        says="documents a CPU second over Java's processor",
        at_least=1.0,
    ),
    Goal(
        benchmark="processor",
        key="java_takeover_ratio",
        says="seconds of a takeover over Java's",
        at_most=1.0,
    ),
    Goal(
        benchmark="processor",
        key="java_handover_ratio",
        says="... of a worker that got SIGTERM",
        at_most=0.6,
    ),
    Goal(
        benchmark="processor",
        key="java_balance_ratio",
        says="seconds until five share 100 leases over Java's",
        at_most=1.0,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_docs_ratio",
        says="documents a second over .NET's processor",
        at_least=3.5,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_cpu_ratio",
        says="documents a CPU second over .NET's processor",
        at_least=5.0,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_takeover_ratio",
        says="seconds of a takeover over .NET's",
        at_most=1.0,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_handover_ratio",
        says="... of a worker that got SIGTERM",
        at_most=0.6,
    ),
    Goal(
        benchmark="processor",
        key="dotnet_balance_ratio",
        says="seconds until five share 100 leases over .NET's",
        at_most=1.0,
    ),
    Goal(
        benchmark="consume",
        key="short_per_s_sdk",
        says="messages a second in sessions of one message each, SDK",
        at_least=150,
        ratio=False,
        why=_OPENING
        + "The consumer has 256 receivers that open, wait or close at the same time. More of them would take more memory and connections.",
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ms_sdk",
        says="... CPU ms of each",
        at_most=5,
        ratio=False,
        why="A bare loop of the SDK takes as much: a receiver has a connection of its own, and opening it takes twenty frames.",
    ),
    Goal(
        benchmark="consume",
        key="short_per_s_lean",
        says="... messages a second of the lean receiver",
        at_least=600,
        ratio=False,
        why="A message takes 1.4 to 1.7 ms of CPU, so one core handles about 600. The emulators need the other core.",
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ms_lean",
        says="... CPU ms of each",
        at_most=1.6,
        ratio=False,
    ),
    Goal(
        benchmark="consume",
        key="short_rate_ratio_sdk",
        says="messages a second in sessions of one message each over a bare loop of the SDK with the same effects",
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ratio_sdk",
        says="... CPU of each",
    ),
    Goal(
        benchmark="consume",
        key="short_rate_ratio_lean",
        says="... messages a second of the lean receiver",
    ),
    Goal(
        benchmark="consume",
        key="short_cpu_ratio_lean",
        says="... CPU of each of the lean receiver",
    ),
    Goal(
        benchmark="consume",
        key="long_rate_ratio_sdk",
        says="messages a second in long sessions over a bare loop of the SDK with the same effects",
        at_least=1.0,
        why="One process uses one core, so it handles as many fewer as a message takes more CPU, which the next line explains.",
    ),
    Goal(
        benchmark="consume",
        key="long_cpu_ratio_sdk",
        says="... CPU of each",
        at_most=1.25,
        why=(
            "[Decision 33](../decisions/0033-what-a-message-of-a-long-session-costs.md) lists what a message takes beyond a bare loop: "
            "half of it is the unit of work and its commit, a quarter the tasks and time limits of handler, settlement and commit."
        ),
    ),
    Goal(
        benchmark="consume",
        key="long_rate_ratio_lean",
        says="... messages a second of the lean receiver",
        at_least=1.0,
    ),
    Goal(
        benchmark="consume",
        key="long_cpu_ratio_lean",
        says="... CPU of each of the lean receiver",
    ),
    *(
        goal
        for receiver, named in _RECEIVERS
        for goal in _percentiles(
            "consume",
            f"p50_ms_500_{receiver}",
            f"topic to effect at 500 a second, {named}",
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
            f"commit to effect of {rate} keys a second, {named}",
            most,
            why=_OPENING
            + "At 20 a second some events wait for that. 100 a second are all that the receivers can do, so events queue. The lean receiver "
            "meets each of these goals.",
        )
    ),
    *(
        Goal(
            benchmark=benchmark,
            key=key,
            says=f"most memory in MB: {says}",
            at_most=160,
            ratio=False,
            why=(
                "82 MB are Python and the SDKs before the first event. The rest are pages of 100 leases that are read at the same time. "
                "A worker lets all pages together take two fifths of its container's memory, so in a smaller container it takes less."
            ),
        )
        for benchmark, key, says in (
            ("relay", "peak_mb_large", "worker of 100 leases, events of 40 KB"),
            ("consume", "peak_mb_sdk", "consumer of 10,000 sessions, SDK"),
            ("consume", "peak_mb_lean", "... the lean receiver"),
        )
    ),
    Goal(
        benchmark="growth",
        key="cpu_ratio_64_partitions",
        says="CPU of an event of a worker of 64 partitions over that of one",
        at_most=2.5,
    ),
    Goal(
        benchmark="growth",
        key="cpu_ratio_64_sessions",
        says="CPU of a message of a consumer of 64 sessions over that of one",
    ),
    Goal(
        benchmark="growth",
        key="rate_ratio_two_workers",
        says="events a second of two workers over one, each reply 30 ms later, on two cores that they share with the emulators",
    ),
    Goal(
        benchmark="priority",
        key="commit_p99_ratio",
        says="99th percentile of commits, beside a worker that catches up with low priority, over that beside an idle one",
        at_most=1.2,
    ),
    Goal(
        benchmark="priority",
        key="commit_p99_ratio_without",
        says="... that catches up with the priority of the commits",
    ),
    Goal(
        benchmark="emulators",
        key="least_ratio",
        says="capacity of the emulators over what a client of the SDKs asks for",
        at_least=1.0,
    ),
)
