"""
Bookmark: the file in which a replay keeps how far it came, so that the same replay goes on there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos_outbox.cli.events import Position
from cosmos_outbox.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """
    The file, and what makes a replay the same: from where to where, and which events.
    """

    file: Path
    asked: Mapping[str, str | None]

    def position(self) -> Position | None:
        """
        Return the position that an interrupted replay came to, or None where there was none.

        Raises:
            UsageError: the file belongs to another replay, or is no bookmark.
        """
        found: Any = None
        try:
            found = json.loads(self.file.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            pass  # as any other file that is none
        match found:
            case {"asked": dict(before), "position": dict(position)} if all(
                isinstance(continuation, str | None) for continuation in position.values()
            ):
                self._require_same(before)
                return position
        raise UsageError(f"{self.file} is no state of a replay; name another file.")

    def keep(self, position: Position) -> None:
        """
        Write down how far the replay came.
        """
        # Replaced as a whole: an interruption must not leave half of it.
        written = self.file.with_name(f"{self.file.name}.new")
        written.write_text(json.dumps({"asked": dict(self.asked), "position": dict(position)}))
        written.replace(self.file)

    def remove(self) -> None:
        """
        Forget a replay that is done.
        """
        self.file.unlink(missing_ok=True)

    def _require_same(self, before: Mapping[str, object]) -> None:
        other = [
            f"{name} {before.get(name)!r} (now {now!r})"
            for name, now in self.asked.items()
            if before.get(name) != now
        ]
        if other:
            raise UsageError(
                f"{self.file} belongs to another replay, with {', '.join(other)}. Repeat that one, or delete the file."
            )
