"""
Computes request charges. They are plausible numbers that grow with the size of an item, NOT the charges of Azure.

The emulator sends charges so that code which reads, sums and reports them can be tested. A 1 KB point read costs 1 RU and a 1 KB
write about 6 RU, as Microsoft's rule of thumb says. Nothing else about them is calibrated.
"""

from __future__ import annotations

_KB = 1024


def read_charge(size: int) -> float:
    return 1.0 + 0.1 * (size // _KB)


def write_charge(size: int) -> float:
    return 6.0 + 1.0 * (size // _KB)


def feed_charge(documents: int, size: int) -> float:
    return 1.0 + 0.05 * documents + 0.02 * (size // _KB)


def query_charge(rows: int, size: int) -> float:
    return 2.5 + 0.05 * rows + 0.02 * (size // _KB)
