"""`follow`: what the ranks other than 0 do for a model over ranks: the steps that rank 0 announces, until it ends.

Tests: tests/kernmill/llm/test_ranks.py.
"""

from __future__ import annotations

from typing import Any

from .. import dist
from .generate import Model
from .sequences.steps import Steps

__all__ = ["follow"]


def follow() -> None:
    """Open models and compute steps as rank 0 says."""
    model: Model | None = None
    steps: Steps | None = None
    ranks = dist.communicator()
    while True:
        call, *given = ranks.announced()
        if call == "end":
            return
        if call == "load":
            steps, model = None, _opened(*given)
            continue
        assert model is not None
        if call in ("close", "rescale", "_move_states", "_run_block"):
            getattr(model, call)(*given)
        elif call == "steps":
            steps = Steps(model, *given)
        elif steps is not None:
            getattr(steps, call)(*given)


def _opened(path: str, options: dict[str, Any]) -> Model:
    return Model.from_gguf(path, **options)
