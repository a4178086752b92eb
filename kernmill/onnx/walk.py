"""Running a graph: node by node on lazy tensors; what depends on known values only is computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernmill.ir import FormatError, KernmillError, SettingError, ShapeError

from ..tensor import Tensor
from .reading import Graph, Node, Reference
from .values import Known, Value, folded

__all__ = ["NodeWalk", "ReadsValues"]

_MAX_DEPTH = 200  # graphs in graphs


class ReadsValues(Exception):
    """A node needs values of a tensor that is not computed yet: shapes or branches depend on data."""


class NodeWalk:
    """One pass over a graph.

    With `may_read` values are computed where a node needs them. Without, such a node raises `ReadsValues`. `journal`
    is what a first pass found to be known, in the order of nodes, and is used again in a captured call.
    """

    def __init__(self, *, may_read: bool, journal: list[list[Value] | None] | None = None) -> None:
        self.may_read = may_read
        self.captured = journal is not None
        self.journal: list[list[Value] | None] = [] if journal is None else journal
        self.at = 0
        self.depth = 0

    def run(self, graph: Graph, values: dict[str, Value], inputs: Sequence[Value]) -> list[Value]:
        """Run a graph on its inputs; `values` are those of the graphs around it."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise FormatError(f"onnx: graphs are nested deeper than {_MAX_DEPTH}. Export the model without functions.")
        known = {**values, **graph.constants, "": None}
        known.update((one.name, value) for one, value in zip(graph.inputs, inputs, strict=False))
        for node in graph.nodes:
            results = self._results(node, known)
            known.update((name, value) for name, value in zip(node.outputs, results, strict=False) if name)
            if missing := [n for n in node.outputs[len(results) :] if n]:
                raise FormatError(f"{node.title}: output {missing[0]!r} is not computed. Open an issue with this line.")
        self.depth -= 1
        return [known[name] for name in graph.outputs]

    def _results(self, node: Node, known: dict[str, Value]) -> list[Value]:
        inputs = [known[name] for name in node.inputs]
        if node.body is not None:
            attributes = {**node.defaults, **node.attributes}
            return self.run(_given(node.body, attributes), {}, inputs)
        here, self.at = self.at, self.at + 1
        if self.captured and here < len(self.journal) and (found := self.journal[here]) is not None:
            return found
        if not self.captured:
            self.journal.append(None)
        assert node.operator is not None
        while inputs and inputs[-1] is None:
            inputs.pop()
        call = RunningNode(self, node, known)
        results = _run_operator(call, inputs)
        is_known = all(_is_known(value) for value in inputs) and not node.operator.is_random
        if is_known and not self.captured and not call.has_body:
            results = list[Value](folded(r) if isinstance(r, Tensor) else r for r in results)
        if not self.captured and results and all(isinstance(r, Known) for r in results):
            self.journal[here] = results
        return results


def _run_operator(call: RunningNode, inputs: list[Value]) -> list[Value]:
    node = call.node
    assert node.operator is not None
    try:
        return node.operator.run(call, inputs, dict(node.attributes), node.opset)
    except ReadsValues:
        raise
    except KernmillError as error:
        if not str(error).startswith(node.op):
            error.args = (f"{node.title}: {error}",)
        raise
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError) as error:
        raise ShapeError(f"{node.title}: its inputs or attributes do not fit ({error}). Change the model.") from error
    except RecursionError:
        raise SettingError(f"{node.title}: the expression is nested too deeply. Open an issue.") from None


@dataclass
class RunningNode:
    """The node that is run, and the pass it is in."""

    walk: NodeWalk
    node: Node
    known: dict[str, Value]
    has_body: bool = False

    @property
    def name(self) -> str:
        return self.node.title

    @property
    def outputs(self) -> int:
        return len(self.node.outputs)

    @property
    def captured(self) -> bool:
        return not self.walk.may_read

    def read(self, value: Value) -> Any:
        if isinstance(value, Known):
            return value.array
        if not isinstance(value, Tensor):
            raise ShapeError(f"{self.name}: numbers are needed as an input. Change the model.")
        if not self.walk.may_read:
            raise ReadsValues
        return value.numpy()

    def body(self, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
        self.has_body = True
        if len(inputs) != len(graph.inputs):
            raise FormatError(f"{self.name}: its graph takes {len(graph.inputs)} inputs, not {len(inputs)}.")
        return self.walk.run(graph, self.known, inputs)


def _is_known(value: Value) -> bool:
    return value is None or isinstance(value, Known)


def _given(graph: Graph, attributes: dict[str, Any]) -> Graph:
    """The graph of a function with attributes instead of references."""
    nodes = list[Node]()
    for node in graph.nodes:
        own = dict[str, Any]()
        for name, value in node.attributes.items():
            if isinstance(value, Reference):
                if value.name in attributes:
                    own[name] = attributes[value.name]
            else:
                own[name] = _given(value, attributes) if isinstance(value, Graph) else value
        nodes.append(Node(node.op, node.domain, node.name, node.inputs, node.outputs, own, node.opset, node.operator,
                          node.body, node.defaults))  # fmt: skip
    return Graph(graph.name, graph.inputs, graph.outputs, graph.constants, tuple(nodes))
