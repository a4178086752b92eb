"""class Tensor: one UOp and the methods of every family; creation from data, realize, numpy, backward."""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from kernmill.ir import (
    DeviceError,
    DType,
    DTypeError,
    DTypeLike,
    GradientError,
    Ops,
    ShapeError,
    UOp,
    WeakTable,
    apart,
    as_dtype,
    as_size,
    assign,
    broadcast_shapes,
    const,
    current_origin,
    dtypes,
    numel,
    process_lock,
    show_shape,
)
from kernmill.runtime import buffer_node, download, realize

from .autocasting import autocast_calls
from .autograd import depends_on_no_leaf, filled, history_lost, is_stop, leads_not, leaf_written, new_grads, stepped
from .autograd import gradient as gradient_of
from .deferred import node_of, run_calls
from .lazy import (
    Lazy,
    constant,
    expressions,
    fits,
    given_const,
    grad_state,
    history,
    is_shared,
    keep_track,
    no_grad,
    trace_origins,
)
from .methods.casting import Casting
from .methods.creation import DLPACK_BFLOAT, DLPACK_UINT, host_array, recode
from .methods.movement import expand_whole
from .methods.other_names import instead_of
from .numpy_calls import as_arrays, leads_nowhere
from .recorded import record_calls
from .size import as_node, shown
from .synonyms import with_other_names
from .tensor_html import tensor_html
from .variable import given_values
from .views import renew, separate, write

if TYPE_CHECKING:
    import numpy as np

    from .autograd import AfterBackward
    from .lazy import Operand

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Tensor"]

# NumPy functions that are operators
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow, "matmul": operator.matmul,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "left_shift": operator.lshift, "right_shift": operator.rshift, "equal": operator.eq, "not_equal": operator.ne,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip

_leaf_numbers = itertools.count(1)
_leaves: WeakTable[UOp, weakref.ref[Conversions]] = WeakTable()
_lock = process_lock()
_realizing = process_lock()  # a thread may meet tensors of another one, in a capture or by equal constants


class Conversions(Casting):
    """Realizing, and the ways out to the host and to Python."""

    def numel(self) -> int:
        """Number of elements."""
        return shown(as_size(numel(self.node_shape)))  # type: ignore[no-any-return]

    def size(self, axis: int | None = None) -> tuple[int, ...] | int:
        """The shape, or the size of one axis."""
        return self.shape if axis is None else self.shape[self._there(axis, "size")]

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.size_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.element_size()

    def tobytes(self) -> bytes:
        """The bytes of all elements, row-major."""
        return self._on_host().tobytes()

    __bytes__ = tobytes

    @property
    def is_leaf(self) -> bool:
        """True if backward() gives this tensor a gradient, or none leads through it."""
        return not self.requires_grad or self._is_leaf()

    def is_floating_point(self) -> bool:
        """True if the dtype is a float."""
        return self.dtype.is_float

    if not TYPE_CHECKING:  # to a checker it would be every name that there could be

        def __getattr__(self, name: str) -> Any:
            """Rebuild the node of a stale view; for a name of another library, raise an error with its replacement."""
            if name == "uop":
                if (call := self._call) is not None:
                    return node_of(self, call)
                if self._owner is not None:
                    return renew(self)
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            hint = instead_of(name, type(self))
            raise AttributeError(f"{text}.{hint}" if hint else text, name=name, obj=self)

    # --- realizing
    @property
    def is_realized(self) -> bool:
        """True if the values are in memory."""
        call = self._call
        return _stored(self.uop) is not None if call is None or call.node is not None else call.storage is not None

    def realize(self, *others: Self) -> Self:
        """Compute this tensor and others now, together."""
        with _realizing:
            states = self._states()
            is_alone = not (others or states)
            if is_alone and (call := self._call) and run_calls(self, call, lambda: _realize([(self, self.uop)])):
                return self
            if others or states:
                tensors: list[Any] = [self, *others, *states]
                nodes = {id(t): (t, t.uop) for t in tensors}.values()
                if lazy := [(t, node) for t, node in nodes if _stored(node) is None]:
                    _realize(lazy)
            elif _stored(node := self.uop) is None:
                _realize([(self, node)])
        return self

    @classmethod
    def set_random_state(cls, state: Self, *, device: str | None = None) -> None:
        """Continue from a `random_state`, also in captured functions.

        Raises:
            ShapeError: not a state of two uint32.
        """
        if state.uop.shape != (2,) or state.dtype is not dtypes.uint32:
            raise ShapeError(
                f"set_random_state: {show_shape(state.uop.shape)} {state.dtype.name}. Give the result of "
                "Tensor.random_state(): two uint32."
            )
        cls._go_on(device, state.tolist())
        state.realize()  # together with pending writes

    def _settle(self, node: UOp) -> None:
        """After realizing: keep the memory, and the history only if backward() may need it."""
        storage = node.storage
        is_leaf = self.requires_grad and self._is_leaf()
        if is_leaf or not self.requires_grad:
            real = buffer_node(storage, node.shape)
            # a DETACH, since a reshape of a reshape would leave out the leaf; its buffer alone tells it from others
            if self._put(UOp(Ops.DETACH, self.dtype, (real,), 0) if is_leaf else real, node):
                self._device = storage.device
                if is_leaf:
                    _register(self)
        elif self.uop is node:
            self._device = storage.device

    def numpy(self) -> Array:
        """The values as a NumPy array: a read-only view of the memory where the host can see it, else a copy.

        Raises:
            DTypeError: bfloat16 without the package ml_dtypes.
        """
        return _read_only(self._array())

    def _array(self) -> Array:
        """Return a new view."""
        array = self._on_host()
        if self.dtype is dtypes.bfloat16 and array.dtype.name == dtypes.bfloat16.stored_as:
            try:
                import ml_dtypes
            except ImportError:
                raise DTypeError("numpy: NumPy has no bfloat16. Use .float().numpy(), or install ml_dtypes.") from None
            array = array.view(ml_dtypes.bfloat16)
        return array

    def _on_host(self) -> Array:
        """Return the values on the host in a new view: bfloat16 as uint16."""
        if (call := self._call) is not None:
            self.realize()
            if call.storage is not None:
                return _shaped(download(call), call.table.last.shape)
        while True:
            uop = self.uop
            if (node := _stored(uop)) is None:  # another thread may assign meanwhile
                self.realize()
                continue
            try:
                return _shaped(download(node), uop.shape)
            except DeviceError:
                if self.uop is uop:  # else another thread's replay took this memory over
                    raise

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The memory in NumPy's protocol, read-only. The strides are explicit, so that Pillow calls `tobytes`."""
        array = self.numpy()
        return {**array.__array_interface__, "strides": array.strides}

    @property
    def __array_struct__(self) -> Any:
        """The same for NumPy, which asks for this first."""
        return self.numpy().__array_struct__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        import numpy as np

        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"__array__: {self.dtype.name} as {np.dtype(dtype)} needs a copy.")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call NumPy's function with np.asarray of the tensors; the results are NumPy's."""
        leads_nowhere(function, (args, kwargs), kwargs.get("out"))  # before it is written
        return leads_nowhere(function, (args, kwargs), function(*as_arrays(args), **as_arrays(kwargs)))

    def __array_ufunc__(self, function: Any, call: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's operators leave the work to ours: `array + tensor` is a tensor, `np.exp(tensor)` an array."""
        ours = _OPERATORS.get(function.__name__)
        if ours is not None and call == "__call__" and not options:
            return ours(self._tensor(inputs[0]), inputs[1])
        if call == "at":
            raise DTypeError(  # NumPy would write, though the memory is read-only
                f"np.{function.__name__}.at: NumPy does not write to a tensor. Use x.index_add(axis, index, y), "
                "or give NumPy x.numpy().copy()."
            )
        leads_nowhere(function, (inputs, options), options.get("out"))  # before it is written
        return leads_nowhere(
            function, (inputs, options), getattr(function, call)(*as_arrays(inputs), **as_arrays(options))
        )

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the memory as `numpy()` does, marked as read-only; a copy for callers before DLPack 1. It is not
        changed while a reference exists. Writing to it anyway (PyTorch ignores the mark) changes this tensor, and
        others of the same values.
        """
        import numpy as np

        array = _read_only(self._on_host())
        if max_version is None or max_version < (1, 0) or np.__version__.startswith("2.0."):
            if copy is False:
                raise BufferError(
                    "__dlpack__: without a copy the memory is read-only, which needs DLPack version 1. Pass "
                    "max_version=(1, 0), or allow a copy."
                )
            capsule = array.copy().__dlpack__(stream=stream)
        else:
            capsule = array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        if self.dtype is dtypes.bfloat16:  # which NumPy does not export
            recode(capsule, DLPACK_UINT, DLPACK_BFLOAT)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU: data on other devices is copied to the host

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return (self.float() if self.dtype is dtypes.bfloat16 else self)._array().tolist()

    def item(self) -> float:
        """The value of a tensor with one element.

        Raises:
            ShapeError: another number of elements.
        """
        if self.numel() != 1:
            raise ShapeError(
                f"item: shape {show_shape(self.uop.shape)} has {self.numel()} elements, not one. "
                "Index it, or use tolist()."
            )
        flat = self.reshape(()) if self.ndim > 1 else self  # NumPy has no array of more than 64 axes
        value: float = (flat.float() if self.dtype is dtypes.bfloat16 else flat)._array().item()
        return value

    def allclose(self, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        """True if `isclose` is true everywhere. This computes the tensor."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __round__(self, digits: int = 0) -> Self:
        return self.round(decimals=digits)

    def __index__(self) -> int:
        if not self.dtype.is_int or self.ndim:
            raise DTypeError(
                f"a {self.dtype.name} tensor of shape {show_shape(self.uop.shape)} is not an index: only 0-d int "
                "tensors are."
            )
        return int(self.item())

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ShapeError(
                f"bool(tensor): shape {show_shape(self.uop.shape)} has {self.numel()} truth values. "
                "Use .any() or .all()."
            )
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        """Format like its repr; with a format, such as `{loss:.3f}`, like the value of its one element."""
        return format(self.item(), spec) if spec else repr(self)

    def __len__(self) -> int:
        if not self.ndim:
            raise ShapeError("len(tensor): a 0-d tensor has no length.")
        return self.shape[0]

    def __contains__(self, value: Any) -> bool:
        return bool(self.eq(value).any())

    def __iter__(self) -> Iterator[Self]:
        if not self.ndim:
            raise ShapeError("iter(tensor): a 0-d tensor has no axis to iterate over.")
        return iter(self.unbind(0))

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        is_many = self.ndim > 32  # NumPy 1 has no array of more axes, NumPy 2 none of more than 64
        if not self.is_realized or self.dtype is dtypes.bfloat16 or is_many:
            state = "" if self.is_realized else ", not realized"
            return f"<Tensor {show_shape(self.uop.shape)} {self.dtype.name} on {self.device}{state}{grad}>"
        import numpy as np

        text = np.array2string(self.numpy(), separator=", ", prefix="Tensor(", threshold=100)
        shape = f", shape={self.shape}" if 0 in self.shape and self.ndim > 1 else ""
        return f"Tensor({text}{shape}, dtype={self.dtype.name}{grad})"

    _repr_html_ = tensor_html

    def _set_data(self, _value: Any) -> None:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'data'. Write x.assign(values).")

    data = property(None, _set_data)  # otherwise it would be an ordinary attribute, and the tensor unchanged

    # --- leaves
    def _is_leaf(self) -> bool:
        owner = _leaves.get(self.uop)
        return owner is not None and owner() is self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Make this tensor a leaf that backward() gives a gradient to, or stop that.

        Raises:
            DTypeError: the dtype is not a float.
            GradientError: it was computed from such leaves.
        """
        if not requires_grad and self.requires_grad and not self._is_leaf():
            raise GradientError(
                "requires_grad can be changed on leaf tensors only, and this one was computed from one with "
                "requires_grad. Write x.detach(), or compute it in no_grad()."
            )
        if requires_grad and not self.dtype.is_float:
            raise DTypeError(f"requires_grad: a {self.dtype.name} tensor has no gradient. Use a float dtype.")
        if requires_grad and not self.requires_grad:
            separate(self)  # a leaf is not a view
            # a separate node: equal constants share a node, leaves must not
            self._put(UOp(Ops.DETACH, self.dtype, (self.uop,), next(_leaf_numbers)))
            _register(self)
        elif not requires_grad and self.requires_grad and self.uop.op is Ops.DETACH:
            self._put(self.uop.src[0])  # later results do not depend on the former leaf
        self._requires_grad = bool(requires_grad)
        return self


def _realize(lazy: list[tuple[Any, UOp]]) -> Any:
    """Compute the nodes of tensors, and store their memory: for those that no other thread has changed meanwhile."""
    for _, node in lazy:
        if not {int}.issuperset(map(type, node.shape)):
            raise ShapeError(
                f"realize: a tensor with the symbolic shape {show_shape(node.shape)} cannot be stored. Reduce it, "
                "or write it into a slice of a larger tensor."
            )
    constant = [(t, node) for t, node in lazy if is_shared(node)]
    origin, current_origin.line = current_origin.line, None
    try:
        run = realize([node for _, node in lazy], expressions, given_values())
    finally:
        current_origin.line = origin
    for t, node in lazy:
        t._settle(node)
    for t, node in constant:  # other tensors share the node, not the memory
        if t.uop is node:
            t._put(buffer_node(node.storage, node.shape), node)
    for _, node in constant:  # last: several results may be one node
        node.storage = None
    return run


def _register(leaf: Conversions) -> None:
    with _lock:
        _leaves[leaf.uop] = weakref.ref(leaf)


def _stored(node: UOp) -> UOp | None:
    """Return the node that has these values in memory, row-major, if there is one."""
    while node.storage is None and node.op in (Ops.RESHAPE, Ops.DETACH):
        node = node.src[0]
    return node if node.storage is not None else None


def _shaped(array: Array, shape: tuple[Any, ...]) -> Array:
    """A flat array in a shape.

    Raises:
        ShapeError: NumPy has no array of that shape: it limits the number of axes, and sizes also where one is 0.
    """
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:
        sizes = f"{len(shape)} axes" if len(shape) > 16 else f"shape {show_shape(shape)}"
        raise ShapeError(
            f"numpy: {sizes}: NumPy has no such array ({error}). Reshape the tensor before it is read."
        ) from None


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _updating(sign: str, method: str) -> Callable[[Tensor, Operand], Tensor]:
    """Return an operator such as `+=`: every name of the tensor sees the new values."""

    def update(self: Tensor, other: Operand) -> Tensor:
        result: Tensor = getattr(self, method)(other)
        if result.dtype is not self.dtype:
            raise DTypeError(
                f"{sign}=: the result is {result.dtype.name} and cannot be stored in a {self.dtype.name} tensor. "
                f"Write x = x {sign} y, or cast."
            )
        return self.assign(result)

    update.__name__ = f"__i{method}__"
    return update


@trace_origins
@autocast_calls
@record_calls
@with_other_names
class Tensor(Conversions):
    """A multidimensional array that is computed when it is needed.

    `data` is a number, nested lists, bytes (uint8), a NumPy array or anything with `__array__`; it is copied.
    """

    _roots: tuple[weakref.ref[Tensor], ...] = ()  # of a leaf: losses since an optimizer's last step
    _after_backward: AfterBackward | None = None  # of a leaf: changes new gradients before they are added to `grad`
    _leads_to: frozenset[int] = frozenset()  # leaves that backward() gave gradients to, until a step moved them
    _was_stepped = False  # optimizers have made the steps that its backward() was for

    def __init__(
        self, data: Any, dtype: DTypeLike | None = None, device: str | None = None, *, requires_grad: bool = False
    ) -> None:
        dtype = None if dtype is None else as_dtype(dtype)
        self.grad = None
        self._requires_grad = False
        made = self._of(data, dtype, device, requires_grad)._named()
        self.uop, self._device, self._is_named, self._call = made.uop, made._device, True, None
        keep_track(self)  # last: other threads read every tracked tensor
        if requires_grad:
            self.requires_grad_()

    @classmethod
    def _of(cls, data: Any, dtype: DType | None, device: str | None, is_leaf: bool) -> Self:
        data = as_node(data)
        if isinstance(data, UOp):
            return cls._make(data.cast(dtypes.int64) if data.dtype is dtypes.index else data)
        if isinstance(data, Tensor):
            made = cls._make(constant(data.uop), data._device)
            made = made if dtype is None else made.cast(dtype)
            return made if device is None else made.to(device)
        if isinstance(data, (bool, int, float)) and device is None and not is_leaf:
            own = dtype or as_dtype(type(data))
            if fits(own, data) and (isinstance(data, int) or own.is_float):
                return cls._make(given_const(own, data) if own.is_float else const(own, data))
        try:
            array, dtype = host_array(data, dtype)
        except TypeError:  # PyTorch's bfloat16, which it does not give to NumPy
            if not hasattr(data, "__dlpack__"):
                raise
            return cls._of(cls.from_dlpack(data, copy=True), dtype, device, is_leaf)
        return cls._upload(array, dtype, device)

    # --- changing the box
    def __copy__(self) -> Self:
        """Return a `clone`; of a leaf a separate leaf, without its gradient."""
        if not (self.requires_grad and self._is_leaf()):
            return self.clone()
        return self.detach().clone().requires_grad_()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def assign(self, value: Operand) -> Self:
        """Assign new values of the same shape and dtype; views show them, computed results are unchanged."""
        new = self._stays(value if isinstance(value, Lazy) else self._own(value), "assign")
        self._keeps_history_of(new)
        if broadcast_shapes("assign", self.uop.shape, new.uop.shape) != self.uop.shape:
            raise ShapeError(
                f"assign: a value of shape {show_shape(new.uop.shape)} into a tensor of shape "
                f"{show_shape(self.uop.shape)}. Reshape or reduce the value."
            )
        self._become(self._result(assign(self.uop, expand_whole(new.uop, self.uop.shape)), new))
        return self

    def replace(self, value: Tensor) -> Self:
        """This tensor becomes another of its shape and dtype, without a copy."""
        if value.uop.shape != self.uop.shape or value.dtype is not self.dtype:
            raise ShapeError(
                f"replace: {show_shape(value.uop.shape)} {value.dtype.name} for {show_shape(self.uop.shape)} "
                f"{self.dtype.name}. Use a tensor of the same shape and dtype."
            )
        if not value._is_leaf():
            self._keeps_history_of(value)
        self._become(value)
        return self

    def _keeps_history_of(self, value: Lazy) -> None:
        written = self._link[0].owner() if type(self._link) is tuple else self
        if value._requires_grad and grad_state() and self._requires_grad and written is not None and written._is_leaf():
            raise leaf_written()

    def _become(self, other: Lazy) -> None:
        """Take the values of another tensor; so do the tensor that this is a view of, and all views."""
        if self._link is None:
            self._take(other)
        else:
            write(self, other, no_grad)

    def _take(self, other: Lazy) -> None:
        """Take the node of another tensor; a leaf stays a leaf, and the new value is a constant for it."""
        if self.requires_grad and self._is_leaf():
            node = other.uop  # in no_grad() with a DETACH around it, which a leaf has no need of
            self._put(node.src[0] if node.op is Ops.DETACH and node.src[0].op is Ops.ASSIGN else node)
            self._device = other._device
            if self.uop in _leaves or self.uop.op is not Ops.ASSIGN:
                self._put(UOp(Ops.DETACH, self.dtype, (self.uop,), next(_leaf_numbers)))
            _register(self)
            return
        if self.requires_grad and not grad_state() and not other._requires_grad:
            raise history_lost()
        self._put(apart(other.uop, is_constant=False) if other._is_named and other.dtype.is_float else other.uop)
        self._device, self._requires_grad = other._device, other._requires_grad

    __iadd__, __isub__ = _updating("+", "add"), _updating("-", "sub")
    __imul__, __ipow__ = _updating("*", "mul"), _updating("**", "pow")
    __itruediv__, __ifloordiv__, __imod__ = (
        _updating("/", "div"),
        _updating("//", "floor_divide"),
        _updating("%", "remainder"),
    )
    __iand__, __ior__, __ixor__ = (
        _updating("&", "bitwise_and"),
        _updating("|", "bitwise_or"),
        _updating("^", "bitwise_xor"),
    )
    __ilshift__, __irshift__ = _updating("<<", "bitwise_left_shift"), _updating(">>", "bitwise_right_shift")

    # --- gradients
    def backward(self, gradient: Tensor | None = None) -> None:
        """Add the gradient of this tensor to `grad` of every leaf with requires_grad that it was computed from.

        Raises:
            GradientError: nothing requires a gradient; more than one element and no gradient given.
        """
        if self._was_stepped and not self.requires_grad:
            raise stepped("backward")
        if not self.requires_grad:
            raise depends_on_no_leaf()
        seed = self._seed(gradient, "backward")
        found = self._leaves_below()
        grads = gradient_of(self.uop, seed, found.keys(), leaves=found.keys())
        self._leads_to = frozenset(map(id, found.values()))
        for leaf, part in new_grads(self, found, grads):
            leaf.grad = (part if leaf.grad is None else leaf.grad.add(part))._named()
            roots = [ref for ref in leaf._roots if (root := ref()) is not None and _stored(root.uop) is None]
            leaf._roots = (*roots, weakref.ref(self))

    def _let_go(self, moved: Iterable[Tensor]) -> None:
        """Release the graph of a loss after the steps that used it: it keeps its value, and not the batch."""
        self._leads_to -= set(map(id, moved))
        node = _stored(self.uop)
        if node is not None and not self._leads_to and self.requires_grad and not self._is_leaf():
            self._requires_grad, self._was_stepped = False, True
            self._put(buffer_node(node.storage, self.node_shape))

    def _leaves_below(self) -> dict[UOp, Tensor]:
        with _lock:
            known = {
                node: owner
                for node, ref in _leaves.items()
                if isinstance(owner := ref(), Tensor) and owner.requires_grad
            }
        return {node: known[node] for node in history(self.uop, lambda u: u in known or is_stop(u)) if node in known}

    def _seed(self, given: Tensor | None, call: str) -> UOp:
        if given is not None:
            if given.uop.shape != self.uop.shape:
                raise GradientError(
                    f"{call}: a gradient of shape {show_shape(given.uop.shape)} for a tensor of shape "
                    f"{show_shape(self.uop.shape)}. Give one of the same shape."
                )
            return given.cast(self.dtype).uop
        if self.numel() != 1:
            raise GradientError(
                f"{call}: shape {show_shape(self.uop.shape)} has more than one element. "
                "Reduce it to one, for example with .sum(), or pass gradient=, a tensor of that shape."
            )
        return filled(self.uop, 1.0)

    def gradient(self, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
        """The gradient of this tensor for each target; `grad` of no tensor changes.

        A target is the tensor that is passed: a leaf, a result on the way or a view, with or without `requires_grad`.
        Equal tensors from two calls are two variables. All other tensors are constants.

        Raises:
            GradientError: a target that this tensor was not computed from.
        """
        nodes = [t._nodes() for t in targets]
        flat = {node for own in nodes for node in own}
        grads = gradient_of(self.uop, self._seed(gradient, "gradient"), flat)
        if not grads.keys() >= flat:  # connected only through step functions, such as floor
            below = history(self.uop, lambda u: not u.dtype.is_float or (is_stop(u) and u not in flat))
            grads |= {node: filled(node, 0.0) for node in below if node in flat and node not in grads}
        leads = self.requires_grad and grad_state()
        results: list[Tensor] = []
        for i, (t, own) in enumerate(zip(targets, nodes, strict=True)):
            parts = [grads[node] for node in own if node in grads]
            if not parts:
                raise leads_not(self, i, t)
            total = t._at_home(functools.reduce(operator.add, parts))
            results.append(t._make(total if leads else constant(total), t._device, leads))
        return results

    def _nodes(self) -> list[UOp]:
        """The nodes by which expressions know this tensor: its own, and that which it had before it was realized."""
        former = None if self._former is None else self._former()
        return [self.uop] if former is None else [self.uop, former]
