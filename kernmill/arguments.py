"""Errors for arguments of the wrong type: a message from the annotations of a call, once something in it has failed.

Nothing is checked before: a correct call costs nothing. Only complete annotations are checked (`Self`, `int`,
`Sequence[int] | None`, ..); operands, dtypes and indices have separate messages. If every argument has the right type,
but Python or NumPy failed with one, the message quotes their error. `is_whole` is for checks before a call.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, get_args, get_origin

from kernmill.ir import DTypeError, IndexRangeError, KernmillError, SettingError, ShapeError, UOp

from .size import SymbolicSize
from .synonyms import renamed

__all__ = [
    "AnyTensor",
    "is_foreign",
    "is_whole",
    "misfit",
    "name_call",
    "refuse",
    "with_sentences",
    "with_sentences_at_init",
]


class AnyTensor:
    """The name of a Tensor in messages: class Lazy, the base of all tensors, is checked."""


Call = TypeVar("Call", bound=Callable[..., Any])
_FAILURES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)
_WORDS = {AnyTensor: "a Tensor", int: "an integer", float: "a number", str: "a string", bool: "True or False",
          os.PathLike: "a path", Mapping: "a dict", NoneType: "None"}  # fmt: skip
_NOT_HERE = {"retain_graph": "Leave it out: the graph is kept until the step",
             "set_to_none": "Leave it out: it is always so",
             "create_graph": "Write loss.gradient(x), whose results have gradients"}  # fmt: skip
_SEVERAL = {int: "several integers", float: "several numbers", AnyTensor: "several tensors"}


def is_foreign(error: BaseException, function: Callable[..., Any]) -> bool:
    """True if Python or NumPy raised this in a function of ours. Errors of kernmill are not foreign, nor are those from
    a user's own code, such as a generator argument, an `__array__` or a layer."""
    traceback = error.__traceback__
    if not isinstance(error, _FAILURES) or isinstance(error, KernmillError) or traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    package = traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    return package in (function.__module__.partition(".")[0], "numpy") or package in sys.stdlib_module_names


def is_whole(value: object, least: float = -math.inf) -> bool:
    """True if it is an integer, also NumPy's, not below `least`; bools are excluded."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def refuse(
    error: BaseException, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise an error that names an argument, if one is at fault. No frame keeps it: it would keep the arguments
    alive."""
    if not is_foreign(error, function):
        return
    fault: KernmillError | None = misfit(function, args, kwargs)
    cause = error if fault is None else None
    if fault is None:
        fault = _unusable(error, function, args, kwargs)
    try:
        if fault is not None:
            raise fault from cause
    finally:
        del fault, cause


def name_call(error: BaseException, call: str) -> None:
    """Prefix a message from inside a method with the method: `mse_loss: sub: shapes (3,) and (4,) ..`."""
    text = str(error)
    part, _, rest = text.partition(": ")
    # others may come from earlier computations that run now
    is_axis = type(error) is IndexRangeError and rest.startswith("axis ")
    if not (is_axis or type(error) in (ShapeError, DTypeError, SettingError)) or call.startswith("__"):
        return
    if call not in part and not call.startswith(part):
        error.args = (f"{call}: {text}",)


def with_sentences(function: Call) -> Call:
    """Decorate a public function: failures because of an argument's type name the argument."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            own = renamed(function, args, kwargs) if kwargs and isinstance(error, TypeError) else None
            if own is None:
                refuse(error, function, args, kwargs)
                raise
        return guarded(*own[0], **own[1])

    return guarded  # type: ignore[return-value]


def with_sentences_at_init(cls: type) -> None:
    """Make a class of ours say which argument of its constructor is wrong; a user's subclass is left unchanged."""
    own = vars(cls).get("__init__")
    if own is not None and cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
        type.__setattr__(cls, "__init__", with_sentences(own))


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> DTypeError | None:
    """Return an error that names the first argument whose type its annotation excludes, or None."""
    signature, call = inspect.signature(function), _call_name(function, args)
    for word in (word for word in kwargs if word not in signature.parameters):
        if word in _NOT_HERE:
            return DTypeError(f"{call}: there is no {word}=. {_NOT_HERE[word]}.")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        is_method = not args and next(iter(signature.parameters), "") == "self"
        if not is_method:
            return None  # Python has said which argument is missing or unknown
        method = function.__name__
        return DTypeError(f"{call}: no tensor is given. Write x.{method}(..), or {call}(x, ..).")
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        kinds = _kinds(_evaluated(parameter.annotation, function))
        values = value if parameter.kind is parameter.VAR_POSITIONAL else [value]
        bad = next((v for v in values if not _fits(v, kinds)), inspect.Parameter.empty)
        if bad is not inspect.Parameter.empty:
            wanted = " or ".join(dict.fromkeys(map(_wanted, kinds)))
            is_data = isinstance(bad, (bool, int, float, list, tuple)) or hasattr(bad, "__array__")
            remedy = "; wrap data in Tensor(..)" if is_data and AnyTensor in kinds else ""
            return DTypeError(f"{call}: {name} is {_shown(bad)}, of type {_type_name(bad)}. Give {wanted}{remedy}.")
    return None


_HERE = __name__.partition(".")[0]
_NOT_CALLS = tuple(f"{_HERE}.{folder}." for folder in ("compiler", "renderers", "runtime"))


def _unusable(
    error: BaseException, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> KernmillError | None:
    """Return the error for values that Python or NumPy rejected. None for errors that our code raised on purpose,
    and for failures in a function of the user's or while kernels were made or run. Also None if Python already named
    a missing or unknown argument."""
    traceback, ours = error.__traceback__, function.__module__.partition(".")[0]
    if traceback is None:
        return None
    frame, at, package = traceback.tb_frame, traceback.tb_lasti, ""
    while traceback is not None:
        frame, at = traceback.tb_frame, traceback.tb_lasti
        module = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if module.startswith(_NOT_CALLS) or package not in (ours, _HERE, "numpy", *sys.stdlib_module_names):
            return None
        traceback = traceback.tb_next
    if package in (ours, _HERE) and dis.opname[frame.f_code.co_code[at]] == "RAISE_VARARGS":
        return None
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    call = _call_name(function, args)
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in given.items() if name != "self")
    kinds = ((LookupError, IndexRangeError), (TypeError, DTypeError), (AttributeError, DTypeError))
    kind = next((ours for theirs, ours in kinds if isinstance(error, theirs)), ShapeError)
    return kind(
        f"{call}: the call cannot use {shown or 'these values'} ({type(error).__name__}: {error}). "
        f"Give arguments of the types and in the ranges that help({call}) lists."
    )


def _call_name(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """A function as users call it: a layer by its own class, also where a base class defines the method."""
    owner = getattr(function, "__self__", None)
    is_bound = owner is not None and not isinstance(owner, type)
    if function.__name__ == "__init__" and (args or is_bound):
        return type(owner if is_bound else args[0]).__name__
    return f"{type(owner).__name__}.{function.__name__}" if is_bound else function.__qualname__


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """The type that an annotation names; Any where that is for type checkers only."""
    try:
        return eval(annotation, inspect.unwrap(function).__globals__) if isinstance(annotation, str) else annotation
    except (NameError, TypeError):
        return Any


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a type, every class of tensors as AnyTensor."""
    if get_origin(kind) in (Union, UnionType):
        return tuple(one for alternative in get_args(kind) for one in _kinds(alternative))
    bound = kind.__bound__ if isinstance(kind, TypeVar) else kind
    is_tensor = bound is Self or (isinstance(bound, type) and issubclass(bound, AnyTensor))
    return (AnyTensor,) if is_tensor else (kind,)


def _type_name(value: object) -> str:
    """Return the name of a type; another library's Tensor gets its package name."""
    kind, package = type(value), type(value).__module__.partition(".")[0]
    is_theirs = kind.__name__ == "Tensor" and package != __name__.partition(".")[0]
    return f"{package}.Tensor" if is_theirs else kind.__name__


def _fits(value: Any, kinds: tuple[Any, ...]) -> bool:
    return any(_fits_one(value, kind) for kind in kinds)


def _fits_one(value: Any, kind: Any) -> bool:
    """True if a value fits a type that is not a union. Types without a name in messages always fit."""
    given: Any = value  # the checks narrow its type too little
    origin, inner = get_origin(kind) or kind, get_args(kind)
    is_tensor = isinstance(value, AnyTensor)
    if origin in (int, float):
        return isinstance(value, (UOp, SymbolicSize)) or _is_number(value, is_whole=origin is int)
    if origin is bool:
        return isinstance(value, (Integral, NoneType)) or getattr(value, "shape", None) == ()
    if origin in (Sequence, Iterable):
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes)) or is_tensor:
            return False
        if getattr(value, "shape", True) == ():  # an array of NumPy's that has no elements to iterate over
            return False
        if not hasattr(value, "__len__"):
            return origin is Iterable  # its items have been used up
        return all(_fits(v, _kinds(inner[0])) for v in value)
    if origin is tuple:
        is_same = isinstance(value, (tuple, list)) and len(value) == len(inner)
        return is_same and all(map(_fits, given, map(_kinds, inner)))
    return isinstance(value, origin) if origin in _WORDS else True


def _is_number(value: Any, *, is_whole: bool) -> bool:
    """True if a value is one number: of Python, or an array or a tensor without axes."""
    if isinstance(value, Integral if is_whole else Real):
        return True
    if getattr(value, "shape", None) != ():
        return False
    if isinstance(value, AnyTensor):
        return not is_whole or value.dtype.is_int  # type: ignore[attr-defined]  # of class Lazy
    return getattr(value.dtype, "kind", "i") in ("iu" if is_whole else "biuf")  # other libraries' have no kinds


def _wanted(kind: Any) -> str:
    if get_origin(kind) in (Sequence, Iterable):
        kinds = _kinds(*get_args(kind))
        return _SEVERAL.get(kinds[0], "a pair of integers for each axis")
    kind = get_origin(kind) or kind
    return str(_WORDS.get(kind, getattr(kind, "__name__", kind)))


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"data of shape {shape}" if isinstance(shape, tuple) and shape else reprlib.repr(value)
