"""Codebooks of IQ1, IQ2 and IQ3, which the package gguf has."""

from __future__ import annotations

import importlib
from typing import Any

from kernmill.ir import FormatError

__all__ = ["codebook"]


def codebook(name: str) -> Any:
    """Return the codebook of a type: numbers [entries, values of one].

    Raises:
        FormatError: the package gguf is not installed.
    """
    try:
        quants: Any = importlib.import_module("gguf.quants")
    except ImportError:
        raise FormatError(
            f"{name}: the codebooks of this type are in the package gguf, which is not installed. "
            "Run: pip install 'kernmill[iq]'"
        ) from None
    traits = getattr(quants, name)
    traits.init_grid()
    return traits.grid.reshape(traits.grid_shape)
