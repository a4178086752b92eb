from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, SettingError, Tensor, dtypes

from ..against import close, values, with_torch

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 65504.0, 6e-8]
PAIRS = np.array([(a, b) for a in SPECIAL for b in SPECIAL])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_signbit_copysign_and_nextafter_are_numpys(dtype: str) -> None:
    with np.errstate(all="ignore"):
        a, b = (PAIRS[:, i].astype(dtype) for i in (0, 1))
        x, y = Tensor(a), Tensor(b)
        np.testing.assert_array_equal(x.signbit().numpy(), np.signbit(a))
        for ours, theirs in ((x.copysign(y), np.copysign(a, b)), (x.nextafter(y), np.nextafter(a, b))):
            got = ours.numpy()
            assert got.dtype == theirs.dtype
            np.testing.assert_array_equal(got, theirs)
            # of two zeros NumPy gives the first in float16, and the second in the others
            is_number = ~np.isnan(theirs) & ~((a == 0) & (b == 0))
            np.testing.assert_array_equal(np.signbit(got[is_number]), np.signbit(theirs[is_number]))


def test_the_neighbours_of_a_bfloat16() -> None:
    x = Tensor([1.0, -1.0, 0.0], dtype=dtypes.bfloat16)
    assert x.nextafter(np.inf).float().tolist() == [1 + 2.0**-7, -1 + 2.0**-8, 2.0**-133]


def test_signbit_of_ints() -> None:
    assert Tensor([-1, 0, 2]).signbit().tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hypot_is_numpys(dtype: str) -> None:
    with np.errstate(all="ignore"):
        a, b = (PAIRS[:, i].astype(dtype) for i in (0, 1))
        usual = [(abs(v) > 1e-30) | (v == 0) | np.isnan(v) for v in (a, b)]  # the scale of subnormal numbers is coarse
        a, b = a[usual[0] & usual[1]], b[usual[0] & usual[1]]
        close(Tensor(a).hypot(Tensor(b)), np.hypot(a, b), rtol=4 * float(np.finfo(dtype).eps), atol=0.0)


def test_gradients_are_torchs() -> None:
    torch: Any = pytest.importorskip("torch")
    x, y = values(5, 7, seed=1), values(5, 7, seed=2)
    with_torch(lambda a, b: a.hypot(b), torch.hypot, [x, y])
    with_torch(lambda a: a.copysign(Tensor(y)), lambda a: torch.copysign(a, torch.tensor(y)), [x])
    with_torch(lambda a: a.copysign(-2.0), lambda a: torch.copysign(a, -2.0), [x])


def test_the_gradient_of_hypot_at_zero_is_zero() -> None:
    x, y = Tensor([0.0], requires_grad=True), Tensor([-0.0], requires_grad=True)
    x.hypot(y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() + y.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_float8_is_what_ml_dtypes_says(kind: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    theirs = getattr(ml_dtypes, f"float8_{kind}")
    with np.errstate(all="ignore"):
        x = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
        x = np.concatenate([x, np.array([464, 464.1, 61439, 61440, 1e30, -1e-30, np.inf, -np.inf], np.float32)])
        want = x.astype(theirs)
    bits = Tensor(x).to_float8(kind)
    assert bits.dtype is dtypes.uint8
    is_number = ~np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(bits.numpy()[is_number], want.view(np.uint8)[is_number])
    np.testing.assert_array_equal(bits.from_float8(kind).numpy(), want.astype(np.float32))
    assert Tensor([1, 2]).to_float8(kind).from_float8(kind).tolist() == [1.0, 2.0]


def test_bad_calls_of_float8() -> None:
    with pytest.raises(SettingError, match="must be 'e4m3fn', 'e5m2', 'e4m3fnuz' or 'e5m2fnuz'"):
        Tensor([1.0]).to_float8("e3m4")
    with pytest.raises(DTypeError, match="must be uint8"):
        Tensor([1.0]).from_float8()
