"""kernmill.array_api against array_api_strict: each row is an expression that both namespaces compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kernmill
from kernmill import ComplexTensor, Context, DTypeError, KernmillError, SettingError, Tensor, array_api, dtypes
from tests.kernmill.against import only_on

strict = pytest.importorskip("array_api_strict")
on_device = only_on("LLVM")
R = np.random.default_rng(11)
FLOATS = R.normal(size=(3, 4))
WHOLE = R.integers(-5, 6, (3, 4))
SQUARE = R.normal(size=(2, 3, 3))
SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan])
BOOLS = WHOLE > 0
COMPLEX = FLOATS + 1j * R.normal(size=(3, 4))
Case = Callable[[Any, Callable[[Any], Any]], Any]  # of a namespace, and of what makes its arrays


@pytest.fixture(autouse=True)
def version() -> Iterator[None]:
    strict.set_array_api_strict_flags(api_version="2024.12")
    yield
    strict.reset_array_api_strict_flags()


UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p log2 log10 "
    "negative positive reciprocal round sign signbit sin sinh square sqrt tan tanh trunc"
)  # fmt: skip
COMPLEX_UNARY = (
    "acos acosh asin asinh atan atanh cos cosh exp log log2 sin sinh sqrt square tan tanh sign abs conj real imag"
)
BINARY = (
    "add subtract multiply divide floor_divide remainder pow atan2 copysign hypot logaddexp maximum minimum nextafter "
    "equal not_equal less less_equal greater greater_equal"
)
BITS = "bitwise_and bitwise_or bitwise_xor"


def unary(name: str, values: Any) -> Case:
    return lambda xp, a: getattr(xp, name)(a(values))


def binary(name: str, left: Any, right: Any) -> Case:
    return lambda xp, a: getattr(xp, name)(a(left), a(right))


def reduced(name: str, values: Any, **options: Any) -> Case:
    return lambda xp, a: getattr(xp, name)(a(values), **options)


GRID = np.meshgrid(SPECIAL, SPECIAL)
ELEMENTWISE: dict[str, Case] = {
    **{f"{n} float": unary(n, SPECIAL) for n in UNARY.split()},
    **{f"{n} int": unary(n, WHOLE) for n in ("abs", "ceil", "floor", "negative", "round", "sign", "square", "trunc")},
    **{f"{n} complex": unary(n, COMPLEX) for n in COMPLEX_UNARY.split()},
    **{f"{n} float": binary(n, *GRID) for n in BINARY.split() if n != "logaddexp"},
    "logaddexp": binary("logaddexp", FLOATS, FLOATS[::-1]),
    **{f"{n} int": binary(n, WHOLE, np.abs(WHOLE) + 1) for n in ("floor_divide", "remainder", "multiply", "pow")},
    **{f"{n} bits": binary(n, WHOLE, WHOLE[::-1]) for n in BITS.split()},
    **{f"{n} bool": binary(n, BOOLS, BOOLS[::-1]) for n in ("logical_and", "logical_or", "logical_xor", *BITS.split())},
    **{f"{n} complex": binary(n, COMPLEX, COMPLEX[::-1]) for n in ("add", "divide", "multiply", "pow", "equal")},
    "shifts": lambda xp, a: xp.bitwise_left_shift(xp.bitwise_right_shift(a(WHOLE), 1), a(np.abs(WHOLE))),
    "invert": lambda xp, a: xp.bitwise_invert(a(WHOLE)),
    "not": lambda xp, a: xp.logical_not(a(BOOLS)),
    "clip": lambda xp, a: xp.clip(a(WHOLE), -2, 3),
    "clip one": lambda xp, a: xp.clip(a(FLOATS), max=a(FLOATS[0])),
    "where": lambda xp, a: xp.where(a(BOOLS), a(FLOATS), 0.0),
    "where complex": lambda xp, a: xp.where(a(BOOLS), a(COMPLEX), a(FLOATS)),
    "number first": lambda xp, a: xp.maximum(0, a(WHOLE)),
    "mixed ints": lambda xp, a: xp.add(a(WHOLE.astype(np.int16)), a(BOOLS.astype(np.uint8))),
}  # fmt: skip
CREATION: dict[str, Case] = {
    "arange": lambda xp, a: xp.arange(3, 11, 2),
    "arange dtype": lambda xp, a: xp.arange(5, dtype=xp.float64),
    "linspace": lambda xp, a: xp.linspace(0, 1, 5, dtype=xp.float64, endpoint=False),
    "linspace complex": lambda xp, a: xp.linspace(0, 1 + 1j, 3, dtype=xp.complex128),
    "eye": lambda xp, a: xp.eye(3, 4, k=1, dtype=xp.int32),
    "eye complex": lambda xp, a: xp.eye(2, dtype=xp.complex64),
    "full": lambda xp, a: xp.full((2, 3), 7),
    "full bool": lambda xp, a: xp.full(2, True),
    "full complex": lambda xp, a: xp.full(2, 1j, dtype=xp.complex64),
    "like": lambda xp, a: xp.ones_like(a(COMPLEX)) + xp.zeros_like(a(FLOATS)),
    "asarray": lambda xp, a: xp.asarray([[1, 2], [3, 4]], dtype=xp.uint8),
    "asarray bool": lambda xp, a: xp.asarray([True, False]),
    "meshgrid": lambda xp, a: xp.meshgrid(a(FLOATS[0]), a(WHOLE[1].astype(float)))[1],
    "meshgrid ij": lambda xp, a: xp.meshgrid(a(FLOATS[0]), a(FLOATS[1]), a(FLOATS[2]), indexing="ij")[2],
    "tril": lambda xp, a: xp.tril(a(FLOATS), k=-1),
    "triu": lambda xp, a: xp.triu(a(COMPLEX), k=1),
}
SHAPES: dict[str, Case] = {
    "reshape": lambda xp, a: xp.reshape(a(COMPLEX), (2, -1)),
    "permute": lambda xp, a: xp.permute_dims(a(SQUARE), (2, 0, 1)),
    "concat": lambda xp, a: xp.concat([a(FLOATS), a(FLOATS.astype(np.float32))], axis=1),
    "concat flat": lambda xp, a: xp.concat([a(WHOLE), a(WHOLE[0])], axis=None),
    "stack complex": lambda xp, a: xp.stack([a(COMPLEX), a(COMPLEX)], axis=-1),
    "unstack": lambda xp, a: xp.unstack(a(FLOATS), axis=1)[2],
    "flip": lambda xp, a: xp.flip(a(FLOATS)),
    "flip axis": lambda xp, a: xp.flip(a(COMPLEX), axis=-1),
    "roll": lambda xp, a: xp.roll(a(FLOATS), 2),
    "roll axes": lambda xp, a: xp.roll(a(FLOATS), (1, -2), axis=(0, 1)),
    "squeeze": lambda xp, a: xp.squeeze(a(FLOATS[None, :, None]), (0, 2)),
    "expand": lambda xp, a: xp.expand_dims(a(FLOATS), axis=-1),
    "moveaxis": lambda xp, a: xp.moveaxis(a(SQUARE), 0, -1),
    "repeat": lambda xp, a: xp.repeat(a(FLOATS), 2, axis=1),
    "repeat counts": lambda xp, a: xp.repeat(a(FLOATS), a(np.array([1, 0, 2])), axis=0),
    "tile": lambda xp, a: xp.tile(a(FLOATS), (2, 1, 2)),
    "broadcast": lambda xp, a: xp.broadcast_arrays(a(FLOATS[0]), a(FLOATS))[0],
    "broadcast_to": lambda xp, a: xp.broadcast_to(a(COMPLEX[0]), (2, 4)),
    "index": lambda xp, a: a(FLOATS)[1:, ..., None],
    "index arrays": lambda xp, a: a(FLOATS)[a(np.array([0, 2])), a(np.array([1, 3]))],
    "mask": lambda xp, a: a(FLOATS)[a(BOOLS)],
    "take": lambda xp, a: xp.take(a(FLOATS), a(np.array([2, 0])), axis=1),
    "take_along_axis": lambda xp, a: xp.take_along_axis(a(FLOATS), a(np.array([[0], [2], [1]])), axis=1),
}
REDUCTIONS: dict[str, Case] = {
    **{f"{n} {axis}": reduced(n, FLOATS, axis=axis, keepdims=True)
       for n in ("sum", "prod", "mean", "var", "std", "max", "min") for axis in (None, 0, (0, 1))},
    **{f"{n} int": reduced(n, WHOLE.astype(np.int8), axis=1)
       for n in ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all", "cumulative_sum", "cumulative_prod")},
    **{f"{n} complex": reduced(n, COMPLEX, axis=1) for n in ("sum", "prod", "mean")},
    "sum of unsigned": lambda xp, a: xp.sum(a(np.abs(WHOLE).astype(np.uint8))),
    "sum dtype": lambda xp, a: xp.sum(a(WHOLE), dtype=xp.float32),
    "var correction": lambda xp, a: xp.var(a(FLOATS), axis=0, correction=1.0),
    "argmax flat": lambda xp, a: xp.argmax(a(FLOATS), keepdims=True),
    "count": lambda xp, a: xp.count_nonzero(a(WHOLE), axis=0),
    "cumulative": lambda xp, a: xp.cumulative_sum(a(FLOATS), axis=1, include_initial=True),
    "diff": lambda xp, a: xp.diff(a(FLOATS), axis=0, n=2, prepend=a(FLOATS[:1])),
    "sort": lambda xp, a: xp.sort(a(FLOATS), axis=0, descending=True),
    "argsort": lambda xp, a: xp.argsort(a(WHOLE), axis=1),
    "argsort down": lambda xp, a: xp.argsort(a(WHOLE), descending=True),
    "searchsorted": lambda xp, a: xp.searchsorted(a(np.sort(FLOATS[0])), a(FLOATS[1]), side="right"),
    "nonzero": lambda xp, a: xp.nonzero(a(WHOLE))[1],
    "unique values": lambda xp, a: xp.sort(xp.unique_values(a(WHOLE))),
    "unique all": lambda xp, a: xp.unique_all(a(WHOLE)).inverse_indices,
    "unique nan": lambda xp, a: xp.unique_counts(a(np.array([1, np.nan, np.nan]))).counts,
    "unique complex": lambda xp, a: xp.unique_inverse(a(np.array([1j, 0, 1j]))).inverse_indices,
}  # fmt: skip
ROW, POSITIVE = SQUARE[0], SQUARE[0] @ SQUARE[0].T + 3 * np.eye(3)
LINALG: dict[str, Case] = {
    "matmul": lambda xp, a: xp.matmul(a(COMPLEX), a(FLOATS.T)),
    "tensordot": lambda xp, a: xp.tensordot(a(FLOATS), a(COMPLEX), axes=((0, 1), (0, 1))),
    "vecdot": lambda xp, a: xp.vecdot(a(COMPLEX), a(COMPLEX[0])),
    "vecdot int": lambda xp, a: xp.vecdot(a(WHOLE.astype(np.int32)), a(WHOLE.astype(np.int32))),
    "transpose": lambda xp, a: xp.matrix_transpose(a(SQUARE)),
    "cholesky": lambda xp, a: xp.linalg.cholesky(a(POSITIVE), upper=True),
    "cross": lambda xp, a: xp.linalg.cross(a(ROW), a(ROW[::-1]), axis=-2),
    "det": lambda xp, a: xp.linalg.det(a(SQUARE)),
    "slogdet": lambda xp, a: xp.linalg.slogdet(a(SQUARE)).logabsdet,
    "diagonal": lambda xp, a: xp.linalg.diagonal(a(SQUARE), offset=1),
    "eigvalsh": lambda xp, a: xp.linalg.eigvalsh(a(POSITIVE)),
    "inv": lambda xp, a: xp.linalg.inv(a(SQUARE)),
    "inv complex": lambda xp, a: xp.linalg.inv(a(SQUARE + 1j * SQUARE[::-1])),
    "solve": lambda xp, a: xp.linalg.solve(a(SQUARE), a(SQUARE[0])),
    "solve complex": lambda xp, a: xp.linalg.solve(a(ROW + 1j * POSITIVE), a(ROW[0])),
    "matrix_norm": lambda xp, a: xp.linalg.matrix_norm(a(SQUARE), ord="nuc", keepdims=True),
    "matrix_norm complex": lambda xp, a: xp.linalg.matrix_norm(a(COMPLEX)),
    "vector_norm": lambda xp, a: xp.linalg.vector_norm(a(COMPLEX), axis=1, ord=1),
    "matrix_power": lambda xp, a: xp.linalg.matrix_power(a(SQUARE), -2),
    "matrix_rank": lambda xp, a: xp.linalg.matrix_rank(a(SQUARE), rtol=0.5),
    "pinv": lambda xp, a: xp.linalg.pinv(a(FLOATS), rtol=0.1),
    "qr": lambda xp, a: xp.abs(xp.linalg.qr(a(FLOATS), mode="complete").R),
    "svdvals": lambda xp, a: xp.linalg.svdvals(a(SQUARE)),
    "svd": lambda xp, a: xp.abs(xp.linalg.svd(a(FLOATS), full_matrices=False).U),
    "outer": lambda xp, a: xp.linalg.outer(a(FLOATS[0]), a(COMPLEX[0])),
    "trace": lambda xp, a: xp.linalg.trace(a(SQUARE), offset=-1),
    "fft": lambda xp, a: xp.fft.fft(a(COMPLEX), n=5, axis=0, norm="ortho"),
    "rfft": lambda xp, a: xp.fft.irfft(xp.fft.rfft(a(FLOATS), axis=0), n=3, axis=0),
    "fftn": lambda xp, a: xp.fft.ifftn(a(COMPLEX), s=(2, 5), axes=(0, 1)),
    "rfftn": lambda xp, a: xp.fft.rfftn(a(FLOATS)),
    "hfft": lambda xp, a: xp.fft.hfft(a(COMPLEX), n=6),
    "ihfft": lambda xp, a: xp.fft.ihfft(a(FLOATS)),
    "fftfreq": lambda xp, a: xp.fft.fftfreq(5, d=0.5, dtype=xp.float64),
    "rfftfreq": lambda xp, a: xp.fft.rfftfreq(5, dtype=xp.float64),
    "fftshift": lambda xp, a: xp.fft.ifftshift(xp.fft.fftshift(a(FLOATS), axes=1)),
}
CASES = {**ELEMENTWISE, **CREATION, **SHAPES, **REDUCTIONS, **LINALG}


def run(case: Case, xp: Any) -> tuple[Any, str]:
    """The values and the dtype of an expression."""
    result = case(xp, xp.asarray)
    array = result.numpy() if xp is array_api else np.asarray(result)
    return array, str(result.dtype).rpartition(".")[2]


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.filterwarnings("ignore")
def test_expressions(name: str) -> None:
    own, want = run(CASES[name], array_api), run(CASES[name], strict)
    assert own[1] == want[1]
    assert own[0].shape == want[0].shape
    np.testing.assert_allclose(own[0], want[0], rtol=1e-11, atol=1e-11)


def test_every_name_of_the_standard_is_there() -> None:
    for own, theirs in ((array_api, strict), (array_api.linalg, strict.linalg), (array_api.fft, strict.fft)):
        names = [n for n in theirs.__all__ if not n.startswith("_") and "array_api_strict" not in n]
        later = {"broadcast_shapes", "eig", "eigvals", "Device", "ArrayAPIStrictFlags"}
        assert [n for n in names if not hasattr(own, n) and n not in later] == []


def test_dtypes() -> None:
    for a in (*array_api.__array_namespace_info__().dtypes().values(),):
        for kind in ("bool", "signed integer", "integral", "real floating", "complex floating", "numeric"):
            theirs = getattr(strict, a.name)
            assert array_api.isdtype(a, kind) == strict.isdtype(theirs, kind)
        for b in (array_api.int8, array_api.uint16, array_api.int64):
            if a.is_int and not (a.name == "uint64" and b.is_signed):
                want = strict.result_type(getattr(strict, a.name), getattr(strict, b.name))
                assert array_api.result_type(a, b).name == str(want).rpartition(".")[2]
    assert array_api.result_type(array_api.float32, array_api.complex128) is dtypes.complex128
    assert array_api.result_type(array_api.int8, 1) is dtypes.int8
    assert array_api.result_type(array_api.float64, 1j) is dtypes.complex128
    for name in ("float32", "float64", "complex64"):
        own, want = array_api.finfo(getattr(array_api, name)), strict.finfo(getattr(strict, name))
        assert (own.bits, own.eps, own.max, own.min, own.smallest_normal) == (
            want.bits, want.eps, want.max, want.min, want.smallest_normal)  # fmt: skip
    assert array_api.iinfo(array_api.uint8).max == 255
    assert array_api.can_cast(array_api.int8, array_api.int16)
    assert not array_api.can_cast(array_api.float64, array_api.float32)
    assert not array_api.can_cast(array_api.int8, array_api.float32)
    assert array_api.isdtype(array_api.int8, ("bool", "integral"))


def test_inspection() -> None:
    info = array_api.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["integral"] is dtypes.int64
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    assert info.capabilities()["boolean indexing"]
    assert Tensor([1.0]).__array_namespace__(api_version="2024.12") is array_api  # type: ignore[attr-defined]
    assert ComplexTensor([1j]).__array_namespace__() is kernmill.array_api
    assert array_api.__array_api_version__ == "2024.12"


def test_arrays_have_the_attributes() -> None:
    x: Any = array_api.asarray(FLOATS)
    assert (x.ndim, x.shape, x.dtype, x.device) == (2, (3, 4), dtypes.float64, "LLVM")
    assert x.to_device("LLVM").shape == x.T.mT.shape
    z: Any = array_api.asarray(COMPLEX)
    assert z.to_device("LLVM").dtype is dtypes.complex128
    assert int(array_api.asarray(3)) == 3
    assert array_api.asarray(x, copy=True) is not x
    assert array_api.asarray(x) is x
    assert array_api.from_dlpack(FLOATS).shape == (3, 4)


EDGES = ("abs", "exp", "sum", "prod", "mean", "all", "any", "sort", "unique_values", "flip", "sign", "square", "real",
         "conj", "std", "count_nonzero", "zeros_like", "round", "positive")  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.filterwarnings("ignore")
def test_empty_and_0d(name: str) -> None:
    for values in (np.zeros((0, 3)), np.array(2.0), np.zeros((0, 3), complex), np.array(1 + 2j)):
        if (name == "std" or name in ("sort", "unique_values")) and (values.dtype.kind == "c" or not values.ndim):
            continue
        own, want = run(unary(name, values), array_api), run(unary(name, values), strict)
        assert (own[1], own[0].shape) == (want[1], want[0].shape)
        np.testing.assert_allclose(own[0], want[0])


def test_gradients_flow_through_the_namespace() -> None:
    xp: Any = array_api
    x = Tensor(FLOATS, requires_grad=True)
    xp.sum(xp.multiply(xp.exp(x), 2.0)).backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(FLOATS))


def test_every_device(device: str) -> None:
    with Context(DEVICE=device):
        if not device.startswith("NULL"):
            for name in ("sum None", "add complex", "unique all", "take"):
                np.testing.assert_allclose(run(CASES[name], array_api)[0], run(CASES[name], strict)[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: array_api.__dict__["add"](np.ones(2), Tensor([1.0])),
            DTypeError,
            "ndarray is not an array of this namespace",
        ),
        (lambda: array_api.__dict__["exp"]([1.0]), DTypeError, "list is not an array of this namespace"),
        (lambda: array_api.isdtype(dtypes.int8, "float"), SettingError, "must be a dtype or one of"),
        (lambda: array_api.squeeze(Tensor.ones(2, 3), 0), KernmillError, "must be an axis of size 1"),
        (lambda: array_api.astype(ComplexTensor([1j]), dtypes.float32), DTypeError, "would lose a part"),
        (lambda: array_api.linalg.svd(ComplexTensor(COMPLEX)), DTypeError, "must be real"),
        (lambda: array_api.asarray([1.0], copy=False), ValueError, "needs a copy"),
        (lambda: array_api.where(Tensor([1]), 1, Tensor([1])), DTypeError, "must be bool"),
        (lambda: array_api.result_type(1, 2.0), DTypeError, "only Python numbers"),
        (lambda: array_api.finfo(dtypes.int8), DTypeError, "not a float dtype"),
        (lambda: array_api.sort(ComplexTensor(COMPLEX)), DTypeError, "complex numbers have no order"),
        (lambda: array_api.clip(ComplexTensor(COMPLEX), 0, 1), DTypeError, "complex numbers have no order"),
        (lambda: array_api.take(Tensor(1.0), Tensor([0]), axis=0), KernmillError, "a 0-d array has no axis"),
        (lambda: array_api.concat([]), KernmillError, "no arrays"),
        (lambda: Tensor([1]).__array_namespace__(api_version="1999.1"), SettingError, "2024.12 or earlier"),  # type: ignore[attr-defined]
    ],
)
def test_bad_calls(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
