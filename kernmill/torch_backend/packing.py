"""Small values that a forward pass keeps for the backward pass, in one tensor for each dtype.

Every tensor between the passes costs PyTorch and us some 20 us, of a recurrent layer once for each step and gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["packed"]

_MOST_BYTES = 1 << 17  # of a value: what is copied in those 20 us, where a kernel cannot write to the packed tensor
_aten = torch.ops.aten


def packed(forward: Any, backward: Any, count: int) -> tuple[Any, Any]:
    """Change the two graph modules; the first `count` outputs of the forward pass are the caller's."""
    (output,) = forward.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    reads = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    own, groups = set(outputs[:count]), dict[Any, list[Any]]()
    for node in outputs[count:]:
        if _is_small(node) and node not in own and node.name in reads:
            groups.setdefault(node.meta["val"].dtype, []).append(node)
    descriptions = output.meta.get("desc")
    for number, nodes in enumerate(group for group in groups.values() if len(group) > 1):
        name = f"kernmill_packed_{number}"
        whole = _join_parts(forward.graph, output, nodes, name)
        _split_whole(backward.graph, whole, [reads[node.name] for node in nodes], name)
        positions = [outputs.index(node, count) for node in nodes]
        outputs[positions[-1]] = whole
        for position in reversed(positions[:-1]):
            del outputs[position]
            if descriptions is not None:
                descriptions = [*descriptions[:position], *descriptions[position + 1 :]]
    output.args = (type(output.args[0])(outputs),)
    if descriptions is not None:
        output.meta["desc"] = descriptions
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()
    return forward, backward


def _is_small(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) and node.op == "call_function" else None
    if not isinstance(value, torch.Tensor) or node.meta.get("saved_tensor_with_no_vc_check"):
        return False
    if not all(isinstance(size, int) for size in value.shape) or not value.is_contiguous():
        return False
    return bool(0 < value.numel() * value.element_size() <= _MOST_BYTES)


def _join_parts(graph: Any, output: Any, nodes: Sequence[Any], name: str) -> Any:
    """The packed tensor as an output of the forward graph."""
    with graph.inserting_before(output):
        flat = [_add_node(graph, _aten.view.default, node, [node.meta["val"].numel()]) for node in nodes]
        return _add_node(graph, _aten.cat.default, flat, 0, name=name)


def _split_whole(graph: Any, whole: Any, reads: Sequence[Any], name: str) -> None:
    """The packed tensor as an input of the backward graph, instead of the last of its parts."""
    with graph.inserting_before(reads[-1]):
        source = graph.placeholder(name)
    source.meta["val"] = whole.meta["val"]
    start = 0
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in reads:
        shape = [*node.meta["val"].shape]
        stop = start + math.prod(shape)
        with graph.inserting_before(first):
            part = _add_node(graph, _aten.slice.Tensor, source, 0, start, stop)
            node.replace_all_uses_with(_add_node(graph, _aten.view.default, part, shape))
        graph.erase_node(node)
        start = stop


def _add_node(graph: Any, target: Any, *arguments: Any, name: str | None = None) -> Any:
    """A node with its value of fake tensors."""
    node = graph.create_node("call_function", target, arguments, name=name)
    given = torch.fx.node.map_arg(arguments, lambda n: n.meta["val"])
    found: Any = next(n.meta["val"] for n in node.all_input_nodes)
    with found.fake_mode:
        node.meta["val"] = target(*given)
    return node
