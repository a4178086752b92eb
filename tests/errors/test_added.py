"""Functions that other libraries have: one case per mistake, with the whole message."""

from __future__ import annotations

from typing import Any

from kernmill import DTypeError, SettingError, ShapeError, Tensor, jit, nn
from tests.errors.mistakes import Case, each_message

ANY: Any = Tensor
NN: Any = nn


def x() -> Any:
    return Tensor.ones(2, 3)


def v() -> Any:
    return Tensor.ones(3)


def i() -> Any:
    return Tensor([[0, 1]])


def twice(f: Any, *args: Any) -> Any:
    """A captured function runs as a plain one the first time."""
    f(*args)
    return f(*args)


CASES: dict[str, Case] = {
    # A1: it asked for the vector of ints that it had
    "bincount": (lambda: ANY([1, 2, 2]).bincount(), ShapeError,
                 "bincount: minlength=0: the size of the result must be known in advance. Pass minlength=, a "
                 "number above all values."),
    "bincount_of_a_number": (lambda: ANY([1, 2, 2]).bincount(3), ShapeError,
                             "bincount: weights=3: must be a tensor. Write minlength=3."),
    "bincount_of_floats": (lambda: v().bincount(minlength=3), ShapeError,
                           "bincount: of a float32 tensor of shape (3,): must be a vector of ints."),
    "scatter": (lambda: x().scatter(1, i(), 1.0, reduce="max"), SettingError,
                "scatter_reduce: reduce='max': must be 'sum', 'prod', 'mean', 'amax' or 'amin'."),
    "cross": (lambda: Tensor.ones(2, 2).cross(Tensor.ones(2, 2)), ShapeError,
              "cross: shapes (2, 2) and (2, 2): axis 1 must have the size 3. Pad vectors of two entries with a zero."),
    "square": (lambda: x().matrix_power(2), ShapeError,
               "matrix_power: shape (2, 3): must be square in its last two axes."),
    "rearrange": (lambda: x().rearrange("a b -> a"), ShapeError,
                  "rearrange: 'a b -> a' for shape (2, 3): name each axis once on both sides of ->, and group "
                  "merged axes in brackets."),
    "rearrange_sizes": (lambda: x().rearrange("(a b) c -> a b c", a=3), ShapeError,
                        "rearrange: '(a b) c -> a b c' for shape (2, 3): axis (a b) of size 2 needs the sizes of all "
                        "names but one."),
    "searchsorted": (lambda: x().searchsorted(v()), ShapeError,
                     "searchsorted: sorted values of shape (2, 3) and values of shape (3,): the first needs the "
                     "leading axes of the second, or none."),
    "side": (lambda: v().searchsorted(v(), side="middle"), SettingError,
             "searchsorted: side='middle': must be 'left' or 'right'."),
    "mask": (lambda: v().masked_select(v(), size=2), DTypeError,
             "masked_select: a mask of dtype float32: must be bool. Compare it with != 0."),
    "size": (lambda: v().nonzero(size=-1), ShapeError, "nonzero: size=-1: must be 0 or more."),
    "repeats": (lambda: v().repeat_interleave([1, 2]), ShapeError,
                "repeat_interleave: repeats [1, 2] for axis 0 of size 3: must be an integer of 0 or more for each "
                "entry."),
    "repeats_by_a_tensor": (lambda: v().repeat_interleave(Tensor([1, 2])), ShapeError,
                            "repeat_interleave: repeats [1, 2] for axis 0 of size 3: must be an integer of 0 or more "
                            "for each entry."),
    "repeats_in_jit": (lambda: twice(jit(lambda r: v().repeat_interleave(r)), Tensor([1, 2, 3])), ShapeError,
                       "repeat_interleave: the shape of the result depends on the data, and shapes must be known in "
                       "advance. Give repeats as a list, or NumPy: t.numpy()[mask.numpy()]."),
    "pad": (lambda: v().pad([(1, 1)], value=[1, 2]), ShapeError,
            "pad: value=[1, 2] for shape (3,): must be a number, or (before, after) for each axis."),
    "cell": (lambda: NN.LSTMCell(3, 0), ShapeError, "LSTMCell: hidden_size=0: must be an integer >= 1."),
    "state": (lambda: NN.GRUCell(3, 2)(v(), v()), ShapeError, "GRUCell: hx must be a tensor of shape (2,)."),
    "states": (lambda: NN.LSTMCell(3, 2)(v(), (v(), v())), ShapeError,
               "LSTMCell: hx must be a pair of tensors of shape (2,)."),
}  # fmt: skip

test_the_message_is_this = each_message(CASES)
