"""Images resized, sampled and shuffled, against PyTorch; without it against values by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, SettingError, ShapeError, Tensor
from tests.kernmill.against import close, only_on, values, with_torch

on_device = only_on("LLVM")
X, VOLUME = values(2, 2, 5, 6), values(1, 2, 3, 4, 5)
SIZES: list[dict[str, Any]] = [{"size": (4, 9)}, {"scale_factor": 1.7}, {"scale_factor": 0.6}]


@pytest.mark.parametrize("mode", ["bicubic", "bilinear", "area", "nearest-exact"])
def test_resizing(mode: str) -> None:
    torch = pytest.importorskip("torch")
    is_smooth = mode in ("bicubic", "bilinear")
    for given in SIZES:
        for options in ({}, {"align_corners": True}, {"antialias": True}) if is_smooth else ({},):
            if mode == "bilinear" and not options:
                continue
            want = torch.nn.functional.interpolate(torch.tensor(X), mode=mode, **given, **options)
            close(Tensor(X).interpolate(mode=mode, **given, **options), want.numpy(), 1e-4, 1e-5)


def test_resizing_by_hand_and_its_gradient() -> None:
    x = Tensor(np.arange(4.0).reshape(1, 1, 4), requires_grad=True)
    made = x.interpolate(2, mode="area")
    assert made.tolist() == [[[0.5, 2.5]]]
    assert x.interpolate(2, mode="nearest-exact").tolist() == [[[1.0, 3.0]]]
    made.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[[0.5] * 4]]


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampling(padding: str) -> None:
    torch = pytest.importorskip("torch")
    points = {4: values(2, 3, 4, 2, low=-1.5, high=1.5), 5: values(1, 2, 3, 2, 3, low=-1.3, high=1.3)}
    for is_aligned in (False, True):
        grid = points[4]
        args = (torch.tensor(X), torch.tensor(grid), "bicubic", padding, is_aligned)
        want = torch.nn.functional.grid_sample(*args).numpy()
        close(Tensor(X).grid_sample(Tensor(grid), "bicubic", padding, is_aligned), want, 2e-5)
    for x in (X, VOLUME):
        for is_aligned in (False, True):
            theirs = lambda a, b: torch.nn.functional.grid_sample(a, b, "bilinear", padding, is_aligned)  # noqa: B023, E731
            ours = lambda a, b: a.grid_sample(b, "bilinear", padding, is_aligned)  # noqa: B023, E731
            with_torch(ours, theirs, [x, points[x.ndim]], 2e-4)
            want = torch.nn.functional.grid_sample(
                torch.tensor(x), torch.tensor(points[x.ndim]), "nearest", padding, is_aligned
            )
            close(Tensor(x).grid_sample(Tensor(points[x.ndim]), "nearest", padding, is_aligned), want.numpy())


def test_sampling_by_hand() -> None:
    image = Tensor(np.arange(6.0).reshape(1, 1, 2, 3))
    grid = Tensor([[[[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [3.0, 0.0]]]]).double()
    assert image.grid_sample(grid, align_corners=True).tolist() == [[[[0.0, 5.0, 2.5, 0.0]]]]
    assert image.grid_sample(grid, "nearest", "border", True)[0, 0, 0, 3].item() in (2.0, 5.0)


def test_pixels_and_channels() -> None:
    x = np.arange(2 * 8 * 2 * 3).reshape(2, 8, 2, 3)
    made = Tensor(x).pixel_shuffle(2)
    assert made.shape == (2, 2, 4, 6)
    assert made[0, 0, :2, :2].tolist() == [[0, 6], [12, 18]]
    np.testing.assert_array_equal(made.pixel_unshuffle(2).numpy(), x)


def test_every_device(device: str) -> None:
    with Context(DEVICE=device):
        if not device.startswith("NULL"):
            x = Tensor(np.arange(4.0).reshape(1, 1, 2, 2))
            assert x.interpolate(4, mode="bicubic").shape == (1, 1, 4, 4)
            assert x.grid_sample(Tensor.zeros(1, 1, 1, 2).double()).item() == 1.5


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda x: x.interpolate(3, mode="cubic"), SettingError, "must be one of 'nearest'"),
        (lambda x: x.interpolate(3, mode="area", antialias=True), SettingError, "must be a linear mode or 'bicubic'"),
        (lambda x: x.interpolate(3, mode="area", align_corners=True), SettingError, "must be left out"),
        (lambda x: x.interpolate(mode="area"), SettingError, "exactly one of size and scale_factor"),
        (lambda x: x[0, 0].interpolate(3, mode="area"), ShapeError, "of known sizes above 0"),
        (lambda x: x.grid_sample(Tensor.ones(2, 3, 3, 3)), ShapeError, "must be \\(n, c, h, w\\)"),
        (lambda x: x.grid_sample(Tensor.ones(2, 3, 3, 2), "cubic"), SettingError, "or 'bicubic' of two axes"),
        (lambda x: x.pixel_shuffle(2), ShapeError, "must be a multiple of 4"),
        (lambda x: x.pixel_unshuffle(4), ShapeError, "must be multiples of 4"),
        (lambda x: x.pixel_shuffle(0), SettingError, "must be an integer of 1 or more"),
    ],
)
def test_bad_calls(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call(Tensor(X))
