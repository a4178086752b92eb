"""kernmill.fft against numpy.fft, gradients against the adjoint transform, on every device; bad calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import ComplexTensor, Context, DTypeError, SettingError, ShapeError, Tensor, fft, jit
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
SIZES = (1, 2, 3, 6, 13, 16, 17, 36, 240)  # one pass, several, by a convolution
NORMS = (None, "ortho", "forward")
ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
TAKES_REAL = ("rfft", "ihfft", "rfft2", "rfftn")


def complex_values(*shape: int, dtype: str = "complex128") -> Any:
    r = np.random.default_rng([7, *shape])
    return (r.normal(size=shape) + 1j * r.normal(size=shape)).astype(dtype)


def given(name: str, x: Any) -> tuple[Any, Any]:
    """An input of a function, as a tensor and as an array."""
    return (Tensor(x.real), x.real) if name in TAKES_REAL else (ComplexTensor(x), x)


def error(own: Any, theirs: Any) -> float:
    """The largest difference by the largest value, in units of epsilon."""
    a, b = own.numpy(), np.asarray(theirs)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if not b.size:
        return 0.0
    return float(np.abs(a - b).max() / np.abs(b).max() / np.finfo(b.dtype).eps)


@pytest.mark.parametrize("n", SIZES)
def test_transforms_of_rows(n: int) -> None:
    x = complex_values(3, n)
    for name in ("fft", "ifft", "rfft"):
        own, array = given(name, x)
        assert error(getattr(fft, name)(own), getattr(np.fft, name)(array)) < 12, name
    assert error(fft.irfft(ComplexTensor(x), n), np.fft.irfft(x, n)) < 12
    assert error(fft.fft(ComplexTensor(x.astype("complex64"))), np.fft.fft(x.astype("complex64"))) < 12


@pytest.mark.parametrize("n", [5, 17, 128])
def test_many_rows(n: int) -> None:
    x = complex_values(9, n)
    assert error(fft.fft(ComplexTensor(x)), np.fft.fft(x)) < 12
    assert error(fft.fft(Tensor(x.real)), np.fft.fft(x.real)) < 12


@pytest.mark.parametrize("name", ONE_AXIS)
def test_sizes_axes_and_norms(name: str) -> None:
    own, array = given(name, complex_values(4, 6, 3))
    for n, axis, norm in ((None, 1, None), (4, 1, "ortho"), (9, 0, "forward"), (1 if name != "irfft" else 2, -1, None)):
        assert error(getattr(fft, name)(own, n, axis, norm), getattr(np.fft, name)(array, n, axis, norm)) < 12


@pytest.mark.parametrize("name", ["fft2", "ifft2", "fftn", "ifftn", "rfft2", "rfftn", "irfft2", "irfftn"])
def test_several_axes(name: str) -> None:
    own, array = given(name, complex_values(2, 4, 6))
    for options in ({}, {"s": (5, 3), "axes": (0, 2)}, {"axes": (0, 1), "norm": "ortho"}):
        assert error(getattr(fft, name)(own, **options), getattr(np.fft, name)(array, **options)) < 12


@pytest.mark.parametrize("name", ONE_AXIS)
@pytest.mark.parametrize("n", [6, 17])
def test_gradients_are_the_adjoint_transform(name: str, n: int) -> None:
    """<F x, w> is linear in x, so that its change by any step is exactly the gradient times the step."""
    x, step = complex_values(n), complex_values(n)[::-1].copy()
    function = getattr(fft, name)
    leaf = Tensor(x.real, requires_grad=True) if name in TAKES_REAL else ComplexTensor(x, requires_grad=True)
    made = function(leaf)
    weight = complex_values(*made.shape)

    def against(values: Any) -> float:
        return float((np.asarray(values) * weight.conj()).real.sum())

    planes = [made.real, made.imag] if isinstance(made, ComplexTensor) else [made]
    parts = (weight.real, weight.imag)
    loss = sum(((p * Tensor(w)).sum() for p, w in zip(planes, parts, strict=False)), Tensor(0.0))
    loss.backward()
    moved = function(Tensor(step.real) if name in TAKES_REAL else ComplexTensor(step)).numpy()
    assert leaf.grad is not None
    own = (leaf.grad.numpy().conj() * (step.real if name in TAKES_REAL else step)).real.sum()
    np.testing.assert_allclose(own, against(moved), rtol=1e-12)


def test_every_device(device: str) -> None:
    with Context(DEVICE=device, CHECK=1):
        if device.startswith("NULL"):
            return
        for shape in ((20,), (9, 4)):
            x = complex_values(*shape)
            assert error(fft.fft(ComplexTensor(x)), np.fft.fft(x)) < 12


def test_captured_and_twice_differentiated() -> None:
    captured = jit(lambda z: fft.ifft(fft.fft(z) * 2.0))
    for seed in (1, 2, 3):
        x = complex_values(seed, 12)[-1]
        np.testing.assert_allclose(captured(ComplexTensor(x)).numpy(), 2 * x, atol=1e-14)
    x = Tensor(complex_values(8).real, requires_grad=True)
    power = fft.rfft(x).abs().square().sum()
    (first,) = power.gradient(x)
    (second,) = first.sum().gradient(x)
    spectrum = np.fft.rfft(np.ones(8))
    np.testing.assert_allclose(second.numpy(), 2 * np.fft.irfft(spectrum * [8, 4, 4, 4, 8], 8), atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies(n: int) -> None:
    np.testing.assert_allclose(fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5).astype("float32"))
    np.testing.assert_allclose(fft.rfftfreq(n, 0.5).numpy(), np.fft.rfftfreq(n, 0.5).astype("float32"))
    x = np.arange(3 * n).reshape(3, n)
    for axes in (None, 1, (0, 1)):
        np.testing.assert_array_equal(fft.fftshift(Tensor(x), axes).numpy(), np.fft.fftshift(x, axes))
        np.testing.assert_array_equal(fft.ifftshift(Tensor(x), axes).numpy(), np.fft.ifftshift(x, axes))


def test_empty_batches_narrow_dtypes_and_no_axes() -> None:
    assert fft.fft(Tensor.ones(0, 4)).shape == (0, 4)
    assert fft.rfft(Tensor.ones(0, 5)).shape == (0, 3)
    assert fft.fft(Tensor([1, 2, 3])).dtype.name == "complex64"
    assert fft.fft(Tensor.ones(4).half()).dtype.name == "complex64"
    assert fft.fftn(Tensor(2.0)).item() == 2.0


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: fft.fft(np.ones(3)), DTypeError, "ndarray is not a tensor"),  # type: ignore[arg-type]
        (lambda: fft.fft(Tensor(1.0)), ShapeError, "0-d tensor has no axis"),
        (lambda: fft.irfft(Tensor(1.0)), ShapeError, "0-d tensor has no axis"),
        (lambda: fft.fft(Tensor.ones(3), axis=1), ShapeError, "must be from -1 to 0"),
        (lambda: fft.fft(Tensor.ones(2, 0)), ShapeError, "a transform of 0 points"),
        (lambda: fft.irfft(Tensor.ones(1)), ShapeError, "a transform of 0 points"),
        (lambda: fft.fft(Tensor.ones(3), norm="x"), SettingError, "must be 'backward'"),
        (lambda: fft.rfft(ComplexTensor([1j])), DTypeError, "must be real"),  # type: ignore[arg-type]
        (lambda: fft.fftn(Tensor.ones(2, 2), s=(1,), axes=(0, 1)), ShapeError, "1 sizes for 2 axes"),
        (lambda: fft.fftfreq(0), ShapeError, "must be 1 or more"),
    ],
)
def test_bad_calls(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
