"""An ONNX file as a graph of nodes: everything is checked here, before anything is computed."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernmill.ir import FormatError, KernmillError

from ..formats.numpy_files import MOST_AXES
from .packages import defs, helper, numpy_helper, onnx
from .table import OPERATORS, Operator
from .values import Known, Value, dtype_of, from_array, type_name

__all__ = ["Graph", "Input", "Node", "Reference", "graph_of", "model_of"]

_DOMAINS = {"", "ai.onnx"}
_EXTERNAL = onnx.TensorProto.EXTERNAL


@dataclass(frozen=True)
class Reference:
    """An attribute of a function's node that takes the value of the function's attribute."""

    name: str


@dataclass(frozen=True)
class Node:
    """A node: an operator, or a function that the model or the standard defines by a graph."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    opset: int
    operator: Operator | None
    body: Graph | None = None
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])  # of a function's attributes

    @property
    def title(self) -> str:
        """The node in an error."""
        return f"{self.op} {self.name!r}" if self.name else self.op


@dataclass(frozen=True)
class Input:
    """An input of a graph: `shape` has None where a size is free, and is None if nothing is known."""

    name: str
    dtype: Any
    kind: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Graph:
    """Inputs, constants, nodes in an order in which they can run, and outputs."""

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Value]
    nodes: tuple[Node, ...]


@dataclass
class _Context:
    where: str
    folder: Path | None
    versions: dict[str, int]
    functions: dict[tuple[str, str, str], Any]
    missing: set[str] = field(default_factory=set[str])
    bodies: dict[tuple[Any, ...], Graph] = field(default_factory=dict[tuple[Any, ...], Graph])
    depth: int = 0

    def fault(self, text: str) -> FormatError:
        return FormatError(f"{self.where}: {text}")


def model_of(path: str | os.PathLike[str]) -> Any:
    """Parse a file; its external data stay where they are.

    Raises:
        FormatError: the file does not exist, or is not an ONNX model.
    """
    where = os.fspath(path)
    try:
        data = Path(where).read_bytes()
    except OSError as error:
        raise FormatError(f"{where}: {error.strerror}. Give the path of an .onnx file.") from None
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception:  # protobuf's DecodeError, whose module depends on its implementation
        raise FormatError(f"{where}: not an ONNX model: its bytes are not that protocol buffer.") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise FormatError(f"{where}: not an ONNX model: it has no graph, or no version of operators.")
    return proto


def graph_of(proto: Any, where: str, folder: Path | None) -> Graph:
    """Check a model and return its graph.

    Raises:
        FormatError: the file contradicts itself, or is of a later version.
        KernmillError: operators that are not supported, all of them.
    """
    versions = {("" if o.domain in _DOMAINS else o.domain): int(o.version) for o in proto.opset_import}
    newest = int(defs.onnx_opset_version())
    if versions.get("", 1) > newest:
        raise FormatError(
            f"{where}: it needs version {versions['']} of ONNX's operators, and the installed package knows "
            f"{newest}. Install a later onnx, or export the model for version {newest}."
        )
    functions = {(_domain(f.domain), f.name, getattr(f, "overload", "")): f for f in proto.functions}
    context = _Context(where, folder, versions, functions)
    graph = _graph(proto.graph, context, set())
    if context.missing:
        raise KernmillError(
            f"{where}: operators that are not supported: {', '.join(sorted(context.missing))}. Export the model "
            "without them, or open an issue with this line."
        )
    return graph


def _domain(name: str) -> str:
    return "" if name in _DOMAINS else name


def _graph(proto: Any, context: _Context, outside: set[str]) -> Graph:
    constants: dict[str, Value] = {}
    for tensor in proto.initializer:
        if tensor.name in constants:
            raise context.fault(f"two constants are named {tensor.name!r}. Export the model again.")
        constants[tensor.name] = constant_of(tensor, context.where, context.folder)
    for sparse in proto.sparse_initializer:
        constants[sparse.values.name] = _dense(sparse, context)
    inputs = tuple(_input(i) for i in proto.input if i.name not in constants)
    known = outside | constants.keys() | {i.name for i in inputs}
    nodes = tuple(_nodes(proto.node, context, known))
    outputs = tuple(o.name for o in proto.output)
    if lost := [o for o in outputs if o not in known]:
        raise context.fault(f"the outputs {', '.join(lost)} come from no node. Export the model again.")
    return Graph(proto.name, inputs, outputs, constants, nodes)


def _nodes(protos: Any, context: _Context, known: set[str]) -> Iterator[Node]:
    made: set[str] = set()
    for proto in protos:
        inputs = tuple(proto.input)
        if lost := [name for name in inputs if name and name not in known]:
            raise context.fault(
                f"node {proto.op_type} {proto.name!r} reads {lost[0]!r}, which no node before it writes: the graph has "
                "a cycle, or is not sorted. Export the model again."
            )
        node = _parsed_node(proto, context, known)
        if twice := [name for name in node.outputs if name and name in made]:
            raise context.fault(f"two nodes write {twice[0]!r}. Export the model again.")
        made.update(node.outputs)
        known.update(name for name in node.outputs if name)
        yield node


def _parsed_node(proto: Any, context: _Context, known: set[str]) -> Node:
    domain = _domain(proto.domain)
    opset = context.versions.get(domain, 1)
    attributes = {a.name: _attribute(a, context, known) for a in proto.attribute}
    row, body, defaults = OPERATORS.get((domain, proto.op_type)), None, dict[str, Any]()
    function = context.functions.get((domain, proto.op_type, getattr(proto, "overload", "")))
    if function is None and row is None:
        function = _of_the_standard(proto.op_type, domain, opset)
    if function is not None:
        body, row = _body(function, context), None
        defaults = {a.name: _attribute(a, context, known) for a in function.attribute_proto}
    elif row is None:
        context.missing.add(f"{domain}.{proto.op_type}" if domain else proto.op_type)
    inputs, outputs = tuple(proto.input), tuple(proto.output)
    return Node(proto.op_type, domain, proto.name, inputs, outputs, attributes, opset, row, body, defaults)


def _of_the_standard(op: str, domain: str, opset: int) -> Any:
    """The standard's own definition of an operator by others, where it has one."""
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None
    return schema.function_body if schema.has_function else None


def _body(function: Any, context: _Context) -> Graph:
    key = (function.domain, function.name, getattr(function, "overload", ""))
    if key not in context.bodies:
        context.depth += 1
        if context.depth > 64:
            raise context.fault(f"the function {function.name} calls itself. Export the model without functions.")
        versions = {_domain(o.domain): int(o.version) for o in function.opset_import}
        inner = _Context(context.where, context.folder, versions or context.versions, context.functions,
                         context.missing, context.bodies, context.depth)  # fmt: skip
        known = set(function.input)
        nodes = tuple(_nodes(function.node, inner, known))
        inputs = tuple(Input(name, None, "tensor", None) for name in function.input)
        context.bodies[key] = Graph(function.name, inputs, tuple(function.output), {}, nodes)
        context.depth -= 1
    return context.bodies[key]


def _attribute(proto: Any, context: _Context, known: set[str]) -> Any:
    if proto.ref_attr_name:
        return Reference(proto.ref_attr_name)
    kind = onnx.AttributeProto.AttributeType.Name(proto.type)
    if kind == "GRAPH":
        return _graph(proto.g, context, set(known))
    if kind == "TENSOR":
        return constant_of(proto.t, context.where, context.folder)
    if kind == "TENSORS":
        return [constant_of(t, context.where, context.folder) for t in proto.tensors]
    if kind == "SPARSE_TENSOR":
        return _dense(proto.sparse_tensor, context)
    found = helper.get_attribute_value(proto)
    if kind == "STRING":
        return found.decode("utf-8", "replace")
    if kind == "STRINGS":
        return [text.decode("utf-8", "replace") for text in found]
    return list(found) if kind in ("INTS", "FLOATS") else found


def _input(proto: Any) -> Input:
    kind = proto.type.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        return Input(proto.name, None, kind.removesuffix("_type"), None)
    tensor = proto.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(int(d.dim_value) if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)
    name = type_name(tensor.elem_type) if tensor.elem_type else "float"
    return Input(proto.name, dtype_of(tensor.elem_type) if tensor.elem_type else None, name, shape)


# --- constants -------------------------------------------------------------------------------------------------------
def constant_of(tensor: Any, where: str, folder: Path | None) -> Value:
    """The values of a constant in a file, or in a file of its folder.

    Raises:
        FormatError: the values do not fit the shape; the file is not inside the model's folder.
    """
    if any(d < 0 for d in tensor.dims):
        raise FormatError(f"{where}: constant {tensor.name!r}: a size of {min(tensor.dims)}. The file is damaged.")
    if len(tensor.dims) > MOST_AXES:
        raise FormatError(
            f"{where}: constant {tensor.name!r}: {len(tensor.dims)} axes are not supported: arrays have up to "
            f"{MOST_AXES}. Change the model."
        )
    if tensor.data_location == _EXTERNAL:
        _read_external(tensor, where, folder)
    try:
        return from_array(numpy_helper.to_array(tensor))
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, MemoryError, OverflowError, RuntimeError):
        raise FormatError(
            f"{where}: constant {tensor.name!r}: its values do not fit shape {tuple(tensor.dims)} and type "
            f"{tensor.data_type}. The file is damaged."
        ) from None


def _read_external(tensor: Any, where: str, folder: Path | None) -> None:
    facts: Mapping[str, str] = {e.key: e.value for e in tensor.external_data}

    def fault(text: str) -> FormatError:
        return FormatError(f"{where}: constant {tensor.name!r}: its file {facts.get('location', '')!r} {text}.")

    if folder is None:
        raise fault("cannot be found, since the model has no path. Load the model from its file")
    path = folder / facts.get("location", "")
    if not facts.get("location") or os.path.isabs(facts["location"]) or ".." in Path(facts["location"]).parts:
        raise fault("is not named by a path below the model's folder")
    try:
        offset, length = int(facts.get("offset", 0)), int(facts.get("length", -1))
        if path.resolve(strict=True) != folder.resolve() / Path(facts["location"]):
            raise fault("is a link. Put a copy there")
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
                raise fault("is not a file of its own: it is a device, a folder or a hard link")
            length = about.st_size - offset if length < 0 else length
            if offset < 0 or offset + length > about.st_size or length < 0:
                raise fault(f"has {about.st_size} bytes, and {length} from byte {offset} on are needed")
            bits = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
            if length > math.prod(tensor.dims) * bits // 8 + 1:
                raise fault(f"would give {length} bytes for shape {tuple(tensor.dims)}")
            file.seek(offset)
            data = file.read(length)
    except FormatError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise fault(f"cannot be read: {error}") from None
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.DEFAULT
    tensor.raw_data = data


def _dense(sparse: Any, context: _Context) -> Value:
    import numpy as np

    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dims = tuple(sparse.dims)
    if math.prod(dims) > 1 << 28 or any(d < 0 for d in dims):
        raise context.fault(f"a sparse constant of shape {dims} is too large to be stored with its zeros.")
    full = np.zeros(dims, values.dtype)
    try:
        if indices.ndim == 1:
            full.reshape(-1)[indices] = values
        else:
            full[tuple(indices.T)] = values
    except IndexError:
        raise context.fault(f"a sparse constant has indices outside its shape {dims}.") from None
    return Known(full)
