"""The exception tree: one base, and beside each the built-in that a caller would expect."""

from __future__ import annotations

import pytest

from kernmill import ir
from kernmill.ir import KernmillError

ALSO: dict[str, tuple[type[Exception], ...]] = {
    "ShapeError": (ValueError, RuntimeError),
    "DTypeError": (TypeError, RuntimeError),
    "IndexRangeError": (IndexError, RuntimeError),
    "DeviceError": (RuntimeError,),
    "LinAlgError": (ValueError,),
    "OutOfMemoryError": (MemoryError, RuntimeError),
    "CompileError": (RuntimeError,),
    "FormatError": (ValueError,),
    "SettingError": (ValueError, RuntimeError),
    "GradientError": (RuntimeError,),
    "InternalError": (RuntimeError,),
}


@pytest.mark.parametrize("name", ALSO)
def test_each_is_a_kernmill_error_and_a_builtin(name: str) -> None:
    error: type[Exception] = getattr(ir, name)
    assert issubclass(error, KernmillError)
    assert all(issubclass(error, builtin) for builtin in ALSO[name])
    assert error.__doc__


def test_all_are_listed() -> None:
    found = {name for name, thing in vars(ir).items() if isinstance(thing, type) and issubclass(thing, KernmillError)}
    assert found == {*ALSO, "KernmillError"}
    assert issubclass(ir.OutOfMemoryError, ir.DeviceError)
