"""Options of methods that other libraries have: the same results as NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, Tensor, dtypes, meshgrid

from ..against import close, only_on, values, with_torch

on_device = only_on("LLVM")
ANY: Any = Tensor
torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_division_with_a_rounding_mode(mode: str) -> None:
    for dtype in (np.int32, np.int8, np.float32, np.float64):
        a, b = np.meshgrid(np.arange(-7, 8).astype(dtype), np.array([-3, -2, -1, 1, 2, 3]).astype(dtype))
        got = Tensor(a).div(Tensor(b), rounding_mode=mode)
        want = torch.tensor(a).div(torch.tensor(b), rounding_mode=mode).numpy()
        np.testing.assert_array_equal(got.numpy(), want)
        assert got.numpy().dtype == want.dtype
    assert Tensor([7]).div(-2, rounding_mode=mode).tolist() == [-3 if mode == "trunc" else -4]
    with pytest.raises(SettingError) as raised:
        ANY([1]).div(2, rounding_mode="up")
    assert str(raised.value) == "div: rounding_mode='up': must be None, 'trunc' or 'floor'."


def test_infinities_of_one_sign() -> None:
    x = ANY([np.inf, -np.inf, np.nan, 1.0])
    assert x.isinf(detect_negative=False).tolist() == [True, False, False, False]
    assert x.isinf(detect_positive=False).tolist() == [False, True, False, False]
    assert x.isinf(detect_positive=False, detect_negative=False).tolist() == [False] * 4


def test_product_dtype_and_moments() -> None:
    x = values(3, 4)
    assert ANY([2, 3]).prod(dtype=dtypes.float32).dtype is dtypes.float32
    assert ANY([100, 100]).prod(dtype=dtypes.int8).item() == np.int8(16)
    for ours, theirs in zip(Tensor(x).std_mean(1), torch.std_mean(torch.tensor(x), 1), strict=True):
        close(ours, theirs.numpy())


def test_created_matrices_and_spaces() -> None:
    for k in (-5, -1, 0, 2, 7):
        close(ANY.eye(3, 5, k=k), np.eye(3, 5, k=k))
    for steps in (0, 1, 2, 7):
        close(ANY.linspace(1, 3, steps, endpoint=False), np.linspace(1, 3, steps, endpoint=False, dtype=np.float32))


def test_scans_with_the_start() -> None:
    x = values(3, 20)
    for axis in (0, 1, -1):
        front = [(int(a == axis % 2), 0) for a in (0, 1)]
        close(ANY(x).cumsum(axis, include_initial=True), np.pad(np.cumsum(x, axis), front))
        want = np.pad(np.cumprod(x, axis), front, constant_values=1)
        close(ANY(x).cumulative_prod(axis, include_initial=True), want)


def test_differences_with_ends() -> None:
    x = values(3, 4)
    close(ANY(x).diff(prepend=0), np.diff(x, prepend=0))
    close(ANY(x).diff(axis=0, append=x[:1], prepend=1.0), np.diff(x, axis=0, append=x[:1], prepend=1.0))
    with_torch(lambda a, b: a.diff(append=b), lambda a, b: torch.diff(a, append=b), [x, values(3, 2)])


def test_padding_with_a_value_for_each_side() -> None:
    x = values(2, 3)
    ends = ((1, 2), (3, 4))
    close(ANY(x).pad(((1, 2), (2, 1)), value=ends), np.pad(x, ((1, 2), (2, 1)), constant_values=ends))


def test_grids_of_numbers() -> None:
    want = np.meshgrid(2.0, [1.0, 3.0], indexing="ij")
    for ours, theirs in zip(meshgrid(Tensor(2.0), Tensor([1.0, 3.0])), want, strict=True):
        close(ours, theirs.astype(np.float32))


def test_sparse_categorical_crossentropy_is_over_the_last_axis() -> None:
    x, y = values(2, 5, 4), np.random.default_rng(1).integers(0, 4, (2, 5))
    y[0, 0] = -1
    want = torch.nn.functional.cross_entropy(
        torch.tensor(x).reshape(-1, 4), torch.tensor(y).reshape(-1), ignore_index=-1
    )
    close(ANY(x).sparse_categorical_crossentropy(Tensor(y)), want.numpy())


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(2, None, 0, 1), (3, 2, 1, 1), (2, 1, 0, 2), ((2, 3), None, (1, 0), 1)],
)
def test_pooled_indices_are_torchs(kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    x = values(2, 3, 8, 9)
    got = ANY(x).max_pool2d(kernel, stride, padding, dilation, return_indices=True)
    want = torch.nn.functional.max_pool2d(torch.tensor(x), kernel, stride, padding, dilation, return_indices=True)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    if dilation == 1 and stride is None:
        back = got[0].max_unpool2d(got[1], kernel, stride, padding, x.shape)
        other = torch.nn.functional.max_unpool2d(*want, kernel, stride, padding, x.shape)
        np.testing.assert_array_equal(back.numpy(), other.numpy())


def test_initial_values() -> None:
    Tensor.manual_seed(1)
    assert abs(ANY.kaiming_normal(64, 50).std().item() - (2 / 50) ** 0.5) < 0.02
    x = ANY.scaled_uniform(10, 10).numpy()
    assert 0.08 < np.abs(x).max() <= 0.1


def test_bytes_and_the_interface_of_numpy() -> None:
    x = Tensor(values(3, 4))
    assert (x.nbytes, x.tobytes(), bytes(x)) == (48, values(3, 4).tobytes(), values(3, 4).tobytes())

    class Only:
        __array_interface__ = x.__array_interface__

    np.testing.assert_array_equal(np.asarray(Only()), values(3, 4))
    assert x.__array_interface__["strides"] == (16, 4)
    leaf = Tensor([1.0], requires_grad=True)
    assert (leaf.is_leaf, (leaf * 2).is_leaf, leaf.detach().is_leaf) == (True, False, True)


def test_pillow_takes_a_tensor() -> None:
    image = pytest.importorskip("PIL.Image")
    x = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    np.testing.assert_array_equal(np.asarray(image.fromarray(Tensor(x))), x)


def test_a_parameter_of_torch_is_taken_without_its_gradient() -> None:
    """Named regression: torch's "Can't call numpy() on Tensor that requires grad"."""
    for dtype in (torch.float32, torch.bfloat16):
        parameter = torch.nn.Parameter(torch.ones(2, dtype=dtype))
        for made in (Tensor(parameter), Tensor.from_dlpack(parameter), Tensor([1.0, 1.0]) * Tensor(parameter)):
            assert (made.tolist(), made.requires_grad) == ([1.0, 1.0], False)
    assert (Tensor([2.0, 3.0]) * torch.nn.Parameter(torch.ones(2))).tolist() == [2.0, 3.0]
