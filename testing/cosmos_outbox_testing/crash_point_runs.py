"""
Crash points: a scenario is run once for each call of a port, and the process that makes the call dies before or after it.

    @crash_points
    async def test_a_paid_order_is_invoiced_once(harness: OutboxHarness) -> None:
        await pay(harness.outbox, "o1")
        await harness.relay_all()
        await harness.consume_all(invoicing)
        assert 1 == len(invoices(harness.container))

A worker or a consumer's process that dies is started again at once, with what is stored. Where the code of the test dies, all of
it is run again, as a caller repeats a request that was not answered. Afterwards everything is relayed and consumed, and the
guarantees are checked.
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
    A scenario does not end well if a process dies at one of its points, or even without a death.

    Attributes:
        failures: what is wrong, by the name of the point.
    """

    def __init__(self, said: str, failures: dict[str, str]) -> None:
        super().__init__(said)
        self.failures = failures


class CrashPointsNotReached(UserWarning):
    """
    A worker or a consumer did not repeat these calls, so no process died there. Tasks that run at the same time may make a call in
    one run and not in the next.
    """


@dataclass(slots=True)
class ChosenPoints:
    """
    The points that the command line asks for, and the verdict on each that a test has played.

    point: None for all, as "send#2:after" for one.
    """

    point: str | None = None
    found: list[dict[str, str]] | None = None


chosen = ChosenPoints()
_MOST_TRIES = 10
_NOT_REACHED = f"not reached in {_MOST_TRIES} runs"
_OTHER_CALLS = (
    f"{_NOT_REACHED}, though the test itself makes this call. It has to make the same calls in every run: no ids or times by chance, "
    "and nothing that one run leaves to the next in fixtures and variables."
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The end of a run: what is wrong, and the error that says so, if there is one."""

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

    The test has a parameter `harness`; its other parameters are fixtures, which all runs share. In each run the container of
    the harness is a new one, with the partition key paths and the ranges of the fixture `outbox_container`.

    Args:
        scenario: the test.
        given: awaited with a harness before each run, to store what the scenario begins with. No process dies in it, and it is
            not run again.
    """
    if scenario is None:
        return functools.partial(_decorate, given=given)
    return _decorate(scenario, given=given)


def _decorate(scenario: Scenario, *, given: Given | None) -> Scenario:
    if not inspect.iscoroutinefunction(scenario) or _HARNESS not in inspect.signature(scenario).parameters:
        raise TypeError(
            f"A test with crash points is an `async def` with a parameter `harness`; {scenario!r} is none."
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
    if _CONTAINER not in signature.parameters:  # the fixture from which pytest makes the harness
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
    Play a point until it is reached: tasks that run at the same time, such as an empty page and the end of a worker, may or may not
    make its call.
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
    """Play a scenario whose process dies at a point, on an empty harness, and then do what is left to do."""
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
