"""
The background thread of a blocking outbox: when it opens and closes the outbox, and how it ends after an interrupt, at the end of the
process, and in a fork.
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
    """Opens and closes an outbox for a BlockingOutbox. `happened` lists "opened" and "closed" in order."""

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
    """Return a function that raises Interrupted in the main thread, as Ctrl-C raises KeyboardInterrupt."""

    def handle(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def write(uow: BlockingUnitOfWork) -> Note:
    return uow.repository(Note).create(Note(id="n"))


def test_a_blocking_outbox_is_opened_once_for_all_threads(opener: Opener):
    """The first use of the blocking outbox opens it. The end of its `with` block closes it."""
    outbox = BlockingOutbox(opener)
    assert [] == opener.happened
    with outbox, ThreadPoolExecutor(8) as threads:
        units = list(threads.map(lambda _: outbox.unit_of_work(), range(16)))
        assert (16, ["opened"]) == (len(units), opener.happened)

    assert ["opened", "closed"] == opener.happened
    assert "cosmos-outbox" not in {thread.name for thread in threading.enumerate()}


def test_a_blocking_outbox_that_failed_to_open_opens_at_its_next_use(opener: Opener):
    def refuse() -> None:
        opener.before = lambda: None
        raise ConfigurationError("There is no such container.")

    opener.before = refuse
    outbox = BlockingOutbox(opener)
    with pytest.raises(ConfigurationError, match="no such container"):
        outbox.unit_of_work()
    with outbox:
        assert "n" == outbox.run(write).id


def test_a_closed_blocking_outbox_refuses_to_be_used(opener: Opener):
    """The test also checks that a second `close` is allowed and does nothing."""
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


def test_closing_a_blocking_outbox_waits_for_running_calls(container: MemoryContainer, opener: Opener):
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


def test_an_interrupted_commit_has_ended_when_the_exception_reaches_the_caller(
    container: MemoryContainer, opener: Opener, interrupt: Callable[[], None]
):
    """If the caller calls `commit` again, it finds out that the interrupted commit was written."""
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


def test_a_blocking_outbox_whose_opening_was_interrupted_opens_at_its_next_use(
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


def test_an_interrupted_close_of_a_blocking_outbox_cancels_its_running_calls(
    opener: Opener, interrupt: Callable[[], None]
):
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


def test_a_failure_in_the_background_is_raised_when_the_blocking_outbox_closes(opener: Opener):
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
    with suppress(asyncio.CancelledError):  # The failure in the background may cancel the commit.
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
    """Run a program that uses a blocking outbox and never closes it, and return what the program prints."""
    answer = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", PROGRAM + program],
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
        check=False,
    )
    assert (0, "") == (answer.returncode, answer.stderr)
    return answer.stdout


def test_a_blocking_outbox_is_closed_at_the_end_of_its_process():
    assert "t\nclosed by parent\n" == run("print(outbox.run(write))")


def test_a_process_ends_while_a_daemon_thread_waits_for_a_call():
    program = """
async def handle(event, uow):
    under_way.set()
    await asyncio.Event().wait()

under_way = threading.Event()
threading.Thread(target=outbox.run, args=[write], daemon=True).start()
under_way.wait()
"""
    assert "closed by parent\n" == run(program)


def test_a_forked_process_opens_an_outbox_of_its_own():
    """The parent process must not have used the blocking outbox before the fork."""
    assert "t\nclosed by child\n0\n" == run("print(forked(lambda: print(outbox.run(write), flush=True)))")


def test_a_forked_process_cannot_use_an_outbox_that_its_parent_opened():
    """
    A fork has no background thread, so a call would wait for ever. Instead it raises an error at once.
    """
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
