"""
Keeps the data of both emulators in a folder, in one SQLite database.

Everything that an answer reports is in the database before the answer is sent, so a killed process loses nothing that a client
knows of. The operating system decides when it writes to the disk: if the machine loses its power, the last seconds may be lost.
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
    Restore an account and a broker from a folder, which is created if it is missing. Yield a function that saves both.

    Raises:
        UsageError: the folder cannot be used, another process has it open, or it has another format.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            connection = stack.enter_context(closing(sqlite3.connect(folder / FILE, timeout=0)))
            _prepare(connection)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"--data: cannot use {folder}: {error}. Do other emulators use it?") from error
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
            f"--data: the folder has format {found}, but these emulators read format {_FORMAT}; name an empty folder"
        )
    connection.execute(f"PRAGMA user_version = {_FORMAT}")
    connection.commit()
