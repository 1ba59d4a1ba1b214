"""
The trace of one parked key in a simulated run: one line for each change of its queue of held events, and for each step of an operator's
release. TLC compares it with a TLA+ model.

A trace names the change that a write made to the parked store. It does not check which program sent the write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cosmos_outbox.errors import NotFound
from cosmos_outbox.parking import ParkedEvent, ParkedKeys, Released, SendResult
from cosmos_outbox.parking.parked_documents import KEY_ID
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from cosmos_outbox.stored_documents import Document

acting: ContextVar[str] = ContextVar("actor", default="an operator")
is_late: ContextVar[bool] = ContextVar("is_late", default=False)


class KeyTrace:
    """
    The trace of one parked key, a list of lines. `version` counts the writes of the key, as the TLA+ model does in place of etags.
    """

    def __init__(self, count: int) -> None:
        self.lines: list[dict[str, Any]] = []
        self.say("begins", "all", count=count, holders=[], releases=[])
        self.version, self._etags = 1, dict[str, int]()
        self._seen: dict[str, int] = {}  # the version that each actor read or wrote last
        self._partition = Partition((), int)

    def say(self, action: str, actor: str | None = None, **values: object) -> None:
        self.lines.append({"actor": actor or acting.get(), "action": action, **values})

    def takes(self, holder: str) -> None:
        self.lines[0]["holders"].append(holder)
        self.say("takes", holder)

    def saw(self, key: Document) -> None:
        self._seen[acting.get()] = self._etags.get(key["_etag"], 0)

    @property
    def variety(self) -> tuple[int, int]:
        return len({line["action"] for line in self.lines}), self.version

    @property
    def seen(self) -> int:
        return self._seen.get(acting.get(), 0)

    def changed(self, writes: Sequence[Write], result: CommitResult, after: Partition) -> None:
        """Add the lines that describe an applied batch to the trace."""
        before, self._partition = self._partition, after
        place = next((place for place, write in enumerate(writes) if write.id == KEY_ID), None)
        appended = [number for number, at in after.held.items() if before.held.get(number) != at]
        removed = [number for number in before.held if number not in after.held]
        if place is None and not appended and not removed:
            return  # only the reason in an event's document changed, which the model does not have
        seen = 0 if place is None else self._seen_by(writes[place])
        if appended:
            for number in appended:
                if is_late.get():
                    self.say("parks late", number=number, seen=seen)
                else:
                    self.say("looks", number=number, seen=seen)
                    self.say("appends", number=number)
                self.version += 1
                seen = self.version
        else:
            self._say_other(removed, seen, before, after)
            self.version += 1
        if place is not None and after.key is not None:
            self._etags[str(result.etags[place])] = self.version
        self._seen[acting.get()] = self.version

    async def follow(
        self,
        commit: Awaitable[CommitResult],
        writes: Sequence[Write],
        after: Callable[[], Partition],
        *,
        by_holder: bool,
    ) -> CommitResult:
        """
        Commit, and add the change to the trace. If a relay or consumer deletes a key's document and gets 404, it has the proof that
        the key is not parked, and the trace gets the line "proves".
        """
        try:
            result = await commit
        except NotFound:
            if by_holder and [WriteKind.DELETE] == [write.kind for write in writes]:
                self.say("proves")
            raise
        self.changed(writes, result, after())
        return result

    def _seen_by(self, write: Write) -> int:
        if write.etag is not None:
            return self._etags.get(write.etag, 0)
        return self.version if write.kind is WriteKind.CREATE else 0

    def _say_other(self, removed: list[int], seen: int, before: Partition, after: Partition) -> None:
        claim = after.key and after.key["claim"]
        if after.key is None:
            self.say("reads", due=[], seen=seen)
            self.say("hands back")
        elif before.key is None:
            self.say("parks", seen=seen)
        elif removed and after.dropped.issuperset(removed):
            self.say("drops", number=removed[0], seen=seen)
        elif removed:
            self.say("takes off", numbers=removed, seen=seen)
        elif claim == before.key["claim"]:
            self.say("touches", seen=seen)
        elif claim is None:
            self.say("stops", seen=seen)
        else:
            self.lines[0]["releases"].append(acting.get())
            self.say("claims", seen=seen, edits=sorted(after.edited - before.edited))


class Partition:
    """
    The state of one key in the parked store: its document, and the numbers of its held, dropped and edited events.
    """

    def __init__(self, documents: Sequence[Document], number: Callable[[str], int]) -> None:
        self.key = next((one for one in documents if one["id"] == KEY_ID), None)
        events = [one for one in documents if one["id"] != KEY_ID]
        held = sorted((one for one in events if one["status"] == "held"), key=lambda one: one["position"])
        self.held = {number(one["event"]["id"]): (one["epoch"], one["position"]) for one in held}
        self.dropped = {number(one["event"]["id"]) for one in events if one["status"] == "dropped"}
        self.edited = {number(one["event"]["id"]) for one in held if one.get("original") is not None}


def traced_send(send: Send, place: Callable[[ParkedEvent], tuple[KeyTrace, int]]) -> Send:
    """
    Wrap the function with which a release sends events. The wrapper adds the sent and refused events to the trace of their key.
    """

    async def traced(
        held: Sequence[ParkedEvent], ensure_claimed: Callable[[], Awaitable[None]]
    ) -> SendResult:
        if not held:
            return await send(held, ensure_claimed)
        trace, numbers = place(held[0])[0], [place(event)[1] for event in held]
        trace.say("reads", due=numbers, seen=trace.seen)
        result = await send(held, ensure_claimed)
        for number in numbers[: result.events]:
            trace.say("sent", number=number)
        if result.refusal is not None:
            trace.say("refused", number=numbers[result.events])
        return result

    return traced


class TracedKeys(ParkedKeys):
    """
    The operator's commands for parked keys. Each release has its own name in the trace, because several may run at once.
    """

    def __init__(self, run: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._run = run

    async def release(self, *args: Any, **options: Any) -> Released:
        with _acting_as(self._run.next_release()):
            return await super().release(*args, **options)

    async def drop(self, *args: Any, **options: Any) -> ParkedEvent:
        with _acting_as("an operator"):
            return await super().drop(*args, **options)

    async def park(self, *args: Any, **options: Any) -> Any:
        with _acting_as("an operator"):
            return await super().park(*args, **options)


@contextmanager
def _acting_as(name: str) -> Iterator[None]:
    before = acting.set(name)
    try:
        yield
    finally:
        acting.reset(before)
