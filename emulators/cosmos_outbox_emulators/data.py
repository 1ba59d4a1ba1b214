"""
A folder that keeps what the emulators hold, in one SQLite database.

What an answer tells is in the database before the answer leaves, so a killed process loses nothing that a client knows of. The
system writes to the disk when it likes: when the machine loses its power, the last seconds may be lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.persistence import AccountFile
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.persistence import BrokerFile
from cosmos_outbox_emulators.usage import UsageError

FILE = "emulators.sqlite3"
_FORMAT = 1


@contextmanager
def open_data_folder(folder: Path, account: Account, broker: Broker) -> Iterator[Callable[[], None]]:
    """
    Restore an account and a broker from a folder, which is created if it is missing. Yield the function that saves both.

    Raises:
        UsageError: it cannot be used, another process has it open, or it is of another version.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            connection = stack.enter_context(closing(sqlite3.connect(folder / FILE, timeout=0)))
            _prepare(connection)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"--data {folder}: {error}; do other emulators use it?") from error
        files = AccountFile(connection, account), BrokerFile(connection, broker)

        def save() -> None:
            for file in files:
                file.save()
            connection.commit()

        yield save
        save()


def _prepare(connection: sqlite3.Connection) -> None:
    for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = OFF"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("BEGIN EXCLUSIVE")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, _FORMAT):
        raise UsageError(
            f"--data: the folder is of format {found}, these emulators read {_FORMAT}; name an empty one"
        )
    connection.execute(f"PRAGMA user_version = {_FORMAT}")
    connection.commit()
