"""A small ONNX graph written as calls, `g.Softmax(x, axis=-1)`, and its session in onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["OnnxGraph", "OnnxSession"]

_OPSET = 23


class OnnxGraph:
    """Nodes by the names of their operators; a value is its name in the graph."""

    def __init__(self) -> None:
        self.helper = importlib.import_module("onnx.helper")
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def __getattr__(self, operator: str) -> Callable[..., str]:
        if operator.startswith("_"):
            raise AttributeError(operator)

        def add(*inputs: str, outputs: int = 1, **attributes: Any) -> Any:
            names = [f"v{len(self.nodes)}_{place}" for place in range(outputs)]
            self.nodes.append(self.helper.make_node(operator, inputs, names, **attributes))
            return names[0] if outputs == 1 else names

        return add

    def constant(self, array: Any) -> str:
        """An initializer."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(importlib.import_module("onnx.numpy_helper").from_array(array, name))
        return name


class OnnxSession:
    """The session, with its inputs bound once; every run makes a new result."""

    def __init__(
        self, lib: Any, function: Callable[..., str], tensors: Sequence[Any], constants: Sequence[Any], threads: int
    ) -> None:
        graph = OnnxGraph()
        names = [f"x{place}" for place in range(len(tensors))]
        result = function(graph, *names, *(graph.constant(value) for value in constants))
        helper = graph.helper
        kinds = [helper.np_dtype_to_tensor_dtype(t.dtype) for t in tensors]
        inputs = [helper.make_tensor_value_info(n, k, t.shape) for n, k, t in zip(names, kinds, tensors, strict=True)]
        output = importlib.import_module("onnx").ValueInfoProto(name=result)
        made = helper.make_graph(graph.nodes, "row", inputs, [output], graph.initializers)
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
        options = lib.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self.session = lib.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.given = {n: lib.OrtValue.ortvalue_from_numpy(t) for n, t in zip(names, tensors, strict=True)}
        self.outputs = [result]

    def run(self) -> Any:
        """One call: the result as an OrtValue."""
        return self.session.run_with_ort_values(self.outputs, self.given)[0]
