from __future__ import annotations

import array
import copy
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Context, DTypeError, GradientError, ShapeError, Tensor, dtypes, jit, no_grad, where
from kernmill.ir import DType
from kernmill.runtime import realize as compute
from tests.kernmill.against import close, same, values


def test_repr_never_computes() -> None:
    t = Tensor([1.0, 2.0]) + 1
    assert repr(t) == f"<Tensor (2,) float32 on {t.device}, not realized>"
    assert not t.is_realized
    t.realize()
    assert repr(t) == "Tensor([2., 3.], dtype=float32)"
    assert repr(Tensor([1.0], requires_grad=True)) == "Tensor([1.], dtype=float32, requires_grad=True)"


def test_a_buffer_has_its_own_dtype_and_shape() -> None:  # named regression: they were bytes, or float32
    for memory in (memoryview(np.eye(2).data), array.array("d", [1.0, 2.0])):
        made = Tensor(memory)
        assert made.dtype is dtypes.float64
        assert made.numpy().tolist() == np.asarray(memory).tolist()
    assert Tensor(memoryview(b"ab")).tolist() == [97, 98]


def test_python_protocols() -> None:
    t = Tensor([[1, 2], [3, 4]])
    assert len(t) == 2
    assert [row.tolist() for row in t] == [[1, 2], [3, 4]]
    assert float(Tensor(2.5)) == 2.5
    assert int(Tensor([7])) == 7
    assert [10, 20, 30][Tensor(1)] == 20
    assert bool(Tensor(1)) is True
    assert hash(t) == hash(t)
    assert (t == t).tolist() == [[True, True], [True, True]]
    assert (t.size(), t.size(0), t.ndim, t.numel()) == ((2, 2), 2, 2, 4)


def test_numpy_reads_it() -> None:
    t = Tensor([[1.0, 2.0]])
    same(t, np.asarray(t))
    assert np.asarray(t, np.float64).dtype == np.float64
    assert np.array(t).flags.writeable
    assert np.from_dlpack(t).tolist() == [[1, 2]]
    assert not t.numpy().flags.writeable


def test_torch_reads_it() -> None:
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(Tensor([[1.0, 2.0]])).tolist() == [[1, 2]]
    halves = Tensor([1.5, -2.0], dtypes.bfloat16)
    assert torch.from_dlpack(halves.bitcast(dtypes.int16)).view(torch.bfloat16).tolist() == [1.5, -2]


@pytest.mark.parametrize("dtype", [d for d in dtypes.data if d is not dtypes.bfloat16], ids=str)
def test_every_dtype_goes_out_and_in_by_dlpack(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    for shape in ((2, 3), (), (0, 3)):
        t = Tensor(np.arange(6).reshape(2, 3)[: shape[0]] % 2 if shape else 1, dtype)
        same(Tensor.from_dlpack(np.from_dlpack(t)), t.numpy())
        theirs = torch.from_dlpack(t)
        assert (tuple(theirs.shape), str(theirs.dtype)) == (shape, f"torch.{dtype.name}")
        same(Tensor.from_dlpack(theirs), t.numpy())


def test_dlpack_is_read_only_and_keeps_the_memory() -> None:
    """The memory that went out could be written by NumPy: tensors of the same values changed with it."""
    t = Tensor([1.0, 2.0]) * 2
    same_values = t.clone()
    view, address = np.from_dlpack(t), t.numpy().ctypes.data
    assert not view.flags.writeable
    if t.device == "LLVM" and np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # before, NumPy asks in a form without a
        assert view.ctypes.data == address  # mark for read-only, and gets a copy
    t += 1
    t.realize()
    del t
    Tensor(np.full(2, 9, np.float32)).realize()  # would take the memory, were it free
    assert view.tolist() == same_values.tolist() == [2, 4]
    copied = np.from_dlpack(same_values, copy=True)
    copied[0] = 5
    assert same_values.tolist() == [2, 4]


def test_a_replay_leaves_memory_alone_that_went_out() -> None:
    counter = Tensor([1.0, 2.0]).realize()

    @jit
    def step() -> None:
        counter.assign(counter + 1).realize()

    for _ in range(3):
        step()
    view = np.from_dlpack(counter)
    step()
    assert (view.tolist(), counter.tolist()) == ([4, 5], [5, 6])
    own = np.array([1.0, 2.0], np.float32)
    counter.replace(Tensor.from_dlpack(own))
    for _ in range(3):
        step()
    assert (own.tolist(), counter.tolist()) == ([1, 2], [4, 5])


def test_who_knows_no_read_only_memory_gets_a_copy() -> None:
    torch = pytest.importorskip("torch")

    class Old:
        """As NumPy 2.0 asks: without a version."""

        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.tensor.__dlpack_device__()

    t = Tensor([1.0, 2.0])
    theirs = torch.from_dlpack(Old(t))
    theirs[0] = 5
    assert (theirs.tolist(), t.tolist()) == ([5, 2], [1, 2])
    with pytest.raises(BufferError, match="without a copy the memory is read-only"):
        t.__dlpack__(copy=False)


def test_a_numpy_view_outlives_its_tensor_and_later_writes() -> None:
    t = Tensor([1.0, 2.0]) * 2
    view = t.numpy()
    t += 1
    t.realize()
    assert view.tolist() == [2, 4]
    del t
    assert view.tolist() == [2, 4]


def test_from_numpy_is_never_written() -> None:
    x = np.array([1.0, 2.0], np.float32)
    t = Tensor.from_numpy(x)
    t += 1
    t[0] = 9
    assert t.tolist() == [9, 3]
    assert x.tolist() == [1, 2]


def test_realized_history_is_freed() -> None:
    t = Tensor(values(3)) + 1
    t.realize()
    assert t.uop.toposort()[0].op.name == "BUFFER"
    assert len(t.uop.toposort()) <= 2


def test_a_lazy_result_keeps_the_values_it_was_made_from() -> None:
    x = Tensor([1.0, 2.0]) + 0
    y = x * 2
    x.realize()
    x += 10
    x.realize()
    assert x.tolist() == [11, 12]
    assert y.tolist() == [2, 4]


def test_backward_after_looking_at_the_loss() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    loss = (x * x).sum()
    assert loss.item() == 5
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]


def test_equal_leaves_are_two() -> None:
    a, b = Tensor.ones(2, requires_grad=True), Tensor.ones(2, requires_grad=True)
    (a * b * 3 + b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.tolist(), b.grad.tolist()) == ([3, 3], [4, 4])


def test_realizing_a_leaf_keeps_its_place_in_older_graphs() -> None:
    a = Tensor.ones(2, requires_grad=True)
    y = (a * 3).sum()
    a.realize()
    y.backward()
    (a * 2).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [5, 5]


def test_gradients_accumulate_until_they_are_dropped() -> None:
    a = Tensor([1.0], requires_grad=True)
    (a * 2).sum().backward()
    (a * 3).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [5]
    a.grad = None
    (a * 4).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [4]


def test_a_step_of_descent() -> None:
    w = Tensor([2.0], requires_grad=True)
    for _ in range(3):
        (w * w).sum().backward()
        assert w.grad is not None
        with no_grad():
            w.assign(w - 0.25 * w.grad)
        w.realize()
        w.grad = None
    assert w.requires_grad
    assert w.item() == 0.25
    assert len(w.uop.toposort()) <= 2


def test_nothing_is_recorded_without_grad() -> None:
    w = Tensor([2.0], requires_grad=True)
    with no_grad():
        assert not (w * 2).requires_grad
    assert (w * 2).requires_grad
    assert not w.detach().requires_grad
    assert not (w > 1).requires_grad

    @no_grad()
    def f() -> Tensor:
        return w * 2

    assert not f().requires_grad


@pytest.mark.parametrize(("name", "dtype"), [("float", "float32"), ("double", "float64"), ("half", "float16"),
                                             ("int", "int32"), ("long", "int64"), ("short", "int16"),
                                             ("bool", "bool")])  # fmt: skip
def test_casts(name: str, dtype: str) -> None:
    same(getattr(Tensor([0.0, 1.7, -2.7]), name)(), np.array([0, 1.7, -2.7], np.float32).astype(dtype))


def test_bitcast() -> None:
    x = values(3)
    same(Tensor(x).bitcast(dtypes.uint32), x.view(np.uint32))
    same(Tensor(x).bitcast(dtypes.int32).bitcast(dtypes.float32), x)


def test_assign_broadcasts_and_casts_numbers() -> None:
    t = Tensor(np.zeros((2, 2), np.int32))
    assert t.assign(3).tolist() == [[3, 3], [3, 3]]
    t.assign(Tensor(np.array([1, 2], np.int32)))
    assert t.tolist() == [[1, 2], [1, 2]]
    u = Tensor(np.ones((2, 2), np.int32))
    assert t.replace(u).tolist() == [[1, 1], [1, 1]]


def test_devices_have_one_name() -> None:
    assert Tensor([1.0], device="python:0").device == "PYTHON"
    t = Tensor([1.0, 2.0])
    assert t.to("PYTHON").device == "PYTHON"
    assert (t.to("PYTHON") * 2).tolist() == [2, 4]
    assert Tensor.ones(2, device="python").device == "PYTHON"
    assert (Tensor.ones(2) + Tensor([1.0, 1.0], device="PYTHON")).device == "PYTHON"


def test_data_of_the_host_go_to_the_device_of_the_tensor() -> None:
    """Named regression: they were put on the default device, and said to be a tensor that lies there."""
    for place in ("PYTHON", "LLVM"):
        t, array = Tensor([[1.0, 2.0], [3.0, 4.0]], device=place), np.array([10.0, 20.0], np.float32)
        made: list[Any] = [
            t + array,
            array + t,
            t.maximum(array),
            where(t > 1, t, array),
            t.mse_loss(Tensor.ones(2, 2)),
        ]
        for result in made:
            assert result.realize().device == place
        t[0] = array
        t[np.array([False, True])] = 5.0
        assert (t.device, t.tolist()) == (place, [[10, 20], [5, 5]])
        pooled = Tensor(np.arange(10, dtype=np.float32).reshape(1, 2, 5), device=place).adaptive_avg_pool2d((1, 2))
        assert (pooled.device, pooled.tolist()) == (place, [[[3.5, 5.5]]])


def test_gradient_crosses_devices() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x.to("PYTHON") * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.device == x.device
    assert x.grad.tolist() == [3, 3]


def test_nodes_know_the_users_line() -> None:
    t = Tensor([1.0, 2.0])
    y = (t + 1).softmax()
    origins = {node.origin for node in y.uop.toposort() if node.op.name not in ("BUFFER", "CONST", "RESHAPE")}
    assert all(origin is not None and origin.rpartition(":")[0].endswith("test_tensor.py") for origin in origins)


def test_scalars_and_empty_tensors_come_back() -> None:
    assert Tensor(3).tolist() == 3
    assert Tensor([]).tolist() == []
    assert Tensor(np.zeros((2, 0))).tolist() == [[], []]
    assert Tensor(np.zeros((2, 0))).numpy().shape == (2, 0)


def test_one_element_is_formatted_as_a_number() -> None:
    loss = Tensor([1.5, 2.0]).mean()
    assert f"{loss}" == "<Tensor () float32 on " + loss.device + ", not realized>"
    assert f"{loss:.2f} {Tensor([3]):4d}" == "1.75    3"
    with pytest.raises(ShapeError, match="item: shape"):
        f"{Tensor([1.0, 2.0]):.2f}"


def test_bfloat16_goes_round() -> None:
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    x = np.array([1.0, 3.14159, -0.0, np.inf], ml_dtypes.bfloat16)
    t = Tensor(x)
    assert t.dtype is dtypes.bfloat16
    np.testing.assert_array_equal(t.numpy(), x)
    np.testing.assert_array_equal((t + 1).numpy(), x + np.array(1, ml_dtypes.bfloat16))
    close(Tensor([3.14159], dtype=dtypes.bfloat16).float(), np.array([3.140625], np.float32))


def test_realizing_several_at_once() -> None:
    a, b = Tensor([1.0]) + 1, Tensor([2.0]) + 1
    a.realize(b)
    assert a.is_realized
    assert b.is_realized


def test_an_assignment_to_constants_of_a_device_leaves_others_alone() -> None:
    """Named regression: the next zeros_like() of that shape was refused, since its node kept the memory."""
    x = Tensor(np.ones(8, np.float32)).realize()
    for _ in range(3):
        total = x.full_like(3).realize()
        for step in (1, 2):
            total.assign(total + 1).realize()
            np.testing.assert_array_equal(x.full_like(3).numpy(), [3] * 8)
            np.testing.assert_array_equal(total.numpy(), [3 + step] * 8)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.bool, dtypes.int64], ids=str)
def test_copies_are_tensors_of_their_own(again: Callable[[Tensor], Tensor], dtype: DType) -> None:
    """A copy.copy was not known to assignments, and its values were gone after one; the others raised."""
    t = Tensor([[0, 1, 2], [3, 4, 5]]).cast(dtype).T.realize()
    new = again(t)
    t.assign(Tensor.zeros(3, 2, dtype=dtype)).realize()
    assert new.dtype is dtype
    wanted = np.array([[0, 3], [1, 4], [2, 5]])
    assert new.cast(dtypes.int64).tolist() == (np.minimum(wanted, 1) if dtype.is_bool else wanted).tolist()
    assert not t.cast(dtypes.bool).any().item()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_of_a_leaf_is_a_leaf(again: Callable[[Tensor], Tensor]) -> None:
    leaf = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    (leaf * leaf).sum().backward()
    new = again(leaf)
    assert new.requires_grad
    assert new.grad is None
    (new * 5.0).sum().backward()
    assert new.grad is not None
    assert leaf.grad is not None
    assert new.grad.tolist() == [5.0] * 3
    assert leaf.grad.tolist() == [2.0, 4.0, 6.0]


def test_a_copy_of_what_leads_to_a_leaf_leads_to_it() -> None:
    leaf = Tensor([1.0, 2.0], requires_grad=True)
    (copy.copy(leaf * 3.0) * 2.0).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [6.0, 6.0]


def test_an_expression_whose_memory_was_taken_is_computed_again() -> None:
    """Named regression: built anew it was the node of before, without memory and without a device."""
    x, y = Tensor([0.0, 1, 2, 3, 4, 5]).realize(), Tensor([7.0, 8, 9, 10, 11, 12]).realize()
    v = x.clone()
    for part in (slice(1, 3), slice(3, 5)):
        x[part] = y[part]
        (x + 1).realize()
    v[1:3] = y[1:3]
    assert v.tolist() == [0, 8, 9, 3, 4, 5]
    assert x.tolist() == [0, 8, 9, 10, 11, 5]


def test_a_copy_asked_for_with_an_assignment_is_the_old_value(device: str) -> None:
    """Named regression: `contiguous` of what is in memory is that memory, which the assignment wrote into."""
    for order in (0, 1):
        x = Tensor(np.arange(4, dtype=np.float32), device=device).realize()
        y = x.contiguous()
        x.assign(x * 2)
        _ = y.realize(x) if order else x.realize(y)
        assert (y.tolist(), x.tolist()) == ([0, 1, 2, 3], [0, 2, 4, 6])

    @jit
    def step(x: Tensor) -> Tensor:
        old = x.contiguous()
        x.assign(x * 2)
        return old

    x = Tensor([1.0, 2.0], device=device).realize()
    for power in (1, 2, 4, 8):
        assert step(x).tolist() == [power, 2 * power]


def test_allclose_is_numpys() -> None:
    x = np.array([1, 2, np.nan], np.float32)
    assert Tensor(x[:2]).allclose(Tensor(x[:2] + 1e-6))
    assert not Tensor(x[:2]).allclose(Tensor(x[:2] + 1e-4))
    assert Tensor(x[:2]).allclose(Tensor(x[:2] + 1e-4), atol=1e-3)
    assert not Tensor(x).allclose(Tensor(x))
    assert Tensor(x).allclose(Tensor(x), equal_nan=True)
    assert Tensor.zeros(0).allclose(1.0)
    with pytest.raises(ShapeError, match="broadcast"):
        Tensor.zeros(2).allclose(Tensor.zeros(3))


def test_a_tensor_that_changes_while_another_thread_realizes_it_keeps_the_change(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A capture realizes what other threads have assigned. Once it failed, or took their change back."""
    with Context(DEVICE=device):
        x = Tensor([1.0, 2.0]) + 1

        def realize_slowly(*args: Any) -> None:
            compute(*args)
            x[0] = 5.0  # what the other thread does meanwhile

        monkeypatch.setattr("kernmill.tensor.realize", realize_slowly)
        x.realize()
        monkeypatch.undo()
        assert x.tolist() == [5.0, 3.0]


NUMPYS: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod, "any": np.any, "all": np.all,
    "std": lambda t: np.std(t, axis=1, keepdims=True), "T": np.transpose, "size": np.size, "cumsum": np.cumsum,
    "concatenate": lambda t: np.concatenate([t, t]), "argwhere": np.argwhere, "exp": np.exp, "abs": np.abs,
    "reduce": lambda t: np.add.reduce(t, axis=0), "add_to": lambda t: np.add(t, 1, out=np.zeros((2, 3), np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_functions_give_numpys_arrays(name: str) -> None:
    """np.sum(t), np.mean(t) and np.max(t) called the methods with `out` and `dtype`, which they do not take."""
    x = values(2, 3)
    found, wanted = NUMPYS[name](Tensor(x)), NUMPYS[name](x)
    assert type(found) is type(wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_numpys_operators_give_tensors() -> None:
    x = values(2, 3)
    for found, wanted in ((x + Tensor(x), x + x), (np.float32(2) ** Tensor(x), 2**x), (x @ Tensor(x).T, x @ x.T),
                          (x < Tensor(x + 1), x < x + 1), (np.float64(2) * Tensor(x), 2 * x)):  # fmt: skip
        assert isinstance(found, Tensor)
        assert found.numpy().dtype == (wanted.dtype if wanted.dtype.kind == "b" else np.float32)
        close(found, wanted, 1e-5)
    y = x.copy()
    y += Tensor(x)
    assert isinstance(y, np.ndarray)
    close(y, 2 * x)


def test_a_gradient_is_not_lost_to_numpy() -> None:
    leaf = Tensor([1.0], requires_grad=True)
    with pytest.raises(
        GradientError, match=r"np.exp: no gradient would flow from NumPy's result .* or give NumPy t.detach\(\)"
    ):
        np.exp(leaf)
    assert np.exp(leaf.detach()) == pytest.approx(np.e)
    with no_grad():
        assert np.exp(leaf) == pytest.approx(np.e)
    calls: list[Callable[[], Any]] = [lambda: np.sum(leaf), lambda: np.hypot(Tensor([1.0]), leaf),
                                      lambda: np.concatenate([np.ones(1), leaf]), lambda: np.fft.fft(leaf),
                                      lambda: np.multiply.outer(np.array([1j]), leaf)]  # fmt: skip
    for call in calls:
        with pytest.raises(GradientError, match="no gradient would flow from NumPy's result"):
            call()
    assert not np.isnan(leaf).any()  # no gradient is expected of bools and ints
    assert np.allclose(leaf, np.ones(1))
    assert np.argmax(leaf) == 0
    assert np.zeros_like(leaf) == 0  # nor of a shape
    given = np.zeros(1, np.float32)
    for write in (lambda: np.exp(leaf, out=given), lambda: np.cumsum(leaf, out=given), lambda: given.__iadd__(leaf)):
        with pytest.raises(GradientError, match="no gradient would flow from NumPy's result"):
            write()
        assert given == 0  # refused before anything is written


def test_whether_a_value_is_in_it() -> None:
    """Python asked row after row for its truth, which a row has not."""
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert 2 in x
    assert Tensor(4.0) in x
    assert 5 not in x
    assert 1 not in Tensor.zeros(0)


def test_pythons_round() -> None:
    close(round(Tensor([1.26, 2.5]), 1), [1.3, 2.5])
    close(round(Tensor([1.26, 2.5])), [1.0, 2.0])


def test_a_shape_without_elements_is_shown() -> None:
    assert repr(Tensor.zeros(0, 3).realize()) == "Tensor([], shape=(0, 3), dtype=float32)"
    assert repr(Tensor.zeros(0).realize()) == "Tensor([], dtype=float32)"


def test_numpys_functions_take_tensors_in_any_sequence() -> None:
    """A named tuple, such as sort gives, was passed on as it was, and again, until the stack was full."""
    x = values(2, 3)
    wanted = np.stack([np.sort(x), np.argsort(x)])
    for given in (Tensor(x).sort(), [*Tensor(x).sort()], deque(Tensor(x).sort())):
        np.testing.assert_array_equal(np.stack(given), wanted)


def test_numpy_does_not_write_to_a_tensor() -> None:
    """ufunc.at writes to memory that is read-only, which other tensors may share."""
    x = Tensor([1.0, 2.0]).realize()
    with pytest.raises(DTypeError, match=r"np\.add\.at: NumPy does not write to a tensor"):
        np.add.at(x, [0], 5)  # type: ignore[arg-type]
    assert x.tolist() == [1, 2]
