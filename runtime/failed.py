"""Errors of launches: they name the kernels, so that a folder can repeat them (programs/reproduce.py).

Tests: tests/runtime/test_failed.py, tests/runtime/programs/test_reproduce.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kernmill.ir import IndexRangeError, Kernel, KernmillError, LinAlgError, OutOfMemoryError

from . import later
from .device import Device, failure

__all__ = ["check_failed", "explained", "failed_launch"]

_MOST_SHOWN = 20  # kernels of a batch that failed
_LINALG = "linalg: "  # what messages of checks of matrices begin with


def check_failed(message: str) -> IndexRangeError | LinAlgError:
    """The error of a CHECK: of an index, or of a matrix if its message begins with `linalg: `. That one is NumPy's as
    well, if NumPy is imported: programs that catch NumPy's see it."""
    if not message.startswith(_LINALG):
        return IndexRangeError(message)
    bases: Any = (LinAlgError, numpy.linalg.LinAlgError) if (numpy := sys.modules.get("numpy")) else (LinAlgError,)
    own = {"__module__": __name__, "__reduce__": lambda _: (check_failed, (message,))}
    return type("LinAlgError", bases, own)(message.removeprefix(_LINALG))  # type: ignore[no-any-return]


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
