from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, ShapeError, Tensor, cat, meshgrid, stack
from tests.kernmill.against import close, same, values, with_torch

X = values(2, 3, 4)

# what both we and PyTorch call the same way
ALIKE: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda t: t.reshape(4, -1),
    "reshape_tuple": lambda t: t.reshape((3, 8)),
    "flatten": lambda t: t.flatten(),
    "flatten_some": lambda t: t.flatten(1),
    "unflatten": lambda t: t.unflatten(2, (2, -1)),
    "permute": lambda t: t.permute(2, 0, 1),
    "permute_negative": lambda t: t.permute(-1, 0, 1),
    "transpose": lambda t: t.transpose(0, 2),
    "mT": lambda t: t.mT,
    "movedim": lambda t: t.movedim(0, -1),
    "movedim_many": lambda t: t.movedim((0, 1), (1, 2)),
    "swapaxes": lambda t: t.swapaxes(1, 2),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "rot90": lambda t: t.rot90(),
    "rot90_twice": lambda t: t.rot90(2, (0, 2)),
    "rot90_back": lambda t: t.rot90(-1, (2, 1)),
    "rot90_round": lambda t: t.rot90(4, (2, 1)),
    "diff": lambda t: t.diff(),
    "diff_twice": lambda t: t.diff(2, 1),
    "diff_of_none": lambda t: t.diff(9, 0),
    "unsqueeze_last": lambda t: t.unsqueeze(-1),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(),
    "squeeze_axis": lambda t: t.unsqueeze(0).squeeze(0),
    "squeeze_nothing": lambda t: t.squeeze(1),
    "expand": lambda t: t.unsqueeze(1).expand(2, 5, 3, 4),
    "expand_new": lambda t: t.expand(2, -1, -1, -1),
    "flip": lambda t: t.flip((0, 2)),
    "roll": lambda t: t.roll(3, 1),
    "roll_two": lambda t: t.roll((1, -1), (0, 2)),
    "roll_flat": lambda t: t.roll(5),
    "repeat": lambda t: t.repeat(2, 1, 3),
    "repeat_new": lambda t: t.repeat(2, 1, 1, 1),
    "tile": lambda t: t.tile((2, 1)),
    "repeat_interleave": lambda t: t.repeat_interleave(2, 1),
    "repeat_interleave_flat": lambda t: t.repeat_interleave(3),
    "unfold": lambda t: t.unfold(2, 3, 1),
    "unfold_apart": lambda t: t.unfold(1, 2, 1),
    "tril": lambda t: t.tril(),
    "triu": lambda t: t.triu(1),
    "tril_below": lambda t: t.tril(-1),
    "diagonal": lambda t: t.diagonal(0, 1, 2),
    "diagonal_above": lambda t: t.diagonal(1),
    "diagonal_below": lambda t: t.diagonal(-1, 1, 2),
    "split": lambda t: t.split(2, 1)[1],
    "split_sizes": lambda t: t.split([1, 3], 2)[1],
    "chunk": lambda t: t.chunk(3, 2)[1],
    "unbind": lambda t: t.unbind(1)[2],
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_values_and_gradients_are_torchs(name: str) -> None:
    fn = ALIKE[name]
    with_torch(fn, fn, [X])


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding_is_torchs(mode: str) -> None:
    torch = pytest.importorskip("torch")
    with_torch(lambda t: t.pad((1, 2), mode=mode), lambda t: torch.nn.functional.pad(t, (1, 2), mode), [X])


def test_padding_with_values_negative_sizes_and_pairs() -> None:
    torch = pytest.importorskip("torch")
    pad = torch.nn.functional.pad
    with_torch(lambda t: t.pad((1, -1, 2, 0), value=3), lambda t: pad(t, (1, -1, 2, 0), value=3), [X])
    same(Tensor(X).pad([(1, 0), None, (0, 2)], value=-np.inf),
         np.pad(X, [(1, 0), (0, 0), (0, 2)], constant_values=-np.inf))  # fmt: skip


def test_joining() -> None:
    torch = pytest.importorskip("torch")
    a, b = values(2, 3), values(2, 2, seed=1)
    with_torch(lambda x, y: cat([x, y, x], 1), lambda x, y: torch.cat([x, y, x], 1), [a, b])
    with_torch(lambda x, y: stack([x, y], -1), lambda x, y: torch.stack([x, y], -1), [a, a + 1])
    grids = meshgrid(Tensor([1, 2]), Tensor([3, 4, 5]))
    for own, want in zip(grids, np.meshgrid([1, 2], [3, 4, 5], indexing="ij"), strict=True):
        same(own, want)
    for own, want in zip(
        meshgrid(Tensor([1, 2]), Tensor([3, 4, 5]), indexing="xy"), np.meshgrid([1, 2], [3, 4, 5]), strict=True
    ):
        same(own, want)


def test_joining_keeps_every_bit() -> None:
    a, b = np.array([-0.0, np.nan, np.inf], np.float32), np.array([-0.0, -np.inf], np.float32)
    same(cat([Tensor(a), Tensor(b), Tensor(a)]), np.concatenate([a, b, a]))


def test_joining_promotes_and_takes_empty_parts() -> None:
    same(cat([Tensor([1, 2]), Tensor([0.5])]), np.array([1, 2, 0.5], np.float32))
    same(cat([Tensor.zeros(0), Tensor([1.0]), Tensor.zeros(0)]), np.array([1], np.float32))
    same(cat([Tensor.zeros(0), Tensor.zeros(0)]), np.zeros(0, np.float32))
    same(cat([Tensor([True]), Tensor([False])]), np.array([True, False]))


def test_diag_there_and_back() -> None:
    v = values(3)
    for k in (-2, 0, 1):
        same(Tensor(v).diag(k), np.diag(v, k))
        same(Tensor(v).diag(k).diag(k), v)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_tensors_move(shape: tuple[int, ...]) -> None:
    t = Tensor.zeros(*shape)
    assert t.reshape(-1, 1).shape == (0, 1)
    assert t.flip(0).shape == shape
    assert t.repeat(*[2] * len(shape)).numel() == 0
    assert t.unsqueeze(0).expand(3, *shape).numpy().shape == (3, *shape)
    assert t.pad([(1, 1)] * len(shape)).numpy().shape == tuple(s + 2 for s in shape)
    assert t.split(2)[0].ndim == len(shape)


def test_huge_shapes_are_only_numbers() -> None:
    t = Tensor.zeros(2**40, 3)
    assert t.T.shape == (3, 2**40)
    assert t[2**39 : 2**39 + 2].sum().item() == 0
    assert Tensor.arange(2**40)[-1].item() == 2**40 - 1


def test_broadcast_tensors() -> None:
    a, b = Tensor.zeros(3, 1).broadcast_tensors(Tensor.ones(4))
    assert a.shape == b.shape == (3, 4)


def test_shrink() -> None:
    same(Tensor(X).shrink([(0, 1), None, (1, 3)]), X[0:1, :, 1:3])
    with pytest.raises(ShapeError, match="0 <= start <= stop <= size"):
        Tensor(X).shrink([(0, 3), None, None])


def test_reshape_to_what_is_no_size() -> None:
    size: Any
    for size in ("a", 2.5, (1, "a")):
        with pytest.raises(ShapeError, match="Give integers"):
            Tensor.zeros(2).reshape(size)


def test_numpys_ints_are_ints() -> None:
    """Named regression: roll and eye took them for symbolic sizes."""
    assert Tensor([1, 2, 3]).roll(np.int64(1), 0).tolist() == [3, 1, 2]  # type: ignore[arg-type]
    assert Tensor.eye(np.int64(2)).tolist() == [[1, 0], [0, 1]]  # type: ignore[arg-type]
    assert Tensor.arange(np.int64(2)).dtype is Tensor.arange(2).dtype  # type: ignore[arg-type]
    assert Tensor([1, 2]).pad(((np.int64(1), 0),)).tolist() == [0, 1, 2]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float"):
        Tensor([1, 2, 3]).roll(1.5, 0)  # type: ignore[arg-type]


def test_a_roll_by_nothing_is_a_tensor_of_its_own() -> None:
    """Named regression: by a multiple of the size it was the tensor itself, and changed with it."""
    x = Tensor([1.0, 2, 3]).realize()
    y = x.roll(3, 0)
    x[0] = -1
    assert y.tolist() == [1, 2, 3]


def test_numpys_ints_are_axes_and_sizes() -> None:
    """Once an axis of NumPy's was taken for several: an int64 that cannot be iterated."""
    x = values(2, 3, 4)
    one: Any = np.int64(1)
    two: Any = np.int32(2)
    ends: Any = np.array([0, 2])
    t = Tensor(x)
    close(t.sum(one), x.sum(1))
    close(t.sum(ends), x.sum((0, 2)))
    close(t.max(-two), x.max(1))
    close(t.softmax(one).sum(one), np.ones((2, 4)), 1e-6)
    close(t.cumsum(one), x.cumsum(1))
    close(t.sort(two)[0], np.sort(x))
    close(t.topk(two, one)[0], -np.sort(-x, 1)[:, :2])
    close(t.roll(one, two), np.roll(x, 1, 2))
    close(t.pad((one, one)), np.pad(x, ((0, 0), (0, 0), (1, 1))))
    assert [part.shape for part in t.split(two, one)] == [(2, 2, 4), (2, 1, 4)]
    assert t.unfold(two, two, one).shape == (2, 3, 3, 2)
    assert Tensor([0, 1]).one_hot(two).tolist() == [[1, 0], [0, 1]]
    assert Tensor.ones(1, 1, 4, 4).avg_pool2d(two).shape == (1, 1, 2, 2)
    assert Tensor.ones(1, 1, 4, 4).conv2d(Tensor.ones(1, 1, 2, 2), stride=two, padding=one).shape == (1, 1, 3, 3)
    with pytest.raises(ShapeError, match=r"1.5 as a size or an axis: a float is not an integer. Give integers."):
        t.sum(1.5)  # type: ignore[arg-type]


def test_a_number_in_a_tensor_or_an_array_is_a_size() -> None:
    """They were gone over: `iter(tensor): a 0-d tensor has nothing to go over`."""
    numbers: list[Any] = [Tensor(4), np.array(4)]
    for number in numbers:
        assert Tensor.ones(2, 2).reshape(number).shape == Tensor.rand(number).shape == (4,)
        assert Tensor.ones(2, 4).sum(number - 3).shape == (2,)


def test_differences_of_bools() -> None:
    same(Tensor([True, False, False]).diff(), np.array([True, False]))
    with pytest.raises(ShapeError, match="diff: a 0-d tensor has no entries"):
        Tensor(1.0).diff()


def test_differences_and_turns_that_are_none() -> None:
    with pytest.raises(SettingError, match=r"diff: n=-1 times\. Give 0 or more"):
        Tensor([1.0, 2.0]).diff(-1)
    with pytest.raises(ShapeError, match=r"rot90: axes \(0,\): give two different axes"):
        Tensor([[1.0]]).rot90(1, (0,))


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_pads_of_any_sign_are_pytorchs(mode: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    done = 0
    for _ in range(60):
        x = rng.random((1, 2, *rng.integers(1, 7, 2))).astype(np.float32)
        pads = tuple(int(n) for n in rng.integers(-3, 4, 4))
        if mode == "circular" and any(x.shape[3 - i // 2] + min(0, *pads[i : i + 2]) < 3 for i in (0, 2)):
            continue  # PyTorch repeats what it has not written yet
        try:
            right = torch.nn.functional.pad(torch.tensor(x), pads, mode=mode).numpy()
        except (RuntimeError, ValueError):
            with pytest.raises(ShapeError):
                Tensor(x).pad(pads, mode=mode)
            continue
        np.testing.assert_array_equal(Tensor(x).pad(pads, mode=mode).numpy(), right)
        done += 1
    assert done > 5
