"""The table of operators: a small function for each, called with values as its annotations ask.

A function's positional parameters are the operator's inputs, its keyword parameters the attributes, by their names in
the standard. `Tensor` asks for a tensor, `Host` for a NumPy array of values known in advance, `Value` for whatever
there is. The keywords `opset` and `call` are not attributes: they ask for the version and for the node that is run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kernmill.ir import FormatError

from .values import Known, Value, tensor_of

__all__ = ["OPERATORS", "NodeCall", "Operator", "operator", "operators"]

Function = TypeVar("Function", bound=Callable[..., Any])
_NOT_ATTRIBUTES = ("opset", "call")


class NodeCall(Protocol):
    """The node that is run, as its operator sees it."""

    @property
    def name(self) -> str:
        """The node in an error: operator, and name where it has one."""
        ...

    @property
    def outputs(self) -> int:
        """How many outputs are used."""
        ...

    @property
    def captured(self) -> bool:
        """True where the call is recorded and replayed."""
        ...

    def read(self, value: Value) -> Any:
        """The values as a NumPy array; a value that is not known in advance is computed now."""
        ...

    def body(self, graph: Any, inputs: Sequence[Value]) -> list[Value]:
        """Run a graph of an attribute on values."""
        ...


@dataclass(frozen=True)
class Operator:
    """A row of the table."""

    name: str
    function: Callable[..., Any]
    kinds: tuple[str, ...]  # of the positional parameters: Tensor, Host or Value
    rest: str | None  # of a variadic one
    least: int  # inputs without a default
    attributes: dict[str, bool] = field(default_factory=dict[str, bool])  # and which must be given
    extras: tuple[str, ...] = ()
    is_random: bool = False

    def run(self, call: NodeCall, values: list[Value], attributes: dict[str, Any], opset: int) -> list[Value]:
        """NodeCall the function.

        Raises:
            FormatError: too many inputs, or too few; an attribute that is unknown, or missing.
        """
        if len(values) > len(self.kinds) and self.rest is None:
            raise FormatError(f"{call.name}: {len(values)} inputs, and it takes {len(self.kinds)}. Change the model.")
        if len(values) < self.least or any(v is None for v in values[: self.least]):
            raise FormatError(f"{call.name}: an input is missing: it needs {self.least}. Change the model.")
        if unknown := sorted(set(attributes) - self.attributes.keys()):
            raise FormatError(f"{call.name}: attributes {', '.join(unknown)} are unknown. Change the model.")
        if missing := [name for name, must in self.attributes.items() if must and name not in attributes]:
            raise FormatError(f"{call.name}: attributes {', '.join(missing)} are missing. Change the model.")
        kinds = [*self.kinds, *[self.rest or ""] * (len(values) - len(self.kinds))]
        given = [_as_kind(kind, value, call) for kind, value in zip(kinds, values, strict=False)]
        extras = {name: call if name == "call" else opset for name in self.extras}
        found = self.function(*given, **attributes, **extras)
        results = list(found) if isinstance(found, tuple) else [found]
        return [Known(r) if hasattr(r, "__array_wrap__") else r for r in results]


def _as_kind(kind: str, value: Value, call: NodeCall) -> Any:
    if value is None or kind == "Value":
        return value
    return call.read(value) if kind == "Host" else tensor_of(value)


OPERATORS: dict[tuple[str, str], Operator] = {}  # by domain and name


def operator(*names: str, domain: str = "", is_random: bool = False) -> Callable[[Function], Function]:
    """Register a function as the meaning of operators."""

    def register(function: Function) -> Function:
        for name in names:
            OPERATORS[domain, name] = _operator_row(name, function, is_random)
        return function

    return register


def operators(functions: dict[str, Callable[..., Any]], inputs: int = 1) -> None:
    """Register functions of one or several tensors that take no attributes."""
    for name, function in functions.items():
        OPERATORS["", name] = Operator(name, function, ("Tensor",) * inputs, None, inputs)


def _operator_row(name: str, function: Callable[..., Any], is_random: bool) -> Operator:
    kinds, rest, least, attributes, extras = list[str](), None, 0, dict[str, bool](), list[str]()
    for p in inspect.signature(function).parameters.values():
        kind = str(p.annotation).partition(" ")[0]
        if p.kind is p.VAR_POSITIONAL:
            rest = kind
        elif p.kind is p.KEYWORD_ONLY and p.name in _NOT_ATTRIBUTES:
            extras.append(p.name)
        elif p.kind is p.KEYWORD_ONLY:
            attributes[p.name.rstrip("_")] = p.default is p.empty
        else:
            kinds.append(kind)
            least += p.default is p.empty
    return Operator(name, function, tuple(kinds), rest, least, attributes, tuple(extras), is_random)
