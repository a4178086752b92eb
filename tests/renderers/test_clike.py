"""What languages with C's expressions share: names, literals, ints that wrap."""

from __future__ import annotations

import math
import struct

import pytest

from kernmill.compiler import lower
from kernmill.ir import Ops, Target, UOp, dtypes, elementwise
from kernmill.renderers import C_OPS, OpenCLRenderer, float_text, identifier
from tests.compiler.kernels import data, only

PLAIN = Target("plain", ops=C_OPS)


def render(root: UOp) -> str:
    return OpenCLRenderer(PLAIN).render("k", lower(only(root), PLAIN))


def test_names() -> None:
    assert identifier("i0.u.v") == "i0_u_v"
    assert identifier("k0'") == "k0_copy"


@pytest.mark.parametrize(
    "value", [0.0, 1.5, -2.0, 0.1, 1e-45, 3.4e38, math.pi, struct.unpack("f", b"\xdb\x0f\x49\x40")[0]]
)
def test_float_literals_are_exact(value: float) -> None:
    text = float_text(value, "f")
    assert text.endswith("f")
    body = text[:-1]
    assert (float.fromhex(body) if "0x" in body else float(body)) == value
    assert "." in body


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (dtypes.int8, "(char)((uint)"),
        (dtypes.uint16, "(ushort)((uint)"),  # 65535 * 65535 is no int
        (dtypes.int32, "(int)((uint)"),
        (dtypes.int64, "(long)((ulong)"),
    ],
    ids=str,
)
def test_ints_wrap(dtype: object, text: str) -> None:
    a, b = data(0, 8, dtype=dtype), data(1, 8, dtype=dtype)  # type: ignore[arg-type]
    assert text in render(elementwise(Ops.MUL, a, b))


def test_wide_unsigned_ints_wrap_by_themselves() -> None:
    a, b = data(0, 8, dtype=dtypes.uint64), data(1, 8, dtype=dtypes.uint64)
    assert "(ulong)" not in render(elementwise(Ops.MUL, a, b))


def test_places_are_plain_sums() -> None:
    text = render(data(0, 8, 8) + 1.0)
    assert "(ulong)" not in text
    assert "for (long " in text


def test_what_a_loop_carries_is_copied_before_it_changes() -> None:
    """SET may stand before the last use of the old value."""
    from tests.compiler.kernels import total

    lines = [line.strip() for line in render(total(data(0, 4, 8), 1)).splitlines()]
    first = next(line for line in lines if line.startswith("float ") and line.endswith("= 0.0f;"))
    name = first.split()[1]
    assert any(line.startswith("float ") and line.endswith(f"= {name};") for line in lines)
    assert any(line.startswith(f"{name} = ") for line in lines)
