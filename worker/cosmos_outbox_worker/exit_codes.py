"""Exit codes: what a command or a program says to the script or the platform that started it; the reference page lists these."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """How a command or a program ended."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Make a code with its meaning."""
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    DONE = 0, "done; of `doctor`: healthy, no finding but notes"
    WARNED = (
        1,
        "`doctor`, `plan`: warnings only; `verify` has codes of its own; `events describe --check`: the contract is broken; a worker: it crashed",
    )
    UNUSABLE = 2, "an argument, a setting, a resource or the identity cannot be used: nothing was done"
    UNANSWERED = 3, "a service did not answer: nothing is known"
    WRONG = 4, "trouble was found (`doctor`: errors), or it failed, as a whole or in part"
    NO_MATCH = 5, "nothing has the name: the key, the record, the processor, or what a filter asks for"
    DECLINED = (
        6,
        "it asks before it changes something: the answer was no, or there is no terminal and no `--yes`",
    )
    INTERRUPTED = 130, "Ctrl-C; where it asked, nothing was done"


# Of several containers, the worst code wins: something known to be wrong, then something that could not be checked.
WORST_FIRST = tuple(sorted(ExitCode, key=(130, 4, 2, 3, 5, 6, 1, 0).index))
