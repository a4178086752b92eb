"""Arguments of the wrong type: a sentence from what a call says of its parameters, once something in it has failed.

Nothing is looked at before: a call with right arguments pays nothing. Only annotations that say all of what is taken
are judged (`Self`, `int`, `Sequence[int] | None`, ..); operands, dtypes and indices have sentences of their own.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from kernmill.ir import DTypeError, KernmillError, UOp

from .size import SymbolicSize

__all__ = ["is_foreign", "misfit", "refuse", "with_sentences"]

Call = TypeVar("Call", bound=Callable[..., Any])
_FAILURES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)
_SHORT = {"Each": "int | Sequence[int]", "Axes": "int | Sequence[int] | None"}
_WORDS = {"Self": "a Tensor", "int": "a whole number", "float": "a number", "str": "a text", "bool": "True or False",
          "os.PathLike": "a path", "Mapping": "a dict"}  # fmt: skip
_OTHER_WORDS = {"keepdims": "keepdim", "unbiased": "correction", "ddof": "correction", "size": "shape"}
_TENSORS = ("Self", "Tensor", "Lazy", "Movement", "Contraction", "M", "L", "J")
_SEVERAL = {"int": "several whole numbers", "float": "several numbers", "Self": "several tensors"}


def is_foreign(error: BaseException, function: Callable[..., Any]) -> bool:
    """Whether Python or NumPy raised this in a function of ours: no sentence of kernmill's, and nothing that a user's
    own code says, such as a generator that was given, an `__array__` or a layer."""
    place = error.__traceback__
    if not isinstance(error, _FAILURES) or isinstance(error, KernmillError) or place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    package = place.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    return package in (function.__module__.partition(".")[0], "numpy") or package in sys.stdlib_module_names


def refuse(
    error: BaseException, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise an error that names an argument, if one can be blamed. No frame keeps it: it would keep the arguments."""
    fault = misfit(function, args, kwargs) if is_foreign(error, function) else None
    try:
        if fault is not None:
            raise fault from None
    finally:
        del fault


def with_sentences(function: Call) -> Call:
    """Decorator of a public function: what fails because of an argument's type says so."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            refuse(error, function, args, kwargs)
            raise

    return guarded  # type: ignore[return-value]


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> DTypeError | None:
    """An error that names the first argument of a type that its annotation leaves out; None: there is none."""
    signature = inspect.signature(function)
    call = function.__qualname__.removesuffix(".__init__")
    for word in kwargs.keys() - signature.parameters.keys():
        own = _OTHER_WORDS.get(word, word.replace("dims", "axis").replace("dim", "axis"))
        if own in signature.parameters:
            return DTypeError(f"{call}: there is no {word}=. Write {own}=.")
        if own == "axis" and "axes" in signature.parameters:
            return DTypeError(f"{call}: there is no {word}=. Give the axes alone.")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None  # Python has said which argument is missing or unknown
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        kind = _one_name(str(parameter.annotation))
        values = value if parameter.kind is parameter.VAR_POSITIONAL else [value]
        bad = next((v for v in values if not _fits(v, kind)), inspect.Parameter.empty)
        if bad is not inspect.Parameter.empty:
            return DTypeError(
                f"{call}: {name} is {_shown(bad)}, of type {type(bad).__name__}. "
                f"Give {' or '.join(dict.fromkeys(_wanted(word) for word in _split(kind)))}{_wrapping(bad, kind)}."
            )
    return None


def _one_name(kind: str) -> str:
    """An annotation with every name of a tensor's class as Self, and short names written out."""
    for word in _TENSORS:
        kind = kind if kind != word else "Self"
        kind = kind.replace(f"[{word}]", "[Self]").replace(f"{word} |", "Self |")
    return " | ".join(_SHORT.get(word, word) for word in _split(kind))


def _split(kind: str) -> list[str]:
    """The alternatives of an annotation."""
    words, depth = [""], 0
    for letter in kind:
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words]


def _fits(value: Any, kind: str) -> bool:
    return any(_fits_word(value, word) for word in _split(kind))


def _fits_word(value: Any, word: str) -> bool:
    given: Any = value  # what the checks leave of its type is not enough
    name, _, inner = word.partition("[")
    inner = inner[:-1]
    is_tensor = isinstance(getattr(value, "uop", None), UOp) and not isinstance(value, SymbolicSize)
    if name == "Self":
        return is_tensor
    if name == "None":
        return value is None
    if name == "int":
        is_whole = isinstance(value, (Integral, UOp, SymbolicSize)) or not getattr(value, "shape", True)
        return is_whole and (not is_tensor or given.dtype.is_int)
    if name == "float":
        return isinstance(value, (Real, UOp, SymbolicSize)) or not getattr(value, "shape", True)
    if name in ("str", "bool"):
        return isinstance(value, str) if name == "str" else isinstance(value, bool) or not isinstance(value, str)
    if name in ("Sequence", "Iterable"):
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes)) or is_tensor:
            return False
        if not hasattr(value, "__len__"):
            return name == "Iterable"  # what it gives has been used up
        return all(_fits(v, inner) for v in value)
    if name in ("os.PathLike", "Mapping"):
        return hasattr(value, "__fspath__") if name == "os.PathLike" else isinstance(value, Mapping)
    if name == "tuple":
        kinds = [k.strip() for k in inner.split(",")]
        is_same = isinstance(value, (tuple, list)) and len(value) == len(kinds)
        return is_same and all(map(_fits, given, kinds))
    return True


def _wanted(word: str) -> str:
    name, _, inner = word.partition("[")
    if name in ("Sequence", "Iterable"):
        return _SEVERAL.get(inner[:-1], "a pair of whole numbers for each axis")
    return _WORDS.get(name, name)


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"data of shape {shape}" if isinstance(shape, tuple) and shape else reprlib.repr(value)


def _wrapping(value: Any, kind: str) -> str:
    is_data = isinstance(value, (bool, int, float, list, tuple)) or hasattr(value, "__array__")
    return "; wrap data in Tensor(..)" if is_data and "Self" in _split(kind) else ""
