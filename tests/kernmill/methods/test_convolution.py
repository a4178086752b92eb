from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, Variable, jit
from kernmill.compiler import estimate
from kernmill.ir import Ops
from kernmill.runtime import collecting_kernels
from tests.kernmill.against import close, same, values, with_torch

Array = np.ndarray[Any, Any]
CASES: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"padding": 1}, {"padding": (2, 0), "stride": (1, 2)}, {"dilation": 2}, {"groups": 2},
    {"stride": 3, "padding": 2, "dilation": (1, 2), "groups": 4},
]  # fmt: skip


@pytest.mark.parametrize("options", CASES, ids=str)
def test_conv2d_is_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    conv = torch.nn.functional.conv2d
    inputs = [values(2, 4, 7, 6), values(8, 4 // options.get("groups", 1), 3, 2, seed=1), values(8, seed=2)]
    with_torch(lambda x, w, b: x.conv2d(w, b, **options), lambda x, w, b: conv(x, w, b, **options), inputs, 2e-5)


def test_padding_by_name() -> None:
    torch = pytest.importorskip("torch")
    conv = torch.nn.functional.conv2d
    for name in ("same", "valid"):
        with_torch(lambda x, w, n=name: x.conv2d(w, padding=n), lambda x, w, n=name: conv(x, w, padding=n),
                   [values(1, 2, 5, 5), values(3, 2, 3, 3)], 2e-5)  # fmt: skip


def test_other_ranks() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    with_torch(
        lambda x, w: x.conv1d(w, stride=2),
        lambda x, w: f.conv1d(x, w, stride=2),
        [values(2, 3, 9), values(4, 3, 3)],
        1e-5,
    )
    with_torch(lambda x, w: x.conv3d(w, padding=1), lambda x, w: f.conv3d(x, w, padding=1),
               [values(1, 2, 3, 4, 3), values(3, 2, 2, 3, 2)], 2e-5)  # fmt: skip
    with_torch(lambda x, w: x.conv2d(w), f.conv2d, [values(3, 5, 5), values(2, 3, 3, 3)], 1e-5)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2},
                                     {"dilation": 2, "stride": (1, 3)}], ids=str)  # fmt: skip
def test_conv_transpose2d_is_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    conv = torch.nn.functional.conv_transpose2d
    inputs = [values(2, 4, 3, 4), values(4, 3, 3, 2, seed=1), values(3 * options.get("groups", 1), seed=2)]
    with_torch(
        lambda x, w, b: x.conv_transpose2d(w, b, **options), lambda x, w, b: conv(x, w, b, **options), inputs, 2e-5
    )


@pytest.mark.parametrize("options", [
    {"stride": 3, "padding": 2, "output_padding": 2}, {"stride": 4, "padding": 1}, {"stride": (1, 4)},
    {"stride": 2, "dilation": 3, "output_padding": 1}, {"stride": 3, "groups": 2}, {"padding": 2, "dilation": (2, 1)},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kernel", [(5, 4), (2, 6), (3, 3)], ids=str)
@pytest.mark.parametrize("target", ["", "avx2"])
def test_phases_of_conv_transpose2d_are_torchs(target: str, kernel: tuple[int, int], options: dict[str, Any]) -> None:
    """More taps than the stride, fewer, a multiple of it or not; places behind the last one."""
    torch = pytest.importorskip("torch")
    x, w = values(2, 4, 7, 19), values(4, 3, *kernel, seed=1)
    wanted = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(w), **options).numpy()
    with Context(TARGET=target):
        few = 5e-7 * float(np.abs(wanted).max())  # an element may be a small difference of large terms
        close(Tensor(x).conv_transpose2d(Tensor(w), **options), wanted, atol=few)


def transposed(x: Array, w: Array, stride: int, padding: int, more: int, dilation: int) -> Array:
    """By the definition: each entry times the window, added where the window lies."""
    places = [(n - 1) * stride + dilation * (k - 1) + 1 + more for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    out = np.zeros((x.shape[0], w.shape[1], *places))
    for tap in np.ndindex(*w.shape[2:]):
        at = [slice(dilation * t, dilation * t + (n - 1) * stride + 1, stride)
              for t, n in zip(tap, x.shape[2:], strict=True)]  # fmt: skip
        out[:, :, *at] += np.einsum("nc...,co->no...", x, w[:, :, *tap])
    return out[:, :, *[slice(padding, size - padding) for size in places]]


@pytest.mark.parametrize("options", [
    (2, 0, 0, 1), (3, 2, 2, 1), (4, 1, 0, 1), (2, 1, 1, 3), (1, 2, 0, 1), (5, 0, 4, 1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("sizes", [((7, 19), (5, 4)), ((6,), (3,)), ((3, 2, 4), (2, 3, 3)), ((1, 1), (2, 6))], ids=str)
def test_phases_of_conv_transpose2d(sizes: tuple[tuple[int, ...], ...], options: tuple[int, int, int, int]) -> None:
    x, w = values(2, 4, *sizes[0]), values(4, 3, *sizes[1], seed=1)
    want = transposed(x.astype(np.float64), w.astype(np.float64), *options)
    if min(want.shape) > 0:
        stride, padding, more, dilation = options
        got = Tensor(x).conv_transpose2d(Tensor(w), None, stride, padding, more, 1, dilation)
        close(got, want.astype(np.float32))


def test_conv_transpose2d_of_two_sizes_that_are_not_known() -> None:
    """Phases of both were woven to a shape that could not be proved: a ShapeError."""
    x, w = np.round(4 * values(2, 4, 9, 12)), np.round(4 * values(4, 3, 3, 5, seed=1))  # whole numbers: exact sums
    high, wide = Variable("high", 1, 9), Variable("wide", 2, 12)
    made = jit(lambda x, a, b: x[:, :, :a, :b].conv_transpose2d(Tensor(w), stride=2, padding=1).sum((2, 3)))
    for a, b in ((3, 5), (9, 12), (1, 2), (4, 7)):
        want = transposed(x[:, :, :a, :b].astype(np.float64), w.astype(np.float64), 2, 1, 0, 1).sum((2, 3))
        close(made(Tensor(x), high.bind(a), wide.bind(b)), want.astype(np.float32))


def test_conv_transpose2d_multiplies_no_zeros() -> None:
    """Once zeros were put between entries and multiplied, read one by one: 27x PyTorch's time."""
    x, weight = Tensor(values(2, 8, 7, 7)), Tensor(values(8, 4, 4, 4))
    with collecting_kernels() as found:
        x.conv_transpose2d(weight, stride=4).realize()
    products = 2 * 7 * 7 * 8 * 4 * 4 * 4
    assert products <= sum(estimate(ast).flops for _, ast in found) / 2 < 2 * products


def test_conv_transpose2d_of_half_types_is_rounded_once() -> None:
    x, weight = values(1, 6, 4, 4), values(6, 2, 3, 3)
    halves = Tensor(x).half(), Tensor(weight).half()
    want = halves[0].float().conv_transpose2d(halves[1].float(), stride=2)
    same(halves[0].conv_transpose2d(halves[1], stride=2), want.half().numpy())


def test_conv_transpose2d_without_a_batch() -> None:
    x, weight = Tensor(values(4, 3, 5)), Tensor(values(4, 2, 3, 2))
    close(x.conv_transpose2d(weight, stride=2), x.unsqueeze(0).conv_transpose2d(weight, stride=2).numpy()[0])


POOLS: list[dict[str, Any]] = [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 1}, {"kernel_size": (3, 2), "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
]  # fmt: skip


@pytest.mark.parametrize("options", POOLS, ids=str)
def test_pooling_is_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    x = [values(2, 3, 8, 7)]
    with_torch(lambda t: t.max_pool2d(**options), lambda t: f.max_pool2d(t, **options), x)
    with_torch(lambda t: t.avg_pool2d(**options), lambda t: f.avg_pool2d(t, **options), x)
    with_torch(lambda t: t.avg_pool2d(**options, count_include_pad=False),
               lambda t: f.avg_pool2d(t, **options, count_include_pad=False), x)  # fmt: skip


def test_dilated_and_int_max_pool() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    with_torch(
        lambda t: t.max_pool2d(2, 1, dilation=2), lambda t: f.max_pool2d(t, 2, 1, dilation=2), [values(1, 1, 6, 6)]
    )
    same(
        Tensor(np.arange(-8, 8).reshape(1, 1, 4, 4)).max_pool2d(2, padding=1),
        np.array([[[[-8, -6, -5], [0, 2, 3], [4, 6, 7]]]]),
    )


def test_adaptive_pooling_and_resizing() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    with_torch(
        lambda t: t.adaptive_avg_pool2d((2, 1)), lambda t: f.adaptive_avg_pool2d(t, (2, 1)), [values(1, 2, 4, 3)]
    )
    for size in ((3, 2), (4, 3), (1, 5), (7, 7), 6):
        with_torch(
            lambda t, size=size: t.adaptive_avg_pool2d(size),
            lambda t, size=size: f.adaptive_avg_pool2d(t, size),
            [values(2, 3, 7, 5)],
        )
    x = values(2, 7, 5)
    x[0, 0, 0], x[1, 6, 4] = np.inf, np.nan  # each only in the blocks that hold it
    close(Tensor(x).adaptive_avg_pool2d(3), f.adaptive_avg_pool2d(torch.tensor(x), 3).numpy())
    half = torch.tensor(values(7, 500)).bfloat16()
    want = f.adaptive_avg_pool2d(half[None], 3)[0].float().numpy()
    close(Tensor(half.float().numpy()).bfloat16().adaptive_avg_pool2d(3).float(), want, 1e-2)
    with_torch(
        lambda t: t.interpolate(scale_factor=2), lambda t: f.interpolate(t, scale_factor=2), [values(1, 2, 3, 3)]
    )
    with_torch(lambda t: t.interpolate((5, 2)), lambda t: f.interpolate(t, (5, 2)), [values(1, 2, 3, 3)])


def test_an_empty_batch() -> None:
    assert Tensor.zeros(0, 3, 5, 5).conv2d(Tensor.zeros(2, 3, 3, 3)).numpy().shape == (0, 2, 3, 3)
    close(Tensor.zeros(1, 0, 3, 3).conv2d(Tensor.zeros(2, 0, 3, 3)), np.zeros((1, 2, 1, 1)))


def test_interpolate_takes_a_factor_for_each_axis() -> None:
    torch = pytest.importorskip("torch")
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    wanted = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=(2, 3)).numpy()
    np.testing.assert_array_equal(Tensor(x).interpolate(scale_factor=(2, 3)).numpy(), wanted)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("shape", "size"), [((2, 3, 5), 9), ((1, 2, 4, 6), (8, 12)), ((1, 2, 7, 3), (3, 1)),
                                             ((1, 1, 2, 3, 2), (3, 5, 4))])  # fmt: skip
def test_between_entries_is_torchs(shape: tuple[int, ...], size: Any, align_corners: bool) -> None:
    """Only the nearest entry could be taken."""
    mode = {3: "linear", 4: "bilinear", 5: "trilinear"}[len(shape)]

    def theirs(t: Any) -> Any:
        torch = pytest.importorskip("torch")
        return torch.nn.functional.interpolate(t, size, mode=mode, align_corners=align_corners)

    with_torch(lambda t: t.interpolate(size, mode=mode, align_corners=align_corners), theirs, [values(*shape)], 1e-5)


@pytest.mark.parametrize("factor", [0.3, 0.6, 1.0, 1.7, 2.5, (0.4, 3), (1.9, 1 / 3)], ids=str)
def test_interpolate_by_a_fraction_is_torchs(factor: Any) -> None:
    """Only whole factors were taken."""
    resize = pytest.importorskip("torch").nn.functional.interpolate
    x = values(1, 2, 7, 9)
    for how in ({}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}):
        with_torch(
            lambda t: t.interpolate(scale_factor=factor, **how),  # noqa: B023
            lambda t: resize(t, scale_factor=factor, **how),  # noqa: B023
            [x],
        )


def test_interpolate_keeps_the_digits_of_float64() -> None:
    """Its weights were float32."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((1, 1, 7))
    wanted = torch.nn.functional.interpolate(torch.tensor(x), size=11, mode="linear").numpy()
    np.testing.assert_allclose(Tensor(x).interpolate(11, mode="linear").numpy(), wanted, rtol=1e-13)


def test_an_axis_that_a_fraction_leaves_as_it_is() -> None:
    """9 * 1.1 is 9 again: its entries were mixed by 1 / 1.1. (Of the nearest entries PyTorch has two ways.)"""
    resize = pytest.importorskip("torch").nn.functional.interpolate
    with_torch(
        lambda t: t.interpolate(scale_factor=(1.7, 1.1), mode="bilinear"),
        lambda t: resize(t, scale_factor=(1.7, 1.1), mode="bilinear"),
        [values(1, 2, 7, 9)],
    )


def test_resizing_to_any_size_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    functional, rng = torch.nn.functional, np.random.default_rng(4)
    for _ in range(25):
        x = rng.random((1, 2, *rng.integers(1, 30, 2))).astype(np.float32)
        size, factor = tuple(int(n) for n in rng.integers(1, 40, 2)), float(rng.uniform(1, 3))
        theirs, ours = torch.tensor(x), Tensor(x)
        np.testing.assert_allclose(
            ours.adaptive_avg_pool2d(size).numpy(), functional.adaptive_avg_pool2d(theirs, size).numpy(), atol=1e-6
        )
        for options in ({"size": size}, {"scale_factor": factor}):
            right = functional.interpolate(theirs, **options).numpy()
            np.testing.assert_array_equal(ours.interpolate(**options).numpy(), right, err_msg=str(options))


def test_the_gradient_of_a_transposed_convolution_has_the_order_of_its_products() -> None:
    """It was stored with a phase of the taps as its last axis: the weight's gradient read every second element."""
    x, weight = Tensor.rand(2, 3, 5, 5), Tensor.rand(3, 4, 4, 4, requires_grad=True)
    loss = (x.conv_transpose2d(weight, stride=2, padding=1) * Tensor.rand(2, 4, 10, 10)).sum()
    (grad,) = loss.gradient(weight)
    stored = [node.shape for node in grad.uop.toposort() if node.op is Ops.CONTIGUOUS]
    assert (2, 1, 4, 4, 4, 5, 5) in stored
