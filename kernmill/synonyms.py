"""Names of other libraries: equivalent names of arguments and methods.

`ARGUMENTS` is read after Python rejected a keyword, so a call with our names costs nothing. `METHODS` is applied to the
class when it is created. A name whose meaning differs is not here: methods/other_names.py has its replacement.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["ARGUMENTS", "METHODS", "renamed", "with_other_names"]

ARGUMENTS: dict[str, tuple[str, ...]] = {  # theirs: ours; the first one that the function has is meant
    "dim": ("axis", "axes"), "dims": ("axis", "axes", "repeats"), "axis": ("axes",),
    "dim0": ("axis0",), "dim1": ("axis1",), "dim2": ("axis2",), "start_dim": ("start_axis",),
    "end_dim": ("end_axis",), "keepdims": ("keepdim",), "unbiased": ("correction",), "ddof": ("correction",),
    "size": ("shape", "sizes"), "shape": ("sizes",), "split_size": ("sizes",), "split_size_or_sections": ("sizes",),
    "reps": ("repeats",), "input": ("self",), "mat2": ("other",), "vec2": ("other",), "x2": ("other",),
    "src": ("value",), "source": ("value",), "indices": ("index",), "end": ("stop",), "num": ("steps",),
    "ord": ("p",), "a_min": ("min",), "a_max": ("max",), "k": ("diagonal", "offset"), "offset": ("diagonal",),
    "value": ("fill_value",), "fill_value": ("value",), "constant_values": ("value",), "pad": ("padding",),
    "pad_width": ("padding",),
}  # fmt: skip

METHODS: dict[str, str] = {  # theirs: ours
    "absolute": "abs", "negative": "neg", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "power": "pow", "mod": "remainder", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "xor": "bitwise_xor", "invert": "bitwise_not", "bitwise_invert": "bitwise_not", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "fix": "trunc",
    "not_equal": "ne", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "swish": "silu",
    "swapdims": "transpose", "moveaxis": "movedim", "expand_dims": "unsqueeze", "permute_dims": "permute",
    "ravel": "flatten", "astype": "cast", "type": "cast", "copy": "clone", "nelement": "numel", "mv": "matmul",
    "sgn": "sign", "pinverse": "pinv",
    "cumulative_sum": "cumsum", "cumulative_prod": "cumprod", "take_along_axis": "take_along_dim", "concat": "cat",
    "expit": "sigmoid", "argwhere": "nonzero", "to_device": "to",
    "binary_crossentropy": "binary_cross_entropy", "binary_crossentropy_logits": "binary_cross_entropy_with_logits",
}  # fmt: skip

Class = TypeVar("Class", bound=type)


def with_other_names(cls: Class) -> Class:
    """Class decorator: the methods of `METHODS` under the names of other libraries as well."""
    members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
    for theirs, ours in METHODS.items():  # inspect.getattr_static would walk all bases for each
        setattr(cls, theirs, members[ours])
    return cls


def renamed(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call with our names; None where no keyword has another name here.

    The keyword that is renamed is not a parameter: Python refused the call before any line of the function ran.
    """
    own = _own_names(function, tuple(kwargs))
    if own is None:
        return None
    signature = inspect.signature(function)
    given, named = args, {}
    for theirs, value in kwargs.items():
        ours = own[theirs]
        parameter = signature.parameters[ours]
        if parameter.kind is not parameter.VAR_POSITIONAL:
            named[ours] = value
        elif len(given) == list(signature.parameters).index(ours):
            given = (*given, value)
        else:
            return None
    try:
        signature.bind(*given, **named)
    except TypeError:
        return None
    return (given, named) if len(given) + len(named) == len(args) + len(kwargs) else None  # none of them twice


@functools.lru_cache(1024)
def _own_names(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, str] | None:
    """Our name of each keyword; None where all are ours already, or one is unknown."""
    parameters = inspect.signature(function).parameters
    keywords = {name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)}
    if keywords.issuperset(names) or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    found = {}
    for name in names:
        meant = (name, *ARGUMENTS.get(name, ())) if name in keywords else (*ARGUMENTS.get(name, ()), name)
        own = next((word for word in meant if word in parameters), None)
        if own is None:
            return None
        found[name] = own
    return found
