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
from typing import Any, TypeVar

from kernmill.ir import DType, Ops, UOp, current_origin, dtypes
from kernmill.runtime import is_to_be_recorded

from .autocasting import autocast_state
from .deferred import DeferredCall, Step, Table, make_nodes
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


_tables: dict[Any, Any] = {}  # a Table, or None where there cannot be one
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

    def made(args: tuple[Any, ...], kwargs: dict[str, Any], is_deferred: bool) -> Any:
        given = (*args, *kwargs, *kwargs.values()) if kwargs else args
        nodes: list[Any] = []
        key = None if current_origin.given or not args else _call_key(method, static, given, nodes, is_deferred)
        table = None if key is None else _tables.get(key, _tables)
        if table is None:
            return method(*args, **kwargs)
        if table is not _tables and is_deferred and table.device is not None and not is_to_be_recorded():
            own = (1 if grad_state() else 2) if table.last.dtype.is_float else 0
            return args[0]._of_call(DeferredCall(table, nodes, own), table.device, table.requires_grad)
        nodes = [node.expand() if type(node) is DeferredCall else node for node in nodes]
        if table is not _tables:
            return args[0]._make(make_nodes(table, nodes), table.device, table.requires_grad)
        result = method(*args, **kwargs)
        if len(_tables) >= _MOST:
            _tables.clear()
        _tables[key] = _read(result, nodes, args[0])
        return result

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return made(args, kwargs, False)

    @functools.wraps(method)
    def deferring(*args: Any, **kwargs: Any) -> Any:
        return made(args, kwargs, True)

    call.deferring = deferring  # type: ignore[attr-defined]
    return call


def _call_key(
    method: Any, static: frozenset[Any], given: tuple[Any, ...], nodes: list[Any], is_deferred: bool
) -> tuple[Any, ...] | None:
    """The key of a call with these arguments, or None if it has no table. `nodes` gets the operands: nodes, and calls
    without nodes if `is_deferred`."""
    key: list[Any] = [method, grad_state(), autocast_state(), dtypes.default_float, dtypes.default_int]
    for value in given:
        if isinstance(value, Lazy):
            call = value._call
            if call is not None and is_deferred and call.node is None and call.storage is None:
                last = call.table.last
                if call in nodes:
                    key.append(nodes.index(call))
                    continue
                if last.op not in _LOOKED_THROUGH or call.own:
                    nodes.append(call)
                    key += (last.op, call.own, last.dtype, last.shape, value._requires_grad, value._device)
                    continue
            node = value.uop
            if node in nodes:
                key.append(nodes.index(node))
                continue
            if node.op in _LOOKED_THROUGH and not node.own:
                if node.op is not Ops.RESHAPE or node.src[0].op is not Ops.BUFFER:
                    return None
                memory = node.src[0]  # which a reshape of this node reads
                key.append(nodes.index(memory) if memory in nodes else None)
                if memory not in nodes:
                    nodes.append(memory)
            nodes.append(node)
            key += (node.op, node.own, node.dtype, node.shape, value._requires_grad, value._device)
        elif type(value) in static or (type(value) is tuple and {int}.issuperset(map(type, value))):
            key += (type(value), value)
        else:
            return None
    return tuple(key)


def _read(result: Any, operands: list[UOp], first: Any) -> Table | None:
    """The nodes between a result and the operands; None if another call would not make the same ones."""
    if type(result) is not type(first) or result._link is not None or result.uop in operands:
        return None
    position = {node: number for number, node in enumerate(operands)}
    steps: list[Step] = []
    for node in result.uop.toposort(stop=position.__contains__):
        if node in position:
            continue
        is_leaf = node.storage is not None or node.op in _UNREPEATABLE or (node.op is Ops.DETACH and node.arg)
        if is_leaf or node.own or not {int}.issuperset(map(type, node.shape)):
            return None
        if KNOWN.get(node) is not None and node is not result.uop:
            return None
        position[node] = len(position)
        steps.append(Step(node.op, node.dtype, node.arg, node.shape, tuple([position[s] for s in node.src])))
    known = KNOWN.get(result.uop)
    if known is None:
        return Table(steps, result._device, result._requires_grad, None)
    if known[0] not in position or _has_closure(known[1]):
        return None
    return Table(steps, result._device, result._requires_grad, (position[known[0]], known[1]))


def _has_closure(rule: Any) -> bool:
    return getattr(rule, "__closure__", rule) is not None
