"""The exception tree: one base, and beside each the built-in that a caller would expect."""

from __future__ import annotations

import pytest

from kernmill import ir
from kernmill.ir import KernmillError

ALSO = {
    "ShapeError": ValueError,
    "DTypeError": TypeError,
    "IndexRangeError": IndexError,
    "DeviceError": RuntimeError,
    "OutOfMemoryError": MemoryError,
    "CompileError": RuntimeError,
    "FormatError": ValueError,
    "SettingError": ValueError,
    "GradientError": RuntimeError,
    "InternalError": RuntimeError,
}


@pytest.mark.parametrize("name", ALSO)
def test_each_is_a_kernmill_error_and_a_builtin(name: str) -> None:
    error: type[Exception] = getattr(ir, name)
    assert issubclass(error, KernmillError)
    assert issubclass(error, ALSO[name])
    assert error.__doc__


def test_all_are_listed() -> None:
    found = {name for name, thing in vars(ir).items() if isinstance(thing, type) and issubclass(thing, KernmillError)}
    assert found == {*ALSO, "KernmillError"}
    assert issubclass(ir.OutOfMemoryError, ir.DeviceError)
