"""The exception tree: every mistake a user can make ends in one of these.

    Exception
      KernmillError            base: catch this to catch all of ours
        ShapeError             shapes that do not fit together          (also a ValueError and a RuntimeError)
        DTypeError             a dtype that an operation cannot take    (also a TypeError and a RuntimeError)
        IndexRangeError        an index outside its axis                (also an IndexError and a RuntimeError)
        LinAlgError            a matrix that has no inverse, no factor (also a ValueError, and NumPy's LinAlgError)
        DeviceError            unknown, missing or mixed devices        (also a RuntimeError)
          OutOfMemoryError     a buffer does not fit on a device (also a MemoryError)
        CompileError           a kernel that could not be built         (also a RuntimeError)
        FormatError            a file whose bytes are not what they claim (also a ValueError)
        SettingError           an unknown setting or value              (also a ValueError and a RuntimeError)
        GradientError          backward() where there is nothing to differentiate (also a RuntimeError)
        InternalError          a bug in kernmill: please report it      (also a RuntimeError)

NumPy and Python raise the first of the two built-in errors, PyTorch the second, for the same mistake.
A message has three parts: the call with shapes and dtypes, why it fails, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CompileError", "DTypeError", "DeviceError", "FormatError", "GradientError", "IndexRangeError", "InternalError",
    "KernmillError", "LinAlgError", "OutOfMemoryError", "SettingError", "ShapeError",
]  # fmt: skip


class KernmillError(Exception):
    """Base of all errors that kernmill raises on purpose. `kernels`: those that failed; `inputs`: of a single one, the
    values by slot and those of its variables."""

    kernels: tuple[Any, ...] = ()
    inputs: tuple[Sequence[Any], Sequence[int]] | None = None


class ShapeError(KernmillError, ValueError, RuntimeError):
    """Shapes that do not fit together."""


class DTypeError(KernmillError, TypeError, RuntimeError):
    """A dtype that the operation cannot take."""


class IndexRangeError(KernmillError, IndexError, RuntimeError):
    """An index outside its axis."""


class LinAlgError(KernmillError, ValueError):
    """A matrix that is singular, or not positive definite."""


class DeviceError(KernmillError, RuntimeError):
    """An unknown, missing or unusable device, or tensors on different devices."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A buffer that does not fit on a device; the process stays usable."""


class CompileError(KernmillError, RuntimeError):
    """A kernel that could not be built for its device."""


class FormatError(KernmillError, ValueError):
    """A file whose bytes do not match its format."""


class SettingError(KernmillError, ValueError, RuntimeError):
    """An unknown setting, or an invalid value of a setting."""


class GradientError(KernmillError, RuntimeError):
    """A gradient that does not exist."""


class InternalError(KernmillError, RuntimeError):
    """A bug in kernmill. The message names the pass and prints the nodes around the culprit."""
