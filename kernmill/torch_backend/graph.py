"""A graph of ATen operators in steps: captured functions of kernmill, and single nodes that run in PyTorch.

Each node is tried on lazy tensors when the graph is compiled. A node whose operator is not in the table, or that fails,
or that gives another shape than PyTorch's trace says, runs in PyTorch. Random numbers are PyTorch's own.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernmill.runtime import default_device

from ..captures import Jit
from ..tensor import Tensor
from .memory import Converter, Order, to_torch
from .table import OPERATORS, dtype_of

__all__ = ["TorchProgram"]

_A_TENSOR = object()  # stands for a tensor among numbers
_MOST_SIZES = 64  # functions of one step that are kept
_CAPTURED_AFTER = 4  # calls with the same sizes
_RANDOM = ("rand", "randn", "rand_like", "randn_like", "bernoulli", "native_dropout", "randint", "randperm", "normal")
Node = Any  # torch.fx.Node


class TorchProgram:
    """A callable of PyTorch's tensors; `eager` are the operators that run in PyTorch."""

    def __init__(self, graph: Any) -> None:
        self.inputs = [node for node in graph.nodes if node.op == "placeholder"]
        (self.output,) = [node for node in graph.nodes if node.op == "output"]
        nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        self.eager = dict[str, str]()
        self.steps = [_GraphStep(part, is_ours) for part, is_ours in _levels(nodes, self.eager)]
        later = set(self.output.all_input_nodes)
        for step in reversed(self.steps):
            step.dropped = [n for n in step.inputs if n not in later]
            later.update(step.inputs)
        self._boxed_call = True  # PyTorch gives a list, which is emptied so that memory is freed early

    def __call__(self, given: list[Any]) -> list[Any]:
        """Compute the outputs; the list of inputs is emptied."""
        known = dict(zip(self.inputs, given, strict=True))
        given.clear()
        for step in self.steps:
            step.run(known)
        return [known[node] if isinstance(node, torch.fx.Node) else node for node in self.output.args[0]]


@dataclass
class _Use:
    """The function for some sizes, and the number of its calls."""

    function: Callable[..., Any] | None = None
    count: int = 0


def _realized(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def run(*tensors: Tensor) -> list[Any]:
        found = function(*tensors)
        if lazy := [v for v in found if isinstance(v, Tensor)]:
            lazy[0].realize(*lazy[1:])
        return found

    return run


class _GraphStep:
    """Some nodes: one captured function, or one after the other in PyTorch."""

    def __init__(self, nodes: Sequence[Node], is_ours: bool) -> None:
        self.nodes, self.is_ours = list(nodes), is_ours
        inside = set(self.nodes)
        self.inputs = list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside))
        self.results = [n for n in nodes if any(user not in inside for user in n.users)]
        self.uses: OrderedDict[Any, _Use] = OrderedDict()
        self.is_dynamic = any(_is_size(n) or not _is_fixed(n) for n in self.inputs)
        self.converters = [Converter() for _ in self.inputs]
        self.orders = [_axis_order(n) for n in self.results]
        moving = {n for n in self.inputs if not _is_size(n)}
        for node in self.nodes:
            moving.update([node] if moving.intersection(node.all_input_nodes) else [])
        self.are_constants = [node not in moving for node in self.results]
        self.dropped: list[Node] = []  # inputs that no later step needs

    def run(self, known: dict[Node, Any]) -> None:
        """Compute the results, and release what is not needed any more."""
        if self.is_ours:
            self._launch(known)
        else:
            for node in self.nodes:
                known[node] = _in_torch(node, known)
        for node in self.dropped:
            del known[node]

    def _launch(self, known: dict[Node, Any]) -> None:
        device, values = default_device(), [known[n] for n in self.inputs]
        numbers = tuple([_A_TENSOR if isinstance(v, torch.Tensor) else v for v in values])
        given = [v for v in values if isinstance(v, torch.Tensor)]
        pairs = [convert(v, device) for convert, v in zip(self.converters, given, strict=False)]
        form = numbers, tuple([order for _, order in pairs])
        key = (form, tuple([v.shape for v in given])) if self.is_dynamic else form
        found = self._function_for(key, *form)(*[tensor for tensor, _ in pairs])
        used = {v.data_ptr() for v in given}
        for node, value, order, is_constant in zip(self.results, found, self.orders, self.are_constants, strict=True):
            known[node] = _to_torch(value, order, used, device, is_constant=is_constant)

    def _function_for(self, key: Any, numbers: tuple[Any, ...], given: tuple[Order, ...]) -> Callable[..., Any]:
        """The function for these sizes: captured, unless sizes that change have occurred a few times only.

        Outside of a capture, kernels of symbolic size serve all of them.
        """
        use = self.uses.setdefault(key, _Use())
        self.uses.move_to_end(key)
        if len(self.uses) > _MOST_SIZES:
            self.uses.popitem(last=False)
        use.count += 1
        if use.function is None or (use.count == _CAPTURED_AFTER and self.is_dynamic):
            run = self._interpreter(numbers, given)
            is_captured = not self.is_dynamic or use.count == _CAPTURED_AFTER
            use.function = Jit(run, runs_first=False) if is_captured else _realized(run)
        return use.function

    def _interpreter(self, numbers: tuple[Any, ...], before: tuple[Order, ...]) -> Callable[..., list[Any]]:
        inputs, nodes, results, orders = self.inputs, self.nodes, self.results, self.orders

        def run(*tensors: Tensor) -> list[Any]:
            given = iter([_back(t, order) for t, order in zip(tensors, before, strict=True)])
            known = {n: next(given) if v is _A_TENSOR else v for n, v in zip(inputs, numbers, strict=True)}
            for node in nodes:
                known[node] = _computed_node(node, known)
            return [_in_order(known[n], order) for n, order in zip(results, orders, strict=True)]

        return run


# --- parts -----------------------------------------------------------------------------------------------------------
def _levels(nodes: Sequence[Node], eager: dict[str, str]) -> list[tuple[list[Node], bool]]:
    """Nodes in groups that alternate between kernmill and PyTorch, as few as possible.

    The level of a node of ours is even and as late as possible, that of the others odd and as early as possible.
    """
    is_ours = dict[Node, bool]()
    for node in nodes:  # one of several results is where these are
        source = node.args[0] if node.target is operator.getitem else None
        is_ours[node] = is_ours[source] if source in is_ours else _can_compute(node, eager)
    level = dict[Node, int]()
    for node in nodes:
        before = [(n, level[n]) for n in node.all_input_nodes if n in level]
        level[node] = max((k + (is_ours[n] is not is_ours[node]) for n, k in before), default=1 - is_ours[node])
    last = max((k for n, k in level.items() if is_ours[n]), default=0)
    for node in reversed(nodes):
        if is_ours[node]:
            users = [level[u] - (not is_ours[u]) for u in node.users if u in level]
            level[node] = min(users, default=last)
    for node in nodes:
        if node.target is operator.getitem and node.args[0] in level:
            level[node] = level[node.args[0]]  # a step gives tensors to the next one, not lists of them
    groups = dict[int, list[Node]]()
    for node in nodes:
        groups.setdefault(level[node], []).append(node)
    return [(groups[k], is_ours[groups[k][0]]) for k in sorted(groups)]


def _can_compute(node: Node, eager: dict[str, str]) -> bool:
    """True if kernmill computes a node; the reason of any other, except for random numbers, goes into `eager`."""
    if node.op != "call_function":
        eager[str(node.target)] = f"a {node.op} in the graph"
        return False
    if _is_arithmetic(node):
        return True
    name = str(node.target)
    if name.split(".")[1:2] and name.split(".")[1] in _RANDOM:
        return False
    reason = _tried(node)
    if reason:
        eager[name] = reason
    return not reason


def _is_arithmetic(node: Node) -> bool:
    """True for arithmetic of sizes, and for one of several results."""
    is_function = node.target is operator.getitem or getattr(node.target, "__module__", "") in ("_operator", "math")
    return is_function or str(node.target).startswith(("aten.sym_", "<function sym_"))


def _tried(node: Node) -> str:
    """Try a node on lazy tensors of the traced shapes; returns why it fails, or nothing."""
    if str(node.target) not in OPERATORS:
        return "the operator is not in the table"
    try:
        known = {n: _example(n.meta.get("val")) for n in node.all_input_nodes}
        found = _computed_node(node, known)
        wanted = node.meta.get("val")
        pairs = zip(found, wanted, strict=False) if isinstance(wanted, (list, tuple)) else [(found, wanted)]
        for mine, theirs in pairs:
            if isinstance(theirs, torch.Tensor) and mine.shape != tuple(map(_hint, theirs.shape)):
                return f"shape {mine.shape} instead of {tuple(theirs.shape)}"
    except Exception as error:  # whatever it is, PyTorch can run the node
        return str(error) or type(error).__name__
    return ""


def _hint(size: Any) -> int:
    return int(size) if isinstance(size, int) else int(size.node.hint)


def _example(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        kind = dtype_of(value.dtype)
        if kind is None or value.layout is not torch.strided or value.device.type != "cpu":
            raise TypeError(f"{value.dtype} on {value.device}, {value.layout}")
        return Tensor.empty(*map(_hint, value.shape), dtype=kind)
    if isinstance(value, (list, tuple)):
        return [_example(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float)) else value.node.hint


# --- nodes -----------------------------------------------------------------------------------------------------------
def _arguments(node: Node, known: dict[Node, Any]) -> Any:
    return torch.fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])


def _in_torch(node: Node, known: dict[Node, Any]) -> Any:
    if node.op == "get_attr":
        return getattr(node.graph.owning_module, node.target)
    arguments, named = _arguments(node, known)
    return node.target(*arguments, **named)


def _computed_node(node: Node, known: dict[Node, Any]) -> Any:
    """A node on our tensors, in the dtypes of PyTorch's trace."""
    arguments, named = _arguments(node, known)
    if _is_arithmetic(node):
        if str(node.target).startswith("aten.sym_size"):
            return arguments[0].shape[arguments[1]] if len(arguments) > 1 else tuple(arguments[0].shape)
        return node.target(*arguments, **named)
    found = OPERATORS[str(node.target)](*arguments, **{n: v for n, v in named.items() if n not in _PLACES})
    wanted = node.meta.get("val")
    if isinstance(wanted, (list, tuple)):
        return [_as_traced(f, w) for f, w in zip(found, wanted, strict=False)]
    return _as_traced(found, wanted)


_PLACES = ("layout", "device", "pin_memory", "memory_format", "non_blocking")  # where and how, not what


def _as_traced(found: Any, wanted: Any) -> Any:
    if not isinstance(found, Tensor) or not isinstance(wanted, torch.Tensor):
        return found
    kind = dtype_of(wanted.dtype)
    return found if kind is None or found.dtype is kind else found.cast(kind)


# --- strides ---------------------------------------------------------------------------------------------------------
def _axis_order(node: Any) -> Order:
    """The axes by descending stride where PyTorch expects another order than ours."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return None
    strides = [_hint(s) for s in value.stride()]
    order = tuple(sorted(range(value.ndim), key=lambda i: (-strides[i], i)))
    return order if value.permute(order).is_contiguous() and order != tuple(range(value.ndim)) else None


def _in_order(value: Any, order: Order) -> Any:
    return value if order is None else value.permute(order)


def _back(value: Tensor, order: Order) -> Tensor:
    return value if order is None else value.permute([order.index(i) for i in range(len(order))])


def _to_torch(value: Any, order: Order, used: set[int], device: str, *, is_constant: bool = False) -> Any:
    """A result as PyTorch's tensor, in memory that no other one has: PyTorch may write to it."""
    if isinstance(value, (list, tuple)):
        return [_to_torch(v, None, used, device, is_constant=is_constant) for v in value]
    if not isinstance(value, Tensor):
        return value
    found = to_torch(value, order, device, is_copied=lambda address: is_constant or address in used)
    used.add(found.data_ptr())
    return found


def _is_fixed(node: Node) -> bool:
    """True if the sizes of a node are the same in each call."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or all(isinstance(n, int) for n in value.shape)


def _is_size(node: Node) -> bool:
    return not isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
