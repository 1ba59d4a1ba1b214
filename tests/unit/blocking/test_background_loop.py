"""
The thread of a blocking outbox: opened once, closed always, interrupted without leaving work behind, never taken along by a fork.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import pytest

from cosmos_outbox import ConfigurationError, Outbox, UsageError
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.blocking import BlockingOutbox, BlockingUnitOfWork
from tests.support.faulty_store import CommitFault, FaultyStore
from tests.support.notes import Note, NoteWritten, stored
from tests.support.patience import HUNG_SECONDS


class Opener:
    """Opens an outbox on a store, and keeps a list of what happened."""

    def __init__(self, store: FaultyStore) -> None:
        self.store, self.happened = store, list[str]()
        self.outbox = Outbox(store)
        self.before: Callable[[], object] = lambda: None

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Outbox]:
        self.before()
        self.happened.append("opened")
        yield self.outbox
        self.happened.append("closed")


@pytest.fixture
def container() -> MemoryContainer:
    return MemoryContainer()


@pytest.fixture
def opener(container: MemoryContainer) -> Opener:
    return Opener(FaultyStore(container))


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """A function that raises Interrupted in the main thread, as Ctrl-C does KeyboardInterrupt."""

    def handle(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def write(uow: BlockingUnitOfWork) -> Note:
    return uow.repository(Note).create(Note(id="n"))


def test_it_opens_at_the_first_use_once_for_all_threads_and_closes_with_its_block(opener: Opener):
    outbox = BlockingOutbox(opener)
    assert [] == opener.happened
    with outbox, ThreadPoolExecutor(8) as threads:
        units = list(threads.map(lambda _: outbox.unit_of_work(), range(16)))
        assert (16, ["opened"]) == (len(units), opener.happened)

    assert ["opened", "closed"] == opener.happened
    assert "cosmos-outbox" not in {thread.name for thread in threading.enumerate()}


def test_a_first_use_that_cannot_open_raises_why_and_the_next_one_tries_again(opener: Opener):
    def refuse() -> None:
        opener.before = lambda: None
        raise ConfigurationError("There is no such container.")

    opener.before = refuse
    outbox = BlockingOutbox(opener)
    with pytest.raises(ConfigurationError, match="no such container"):
        outbox.unit_of_work()
    with outbox:
        assert "n" == outbox.run(write).id


def test_a_closed_one_says_so_and_may_be_closed_again(opener: Opener):
    with BlockingOutbox(opener) as outbox:
        uow = outbox.unit_of_work()
    outbox.close()

    with pytest.raises(UsageError, match="was closed"):
        uow.commit()
    with pytest.raises(UsageError, match="was closed"):
        outbox.unit_of_work()


def until_it_closes(outbox: BlockingOutbox) -> None:
    with suppress(UsageError):
        while True:
            outbox.unit_of_work()
            time.sleep(0.001)


def test_closing_waits_for_the_calls_under_way(container: MemoryContainer, opener: Opener):
    under_way = threading.Event()

    async def linger(event: NoteWritten, uow: object) -> None:
        under_way.set()
        await asyncio.to_thread(until_it_closes, outbox)

    opener.outbox.on(NoteWritten, linger)
    with ThreadPoolExecutor() as threads:
        with BlockingOutbox(opener) as outbox:
            written = threads.submit(outbox.run, write)
            assert under_way.wait(HUNG_SECONDS)
        assert 1 == len(stored(container, "note"))

    assert 1 == written.result().version


def test_an_interrupted_commit_has_ended_when_the_interrupt_goes_on_and_can_be_found_out(
    container: MemoryContainer, opener: Opener, interrupt: Callable[[], None]
):
    opener.store.commit_faults.append(CommitFault.HANGING_AFTER)
    written = container.commit

    async def commit(*args):
        try:
            return await written(*args)
        finally:
            interrupt()

    container.commit = commit
    with BlockingOutbox(opener) as outbox, outbox.unit_of_work() as uow:
        write(uow)
        with pytest.raises(Interrupted):
            uow.commit()
        container.commit = written

        assert 1 == uow.commit().operations - len(stored(container, "domainEvent"))
        assert 1 == opener.store.commits


def test_an_interrupted_opening_is_cancelled_and_the_next_use_opens(
    opener: Opener, interrupt: Callable[[], None]
):
    ended = []

    @asynccontextmanager
    async def hanging() -> AsyncIterator[Outbox]:
        if not ended:
            interrupt()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("opening")
        yield opener.outbox

    outbox = BlockingOutbox(hanging)
    with pytest.raises(Interrupted):
        outbox.unit_of_work()
    assert ["opening"] == ended
    with outbox:
        assert "n" == outbox.run(write).id


def test_an_interrupted_close_cancels_the_calls_under_way(opener: Opener, interrupt: Callable[[], None]):
    under_way = threading.Event()

    async def hang(event: NoteWritten, uow: object) -> None:
        under_way.set()
        await asyncio.to_thread(until_it_closes, outbox)
        interrupt()
        await asyncio.Event().wait()

    opener.outbox.on(NoteWritten, hang)
    outbox = BlockingOutbox(opener)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(outbox.run, write)
        assert under_way.wait(HUNG_SECONDS)
        with pytest.raises(Interrupted):
            outbox.close()
        assert isinstance(call.exception(), asyncio.CancelledError)
    assert ["opened", "closed"] == opener.happened


def test_it_closes_when_what_it_opened_fails_and_says_why(opener: Opener):
    fail = asyncio.Event()

    async def background() -> None:
        await fail.wait()
        raise ConfigurationError("The token was revoked.")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Outbox]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(background())
            yield opener.outbox

    opener.outbox.on(NoteWritten, lambda event, uow: fail.set())
    outbox = BlockingOutbox(opened)
    with suppress(asyncio.CancelledError):  # the commit may be the first to end
        outbox.run(write)
    with pytest.raises(ExceptionGroup) as failure:
        outbox.close()
    with pytest.raises(UsageError, match="was closed"):
        outbox.run(write)

    assert failure.group_contains(ConfigurationError, match="token was revoked")


PROGRAM = """
import asyncio, os, sys, threading
from contextlib import asynccontextmanager
from cosmos_outbox import Entity, Outbox, DomainEvent, UsageError
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.blocking import BlockingOutbox

class Written(DomainEvent): pass

class Text(Entity):
    def created_event(self): return Written()

@asynccontextmanager
async def opened():
    inner = Outbox(MemoryContainer())
    inner.on(Written, handle)
    yield inner
    print("closed by", "parent" if os.getpid() == PARENT else "child", flush=True)

async def handle(event, uow):
    pass

def write(uow):
    return uow.repository(Text).create(Text(id="t")).id

def forked(function):
    child = os.fork()
    if not child:
        try:
            function()
        finally:
            sys.exit()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

PARENT = os.getpid()
outbox = BlockingOutbox(opened)
"""


def run(program: str) -> str:
    """Return what a program prints that uses an outbox, and never closes it."""
    answer = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", PROGRAM + program],
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
        check=False,
    )
    assert (0, "") == (answer.returncode, answer.stderr)
    return answer.stdout


def test_a_process_that_never_closes_it_ends_and_closes_it():
    assert "t\nclosed by parent\n" == run("print(outbox.run(write))")


def test_a_process_ends_although_a_daemon_thread_waits_for_a_call():
    program = """
async def handle(event, uow):
    under_way.set()
    await asyncio.Event().wait()

under_way = threading.Event()
threading.Thread(target=outbox.run, args=[write], daemon=True).start()
under_way.wait()
"""
    assert "closed by parent\n" == run(program)


def test_a_fork_of_a_process_that_has_not_used_it_opens_its_own():
    assert "t\nclosed by child\n0\n" == run("print(forked(lambda: print(outbox.run(write), flush=True)))")


def test_a_fork_of_a_process_that_has_used_it_is_refused_instead_of_hanging():
    program = """
outbox.run(write)

def use():
    try:
        outbox.run(write)
    except UsageError as error:
        print(str(error).partition(" from")[0], flush=True)
    outbox.close()

print(forked(use))
"""
    assert "This process was forked\n0\nclosed by parent\n" == run(program)
