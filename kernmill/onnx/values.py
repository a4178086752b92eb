"""What flows along the edges of a graph: tensors, values known in advance, codes of narrow types, sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from kernmill.ir import DTypeError, FormatError, Ops, dtypes, evaluate
from kernmill.runtime import download

from ..tensor import Tensor
from .packages import helper, onnx

INTEGERS = {"int4": (4, True), "uint4": (4, False), "int2": (2, True), "uint2": (2, False)}
__all__ = ["INTEGERS", "Coded", "Host", "Known", "Value", "dtype_of", "folded", "shape_of", "tensor_of", "type_name"]

Host: TypeAlias = Any  # annotation of an operator's argument whose values must be known: a NumPy array
Value: TypeAlias = "Tensor | Known | Coded | list[Any] | None"
_FOLDED_BY_NUMPY = 4096  # elements: below, evaluating on NumPy arrays takes less than compiling a kernel


class Known:
    """Values that do not depend on the inputs of a call: an array, a tensor, or each made of the other."""

    __slots__ = ("_array", "_ordered", "_tensor")

    def __init__(self, array: Any = None, tensor: Tensor | None = None) -> None:
        self._array, self._tensor = array, tensor
        self._ordered: dict[tuple[int, ...], Tensor] = {}

    @property
    def array(self) -> Any:
        """The values as a NumPy array; strings have dtype object."""
        if self._array is None:
            assert self._tensor is not None
            self._array = self._tensor.numpy()
        return self._array

    @property
    def tensor(self) -> Tensor:
        """The values as a tensor on the default device, made once.

        Raises:
            DTypeError: strings.
        """
        if self._tensor is None:
            if self._array.dtype == object:
                raise DTypeError("onnx: an operator for numbers was given strings. Change the model.")
            self._tensor = Tensor(self._array).realize()
        return self._tensor

    def ordered(self, axes: tuple[int, ...]) -> Tensor:
        """The same tensor over memory in which these axes follow each other, the last one innermost."""
        if axes not in self._ordered:
            self._ordered[axes] = Tensor(np.ascontiguousarray(self.array.transpose(axes)))
        return self._ordered[axes].permute([axes.index(axis) for axis in range(len(axes))])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self._array.shape) if self._array is not None else self.tensor.shape

    @property
    def is_text(self) -> bool:
        """True for strings."""
        return self._array is not None and self._array.dtype == object


@dataclass(frozen=True)
class Coded:
    """Values of a type that tensors do not have.

    Integers of 2 and 4 bits are int8 or uint8. Narrow floats are the codes of the standard, one in each uint8.
    """

    kind: str  # the standard's name, in lower case
    codes: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.codes.shape

    def numpy(self) -> Any:
        """The values as an array of the package ml_dtypes."""
        native = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(self.kind.upper()))
        codes = self.codes.numpy()
        return codes.astype(native) if self.kind in INTEGERS else codes.view(native)


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of anything but a sequence."""
    if isinstance(value, (Tensor, Known, Coded)):
        return value.shape
    raise DTypeError("onnx: a sequence, or nothing, where a tensor is needed. Change the model.")


def tensor_of(value: Value) -> Tensor:
    """A value as a tensor.

    Raises:
        DTypeError: it is a sequence, absent, of strings, or of a narrow type.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Known):
        return value.tensor
    what = value.kind if isinstance(value, Coded) else "a sequence" if isinstance(value, list) else "nothing"
    raise DTypeError(f"onnx: {what} was given where a tensor of numbers is needed. Cast it before.")


def folded(tensor: Tensor) -> Known:
    """Compute a tensor that depends on known values only."""
    nodes = tensor.uop.toposort(stop=lambda u: u.storage is not None or u.op is Ops.BUFFER)
    small = all(u.dtype is not dtypes.bfloat16 for u in nodes) and tensor.numel() <= _FOLDED_BY_NUMPY
    if small and all(_node_numel(u) <= _FOLDED_BY_NUMPY for u in nodes):
        data = {u: download(u) for u in nodes if u.storage is not None}
        if all(u.op is not Ops.BUFFER or u in data for u in nodes):
            return Known(np.asarray(evaluate(tensor.uop, data)).reshape(tensor.shape))
    return Known(tensor=tensor.realize())


def _node_numel(node: Any) -> int:
    try:
        return int(np.prod([int(s) for s in node.shape], dtype=np.int64))
    except (TypeError, ValueError):
        return _FOLDED_BY_NUMPY + 1


def type_name(code: int) -> str:
    """The name of an element type of the standard, in lower case.

    Raises:
        FormatError: there is no such type.
    """
    try:
        return str(onnx.TensorProto.DataType.Name(code)).lower()
    except ValueError:
        raise FormatError(f"onnx: {code} is not an element type. The file is damaged.") from None


_DTYPES = {
    "float": dtypes.float32, "double": dtypes.float64, "float16": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "int8": dtypes.int8, "int16": dtypes.int16, "int32": dtypes.int32, "int64": dtypes.int64, "bool": dtypes.bool,
    "uint8": dtypes.uint8, "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64,
}  # fmt: skip


def dtype_of(code: int) -> Any:
    """The dtype of an element type, or None where tensors have none."""
    return _DTYPES.get(type_name(code))


def code_of(value: Value) -> int:
    """The element type of a value."""
    if isinstance(value, Coded):
        return int(onnx.TensorProto.DataType.Value(value.kind.upper()))
    if isinstance(value, Known) and value.is_text:
        return int(onnx.TensorProto.STRING)
    dtype = tensor_of(value).dtype
    name = next(name for name, one in _DTYPES.items() if one is dtype)
    return int(onnx.TensorProto.DataType.Value(name.upper()))


def from_array(array: Any) -> Value:
    """A NumPy array as a value: narrow types of ml_dtypes become codes, texts become objects."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        texts = [x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel().tolist()]
        return Known(np.array(texts, dtype=object).reshape(array.shape))
    if array.dtype.kind in "biuf" and array.dtype.name in {d.name for d in dtypes.data}:
        return Known(array)
    if array.dtype.name == "bfloat16":
        return Known(array)
    try:
        kind = type_name(helper.np_dtype_to_tensor_dtype(array.dtype))
    except (ValueError, KeyError):
        raise DTypeError(f"onnx: NumPy's dtype {array.dtype} has no counterpart. Cast it.") from None
    if kind.startswith("complex"):
        raise DTypeError("onnx: complex values are not supported. Give real and imaginary parts on a last axis of 2.")
    if kind in INTEGERS:
        return Coded(kind, Tensor(array.astype(np.int8 if kind[0] == "i" else np.uint8)))
    return Coded(kind, Tensor(array.view(np.uint8)))
