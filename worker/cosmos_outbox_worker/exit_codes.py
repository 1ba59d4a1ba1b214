"""
Exit codes: the codes with which commands, workers and consumers end, each with its meaning for the reference page. `main.py` decides with
which of them a worker or consumer ends.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """The exit code of a command, a worker or a consumer, with a text that says what it means."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Create a member from its number, and store the text as its `meaning`."""
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    DONE = 0, "the command did its work; `doctor`: healthy, or only notes"
    WARNED = (
        1,
        "`doctor`, `plan`: warnings only; `verify` has codes of its own; `events describe --check`: the contract is broken; a worker: it crashed",
    )
    UNUSABLE = 2, "an argument, a setting, a resource or the identity cannot be used: nothing was done"
    UNANSWERED = 3, "a service did not answer: nothing is known"
    WRONG = 4, "trouble was found (`doctor`: errors), or the command failed, as a whole or in part"
    NO_MATCH = 5, "nothing has the name: the key, the record, the processor, or what a filter asks for"
    DECLINED = (
        6,
        "the command asks before a change: you answered no, or there is no terminal to ask on and no `--yes`",
    )
    INTERRUPTED = 130, "Ctrl-C; if the command was waiting for your yes or no, nothing was done"


# A command that ran for several containers ends with the worst of their exit codes. A code for a known error is worse than the code for
# something that could not be checked.
WORST_FIRST = tuple(sorted(ExitCode, key=(130, 4, 2, 3, 5, 6, 1, 0).index))
