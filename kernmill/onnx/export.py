"""Export: a function of tensors, traced once, as an ONNX model.

The graph of the result is written node by node. Products that are reduced become Einsum, so that matrix products and
convolutions do not write their broadcast operands. Shapes are those of the example inputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernmill.ir import DType, DTypeError, FormatError, KernmillError, Ops, UOp, dtypes

from ..functional.rewriting import placeholder
from ..lazy import device_name, no_grad
from ..tensor import Tensor
from ..tensor_bytes import bytes_of
from .packages import helper, numpy_helper, onnx

__all__ = ["export"]

_OPSET, _IR_VERSION = 18, 8
_SAME = {  # the name of an op that is one node
    Ops.NEG: "Neg", Ops.ABS: "Abs", Ops.EXP: "Exp", Ops.LOG: "Log", Ops.SIN: "Sin", Ops.COS: "Cos", Ops.TANH: "Tanh",
    Ops.ERF: "Erf", Ops.SQRT: "Sqrt", Ops.FLOOR: "Floor", Ops.CEIL: "Ceil", Ops.ROUND: "Round", Ops.ADD: "Add",
    Ops.SUB: "Sub", Ops.MUL: "Mul", Ops.DIV: "Div", Ops.POW: "Pow", Ops.MAX: "Max", Ops.MIN: "Min",
    Ops.AND: "BitwiseAnd", Ops.OR: "BitwiseOr", Ops.XOR: "BitwiseXor", Ops.LT: "Less", Ops.LE: "LessOrEqual",
    Ops.EQ: "Equal", Ops.WHERE: "Where",
}  # fmt: skip
_OF_BOOLS = {Ops.ADD: "Or", Ops.OR: "Or", Ops.MAX: "Or", Ops.MUL: "And", Ops.AND: "And", Ops.MIN: "And", Ops.XOR: "Xor"}
_REDUCTIONS = {Ops.ADD: "ReduceSum", Ops.MUL: "ReduceProd", Ops.MAX: "ReduceMax", Ops.MIN: "ReduceMin"}
_WRITTEN = (Ops.CONST, Ops.IOTA, Ops.EXPAND)  # also where they do not depend on the inputs: they are small
_SKIPPED = (Ops.DETACH, Ops.CONTIGUOUS, Ops.COPY, Ops.CHECK)
_NO_VALUES = (
    "export: the function reads values (numpy(), item(), a comparison in an if), and a model keeps one branch. "
    "Use where()."
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def export(
    function: Callable[..., Any], *inputs: Tensor, path: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
) -> Any:  # fmt: skip
    """Trace a function, or a module in its current mode, and return it as a model of the package onnx.

    `path`: where the model is also written. `names` are those of the inputs: input0, input1, .. if they are not given.
    Whatever does not depend on the inputs, such as weights and random numbers, is computed now and becomes a constant.

    Raises:
        KernmillError: operations that ONNX does not have; the message lists all. Or the function reads values.
        DTypeError: an input or a result that is not a tensor.
    """
    if bad := [x for x in inputs if not isinstance(x, Tensor)]:
        raise DTypeError(f"export: an input is a {type(bad[0]).__name__}. Give tensors; wrap data in Tensor(..).")
    labels = list(names or [f"input{i}" for i in range(len(inputs))])
    given = [Tensor._make(placeholder(x.dtype, x.uop.shape, x.device, _NO_VALUES), x.device) for x in inputs]
    with no_grad():
        found = function(*given)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    if bad := [y for y in results if not isinstance(y, Tensor)]:
        raise DTypeError(f"export: a result is a {type(bad[0]).__name__}. Return a tensor, or several.")
    writer = _GraphWriter({x.uop: name for x, name in zip(given, labels, strict=True)})
    for i, y in enumerate(results):
        writer.outputs.append(writer.put("Identity", [writer.name_of(y.uop)], f"output{i}"))
    model = writer.model(given, labels, results)
    if path is not None:
        try:
            Path(path).write_bytes(model.SerializeToString())
        except OSError as error:
            raise FormatError(
                f"{os.fspath(path)}: cannot be written: {error.strerror}. Choose a different path."
            ) from None
    return model


class _GraphWriter:
    """The nodes and constants of a graph, as its nodes are visited from the inputs on."""

    def __init__(self, names: dict[UOp, str]) -> None:
        self.names = dict(names)
        self.moving = set(names)  # nodes that depend on the inputs
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.outputs: list[str] = []
        self.missing: set[str] = set()

    def name_of(self, root: UOp) -> str:
        """The value of a node; nodes below it are written first."""
        for node in root.toposort(stop=lambda u: u in self.names):
            is_moving = any(s in self.moving for s in node.src)
            self.moving.update([node] if is_moving else [])
            if node not in self.names and (is_moving or node.op in _WRITTEN):
                self.names[node] = self.write(node)
        return self._source(root)

    def _source(self, node: UOp) -> str:
        """The name of a value; one that does not depend on the inputs is computed now."""
        if node not in self.names:
            values = Tensor._make(node, device_name(None))
            kind = _array_type(node.dtype)
            shape: Any = node.shape
            self.names[node] = self.constant(np.frombuffer(bytes_of(values), kind).reshape(shape), kind)
        return self.names[node]

    def put(self, op: str, sources: Sequence[str], name: str = "", **attributes: Any) -> str:
        """Add a node of one result."""
        name = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(sources), [name], **attributes))
        return name

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def write(self, node: UOp) -> str:
        """Add the nodes of one op."""
        sources = [self._source(s) for s in node.src]
        if node.op in _SKIPPED:
            return sources[0]
        if node.op is Ops.REDUCE:
            return self._reduced_axes(node, sources[0])
        special = getattr(self, f"on_{node.op.name.lower()}", None)
        if special is not None:
            return str(special(node, sources))
        kind = node.src[0].dtype if node.src else node.dtype
        name = _OF_BOOLS.get(node.op) if kind.is_bool else _SAME.get(node.op)
        name = name or _SAME.get(node.op)
        if name is None:
            self.missing.add(node.op.name)
            return "missing"
        return self.put(name, sources)

    # --- sources
    def on_const(self, node: UOp, _: Sequence[str]) -> str:
        return self.constant(node.arg, _array_type(node.dtype))

    def on_iota(self, node: UOp, _: Sequence[str]) -> str:
        return self.constant(np.arange(node.arg), _array_type(node.dtype))

    # --- movement
    def on_reshape(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Reshape", [sources[0], self.constant(node.shape)], allowzero=1)

    def on_expand(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Expand", [sources[0], self.constant(node.shape)])

    def on_permute(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Transpose", sources, perm=list(node.arg))

    def on_pad(self, node: UOp, sources: Sequence[str]) -> str:
        pairs = [(b, n - b - size) for (b, n), size in zip(node.arg, node.src[0].shape, strict=True)]
        pads = self.constant([a for a, _ in pairs] + [b for _, b in pairs])
        if node.dtype.is_bool:
            wide = self.put("Pad", [self._as(sources[0], dtypes.int32), pads])
            return self._as(wide, node.dtype)
        return self.put("Pad", [sources[0], pads])

    def on_shrink(self, node: UOp, sources: Sequence[str]) -> str:
        starts, stops = [a for a, _ in node.arg], [a + n for a, n in node.arg]
        return self.put("Slice", [sources[0], self.constant(starts), self.constant(stops)])

    def on_stride(self, node: UOp, sources: Sequence[str]) -> str:
        steps = [step for step, _ in node.arg]
        starts = [0 if step > 0 else -1 for step in steps]
        stops = [(1 << 62) if step > 0 else -(1 << 62) for step in steps]
        axes = self.constant(range(len(steps)))
        return self.put("Slice", [sources[0], self.constant(starts), self.constant(stops), axes, self.constant(steps)])

    def on_window(self, node: UOp, sources: Sequence[str]) -> str:
        axis, size, stride, dilation, positions = node.arg
        index = np.arange(positions)[:, None] * stride + np.arange(size) * dilation
        found = self.put("Gather", [sources[0], self.constant(index)], axis=axis)
        rank = len(node.shape)
        return self.put("Transpose", [found], perm=[i for i in range(rank) if i != axis + 1] + [axis + 1])

    def on_take(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Gather", sources, axis=node.arg)

    # --- elementwise
    def _as(self, source: str, dtype: DType) -> str:
        return self.put("Cast", [source], to=helper.np_dtype_to_tensor_dtype(np.dtype(_array_type(dtype))))

    def on_cast(self, node: UOp, sources: Sequence[str]) -> str:
        return self._as(sources[0], node.dtype)

    def on_ne(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Not", [self.put("Equal", sources)])

    def on_exp2(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Pow", [self.constant(2, _array_type(node.dtype)), sources[0]])

    def on_log2(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Div", [self.put("Log", sources), self.constant(np.log(2), _array_type(node.dtype))])

    def on_trunc(self, node: UOp, sources: Sequence[str]) -> str:
        is_negative = self.put("Less", [sources[0], self.constant(0, _array_type(node.dtype))])
        return self.put("Where", [is_negative, self.put("Ceil", sources), self.put("Floor", sources)])

    def on_mod(self, node: UOp, sources: Sequence[str]) -> str:
        if not node.dtype.is_float:
            return self.put("Mod", sources)
        whole = self.put("Floor", [self.put("Div", sources)])
        return self.put("Sub", [sources[0], self.put("Mul", [sources[1], whole])])

    def on_floordiv(self, node: UOp, sources: Sequence[str]) -> str:
        if node.dtype.is_float:
            return self.put("Floor", [self.put("Div", sources)])
        return self.put("Div", [self.put("Sub", [sources[0], self.put("Mod", sources)]), sources[1]])

    def on_fma(self, node: UOp, sources: Sequence[str]) -> str:
        return self.put("Add", [self.put("Mul", sources[:2]), sources[2]])

    # --- reductions
    def _reduced_axes(self, node: UOp, source: str) -> str:
        op, axes = node.arg
        inner = node.src[0]
        if op is Ops.ADD and inner.op is Ops.MUL and inner.dtype.is_float and _broadcasts(inner):
            return self._einsum(node, inner, axes)
        name = _REDUCTIONS.get(op)
        if name is None or (node.dtype.is_bool and op is Ops.MUL):
            name = {Ops.OR: "ReduceMax", Ops.AND: "ReduceMin", Ops.MUL: "ReduceMin"}.get(op)
        if name is None:
            self.missing.add(f"REDUCE {op.name}")
            return "missing"
        name = "ReduceMax" if node.dtype.is_bool and op is Ops.ADD else name
        source = self._as(source, dtypes.int32) if node.dtype.is_bool else source
        found = self.put(name, [source, self.constant(list(axes))], keepdims=1)
        return self._as(found, node.dtype) if node.dtype.is_bool else found

    def _einsum(self, node: UOp, product: UOp, axes: Sequence[int]) -> str:
        """A sum of products of two broadcast operands."""
        terms, sources = list[str](), list[str]()
        for factor in product.src:
            own = factor.src[0] if factor.op is Ops.EXPAND else factor
            kept = [i for i, n in enumerate(own.shape) if n != 1 or product.shape[i] == 1]
            kept = [i for i in kept if product.shape[i] != 1]
            shape = self.constant([own.shape[i] for i in kept])
            sources.append(self.put("Reshape", [self._source(own), shape], allowzero=1))
            terms.append("".join(_LETTERS[i] for i in kept))
        result = "".join(_LETTERS[i] for i, n in enumerate(node.shape) if i not in axes and n != 1)
        found = self.put("Einsum", sources, equation=f"{terms[0]},{terms[1]}->{result}")
        return self.put("Reshape", [found, self.constant(node.shape)], allowzero=1)

    def model(self, given: Sequence[Tensor], labels: Sequence[str], results: Sequence[Tensor]) -> Any:
        """The whole model."""
        if self.missing:
            raise KernmillError(
                f"export: ONNX has no operators for {', '.join(sorted(self.missing))}. Compute indices of maxima, "
                "sorts and factorizations outside of the function."
            )
        inputs = [_described(name, x) for name, x in zip(labels, given, strict=True)]
        outputs = [_described(name, y) for name, y in zip(self.outputs, results, strict=True)]
        nodes = _used_nodes(self.nodes, self.outputs)
        used = {name for node in nodes for name in node.input}
        constants = [c for c in self.constants if c.name in used]
        graph = helper.make_graph(nodes, "kernmill", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="kernmill")
        model.ir_version = _IR_VERSION
        onnx.checker.check_model(model)
        return model


def _used_nodes(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """The nodes that an output depends on: broadcast operands of an Einsum are not."""
    used, found = set(outputs), list[Any]()
    for node in reversed(nodes):
        if used.intersection(node.output):
            used.update(node.input)
            found.insert(0, node)
    return found


def _broadcasts(product: UOp) -> bool:
    return len(product.shape) <= len(_LETTERS) and all(factor.op is Ops.EXPAND for factor in product.src)


def _array_type(dtype: DType) -> Any:
    if dtype is dtypes.bfloat16:
        raise DTypeError("export: bfloat16 is not supported. Cast the model: x.float().")
    return np.dtype(dtype.name)


def _described(name: str, tensor: Tensor) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(_array_type(tensor.dtype))
    return helper.make_tensor_value_info(name, kind, list(tensor.shape))
