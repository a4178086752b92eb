"""Any value in any argument of a public function: a result, a sentence, or Python's TypeError about the signature.

Found by it: `Variable(b"y", 3, 4)` (AttributeError), `x.argsort(0, np.array([1, 2]))` (NumPy's ValueError),
`nn.BatchNorm2d(10**30)` (NumPy's ValueError), `None in x`, `x.nan_to_num(neginf=())`, `Tensor.realize()`.
"""

from __future__ import annotations

import fractions
import inspect
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kernmill
from kernmill import Context, InternalError, KernmillError, Tensor, Variable, dtypes, jit, nn, where

VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "negative": lambda: -1,
    "beyond 64 bits": lambda: 10**30,
    "beyond floats": lambda: 10**400,
    "float": lambda: 1.5,
    "nan": lambda: math.nan,
    "text": lambda: "x",
    "bytes": lambda: b"y",
    "nothing": lambda: (),
    "nested": lambda: [[1], [2, 3]],
    "huge sizes": lambda: [10**30, 10**30],
    "dict": lambda: {"a": 1},
    "object": object,
    "ints": lambda: np.array([1, 2]),
    "text array": lambda: np.array("a"),
    "objects": lambda: np.array([None, 1]),
    "float32": lambda: np.float32(2),
    "no elements": lambda: np.array([]),
    "bools": lambda: np.array([True, False]),
    "record": lambda: np.zeros(2, dtype=[("a", "i4")]),
    "date": lambda: np.array("2020-01-01", dtype="M8[D]"),
    "number tensor": lambda: Tensor(1.5),
    "empty tensor": lambda: Tensor.ones(0, 3),
    "variable": lambda: Variable("n", 1, 9),
    "function": lambda: len,
    "slice": lambda: slice(1, None),
    "dots": lambda: ...,
    "complex": lambda: 1j,
    "generator": lambda: iter(range(3)),
    "fraction": lambda: fractions.Fraction(1, 3),
}
SIGNATURE = re.compile(r"missing|unexpected keyword|takes .* argument|multiple values|positional")
OPERATORS = re.compile(
    r"__([ri]?(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor|lshift|rshift)"
    r"|getitem|setitem|eq|ne|lt|le|gt|ge|contains)__"
)
# by rows of their own, if at all
NOT_TRIED = {
    "jit",
    "train",
    "no_grad",
    "dtypes",
    "DType",
    "Context",
    "Tensor",
}
FIRST: dict[str, Callable[[], Any]] = {  # arguments that are needed before the one that is tried, by name
    "axis": lambda: 0,
    "reduce": lambda: "sum",
    "shape": lambda: (4, 3),
    "sizes": lambda: (4, 3),
    "dtype": lambda: "float32",
    "formula": lambda: "ij,ij->i",
    "mask": lambda: Tensor.rand(3, 4) > 0.5,
    "device": lambda: None,
}
SCATTERS = ("scatter", "scatter_add", "scatter_reduce")
FIRST_OF: dict[tuple[str, str], Callable[[], Any]] = {
    **{(name, "index"): lambda: Tensor([[0, 1, 2, 0]]) for name in ("gather", *SCATTERS)},
    **{(name, "index"): lambda: Tensor([0, 1]) for name in ("index_add", "index_select")},
    **{(name, "src"): lambda: Tensor.ones(1, 4) for name in SCATTERS},
    **{(f"{name}{d}d", "weight"): partial(Tensor.rand, 2, 2, *[3] * d)
       for d in (1, 2, 3) for name in ("conv", "conv_transpose")},
    ("index_add", "value"): lambda: Tensor.ones(2, 4),
    ("cross_entropy", "target"): lambda: Tensor([0, 1, 2]),
    ("linear", "weight"): lambda: Tensor.rand(5, 4),
    ("matmul", "other"): lambda: Tensor.rand(4, 2),
}  # fmt: skip
TENSORS = ("Self", "Lazy", "Operand")
BY_KIND: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(TENSORS, lambda: Tensor.rand(3, 4)), **dict.fromkeys(("int", "Each"), lambda: 2),
    "float": lambda: 0.5, "str": lambda: "x", "bool": lambda: False,
}  # fmt: skip


def receiver(name: str) -> Tensor:
    """A tensor that the method takes."""
    if match := re.fullmatch(r"conv(?:_transpose)?([123])d", name):
        return Tensor.rand(1, 2, *[6] * int(match[1]))
    is_image = "pool" in name or name == "interpolate"
    return Tensor.rand(1, 2, 6, 6) if is_image else Tensor.rand(3, 4)


LAYERS: dict[str, Callable[[], Any]] = {
    "Linear": lambda: nn.Linear(4, 3), "Conv2d": lambda: nn.Conv2d(2, 3, 3), "Embedding": lambda: nn.Embedding(5, 4),
    "LayerNorm": lambda: nn.LayerNorm(4), "BatchNorm2d": lambda: nn.BatchNorm2d(2), "GRU": lambda: nn.GRU(4, 3),
    "LSTMCell": lambda: nn.LSTMCell(4, 3), "MultiHeadAttention": lambda: nn.MultiHeadAttention(4, 2),
    "Dropout": nn.Dropout, "GroupNorm": lambda: nn.GroupNorm(2, 4),
}  # fmt: skip


def subjects() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Label, name and maker of everything that a user calls with arguments."""
    for name in sorted(dir(Tensor)):
        member = inspect.getattr_static(Tensor, name)
        if (name.startswith("_") and not OPERATORS.fullmatch(name)) or isinstance(member, property):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            yield f"Tensor.{name}", name, lambda name=name: getattr(Tensor, name)  # type: ignore[misc]
        elif callable(member):
            yield f"tensor.{name}", name, lambda name=name: getattr(receiver(name), name)  # type: ignore[misc]
    for name in kernmill.__all__:
        made = getattr(kernmill, name)
        is_error = isinstance(made, type) and issubclass(made, BaseException)
        if name not in NOT_TRIED and not is_error and not isinstance(made, ModuleType):
            yield name, name, lambda made=made: made  # type: ignore[misc]
    yield "Tensor", "Tensor", lambda: Tensor
    yield "Variable.bind", "bind", lambda: Variable("k", 1, 9).bind
    yield "jit", "jit", lambda: jit
    yield "Context", "Context", lambda: Context
    for folder in (nn, nn.optim):
        for name in folder.__all__:
            made = getattr(folder, name)
            if callable(made) and name not in ("Group", "Optimizer"):
                yield f"{folder.__name__[9:]}.{name}", name, lambda made=made: made  # type: ignore[misc]
    for name, layer in LAYERS.items():
        yield f"{name}().forward", "forward", layer
        yield f"{name}().load_state_dict", "load_state_dict", lambda layer=layer: layer().load_state_dict  # type: ignore[misc]


SUBJECTS = {label: (name, make) for label, name, make in subjects()}


def needed(name: str, parameter: inspect.Parameter) -> Any:
    """A usable value of a parameter without a default."""
    make = FIRST_OF.get((name, parameter.name)) or FIRST.get(parameter.name)
    kind = str(parameter.annotation)
    return (make or next((m for word, m in BY_KIND.items() if word in kind), lambda: 2))()


def arguments(name: str, parameters: list[inspect.Parameter], tried: inspect.Parameter, value: Any) -> Any:
    """Arguments with this value for one parameter, and usable ones for those that have no default."""
    args, kwargs = list[Any](), dict[str, Any]()
    for at, parameter in enumerate(parameters):
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter is not tried and (is_open or parameter.default is not parameter.empty):
            continue
        given = value if parameter is tried else needed(name, parameter)
        if parameter.kind is parameter.VAR_KEYWORD:
            kwargs["unknown"] = given
        elif parameter.kind is parameter.KEYWORD_ONLY or len(args) < at:
            kwargs[parameter.name] = given
        else:
            args.append(given)
    return args, kwargs


def read(result: Any) -> None:
    """Compute what a call has given, where it is small."""
    if isinstance(result, Tensor):
        if math.prod(result.shape) < 10_000:
            result.numpy()
    elif isinstance(result, (tuple, list)):
        for one in result:
            read(one)


@pytest.mark.parametrize("label", SUBJECTS)
def test_a_wrong_argument_is_answered_with_a_sentence(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, make = SUBJECTS[label]
    parameters = list(inspect.signature(make()).parameters.values())
    faults = list[str]()
    for parameter in parameters:
        for word, value in VALUES.items():
            args, kwargs = arguments(name, parameters, parameter, value())
            try:
                read(make()(*args, **kwargs))
            except InternalError as error:
                faults.append(f"{parameter.name} = {word}: {error}")
            except KernmillError:
                pass
            except Exception as error:
                if not (isinstance(error, TypeError) and SIGNATURE.search(str(error))):
                    faults.append(f"{parameter.name} = {word}: {type(error).__name__}: {error}")
    assert not faults


REPORTED: dict[str, tuple[Callable[[], Any], str]] = {
    "a name of bytes": (lambda: Variable(b"y", 3, 4), "Variable: b'y' from 3 to 4. Give a name of letters"),  # type: ignore[arg-type]
    "a flag of two": (lambda: Tensor.ones(3, 4).argsort(0, np.array([1, 2])),  # type: ignore[arg-type]
                      "Tensor.argsort: descending is data of shape (2,), of type ndarray. Give True or False."),
    "channels beyond memory": (lambda: nn.BatchNorm2d(10**30), "BatchNorm: the call cannot use num_features="),
    "a member of None": (lambda: None in Tensor.ones(3), "eq: Tensor with NoneType: operands are tensors"),
    "no function": (lambda: jit(3), "jit: 3 is not a function. Write @jit above one"),  # type: ignore[call-overload]
    "realize nothing": (lambda: Tensor.realize(), "Tensor.realize: no tensor is given. Write x.realize(..), or "),  # type: ignore[call-arg]
}  # fmt: skip


@pytest.mark.parametrize("case", REPORTED)
def test_reported_arguments_are_named(case: str) -> None:
    call, begin = REPORTED[case]
    with pytest.raises(KernmillError) as caught:
        call()
    assert str(caught.value).startswith(begin)


def test_what_the_users_own_class_raises_is_passed_on() -> None:
    """A subclass of ours is the user's code: its constructor fails as the user wrote it."""

    class Own(nn.Module):
        def __init__(self, size: int) -> None:
            self.size = [1, 2, 3].index(size)

    with pytest.raises(ValueError, match="not in list") as caught:
        Own(7)
    assert not isinstance(caught.value, KernmillError)


def test_what_the_users_function_raises_is_passed_on() -> None:
    """A layer of the user's may fail inside of NumPy: that is not an argument of ours."""

    def inverse(x: Tensor) -> Tensor:
        return Tensor(np.linalg.inv(x.numpy()))

    with pytest.raises(np.linalg.LinAlgError):
        nn.Sequential(inverse)(Tensor.zeros(2, 2))


def test_the_cause_is_kept_where_no_argument_is_to_blame() -> None:
    with pytest.raises(KernmillError) as caught:
        nn.BatchNorm2d(10**30)
    assert isinstance(caught.value.__cause__, ValueError)


def test_right_arguments_are_not_looked_at() -> None:
    assert where(Tensor([True]), Tensor([1.0]), 2).dtype is dtypes.float32
