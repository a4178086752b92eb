"""The nodes of method calls, recorded: a later call with operands of the same kind makes them without any checks.

The nodes that a method of `RECORDED` makes depend on its arguments. Of each tensor they depend only on what the key
below has: shape, dtype, op, gradient, device, and which tensors are the same. The first call with a key runs the
method, and its nodes become a table: op, dtype, arg, shape, and the positions of the sources. Later calls make nodes
from that table.

Not recorded are calls with floats of the user's (each value would be another key), tensors with symbolic sizes, and
nodes that the functions of `ir.graph` look through. Tests: tests/kernmill/test_recorded.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from kernmill.ir import DType, Op, Ops, UOp, current_origin, dtypes

from .autocasting import autocast_state
from .lazy import KNOWN, Lazy, grad_state

__all__ = ["RECORDED", "record_calls"]

_NAMES = (
    "__matmul__ matmul linear outer add sub mul div __add__ __sub__ __mul__ __truediv__ neg __neg__ abs square sqrt "
    "rsqrt exp log tanh sigmoid relu gelu silu maximum minimum sum mean max min var std softmax log_softmax "
    "cross_entropy nll_loss mse_loss conv2d max_pool2d avg_pool2d argmax argmin layer_norm _attention _rows_at"
)
RECORDED = frozenset(_NAMES.split())
"""Names of methods that depend on nothing but their arguments: no random numbers, no device, no setting."""

_LOOKED_THROUGH = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.CONST})
_WITH_FLOATS = frozenset({"layer_norm"})  # whose floats are settings of a layer, not values of a user's loop
_MOST = 2048  # tables: a program has fewer different calls, and some hundred bytes a node do not matter then
_STATIC = frozenset({int, bool, str, type(None), DType})


class _Step(NamedTuple):
    """One node of a table."""

    op: Op
    dtype: DType
    arg: Any
    shape: tuple[int, ...]
    sources: tuple[int, ...]


class _Table(NamedTuple):
    """The nodes of a call."""

    steps: list[_Step]
    device: str | None
    requires_grad: bool
    known: tuple[int, Any] | None  # the operand that the gradient of the result is given to, and its rule


_tables: dict[Any, Any] = {}  # a _Table, or None where there cannot be one
_UNREPEATABLE = frozenset({Ops.ASSIGN, Ops.COPY, Ops.BUFFER, Ops.PARAM, Ops.VARIABLE})


Class = TypeVar("Class", bound=type)


def record_calls(cls: Class) -> Class:
    """Class decorator: the methods of `RECORDED` make their nodes from tables."""
    for base in cls.__mro__:
        for name in RECORDED.intersection(vars(base)):
            method = vars(base)[name]
            method.__qualname__ = f"{cls.__name__}.{name}"  # what Python names when arguments are wrong
            setattr(base, name, _recorded(method))
    return cls


def _recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of Lazy so that it makes its nodes from a table where one is known."""

    static = _STATIC | {float} if method.__name__ in _WITH_FLOATS else _STATIC

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_origin.given or not args:
            return method(*args, **kwargs)
        nodes: list[UOp] = []
        key: list[Any] = [method, grad_state(), autocast_state(), dtypes.default_float, dtypes.default_int]
        for value in (*args, *kwargs, *kwargs.values()) if kwargs else args:
            if isinstance(value, Lazy):
                node = value.uop
                if node in nodes:
                    key.append(nodes.index(node))
                    continue
                if node.op in _LOOKED_THROUGH and not node.own:
                    if node.op is not Ops.RESHAPE or node.src[0].op is not Ops.BUFFER:
                        return method(*args, **kwargs)
                    memory = node.src[0]  # which a reshape of this node reads
                    key.append(nodes.index(memory) if memory in nodes else None)
                    if memory not in nodes:
                        nodes.append(memory)
                nodes.append(node)
                key += (node.op, node.own, node.dtype, node.shape, value._requires_grad, value._device)
            elif type(value) in static or (type(value) is tuple and {int}.issuperset(map(type, value))):
                key += (type(value), value)
            else:
                return method(*args, **kwargs)
        table = _tables.get(known := tuple(key), _tables)
        if table is _tables:
            result = method(*args, **kwargs)
            if len(_tables) >= _MOST:
                _tables.clear()
            _tables[known] = _read(result, nodes, args[0])
            return result
        if table is None:
            return method(*args, **kwargs)
        for step in table.steps:
            node = UOp(step.op, step.dtype, tuple([nodes[number] for number in step.sources]), step.arg)
            node._shape = step.shape
            nodes.append(node)
        made = nodes[-1]
        if table.known is not None:
            KNOWN[made] = nodes[table.known[0]], table.known[1]
        return args[0]._make(made, table.device, table.requires_grad)

    return call


def _read(result: Any, operands: list[UOp], first: Any) -> _Table | None:
    """The nodes between a result and the operands; None if another call would not make the same ones."""
    if type(result) is not type(first) or result._link is not None or result.uop in operands:
        return None
    position = {node: number for number, node in enumerate(operands)}
    steps: list[_Step] = []
    for node in result.uop.toposort(stop=position.__contains__):
        if node in position:
            continue
        is_leaf = node.storage is not None or node.op in _UNREPEATABLE or (node.op is Ops.DETACH and node.arg)
        if is_leaf or node.own or not {int}.issuperset(map(type, node.shape)):
            return None
        if KNOWN.get(node) is not None and node is not result.uop:
            return None
        position[node] = len(position)
        steps.append(_Step(node.op, node.dtype, node.arg, node.shape, tuple([position[s] for s in node.src])))
    known = KNOWN.get(result.uop)
    if known is None:
        return _Table(steps, result._device, result._requires_grad, None)
    if known[0] not in position or _has_closure(known[1]):
        return None
    return _Table(steps, result._device, result._requires_grad, (position[known[0]], known[1]))


def _has_closure(rule: Any) -> bool:
    return getattr(rule, "__closure__", rule) is not None
