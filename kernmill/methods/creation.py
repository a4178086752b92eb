"""Tensor methods: new tensors, from host data or from nothing."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from kernmill.ir import (
    DType,
    DTypeError,
    DTypeLike,
    IndexRangeError,
    Ops,
    ShapeError,
    Size,
    UOp,
    as_dtype,
    const,
    dtypes,
    elementwise,
    expand,
    iota,
    promote,
    reduce_axes,
    reshape,
    round_bfloat16,
)
from kernmill.runtime import upload

from ..lazy import Lazy, checked_const, device_name
from ..size import SymbolicSize, as_node
from .movement import flat_sizes

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["DLPACK_BFLOAT", "DLPACK_UINT", "Creation", "host_array", "recode"]


class Creation(Lazy):
    """New tensors. Constants are computed where they are used; they take no memory until realized."""

    @classmethod
    def _new(cls, node: UOp, device: str | None, requires_grad: bool) -> Self:
        """A tensor of constants; a device that is named gets a copy."""
        if device is not None:
            device = device_name(device)
            node = UOp(Ops.COPY, node.dtype, (node,), device)
        new = cls._make(node, device)
        return new.requires_grad_() if requires_grad else new

    @classmethod
    def _from_host(cls, value: Any, device: str | None = None) -> Self:
        """A tensor of NumPy data; scalars become constants."""
        import numpy as np

        array = np.asarray(_detached(value))
        if array.ndim == 0 and array.dtype.kind in "biuf":
            return cls._make(const(as_dtype(array.dtype), array.item()))
        return cls._upload(array, None, device)

    @classmethod
    def _upload(cls, array: Array, dtype: DType | None, device: str | None, *, borrow: bool = False) -> Self:
        array, dtype = host_values(array, dtype)
        name = device_name(device)
        node = upload(array.reshape(-1), dtype, name, borrow=borrow)
        return cls._make(reshape(node, array.shape), name)

    @classmethod
    def from_numpy(cls, array: Array, device: str | None = None) -> Self:
        """A tensor over the memory of a NumPy array; no copy if that is contiguous and of native byte order.

        kernmill never writes to that memory. Changes that you make to the array later may or may not be seen.
        """
        return cls._upload(host_array(array, None)[0], None, device, borrow=True)

    @classmethod
    def from_dlpack(cls, x: Any, *, device: str | None = None, copy: bool | None = None) -> Self:
        """Return a tensor over the host memory of another library's tensor, which it keeps alive; as `from_numpy` of
        it.

        kernmill never writes to that memory. Later changes by you may or may not be visible; with `copy=True` they are
        not. With `copy=False` an error is raised if a copy is needed.

        Raises:
            DTypeError: no DLPack support, memory of another device, or a dtype that NumPy does not have.
            ShapeError: copy=False and elements that are not contiguous, or a device that needs a copy.
        """
        import numpy as np

        if not hasattr(x, "__dlpack__"):
            raise DTypeError(f"from_dlpack: a {type(x).__name__} does not support DLPack. Use Tensor(..) for a copy.")
        given = _Given(_detached(x))
        try:
            array = np.from_dlpack(given)
        except (RuntimeError, BufferError) as error:
            raise DTypeError(
                f"from_dlpack: NumPy cannot import this memory: {error} Give host memory with bools, ints or floats."
            ) from None
        dtype = dtypes.bfloat16 if given.is_bfloat16 else as_dtype(array.dtype)
        name, values = device_name(device), np.ascontiguousarray(array).reshape(-1)
        made = cls._make(reshape(upload(values, dtype, name, borrow=not copy), array.shape), name)
        memory = next(iter(made.uop.toposort())).storage
        if copy is False and array.size and memory.address != array.ctypes.data:
            raise ShapeError(
                f"from_dlpack: shape {array.shape} with strides {array.strides} cannot be used without a copy on "
                f"{made._device}. Make it contiguous, or leave out copy=False."
            )
        return made

    # --- constants
    @classmethod
    def full(
        cls,
        shape: int | Sequence[int],
        fill_value: float,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """One value everywhere; without a dtype that of the value (bool, int64 or float32).

        Raises:
            DTypeError: an int outside the range of the dtype.
        """
        if isinstance(fill_value, (Lazy, str)):
            kind = type(fill_value).__name__
            raise DTypeError(f"full: a {kind} as the value. Give a number; a tensor is made larger by x.expand(shape).")
        dtype = as_dtype(type(fill_value) if dtype is None else dtype)
        sizes = flat_sizes((shape,))
        if any(not isinstance(s, UOp) and s < 0 for s in sizes):
            raise ShapeError(f"full: shape {sizes} has a negative size. Sizes are 0 or more.")
        node = checked_const(dtype, fill_value, dtype)
        return cls._new(expand(reshape(node, (1,) * len(sizes)), sizes), device, requires_grad)

    @classmethod
    def zeros(
        cls,
        *shape: int | Sequence[int],
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Zeros."""
        return cls.full(flat_sizes(shape), 0, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def ones(
        cls,
        *shape: int | Sequence[int],
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Ones."""
        return cls.full(flat_sizes(shape), 1, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def empty(
        cls,
        *shape: int | Sequence[int],
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """A tensor whose values do not matter: zeros, which cost nothing until they are realized."""
        return cls.zeros(*shape, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def arange(
        cls,
        start: float,
        stop: float | None = None,
        step: float = 1,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """start, start + step, ... below stop; int64 for ints, float32 otherwise. With one number: from 0 to it."""
        given = (0, start, step) if stop is None else (start, stop, step)
        start, end, step = map(_integer_if_equal, given)
        if not all(isinstance(v, (Integral, SymbolicSize)) or math.isfinite(v) for v in (start, end, step)):
            raise ShapeError(
                f"arange: from {start} to {end} by {step} is not a finite number of steps. Give finite numbers."
            )
        if step == 0:
            raise ShapeError(f"arange: from {start} to {end} by step 0 never ends. Give a nonzero step.")
        whole = all(isinstance(v, (Integral, SymbolicSize)) for v in (start, end, step))
        if dtype is None:
            dtype = dtypes.default_int if whole else dtypes.default_float
        dtype = as_dtype(dtype)
        length = -((start - end) // step) if whole else math.ceil((end - start) / step)
        if isinstance(length, SymbolicSize):
            if length.bounds[0] < 0:
                raise ShapeError(f"arange: from {start} to {end} by {step}: {length} is negative for some values.")
        else:
            length = max(0, int(length))
        ends = (start, start + step * (length - 1)) if isinstance(length, SymbolicSize) or length else (0,)
        for size in ends:
            for bound in size.bounds if isinstance(size, SymbolicSize) else (size,):
                checked_const(dtype, bound, dtype)
        node = iota(as_node(length))
        work = promote(dtype, dtypes.float32) if dtype.is_float else node.dtype
        apart, first = (
            v.uop.cast(work) if isinstance(v, SymbolicSize) else const(work, v if work.is_float else int(v))
            for v in (step, start)
        )
        node = elementwise(Ops.ADD, elementwise(Ops.MUL, node.cast(work), apart), first)
        return cls._new(node.cast(dtype), device, requires_grad)

    @classmethod
    def linspace(
        cls,
        start: float,
        stop: float,
        steps: int,
        *,
        endpoint: bool = True,
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """`steps` values from start to stop, both included, evenly spaced; without stop if `endpoint` is False."""
        steps = operator.index(steps)
        if steps < 0:
            raise ShapeError(f"linspace: {steps} steps: must be 0 or more.")
        work = promote(as_dtype(dtype), dtypes.float32)
        index = iota(steps)
        node = index.cast(work) * ((stop - start) / max(1, steps - bool(endpoint))) + float(start)
        if endpoint:
            node = index.eq(steps - 1).where(float(stop if steps > 1 else start), node)
        return cls._new(node.cast(as_dtype(dtype)), device, requires_grad)

    @classmethod
    def eye(
        cls,
        n: int,
        m: int | None = None,
        *,
        k: int = 0,
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """The n by m (or n by n) matrix with ones on the diagonal, or on the k-th one above it."""
        n, columns = (v if isinstance(v, SymbolicSize) else operator.index(v) for v in (n, n if m is None else m))
        if n < 0 or columns < 0:
            raise ShapeError(f"eye: {n} by {columns}. Sizes are 0 or more.")
        n, columns = as_node(n), as_node(columns)
        rows = expand(reshape(iota(n), (n, 1)), (n, columns))
        same = (rows + operator.index(k)).eq(expand(reshape(iota(columns), (1, columns)), (n, columns)))
        return cls._new(same.cast(as_dtype(dtype)), device, requires_grad)

    # --- like another
    def full_like(self, fill_value: float, *, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Self:
        """One value in this tensor's shape, dtype and on its device."""
        return self.full(
            self.node_shape, fill_value, dtype=dtype or self.dtype, device=self._device, requires_grad=requires_grad
        )

    def zeros_like(self, *, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Self:
        """Zeros in this tensor's shape, dtype and on its device."""
        return self.full_like(0, dtype=dtype, requires_grad=requires_grad)

    def ones_like(self, *, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Self:
        """Ones in this tensor's shape, dtype and on its device."""
        return self.full_like(1, dtype=dtype, requires_grad=requires_grad)

    empty_like = zeros_like

    def one_hot(self, num_classes: int) -> Self:
        """Return int64 ones at the indices in this int tensor, along a new last axis, zeros elsewhere.

        A class outside 0..num_classes-1 fails when realized.
        """
        if not self.dtype.is_int:
            raise DTypeError(f"one_hot: of a {self.dtype.name} tensor. Class numbers are ints.")
        num_classes = as_node(num_classes)
        if num_classes < 1:
            raise IndexRangeError(f"one_hot: {num_classes} classes. Give at least 1.")
        indices = self._make(iota(num_classes))
        classes = self._classes("one_hot", num_classes)
        return self._result(reshape(classes.uop, (*self.uop.shape, 1)))._binary(Ops.EQ, indices).cast(dtypes.int64)

    def _classes(self, call: str, count: Size, axis: int | None = None) -> Self:
        """This int tensor in int64; an entry outside 0..count-1 fails when realized, a constant at once."""
        own = self.cast(dtypes.int64)
        where = f"0 to {count - 1}" if isinstance(count, int) else "the classes"
        if axis is not None and isinstance(count, int):
            where = f"axis {axis} of size {count}, 0 to {count - 1}"
        message = f"{call}: a class outside {where}. Clamp it, or give more classes."
        if own.uop.op is Ops.CONST and isinstance(count, int) and not 0 <= own.uop.arg < count:
            raise IndexRangeError(message)
        return own._checked(own._binary(Ops.LT, 0)._binary(Ops.OR, own._tensor(count)._binary(Ops.LE, own)), message)

    def _checked(self, bad: Self, message: str) -> Self:
        """This tensor, which fails with the message when it is computed, if an entry of `bad` is True."""
        flag = reshape(reduce_axes(bad.uop, Ops.OR, range(bad.ndim)), ())
        return self._result(UOp(Ops.CHECK, self.dtype, (self.uop, flag), message))


def _integer_if_equal(value: Any) -> Any:
    """A tensor or array of one int as an int."""
    kind = getattr(value, "dtype", None)
    return operator.index(value) if getattr(kind, "is_int", getattr(kind, "kind", "") in ("i", "u")) else value


# --- host data -------------------------------------------------------------------------------------------------------
def host_values(array: Array, dtype: DType | None) -> tuple[Array, DType]:
    """A C-contiguous native array as `upload` takes it (bfloat16: as uint16), and its dtype.

    Raises:
        DTypeError: complex, object, text or date arrays; ints outside the range of the dtype.
    """
    import numpy as np

    if array.dtype.kind == "c":
        raise DTypeError(f"Tensor of a NumPy array of {array.dtype}: a Tensor is real. Use kernmill.ComplexTensor(..).")
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise DTypeError(
            f"Tensor of a NumPy array of {array.dtype}: kernmill has bools, ints and floats. Convert it first, "
            "for example with .astype(np.float32)."
        )
    if not (array.flags.c_contiguous and array.dtype.isnative):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
    own = dtypes.float64 if array.dtype.itemsize > 8 and array.dtype.kind == "f" else as_dtype(array.dtype)
    dtype = own if dtype is None else dtype
    if dtype is own and dtype is not dtypes.bfloat16 and array.dtype.itemsize == dtype.size_bytes:
        return array, dtype
    if dtype is dtypes.bfloat16:
        return (array.view(np.uint16) if own is dtype else bfloat16_bits(array.astype(np.float32))), dtype
    if own is dtypes.bfloat16:
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype.is_int and array.size and not own.is_bool:
        _check_range(array, dtype)
    with np.errstate(all="ignore"):
        return array.astype(dtype.name, copy=False), dtype


def _check_range(array: Array, dtype: DType) -> None:
    least, most = array.min(), array.max()
    bad = least if not least >= dtype.min else most
    if not (least >= dtype.min and most <= dtype.max):
        raise DTypeError(
            f"Tensor(.., dtype={dtype.name}): the value {bad} does not fit {dtype.name} ({dtype.min} to {dtype.max}). "
            "Use a wider dtype."
        )


def bfloat16_bits(array: Array) -> Array:
    """Return the bits of the nearest bfloat16 of float32 values."""
    import numpy as np

    return (round_bfloat16(array).view(np.uint32) >> 16).astype(np.uint16)


DLPACK_UINT, DLPACK_BFLOAT = 1, 4


def recode(capsule: Any, old: int, new: int) -> bool:
    """Change the kind of the elements of a DLPack capsule to one of the same size; return True if it had the old one.

    Source: dlpack.h, struct DLTensor, which a capsule of version 1 stores behind a version, two pointers and flags.
    """
    import ctypes

    api, pointer = ctypes.pythonapi, ctypes.sizeof(ctypes.c_void_p)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    for name, start in ((b"dltensor", 0), (b"dltensor_versioned", 16 + 2 * pointer)):
        if api.PyCapsule_IsValid(ctypes.py_object(capsule), name):
            address = api.PyCapsule_GetPointer(ctypes.py_object(capsule), name)
            # behind data, device and the number of axes
            kind = ctypes.c_uint8.from_address(address + start + pointer + 12)
            if kind.value == old:
                kind.value = new
                return True
    return False


class _Given:
    """A DLPack exporter that exports bfloat16, which NumPy cannot import, as uint16."""

    def __init__(self, x: Any) -> None:
        self.x, self.is_bfloat16 = x, False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.x.__dlpack__(**options)
        self.is_bfloat16 = recode(capsule, DLPACK_BFLOAT, DLPACK_UINT)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def _detached(data: Any) -> Any:
    """Another library's tensor without its gradient: PyTorch gives none that has one to NumPy."""
    return data.detach() if getattr(data, "requires_grad", False) is True and hasattr(data, "detach") else data


def _memory_of(data: Any) -> memoryview | None:
    """The memory of data that have Python's buffer protocol and no better one."""
    if isinstance(data, (list, tuple, int, float)) or hasattr(data, "__array__") or hasattr(data, "dtype"):
        return None
    try:
        return memoryview(data)
    except TypeError:
        return None


def host_array(data: Any, dtype: DType | None) -> tuple[Array, DType | None]:
    """Return Python data as an array, and its tensor dtype: ints int64, floats float32.

    Raises:
        ShapeError: lists of different lengths.
        DTypeError: ints beyond 64 bits; data that is not numeric.
    """
    import numpy as np

    if isinstance(data, (bytes, bytearray)):
        return np.frombuffer(data, np.uint8), dtype or dtypes.uint8
    if (memory := _memory_of(data)) is not None:
        return np.asarray(memory), dtype
    if hasattr(data, "dtype") or hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        return np.asarray(_detached(data)), dtype
    try:
        array = np.array(data)
    except ValueError:
        raise ShapeError(
            "Tensor of a list: the inner lists have different lengths. Pad them, or make a tensor of each."
        ) from None
    if array.dtype.kind == "O":
        _explain_objects(array, dtype)
    if array.dtype == np.float64 and array.size and np.abs(array).max() >= 2.0**63:  # of float16 it would overflow
        objects = np.array(data, dtype=object)
        if all(isinstance(value, int) for value in objects.reshape(-1)):  # NumPy has no int dtype for all of them
            _explain_objects(objects, dtype)
    if array.dtype.kind == "f" and dtype is None:
        dtype = dtypes.default_float
    if array.dtype.kind in "iu" and dtype is None and array.dtype != np.uint64:
        dtype = dtypes.default_int
    return array, dtype


def _explain_objects(array: Array, dtype: DType | None) -> None:
    name = (dtype or dtypes.default_int).name
    for value in array.reshape(-1):
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise DTypeError(f"Tensor of a list: {reprlib.repr(value)} does not fit {name}. Use a float dtype.")
        if isinstance(value, complex):
            raise DTypeError("Tensor of complex numbers: a Tensor is real. Use kernmill.ComplexTensor(..).")
        if not isinstance(value, (int, float)):
            kind = type(value).__name__
            raise DTypeError(f"Tensor of a list that contains a {kind}: elements must be Python or NumPy numbers.")
    raise DTypeError("Tensor of a list: no int dtype can represent all of these ints. Use a float dtype.")
