"""
Random scripts for the simulated consumer. The random numbers of a script come from one seed, or from Hypothesis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from cosmos_outbox.consumer import OnFailure
from cosmos_outbox.message_format import Message
from tests.simulation.consumers import SLOTS, SUBJECT, Act, Faults, Habit, Operator, Process, Script, body
from tests.simulation.program import Fault, Port

# Characters in message ids. A foreign producer may use any, also those that Cosmos DB refuses in an id.
_BETWEEN = "/?#\\. -"
_FEW, _MANY = ("a", "b", "c"), tuple(f"k{number}" for number in range(14))


@dataclass(slots=True)
class _Producer:
    """Creates the messages of one key. Their ids are numbered."""

    key: str
    count: int = 0
    sent: list[Message] = field(default_factory=list)

    def next(self) -> Message:
        self.count += 1
        message = Message(
            message_id=f"{self.key}{_BETWEEN[self.count % len(_BETWEEN)]}{self.count}",
            session_id=self.key,
            subject=SUBJECT,
            body=body(),
        )
        self.sent.append(message)
        return message


def random_consumers_script(chance: Random) -> Script:
    """
    Return a random script. One of five scripts has many keys and a time in which all handlers fail, which may park only a few of
    the keys.
    """
    many = chance.randrange(5) == 0
    keys = _MANY if many else _FEW
    on_failure = chance.choice((OnFailure.PARK, OnFailure.PARK, OnFailure.PARK, OnFailure.DEAD_LETTER))
    deliveries = _deliveries(chance, keys)
    ids = list(dict.fromkeys(message.message_id for _, message in deliveries))
    return Script(
        on_failure=on_failure,
        attempts=chance.choice((1, 2, 3)),
        max_deliveries=chance.choice((2, 8)),
        deliveries=deliveries,
        habits={
            message_id: (chance.choice((*Habit, *(5 * [Habit.FAILS]))), chance.choice((-1, -1, -1, 1, 2)))
            for message_id in chance.sample(ids, min(len(ids), chance.choice((0, 1, 2, 3, 4, 4))))
        },
        heals_at=chance.choice((8.0, 40.0, 1e9)),
        handler_seconds=chance.choice((0.0, 0.1, 1.0)),
        longest_wait=chance.choice((3.0, 1e6)),
        asks_all=chance.choice(((0.0, 0.0), (0.0, 9.0), (2.0, 4.0))),
        fails_all=chance.choice(((0.0, 9.0), (2.0, 4.0))) if many else (0.0, 0.0),
        broken=chance.choice(((0.0, 0.0), (0.0, 0.0), (3.0, 12.0))),
        lost_locks=tuple((_time(chance), chance.choice(keys)) for _ in range(chance.randint(0, 5))),
        away=tuple(
            (
                chance.choice((*Port, Port.COMMIT, Port.COMMIT)),
                begins := _time(chance),
                begins + chance.choice((0.5, 5.0, 20.0)),
            )
            for _ in range(chance.choice((0, 1, 3)))
        ),
        stores_away={
            key: (begins := _time(chance), begins + chance.choice((5.0, 40.0)))
            for key in chance.sample(keys, chance.choice((0, 0, 1, len(keys) - 1)))
        },
        processes=tuple(_process(chance) for _ in range(chance.randint(1, 5))),
        operators=tuple(_operator(chance) for _ in range(chance.randint(0, 4))),
    )


def stores_away_script(chance: Random) -> Script:
    """
    Return a script in which many keys wait: their container does not answer, or their handlers raise TryLater. Messages of other
    keys come later, and must not wait for these keys.
    """
    away = [f"w{number}" for number in range(chance.randint(7, 14))]
    waiting = [(round(chance.uniform(0, 20), 1), _Producer(key).next()) for key in away]
    asks = chance.choice((True, False))
    return Script(
        deliveries=(*waiting, *_quiet(chance, range(60, 140), each=4)),
        habits={message.message_id: (Habit.ASKS, -1) for _, message in waiting if asks},
        heals_at=150.0,
        stores_away={} if asks else dict.fromkeys(away, (0.0, 150.0)),
        quiet=_FEW,
        # Within how many seconds messages of healthy keys must be handled. If handlers raise TryLater (`asks`), they may wait longer,
        # because the circuit breaker opens and tries one message at a time.
        within=30.0 if asks else 12.0,
        processes=(Process(starts_at=0.0, lives_for=200.0, killed=False, seconds=0.05, faults={}),),
    )


def busy_script(chance: Random) -> Script:
    """
    Return a script in which busy keys always have a waiting message and could take all slots of the process. Messages of quiet keys
    have to be handled in time all the same.
    """
    busy = [f"h{number}" for number in range(chance.randint(SLOTS, 4 * SLOTS))]
    each = chance.choice((0.5, 1.0, 3.0))
    turns = (len(busy) + len(_FEW)) / SLOTS * max(1.0, each)  # seconds until each key had a slot once
    return Script(
        deliveries=(
            *(
                (0.0, message)
                for key in busy
                for message in _backlog(key, int(SLOTS * 80 / each / len(busy)))
            ),
            *_quiet(chance, range(10, 60), each=1),
        ),
        handler_seconds=each,
        quiet=_FEW,
        within=5.0 + 2 * turns,
        processes=(Process(starts_at=0.0, lives_for=300.0, killed=False, seconds=0.05, faults={}),),
    )


def _backlog(key: str, count: int) -> list[Message]:
    producer = _Producer(key)
    return [producer.next() for _ in range(count)]


def _quiet(chance: Random, when: range, *, each: int) -> list[tuple[float, Message]]:
    """Return `each` messages for each of the keys that must not wait, at random times within `when`."""
    producers = [_Producer(key) for key in _FEW]
    times = sorted(chance.sample(when, each * len(_FEW)))
    return [(float(at), producers[number % len(_FEW)].next()) for number, at in enumerate(times)]


def any_script(chance: Random) -> Script:
    """Return a random script of one of this module's three kinds: in six of eight cases, `random_consumers_script` makes it."""
    return chance.choice((*(6 * [random_consumers_script]), stores_away_script, busy_script))(chance)


def _deliveries(chance: Random, keys: tuple[str, ...]) -> tuple[tuple[float, Message], ...]:
    producers = {key: _Producer(key) for key in keys}
    deliveries: list[tuple[float, Message]] = []
    at = 0.0
    key = keys[0]
    for _ in range(chance.randint(4, 20) + len(keys)):
        key = chance.choice((key, *keys))
        producer = producers[key]
        again = producer.sent and chance.randrange(4) == 0
        message = chance.choice(producer.sent) if again else producer.next()
        at = round(at + chance.choice((0.0, 0.0, 0.3, 2.0, 6.0)), 1)
        deliveries.append((at, message))
    return tuple(deliveries)


def _process(chance: Random) -> Process:
    return Process(
        starts_at=chance.choice((0.0, _time(chance))),
        lives_for=chance.choice((1000.0, 30.0, _time(chance))),
        killed=chance.random() < 0.7,
        seconds=chance.choice((0.01, 0.05, 0.2)),
        faults=_faults(chance, list(Port)),
    )


def _operator(chance: Random) -> Operator:
    return Operator(
        starts_at=_time(chance),
        lives_for=chance.choice((1000.0, _time(chance))),
        act=chance.choice((*Act, Act.RELEASE, Act.EDIT)),
        seconds=chance.choice((0.01, 0.05, 0.3)),
        faults=_faults(chance, [Port.READ, Port.COMMIT, Port.PARKED]),
    )


def _faults(chance: Random, ports: list[Port]) -> Faults:
    return {
        port: tuple(chance.choice((None, None, *Fault)) for _ in range(chance.randint(0, 6)))
        for port in ports
    }


def _time(chance: Random) -> float:
    return round(chance.uniform(0, 25), 1)
