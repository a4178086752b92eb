"""Where a node comes from: the user's line, the layer, and what the node is for, as one text.

    train.py:41
    train.py:41 in Net.blocks.3.attn.q
    train.py:41 in Net.blocks.3.attn.q, backward
    train.py:60, update of blocks.3.attn.q.weight

The text is what messages print; `split_origin` takes it apart. Two lines may compute graphs of equal structure, which
share a plan. An `Origin` also has the number of its node in that structure, so that each run finds its own line.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from .uop import current_origin

__all__ = ["Origin", "OriginParts", "distinct", "in_run", "join_origin", "scope", "split_origin"]

_LAYER = " in "
_ROLE = ", "


class Origin(str):
    """An origin with the number of its node in the structure of a graph."""

    __slots__ = ("number",)

    number: int

    @classmethod
    def of(cls, text: str, number: int) -> Origin:
        """The origin of node `number`."""
        made = cls(text)
        made.number = number
        return made


class OriginParts(NamedTuple):
    """`file:line`; the layer, or ""; and `backward`, `update of NAME`, or ""."""

    line: str
    layer: str = ""
    role: str = ""


def split_origin(text: str | None) -> OriginParts:
    """Return the parts of an origin; a path may contain anything, so they are searched after the line number."""
    if not text:
        return OriginParts("")
    colon = text.rfind(":")
    while colon > 0 and not text[colon + 1 : colon + 2].isdigit():  # of a role or a layer
        colon = text.rfind(":", 0, colon)
    end = colon + 1
    while end < len(text) and text[end].isdigit():
        end += 1
    line, rest, layer = text[:end], text[end:], ""
    if rest.startswith(_LAYER):
        layer, _, role = rest[len(_LAYER) :].partition(_ROLE)
        return OriginParts(line, layer, role)
    return OriginParts(line, layer, rest.removeprefix(_ROLE))


def join_origin(line: str, layer: str = "", role: str = "") -> str:
    """Return the text of these parts."""
    return line + (_LAYER + layer if layer else "") + (_ROLE + role if role else "")


def distinct(origins: Iterable[str]) -> tuple[str, ...]:
    """Return the origins of different nodes; equal lines may differ in another run."""
    return tuple({(text, getattr(text, "number", -1)): text for text in origins}.values())


def in_run(origin: str, lines: Sequence[str | None] | None) -> str:
    """Return the origin in a run whose nodes have these origins."""
    if lines is None or not isinstance(origin, Origin) or origin.number >= len(lines):
        return origin
    return lines[origin.number] or origin


@contextmanager
def scope(name: str) -> Generator[None]:
    """Name what the block computes, for profiles: `with scope("attention"):`; in a module below its name."""
    outer = current_origin.suffix
    current_origin.suffix = f"{outer}.{name}" if outer.startswith(" in ") else f" in {name}"
    try:
        yield
    finally:
        current_origin.suffix = outer
