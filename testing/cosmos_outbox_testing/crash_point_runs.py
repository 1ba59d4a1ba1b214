"""
Crash points: run a test once for each request to Cosmos DB or Service Bus, and let the process die before or after the request
(`dying_process.py`).

    @crash_points
    async def test_a_paid_order_is_invoiced_once(harness: OutboxHarness) -> None:
        await pay(harness.outbox, "o1")
        await harness.relay_all()
        await harness.consume_all(invoicing)
        assert 1 == len(invoices(harness.container))

If a worker or a process of a consumer dies, it is started again at once, with the data that was stored. If the test's own code dies, the
whole test function is run again, as a caller would repeat a request that was not answered. At the end of each run, all events are relayed
and all messages are consumed, and the guarantees of the library are checked.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, overload

import pytest

from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.partition_key import KeyPaths
from cosmos_outbox_testing.clock import Clock
from cosmos_outbox_testing.dying_process import APPLICATION, Crash, CrashHarness, Process, Run
from cosmos_outbox_testing.guarantees import violations
from cosmos_outbox_testing.harness import OutboxHarness

Scenario = Callable[..., Coroutine[Any, Any, None]]
Given = Callable[[OutboxHarness], Awaitable[object]]
POINT = re.compile(r"[a-z-]+#\d+:(before|after)")
_HARNESS, _CONTAINER = "harness", "outbox_container"
_WITHOUT = "without a crash"


class CrashPointsFailed(AssertionError):
    """
    A test with crash points failed: in a run in which a process died at one of them, or even in the run without a crash.

    Attributes:
        failures: for each crash point at which the test fails, what is wrong.
    """

    def __init__(self, said: str, failures: dict[str, str]) -> None:
        super().__init__(said)
        self.failures = failures


class CrashPointsNotReached(UserWarning):
    """
    Some crash points of the first run were not reached in later runs, so no process died there.

    This can happen in a worker or a consumer, because tasks that run at the same time may make a call in one run and not in the next.
    """


@dataclass(slots=True)
class ChosenPoints:
    """
    The crash point that the command line asks for, and the result of each crash point of the current test.

    point: the only crash point to run, such as "send#2:after". None runs all points.
    found: collects the results of each test, by crash point, for the pytest report. None if the command line asks for no report.
    """

    point: str | None = None
    found: list[dict[str, str]] | None = None


chosen = ChosenPoints()
_MOST_TRIES = 10
_NOT_REACHED = f"not reached in {_MOST_TRIES} runs"
_OTHER_CALLS = (
    f"{_NOT_REACHED}, though the test itself makes this call. The test has to make the same calls in every run: use no random "
    "ids or current times, and leave nothing in fixtures or variables from one run to the next."
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one run of a test: what is wrong after it, and the error that was raised, if there was one."""

    run: Run
    points: tuple[str, ...]
    wrong: str | None = None
    error: BaseException | None = None

    @property
    def verdict(self) -> str:
        if self.wrong is not None:
            return self.wrong.splitlines()[0]
        return "ok" if self.run.point is None or self.run.crashed_in is not None else _NOT_REACHED


@overload
def crash_points(scenario: Scenario) -> Scenario: ...
@overload
def crash_points(*, given: Given) -> Callable[[Scenario], Scenario]: ...
def crash_points(
    scenario: Scenario | None = None, *, given: Given | None = None
) -> Scenario | Callable[[Scenario], Scenario]:
    """
    Run an async test once without a crash, and once for each of its crash points.

    The test has a parameter `harness`. Its other parameters are fixtures, which all runs share. Each run gets a harness with a new
    container, which has the same partition key paths and ranges as the fixture `outbox_container`.

    Args:
        scenario: the test.
        given: a coroutine function that is awaited with the harness before each run, to store what the test needs at its start. It has
            no crash points, and it is not called again after a crash.
    """
    if scenario is None:
        return functools.partial(_decorate, given=given)
    return _decorate(scenario, given=given)


def _decorate(scenario: Scenario, *, given: Given | None) -> Scenario:
    if not inspect.iscoroutinefunction(scenario) or _HARNESS not in inspect.signature(scenario).parameters:
        raise TypeError(
            f"A test with crash points has to be an `async def` with a parameter `harness`, which {scenario!r} is not."
        )

    @functools.wraps(scenario)
    async def test(*arguments: Any, **fixtures: Any) -> None:
        async def play(point: str | None) -> _Outcome:
            return await _play(
                functools.partial(scenario, *arguments, **fixtures),
                given,
                point,
                await _nothing_stored_as_in(container),
            )

        container: MemoryContainer | None = fixtures.get(_CONTAINER)
        if _CONTAINER not in signature.parameters:
            fixtures.pop(_CONTAINER, None)
        await _all_points(play)

    signature = inspect.signature(scenario)
    others = [parameter for name, parameter in signature.parameters.items() if name != _HARNESS]
    # Add the container to the fixtures for which pytest is asked, because each run gets a new container like it.
    if _CONTAINER not in signature.parameters:
        others.append(inspect.Parameter(_CONTAINER, inspect.Parameter.KEYWORD_ONLY))
    others.sort(key=lambda parameter: parameter.kind)  # `**kwargs` must come last
    vars(test).update(__signature__=signature.replace(parameters=others))
    return test


async def _all_points(play: Callable[[str | None], Awaitable[_Outcome]]) -> None:
    outcomes = {_WITHOUT: await play(None)}
    points = outcomes[_WITHOUT].points
    if outcomes[_WITHOUT].wrong is None:
        for point in points if chosen.point is None else [chosen.point]:
            outcomes[point] = await _play_until_reached(play, point)
    of_the_test = {step.name for step in outcomes[_WITHOUT].run.steps if step.process == APPLICATION}
    for point in _find_missed_points(outcomes):
        if point.rpartition(":")[0] in of_the_test:
            outcomes[point] = replace(outcomes[point], wrong=_OTHER_CALLS)
        elif chosen.point is not None:
            pytest.skip(f"{point} was not reached; another run has {len(points)} crash points")
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if chosen.found is not None:
        chosen.found.append({point: outcome.verdict for point, outcome in outcomes.items()})
    missed = f"{_NOT_REACHED}: {', '.join(unseen)}" if (unseen := _find_missed_points(outcomes)) else ""
    failures = {point: outcome.wrong for point, outcome in outcomes.items() if outcome.wrong is not None}
    if failures:
        first = next(iter(failures))
        told = _report(first, failures, outcomes[first].run, test, missed)
        raise CrashPointsFailed(told, failures) from outcomes[first].error
    if missed:
        warnings.warn(missed, CrashPointsNotReached, stacklevel=3)


def _find_missed_points(outcomes: dict[str, _Outcome]) -> list[str]:
    return [point for point, outcome in outcomes.items() if outcome.verdict == _NOT_REACHED]


async def _play_until_reached(play: Callable[[str | None], Awaitable[_Outcome]], point: str) -> _Outcome:
    """
    Run the test for one crash point. If the run does not reach the point, run the test again, at most ten times.

    A run may miss a point because tasks that run at the same time do not make the same calls in each run.
    """
    outcome = await play(point)
    for _ in range(_MOST_TRIES - 1):
        if outcome.verdict != _NOT_REACHED:
            break
        outcome = await play(point)
    return outcome


async def _nothing_stored_as_in(container: MemoryContainer | None) -> OutboxHarness:
    if container is None:
        return OutboxHarness()
    like, clock = OutboxHarness(container=container).container, Clock()
    ranges, paths = await like.physical_ranges(), [str(KeyPaths((names,))) for names in like.key_paths.levels]
    return OutboxHarness(
        container=MemoryContainer(ranges=len(ranges), key_paths=paths, now=clock.time), clock=clock
    )


async def _play(
    scenario: Scenario, given: Given | None, point: str | None, stored: OutboxHarness
) -> _Outcome:
    """
    Run a test once, and let a process die at the given crash point. Afterwards send the events and handle the messages that are left, and
    check the guarantees.
    """
    run = Run(point=point)
    if given is not None:
        await given(stored)
    harness, failed = CrashHarness.of(run, stored), None
    try:
        try:
            await Process(APPLICATION).run(functools.partial(scenario, harness=harness))
        except Crash:
            harness = CrashHarness.of(run, stored)
            await Process(f"{APPLICATION}, started again").run(functools.partial(scenario, harness=harness))
    except Exception as error:  # the test may raise any error
        if point is None:
            raise
        failed = error
    points = tuple(run.points)
    try:
        await harness.relay_all(allow_failures=True)
        for consumer in run.consumers.values():
            await harness.consume_all(consumer, allow_failures=True)
    except Exception as error:  # noqa: BLE001 - whatever handlers and adapters raise
        failed = failed or error
    wrong = [*violations(run, harness), *([] if failed is None else [f"{type(failed).__name__}: {failed}"])]
    return _Outcome(run, points, "\n".join(wrong) or None, failed)


def _report(point: str, failures: dict[str, str], run: Run, test: str, missed: str) -> str:
    lines = [f"{point if point == _WITHOUT else f'With a crash at {point}'}: {failures[point]}", ""]
    width = max((len(step.name) for step in run.steps), default=0)
    for step in run.steps:
        mark = ">" if point.rpartition(":")[0] == step.name else " "
        died = f"   <-- died {point.rpartition(':')[2]} this call" if mark == ">" else ""
        lines.append(f"{mark} {step.name:{width}}  {step.process}: {step.about}{died}")
    others = [other for other in failures if other != point]
    if others:
        lines += ["", f"{len(others)} more points fail: {', '.join(others)}"]
    if missed:
        lines += ["", missed]
    if point != _WITHOUT:
        lines += ["", f"Again: pytest '{test}' --outbox-crash-points='{point}'"]
    return "\n".join(lines)
