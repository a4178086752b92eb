"""Which sums under a sliding window take their lanes from the other operand, and that they stay what they were."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.compiler import choose, merge_loops
from kernmill.ir import Ops, elementwise, pad, permute, reduce_axes, reshape, window
from kernmill.runtime import collecting_kernels
from tests.compiler.kernels import VECTORS, close, convolution, data, inputs, matmul, only, run_ast, run_on


def chosen(root: object) -> list[str]:
    return [str(action) for action in choose(merge_loops(only(root)), VECTORS).actions]  # type: ignore[arg-type]


def test_lanes_are_output_channels_and_rows_are_copied_without_gates() -> None:
    found = chosen(convolution(data(0, 2, 16, 18, 18), data(1, 32, 16, 3, 3)))
    assert "vectorize i1 16" in found
    assert any(action.startswith("stage 1 k0 ") for action in found)
    assert any(action.startswith("stage 2 ") and action.endswith("i1.v") for action in found)
    assert "unroll k2 3" in found


@pytest.mark.parametrize(("size", "tile"), [(17, 9), (37, 13), (73, 13), (28, 4)])
def test_places_may_be_left_over(size: int, tile: int) -> None:
    """A line of 17, 37 or 73 places has no divisors: tiles of one place took two to four times as long."""
    root = convolution(data(0, 1, 16, 10, 2 * size + 1), data(1, 16, 16, 3, 3), 2)
    found = chosen(root)
    assert "vectorize i0 16" in found
    assert f"unroll i2 {tile}" in found
    ast = merge_loops(only(root))
    close(run_on("LLVM", ast, inputs(ast)), run_ast(ast, inputs(ast)))


def test_a_line_that_fills_vectors_is_lanes_itself() -> None:
    assert "vectorize i2 16" in chosen(convolution(data(0, 1, 16, 33, 33), data(1, 16, 16, 3, 3)))


def test_channels_that_lie_side_by_side_are_summed_innermost() -> None:
    x = permute(data(0, 2, 18, 18, 64), (0, 3, 1, 2))
    found = chosen(permute(convolution(x, data(1, 32, 64, 3, 3)), (0, 2, 3, 1)))
    assert found[0] == "move_inner k0"
    assert any(action.startswith("stage 1 ") and action.endswith(" k2 k0") for action in found)
    assert "vectorize k0' 16" in found
    few = permute(data(0, 2, 18, 18, 3), (0, 3, 1, 2))
    found = chosen(permute(convolution(few, data(1, 32, 3, 3, 3)), (0, 2, 3, 1)))
    assert not any("inner" in action for action in found)


@pytest.mark.parametrize(("channels", "stride", "padding"), [(16, 1, 1), (64, 2, 1), (20, 1, 0), (8, 1, 2), (3, 2, 1)])
def test_channels_last_is_right(channels: int, stride: int, padding: int) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 15, 14, channels), np.float32), rng.standard_normal((40, channels, 3, 3), np.float32)
    x, w = (Tensor(t, device="LLVM") for t in (a, b))
    found = x.permute(0, 3, 1, 2).conv2d(w, stride=stride, padding=padding).permute(0, 2, 3, 1).contiguous().numpy()
    wanted = reference(np.moveaxis(a, 3, 1).astype(np.float64), b.astype(np.float64), stride=stride, padding=padding)
    np.testing.assert_allclose(np.moveaxis(found, 3, 1), wanted, rtol=1e-4, atol=1e-4)


def test_a_plain_product_is_left_alone() -> None:
    found = chosen(matmul(data(0, 64, 64), data(1, 64, 64)))
    assert not any(action.startswith("stage 1 k0 i") for action in found)


def test_few_channels_do_not_fill_lanes() -> None:
    assert "vectorize i1 16" not in chosen(convolution(data(0, 2, 16, 34, 34), data(1, 2, 16, 3, 3)))


def test_windows_that_do_not_overlap_read_their_rows_as_they_lie() -> None:
    found = chosen(convolution(data(0, 8, 32, 32, 32), data(1, 64, 32, 2, 2), stride=2))
    assert found[:3] == ["vectorize i1 16", "unroll i1 4", "unroll i3 4"]
    assert "stage 2 k0 k1 k2 i1.u i1.v" in found
    few = chosen(convolution(data(0, 8, 32, 32, 32), data(1, 6, 32, 2, 2), stride=2))
    assert "vectorize i1 16" not in few  # they do not fill lanes
    short = chosen(convolution(data(0, 4, 3, 28, 28), data(1, 64, 3, 2, 2), stride=2))
    assert "vectorize i1 16" not in short  # results turn


def test_a_sum_over_the_places_too_is_no_window() -> None:
    """The mean of a convolution's places got a schedule that did not fit: a loop of the sum was taken for a line."""
    views = window(window(pad(data(0, 8, 32, 32, 32), ((0, 0), (0, 0), (1, 1), (1, 1))), 2, 3), 3, 3)
    left = reshape(permute(views, (0, 2, 3, 1, 4, 5)), (8, 1, 32, 32, 32, 3, 3))
    product = elementwise(Ops.MUL, left, reshape(data(1, 64, 32, 3, 3), (1, 64, 1, 1, 32, 3, 3)))
    found = chosen(reduce_axes(product, Ops.ADD, (2, 3, 4, 5, 6)))
    assert not any(action.startswith(("accumulate", "stage")) for action in found)


CASES = [
    ((2, 8, 17, 17), (32, 8, 2, 2), {"stride": 2, "padding": 1}),
    ((3, 8, 15, 14), (20, 8, 2, 2), {"stride": 2}),
    ((2, 3, 20, 20), (48, 3, 4, 4), {"stride": 4, "padding": 2}),
    ((2, 8, 12, 12), (16, 8, 3, 3), {"padding": 1}),
    ((1, 3, 17, 13), (20, 3, 3, 3), {"padding": 1}),
    ((2, 8, 12, 12), (32, 8, 3, 3), {"stride": 2, "padding": 1}),
    ((2, 8, 16, 16), (10, 8, 3, 3), {"dilation": 2, "padding": 2}),
    ((2, 8, 15, 16), (48, 8, 5, 5), {"padding": 2, "stride": 3}),
    ((2, 16, 12, 12), (64, 4, 3, 3), {"groups": 4, "padding": 1}),
    ((1, 1, 20, 20), (16, 1, 5, 5), {}),
    ((2, 8, 12, 12), (16, 8, 2, 2), {"stride": 2}),
]


@pytest.mark.parametrize(("size", "weight", "options"), CASES)
def test_convolutions_and_their_gradients_are_right(
    size: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(size, np.float32), rng.standard_normal(weight, np.float32)
    x, w = (Tensor(t, device="LLVM", requires_grad=True) for t in (a, b))
    result = x.conv2d(w, **options)
    result.square().sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    y, dx, dw = (t.numpy() for t in (result, x.grad, w.grad))
    wanted = reference(a.astype(np.float64), b.astype(np.float64), **options)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
    # y is linear in x and in w: the slope of sum(y * y) along either is twice itself
    np.testing.assert_allclose((dx * a).sum(dtype=np.float64), 2 * (wanted**2).sum(), rtol=1e-4)
    np.testing.assert_allclose((dw * b).sum(dtype=np.float64), 2 * (wanted**2).sum(), rtol=1e-4)
    step = rng.standard_normal(size)
    slope = 2 * (wanted * reference(step, b.astype(np.float64), **options)).sum()
    np.testing.assert_allclose((dx * step).sum(), slope, rtol=1e-3, atol=1e-2)


LONG = [
    ((12, 6, 30, 26), (20, 6, 3, 3), {"padding": 1}),
    ((12, 5, 30, 26), (32, 5, 3, 3), {"padding": 1, "stride": 2}),
    ((5, 3, 61, 37), (16, 3, 5, 5), {"padding": 2}),
    ((11, 32, 29, 28), (16, 32, 1, 1), {}),
    ((11, 16, 29, 28), (24, 16, 1, 1), {}),
]


@pytest.mark.parametrize(("size", "weight", "options"), LONG)
def test_sums_over_all_places_go_on_in_the_gradient_of_the_weight(
    size: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(size, np.float32), rng.standard_normal(weight, np.float32)
    shape = reference(a, b, **options).shape
    seen = rng.standard_normal(shape, np.float32)
    w = Tensor(b, device="LLVM", requires_grad=True)
    (Tensor(a, device="LLVM").conv2d(w, **options) * Tensor(seen, device="LLVM")).sum().backward()
    assert w.grad is not None
    pad, step = options.get("padding", 0), options.get("stride", 1)
    padded = np.pad(a.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    high, wide = (step * (n - 1) + 1 for n in shape[2:])
    wanted = np.empty(weight)
    for i, j in np.ndindex(weight[2:]):
        part = padded[:, :, i : i + high : step, j : j + wide : step]
        wanted[:, :, i, j] = np.einsum("noyx,ncyx->oc", seen.astype(np.float64), part)
    np.testing.assert_allclose(w.grad.numpy(), wanted, rtol=1e-3, atol=2e-3)


def test_a_weight_too_large_for_a_cache_is_packed_in_blocks() -> None:
    found = chosen(convolution(data(0, 2, 600, 9, 9), data(1, 64, 600, 3, 3)))
    assert found[0].startswith("accumulate k0 ")
    x, w = (
        np.random.default_rng(n).standard_normal(s, np.float32) for n, s in ((0, (2, 600, 9, 9)), (1, (64, 600, 3, 3)))
    )
    y = Tensor(x, device="LLVM").conv2d(Tensor(w, device="LLVM")).relu().numpy()
    wanted = np.maximum(reference(x.astype(np.float64), w.astype(np.float64)), 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-3)


def test_the_taps_of_a_window_stay_whole_where_its_sum_is_cut() -> None:
    """Once wrong: with 512 channels the gradient of the image was no window any more, and gathered its weights."""
    x, w = (Tensor(np.ones(shape, np.float32), device="LLVM") for shape in ((2, 512, 2, 2), (512, 512, 3, 3)))
    (gradient,) = x.requires_grad_().conv2d(w, padding=1).square().sum().gradient(x)
    with collecting_kernels() as seen:
        gradient.realize()
    found = [kernel for kernel, _ in seen.values() if kernel.name.endswith("k3x3x512")]
    actions = [str(action) for action in choose(merge_loops(found[0].ast), VECTORS).actions]
    assert actions[0].startswith("accumulate k2 ")
    assert "vectorize i3' 16" in actions


BESIDE = [
    (16, 3, {"padding": 1}),
    (20, 3, {"padding": 1, "stride": 2}),
    (48, 3, {"padding": 2, "dilation": 2}),
    (33, 5, {"padding": 2}),
    (16, 7, {"padding": 3}),
    (7, 2, {"stride": 2}),
    (16, 1, {}),
]


@pytest.mark.parametrize(("channels", "width", "options"), BESIDE)
def test_windows_of_each_channel_are_right(channels: int, width: int, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 15, 13, channels), np.float32), rng.standard_normal((channels, 1, width, width))
    x, w = Tensor(a, device="LLVM"), Tensor(b.astype(np.float32), device="LLVM")
    found = x.permute(0, 3, 1, 2).conv2d(w, groups=channels, **options).permute(0, 2, 3, 1).contiguous().numpy()
    wanted = reference(np.moveaxis(a, 3, 1).astype(np.float64), b, groups=channels, **options)
    np.testing.assert_allclose(np.moveaxis(found, 3, 1), wanted, rtol=1e-4, atol=1e-4)


def beside(x: Tensor, **options: Any) -> list[str]:
    """The schedule of the windows of each channel, which lie side by side."""
    with collecting_kernels() as seen:
        x.permute(0, 3, 1, 2).max_pool2d(**options).permute(0, 2, 3, 1).contiguous().realize()
    kernel = next(kernel for kernel, _ in seen.values() if kernel.name.startswith("max"))
    return [str(action) for action in choose(merge_loops(kernel.ast), VECTORS).actions]


def test_windows_beside_the_lanes_are_tiled_where_they_overlap() -> None:
    x = Tensor(np.ones((2, 32, 32, 32), np.float32), device="LLVM")
    found = beside(x, kernel_size=3, stride=2, padding=1)
    assert {"unroll i1 4", "unroll i2 4", "unroll k0 3", "unroll k1 3", "vectorize i3 16"} <= {*found}
    assert "unroll i1 4" not in beside(x, kernel_size=2, stride=2)
    assert "unroll i1 4" not in beside(x, kernel_size=7, stride=2, padding=3)  # too many places to copy out: one line
    assert "unroll k1 7" in beside(x, kernel_size=7, stride=2, padding=3)


@pytest.mark.parametrize("target", ["", "avx2", "small"])
@pytest.mark.parametrize(("shape", "width", "options"), [
    ((2, 3, 56, 56), 7, {"padding": 3}),
    ((1, 3, 57, 61), 5, {"padding": 2, "stride": 2}),
    ((1, 2, 14, 14), 7, {"padding": 3}),
    ((1, 2, 29, 31), 9, {"padding": 8, "dilation": 2}),
    ((1, 2, 40, 20), 3, {"padding": 1}),
    ((2, 2, 23, 37), 7, {}),
    ((1, 1, 211, 150), 5, {"padding": 2}),
])  # fmt: skip
def test_windows_of_each_channel_along_the_lanes_are_right(
    target: str, shape: tuple[int, ...], width: int, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, shape).astype("f"), rng.integers(-4, 5, (shape[1], 1, width, width)).astype("f")
    with Context(TARGET=target):
        found = Tensor(a, device="LLVM").conv2d(Tensor(b, device="LLVM"), groups=shape[1], **options).numpy()
    np.testing.assert_array_equal(found, reference(a, b, groups=shape[1], **options))


def along(size: int, width: int, **options: Any) -> list[str]:
    """The schedule of the windows of each channel, whose rows lie side by side."""
    x, w = (Tensor(np.ones(s, np.float32), device="LLVM") for s in ((2, 8, size, size), (8, 1, width, width)))
    with collecting_kernels() as seen:
        x.conv2d(w, groups=8, **options).realize()
    kernel = next(kernel for kernel, _ in seen.values() if kernel.name.startswith("sum"))
    return [str(action) for action in choose(merge_loops(kernel.ast), VECTORS).actions]


def test_rows_of_windows_along_the_lanes_are_copied_without_gates() -> None:
    found = along(56, 7, padding=3)
    assert found[:2] == ["stage 1 i2 i3 k0 k1", "vectorize i3' 16"]
    assert {"vectorize i3 16", "unroll k0 7"} <= {*found}
    assert not any(action.startswith("stage") for action in along(56, 7))  # nothing to get rid of
    assert any(action.startswith("split i2 ") for action in along(512, 5, padding=2))  # so many as a cache holds
    for size, options in ((14, {"padding": 1, "stride": 2}), (600, {"padding": 1})):  # as long as the sums; waits
        assert not any(action.startswith("stage") for action in along(size, 3, **options))


def reference(
    x: np.ndarray, weight: np.ndarray, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
) -> np.ndarray:
    """One product for each place of the kernel, in float64."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    out, inner, high, wide = weight.shape
    rows, columns = ((n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[2:], (high, wide), strict=True))
    total = np.zeros((x.shape[0], out, rows, columns))
    each = out // groups
    for group in range(groups):
        part = x[:, group * inner : (group + 1) * inner]
        own = weight[group * each : (group + 1) * each]
        for i in range(high):
            for j in range(wide):
                seen = part[:, :, i * dilation :, j * dilation :]
                seen = seen[:, :, : rows * stride : stride, : columns * stride : stride]
                total[:, group * each : (group + 1) * each] += np.einsum("ncyx,oc->noyx", seen, own[:, :, i, j])
    return total


def test_windows_and_their_weights_in_one_buffer_of_bytes() -> None:
    """The product, made of loads of that buffer alone, counted as what is copied: a schedule that did not fit."""
    with Context(DEVICE="LLVM", TARGET=""), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = Tensor(np.ones((1, 3, 14, 14), np.int8)).realize()
        got = x.conv2d(x[0, :, :11, :7].unsqueeze(1), groups=3, stride=(1, 2), padding=(0, 3)).numpy()
    assert got.shape == (1, 3, 4, 7)
    assert set(got[..., 2].ravel()) == {77}
