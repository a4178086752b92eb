"""A draft after some of the graph passes."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.compiler import GRAPH_PIPELINE, Draft
from kernmill.ir import UOp


def draft_after(name: str, *roots: UOp, in_place: Sequence[int] = (), devices: Sequence[str] = ("LLVM",) * 8) -> Draft:
    """The draft after the first run of the pass `name`."""
    draft = Draft(roots, devices, frozenset(in_place), "LLVM")
    for step in GRAPH_PIPELINE:
        setattr(draft, step.makes, step.run(draft))
        if step.name == name:
            return draft
    raise ValueError(name)
