"""Quoting of file contents in messages: they may contain terminal control sequences, or be as long as the file."""

from __future__ import annotations

import reprlib

__all__ = ["escaped", "quoted"]

LONGEST = 90  # characters: of a longer text the middle is left out
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = LONGEST
_SHORT.fillvalue = ".."


def quoted(value: object) -> str:
    """Return a value as Python writes it, with escapes for unprintable characters. Only the displayed part of a string
    or list is read.

    >>> print(quoted("a" + chr(27) + "[2J"))
    'a\\x1b[2J'
    """
    text = _SHORT.repr(value)  # a list of long texts is longer than one
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + ".."


def escaped(text: str) -> str:
    """As `quoted`, without the quotes: for sentences that a file puts into ours."""
    return quoted(text)[1:-1]
