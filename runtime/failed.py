"""Errors of launches: they name the kernels, so that a folder can repeat them (programs/reproduce.py).

Tests: tests/runtime/test_failed.py, tests/runtime/programs/test_reproduce.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import Kernel, KernmillError, OutOfMemoryError

from . import later
from .device import Device, failure

__all__ = ["explained", "failed_launch"]

_MOST_SHOWN = 20  # kernels of a batch that failed


def failed_launch(device: Device, error: Exception, kernels: Sequence[Kernel]) -> Exception:
    """Return the error to raise for one from a launch, with its kernels, unless there was no memory."""
    found = failure(device, error, f"run of {_shown(kernels)}")
    if isinstance(found, KernmillError) and not isinstance(found, OutOfMemoryError):
        found.kernels = found.kernels or tuple(kernels[:_MOST_SHOWN])
    return found


def explained(error: Exception) -> Exception:
    """Return the error, which names a folder that repeats it if its kernels are known."""
    if isinstance(error, KernmillError) and error.kernels:
        later.reproduce.explain_failure(error)
    return error


def _shown(kernels: Sequence[Kernel]) -> str:
    """Kernels as a message names them: the first ones, with the user's lines."""
    names = [f"{kernel.name} ({kernel.origin})" if kernel.origin else kernel.name for kernel in kernels]
    return ", ".join(list(dict.fromkeys(names))[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
