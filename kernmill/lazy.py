"""class Lazy: the base of every family of Tensor methods: one UOp, its device, whether it requires a gradient.

Promotion, as in PyTorch (`kernmill.ir.promote`), with Python numbers weak:

    tensor with tensor      the smallest type that can represent both; a float beats an int of any width;
                            float16 with bfloat16 is float32; int64 with uint64 is int64 (NumPy: float64)
    int32 with 1            int32; with 1.5: float32 (NumPy: float64)
    float16 with 1 or 1.5   float16
    bool with 1             int64; with 1.5: float32
    uint8 with 300          DTypeError, as NumPy 2 (PyTorch wraps); a comparison with 300 is answered exactly
    0-d tensors             count as any other tensor, as in NumPy 2 (PyTorch lets the others decide)

True division and functions such as exp convert ints to float32.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import reprlib
import sys
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from numbers import Integral, Real
from sys import getrefcount
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from kernmill.ir import (
    DeviceError,
    DType,
    DTypeError,
    DTypeLike,
    Given,
    Op,
    Ops,
    UOp,
    WeakTable,
    apart,
    as_dtype,
    const,
    current_origin,
    dtypes,
    elementwise,
    expand,
    process_lock,
    promote,
    reshape,
    to_dtype,
)
from kernmill.runtime import canonical_name, default_device, device_list, device_names

from .arguments import AnyTensor, name_call, refuse, with_sentences_at_init
from .size import SymbolicSize, as_node, shown
from .synonyms import renamed
from .views import link

if TYPE_CHECKING:
    import numpy as np

    from .deferred import DeferredCall

    Operand: TypeAlias = "Lazy | float | UOp | SymbolicSize | np.ndarray[Any, Any] | np.generic"

__all__ = [
    "REFLECTED", "Lazy", "constant", "device_name", "grad_state", "is_grad_enabled", "is_training", "no_grad",
    "trace_function", "trace_origins", "train",
]  # fmt: skip

_grad_enabled: contextvars.ContextVar[bool] = contextvars.ContextVar("grad_enabled", default=True)
_training: contextvars.ContextVar[bool] = contextvars.ContextVar("training", default=True)


@contextlib.contextmanager
def no_grad() -> Generator[None]:
    """Disable gradients: results made in this block, or in a function it decorates, do not require one."""
    token = _grad_enabled.set(False)
    try:
        yield
    finally:
        _grad_enabled.reset(token)


@contextlib.contextmanager
def train(mode: bool = True) -> Generator[None]:
    """Set the default mode of layers in this block: in `with train(False):` layers on which neither `train()` nor
    `eval()` was called are in eval mode. Otherwise they train: dropout drops, batch norm uses the statistics of
    its batch."""
    token = _training.set(mode)
    try:
        yield
    finally:
        _training.reset(token)


grad_state, training_state = _grad_enabled.get, _training.get  # the bound methods, for checks at each call


def is_grad_enabled() -> bool:
    """Return True if results are recorded for gradients here."""
    return _grad_enabled.get()


def is_training() -> bool:
    """Return True if layers train here: always, except in `with train(False):`."""
    return _training.get()


_canonical = functools.cache(canonical_name)  # resolving part of a device's name searches all available ones

_DEVICES: Mapping[str, str] = {  # another library's name: the replacement here
    "CPU": "the CPU device is named LLVM: write 'LLVM', or omit the device.",
    "OPENCL": "the OpenCL device is named CL: write 'CL'.",
    **dict.fromkeys(("GPU", "HIP", "MPS", "XPU"), "GPUs are used through OpenCL, device CL: write 'CL'."),
    **{dtype.name.upper(): f"that is a dtype: write x.cast({dtype.name!r})." for dtype in dtypes.data},
}  # fmt: skip


def device_name(name: str | None) -> str:
    """Return the canonical device name (`canonical_name`); None gives the default device.

    Raises:
        DeviceError: an unknown name, another library's device name, or the name of a dtype.
    """
    if name is None:
        return default_device()
    if "?" in name:
        return _canonical(name)
    text = name.upper()
    kind = text.partition(":")[0]
    if kind in _DEVICES and kind not in device_names():
        raise DeviceError(f"device {name!r}: {_DEVICES[kind]} `kernmill info` lists the devices.")
    return _canonical(text) if ":" in text else text


_BEYOND = 1 << 1024  # no float is as large


def fits(dtype: DType, value: object) -> bool:
    """True if a number is in the range of a dtype: floats take every float, and ints up to the largest one."""
    if dtype.is_int:
        return not isinstance(value, (int, float)) or bool(dtype.min <= value <= dtype.max)
    return not isinstance(value, int) or -_BEYOND < value < _BEYOND


def weak(dtype: DType, value: float) -> DType:
    """The dtype of a tensor of `dtype` combined with a Python number."""
    if isinstance(value, bool) or dtype.is_float:
        return dtype
    if isinstance(value, int):
        return dtypes.default_int if dtype.is_bool else dtype
    return dtypes.default_float


def accumulator(dtype: DType) -> DType:
    """Return the dtype of the accumulator of sums: float32 for half types, else the dtype itself."""
    return dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype


KNOWN: WeakTable[UOp, tuple[Any, Callable[[UOp, Any, UOp], Any]]] = WeakTable()
"""Nodes of which more is known than the rules of their ops say: a node below, and a rule for its gradient, which takes
the node, the node below and the gradient of the node. Of several nodes below, in a tuple, the rule returns as many
gradients. No rule holds a tensor: tensors are alive as long as somebody has them; and none holds a node of this table,
which would never be released."""

REFLECTED: dict[type, Callable[[Any], Any]] = {}
"""Types of operands that are wider than any tensor, such as complex numbers: a function makes the tensor, of another
class, that the operator is called with instead."""

SEALED: weakref.WeakSet[UOp] = weakref.WeakSet()
"""Nodes of `KNOWN` whose gradient is given by their rule alone: for `history` the nodes below are their sources."""


def sources_of(node: UOp) -> tuple[UOp, ...]:
    """Return the nodes that a gradient flows to from a node: of a sealed one those that its rule names."""
    if node in SEALED and (known := KNOWN.get(node)) is not None:
        return known[0] if isinstance(known[0], tuple) else (known[0],)
    return node.src


def history(root: UOp, stop: Callable[[UOp], bool] | None = None) -> list[UOp]:
    """As `root.toposort(stop)`, along the sources of gradients (`sources_of`)."""
    if not SEALED:
        return root.toposort(stop)
    order: dict[UOp, None] = {}
    waiting = [(root, iter(() if stop is not None and stop(root) else sources_of(root)))]
    while waiting:
        node, sources = waiting[-1]
        below = next((s for s in sources if s not in order), None)
        if below is None:
            order[node] = None
            waiting.pop()
        else:
            waiting.append((below, iter(() if stop is not None and stop(below) else sources_of(below))))
    return list(order)


_tracing: contextvars.ContextVar[int] = contextvars.ContextVar("tracing", default=0)
tracing_state = _tracing.get


@contextlib.contextmanager
def tracing() -> Generator[None]:
    """In this block tensors may have no values: captured functions run as plain ones."""
    token = _tracing.set(_tracing.get() + 1)
    try:
        yield
    finally:
        _tracing.reset(token)


# In order of creation: the results of a graph are listed in it, and a plan on disk is found by the same list.
_alive: dict[weakref.ref[Lazy], None] = {}
_track = _alive.setdefault  # functions of C: they run for every tensor
_forget: Callable[[weakref.ref[Any]], Any] = _alive.pop


def keep_track(tensor: Lazy) -> None:
    _track(weakref.ref(tensor, _forget))


def tracked_tensors() -> list[tuple[weakref.ref[Lazy], Lazy]]:
    """Return every live tensor, with its weak reference."""
    found = [(ref, tensor) for ref in list(_alive) if (tensor := ref()) is not None]
    for _, tensor in found:
        if tensor._call is not None:
            _ = tensor.uop
    return found


def expressions() -> list[UOp]:
    """Return the nodes of all live tensors: an assignment must keep them readable. Stale views have none."""
    return [node for _, tensor in tracked_tensors() if (node := tensor.__dict__.get("uop")) is not None]


def changes() -> int:
    """A number that is another one after each time that a tensor was given another node."""
    return _changes


_DETACH = Ops.DETACH  # to find it in the enum takes longer than to compare it
_ALONE = 2  # references to a node of one tensor only: the tensor's, and that of the counting call
_numbers = itertools.count(1)  # no number comes twice, also where threads change tensors at once
_changes = 0
_putting = process_lock()  # finalizers of a garbage collection may put, too


class Lazy(AnyTensor):
    """A box around one UOp. The box can be given another node; a node never changes."""

    uop: UOp
    _requires_grad: bool
    grad: Self | None
    _device: str | None  # None: constants only, valid on every device
    _link: Any = None  # views.py: of a view, or of a tensor that has views
    _pin: UOp | None = None  # of a tensor that has views: its node
    _owner: Lazy | None = None  # of a view whose node must be rebuilt
    _path = ""  # its name as a parameter of a module
    _is_named = False  # True if a user has a reference: then its node is not shared
    _call: DeferredCall | None = None  # without a node: the call that it is the result of (deferred.py)
    _former: weakref.ref[UOp] | None = None  # the node that a realized tensor had: expressions of it may be alive

    @classmethod
    def _make(cls, uop: UOp, device: str | None = None, requires_grad: bool = False) -> Self:
        """A tensor around a node."""
        new = object.__new__(cls)
        new.uop, new._requires_grad, new.grad, new._device = uop, requires_grad, None, device
        _track(weakref.ref(new, _forget))  # as `keep_track`
        return new

    @classmethod
    def _of_call(cls, call: DeferredCall, device: str, requires_grad: bool) -> Self:
        """A tensor whose node is made when it is read."""
        new = object.__new__(cls)
        new._call, new._is_named = call, True
        new._requires_grad, new.grad, new._device = requires_grad, None, device
        _track(weakref.ref(new, _forget))  # as `keep_track`
        return new

    @property
    def requires_grad(self) -> bool:
        """True if this tensor is a leaf that backward() gives a gradient to, or was computed from one. Setting it is
        `requires_grad_`."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Make this tensor a leaf that backward() gives a gradient to, or stop that."""
        raise NotImplementedError

    @classmethod
    def _from_host(cls, value: Any, device: str | None = None) -> Self:
        """A tensor of NumPy data. Tensor says how."""
        raise NotImplementedError

    def _take(self, other: Lazy) -> None:
        """Take the node of another tensor. Tensor says how."""
        raise NotImplementedError

    def _settle(self, node: UOp) -> None:
        """Keep the memory of a node that was computed. Tensor says how."""
        raise NotImplementedError

    def _put(self, node: UOp, instead_of: UOp | None = None) -> bool:
        """Replace the node of this tensor, and count the change for code that caches the old one.

        With `instead_of` only if that is still its node, since threads may share tensors; return True if it was.
        """
        global _changes
        with _putting:
            if instead_of is not None and self.uop is not instead_of:
                return False
            before = self.uop
            self.uop = node
            _note_name(node)
            self._former = weakref.ref(before) if instead_of is not None and before.src else None
            _changes = next(_numbers)
        del before  # not under the lock: a graph may go with it
        return True

    def _named(self) -> Self:
        """This tensor as a user gets it: no other tensor and no equal expression has its node.

        `gradient` finds a tensor by its node, and two tensors from equal calls are two variables.
        """
        if self._is_named:
            return self
        self._is_named = True
        if self.uop.dtype.is_float:
            is_constant = not grad_state()
            # plans have nodes of constants: the graph must not depend on which other constants are alive
            is_fresh = self._device is not None or self.uop.op is _DETACH
            if is_fresh and getrefcount(self.uop) == _ALONE:
                self.uop.own = 2 if is_constant else 1
            else:
                self.uop = apart(self.uop, is_constant)
        elif self.uop.was_named:
            self.uop.was_named = 2  # an expression that is written again, such as a mask
        _note_name(self.uop)
        return self

    # --- properties
    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis; one that is known at each call only is a SymbolicSize."""
        if (call := self._call) is not None:
            return call.table.last.shape
        return tuple([shown(size) for size in self.uop.shape])

    @property
    def node_shape(self) -> tuple[int, ...]:
        """`shape` as methods need it: a size that is known at each call only is a UOp, which they may not decide by."""
        if (call := self._call) is not None:
            return call.table.last.shape
        return self.uop.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self.uop.dtype if (call := self._call) is None else call.table.last.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.node_shape)

    @property
    def device(self) -> str:
        """The device of the data, now or when realized: constants go to the default device."""
        return self._device or device_name(None)

    # --- making results
    def _result(self, uop: UOp, *others: Lazy) -> Self:
        """A tensor computed from this one and others."""
        if not others:
            if not self._requires_grad:
                return self._make(uop, self._device)
            leads = uop.dtype.is_float and grad_state()
            return self._make(uop if leads else constant(uop), self._device, leads)
        device, requires_grad = self._device, self._requires_grad
        for other in others:
            requires_grad = requires_grad or other._requires_grad
            if other._device is not None and other._device != device:
                if device is not None:
                    if len(device_list()) > 1:
                        continue  # placement chooses, and copies
                    raise DeviceError(
                        f"{uop.op.name.lower()}: tensors on {device} and {other._device}. "
                        f"Move one side, for example with .to({device!r})."
                    )
                device = other._device
        if requires_grad and not (uop.dtype.is_float and grad_state()):
            return self._make(constant(uop), device)
        return self._make(uop, device, requires_grad)

    def _tensor(self, value: Operand) -> Self:
        """Return an operand as a tensor; Python numbers take this tensor's dtype if it can represent them."""
        if isinstance(value, Lazy):
            return value  # type: ignore[return-value]
        if isinstance(value, (bool, int, float)):
            return self._make(checked_const(weak(self.dtype, value), value, self.dtype))
        if isinstance(value, (UOp, SymbolicSize)):
            return self._make(as_node(value).cast(weak(self.dtype, 1)))
        if type(value) in REFLECTED:
            raise DTypeError(
                f"{type(self).__name__} with {type(value).__name__}: a Tensor is real. Use an operator, or wrap it in "
                "kernmill.ComplexTensor(..)."
            )
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return self._from_host(value, self._device)  # host data are not on a device yet
        raise DTypeError(
            f"{type(self).__name__} with {type(value).__name__}: operands are tensors, Python numbers and NumPy arrays."
            " Wrap it in Tensor(..)."
        )

    @staticmethod
    def _are_tensors(values: Sequence[object], call: str, instead: str) -> None:
        """Raise DTypeError if a method was called like a function: with a list, or a string first."""
        for value in values:
            if not isinstance(value, Lazy):
                raise DTypeError(f"Tensor.{call}: {type(value).__name__} is not a tensor. Write kernmill.{instead}.")

    def _own(self, value: Operand) -> Self:
        """A value that is put into this tensor, in its dtype.

        Raises:
            DTypeError: a Python number that the dtype does not hold.
        """
        if self.dtype.is_int and isinstance(value, Real) and not isinstance(value, Integral):  # NumPy's too
            return self._make(checked_const(self.dtype, float(value), self.dtype))
        return self._tensor(value).cast(self.dtype)

    def _join(self, *values: Operand) -> list[Self]:
        """This tensor and the operands in their common dtype."""
        if len(values) == 1 and isinstance(values[0], (bool, int, float)):
            dtype = weak(self.uop.dtype, values[0])
            return [self._as(dtype), self._make(checked_const(dtype, values[0], dtype))]
        tensors = [self, *(self._tensor(v) for v in values)]
        strong = [t.uop.dtype for t, v in zip(tensors, (self, *values), strict=True) if not _is_weak(v)]
        dtype = functools.reduce(promote, strong)
        for value in values:
            if isinstance(value, (bool, int, float)):
                dtype = weak(dtype, value)
        return [
            self._make(checked_const(dtype, v, dtype)) if isinstance(v, (bool, int, float)) else t._as(dtype)
            for t, v in zip(tensors, (self, *values), strict=True)
        ]

    def _view(self, *changes: tuple[Callable[[UOp, Any], UOp], Any]) -> Self:
        """A tensor that shows elements of this one, by these changes of its node: a write to either changes both."""
        node = self.uop
        for change, argument in changes:
            node = change(node, argument)
        new = self._result(node)
        link(new, self, changes)
        return new

    def _at_home(self, node: UOp) -> UOp:
        """A node of a graph over several devices, brought to this tensor's device: the gradient of a parameter."""
        return (
            node
            if self._device is None or len(device_list()) == 1
            else UOp(Ops.COPY, node.dtype, (node,), self._device)
        )

    def _own_box(self) -> Self:
        """Return the same values in a new tensor: a method never returns one of its arguments."""
        return self._result(self.uop)

    def _apply(self, op: Op, *others: Self) -> Self:
        """An elementwise op on tensors of one dtype."""
        node, nodes = self.uop, [other.uop for other in others]
        shape, dtype = node.shape, node.dtype
        for other in nodes:
            if other.dtype is not dtype or other.shape != shape:
                return self._result(elementwise(op, node, *nodes), *others)
        return self._result(node.alu(op, *nodes), *others)

    def _binary(self, op: Op, other: Operand, reverse: bool = False) -> Self:
        own = self.uop.dtype
        if isinstance(other, (bool, int, float)):  # the common cases, without the detour
            dtype = weak(own, other)
            number, a = checked_const(dtype, other, dtype), self._as(dtype)
            return a._result(number.alu(op, a.uop) if reverse else a.uop.alu(op, number))
        if isinstance(other, Lazy) and other.uop.dtype is own:
            a, b = self, self._tensor(other)
        else:
            a, b = self._join(other)
        return b._apply(op, a) if reverse else a._apply(op, b)

    def _filled(self, value: float) -> Self:
        """A constant of this tensor's shape and dtype."""
        node = reshape(const(self.dtype, value), (1,) * self.ndim)
        return self._make(expand(node, self.uop.shape))

    def _floating(self) -> Self:
        """Ints and bools as float32."""
        return self if self.uop.dtype.is_float else self._as(dtypes.default_float)

    def cast(self, dtype: DTypeLike) -> Self:
        """Convert the values to another dtype: floats truncate to ints, ints wrap, floats round to nearest even.

        A float out of range of the int dtype, but in range of int32 (int64 for ints of 64 bits), wraps: -1.0 in uint32
        is 2**32 - 1. A float out of range of both, and nan, give the least value of that one, wrapped, on x86 and on
        PYTHON.
        """
        return self._as(as_dtype(dtype))

    def _as(self, dtype: DType) -> Self:
        return self if dtype is self.uop.dtype else self._result(self.uop.cast(dtype))

    def _select(self, yes: Self, no: Self) -> Self:
        """This bool tensor chooses between tensors of one dtype."""
        node, a, b = self.uop, yes.uop, no.uop
        if a.shape == b.shape == node.shape and a.dtype is b.dtype:  # nothing to broadcast
            return self._result(node.alu(Ops.WHERE, a, b), yes, no)
        return self._result(elementwise(Ops.WHERE, node, a, b), yes, no)


def constant(node: UOp) -> UOp:
    """Return a node without gradient for one with it: for results of no_grad() and gradients of backward()."""
    return UOp(Ops.DETACH, node.dtype, (node,)) if node.dtype.is_float else node


def is_shared(node: UOp) -> bool:
    """True if the expression consists of constants only: then all tensors of the same value share the node."""
    for s in node.src:
        if s.storage is not None:
            return False
    seen, stack = {node}, [node]
    while stack:  # until the first leaf that is data: called for every tensor that a large graph writes
        u = stack.pop()
        if u.storage is not None or u.op in (Ops.BUFFER, Ops.DETACH):
            return False
        for s in u.src[::-1]:  # the first one first: data, nearly always
            if s not in seen:
                seen.add(s)
                stack.append(s)
    return True


def _is_weak(value: object) -> bool:
    return isinstance(value, (bool, int, float, UOp, SymbolicSize))


def checked_const(dtype: DType, value: float, asked: DType) -> UOp:
    """A constant of the dtype.

    Raises:
        DTypeError: a number outside the range of the dtype.
    """
    if not fits(dtype, value):
        raise DTypeError(
            f"{reprlib.repr(value)} does not fit {asked.name} ({dtype.min} to {dtype.max}). "
            f"Cast the tensor to a {'float' if isinstance(value, float) else 'wider'} dtype first."
        )
    node = const(dtype, value)
    for given in current_origin.given:
        if given is value and dtype.is_float:
            return given_const(dtype, value)
    return node


def given_const(dtype: DType, value: float) -> UOp:
    """Make the constant of a float that the user gives: kernels take it as an argument."""
    return UOp(Ops.CONST, dtype, (), Given(to_dtype(dtype, value)))


# --- provenance: each node remembers the user's line -----------------------------------------------------------------
_HERE = os.path.dirname(os.path.realpath(__file__))
OURS = (_HERE, *(os.path.join(os.path.dirname(_HERE), name) for name in ("ir", "compiler", "renderers", "runtime")))
_PLACES = tuple(os.path.join(_HERE, name) for name in ("llm", "quant", "onnx", "commands"))
_known: dict[str, bool] = {}

Method = TypeVar("Method", bound=Callable[..., Any])


def _is_ours(name: str) -> bool:
    """True if a file is one of kernmill's."""
    ours = _known.get(name)
    if ours is None:
        ours = _known[name] = name.startswith((*OURS, "<frozen", contextlib.__file__))
    return ours


def user_line() -> str:
    """`file:line` of the first frame outside kernmill, with the layer that is called now."""
    frame = sys._getframe(2)
    while True:
        name = frame.f_code.co_filename
        if frame.f_back is None and (_is_ours(name) or os.path.basename(name).startswith("kernmill")):
            return f"{_line_of_command() or f'{name}:{frame.f_lineno}'}{current_origin.suffix}"
        if not _is_ours(name) or frame.f_back is None:
            return f"{name}:{frame.f_lineno}{current_origin.suffix}"
        frame = frame.f_back


def _line_of_command() -> str:
    """`file:line` of the first frame in a model of kernmill's, else in a command: these have no line of a user."""
    for places in (_PLACES[:1], _PLACES[1:]):
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(places):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
    return ""


def _reflected(name: str, args: tuple[Any, ...]) -> Any:
    """The result of an operator by the class of its second operand, or NotImplemented."""
    wide = REFLECTED.get(type(args[1])) if len(args) == 2 and name in _OPERATORS and name[2] != "i" else None
    if wide is None or not hasattr(other := wide(args[0]), name):
        return NotImplemented
    return getattr(other, name)(args[1])


def _traced(method: Method, name: str) -> Method:
    outermost = getattr(method, "deferring", method)

    @functools.wraps(method)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if current_origin.line is not None:
            return method(*args, **kwargs)
        current_origin.line = user_line()
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, float):
                if not _is_ours(sys._getframe(1).f_code.co_filename):  # numbers of our own methods are unchanged
                    current_origin.given = (*args, *kwargs.values())
                break
        try:
            result = outermost(*args, **kwargs)
            if isinstance(result, Lazy):
                if not result._is_named and not (args and result is args[0]):
                    result._named()
            elif isinstance(result, (tuple, list)) and result and isinstance(result[0], Lazy):
                for one in result:
                    one._named()
            return result
        except Exception as error:
            if (found := _reflected(name, args)) is not NotImplemented:
                return found
            own = renamed(method, args, kwargs) if kwargs and isinstance(error, TypeError) else None
            if own is None:
                refuse(error, method, args, kwargs)
                name_call(error, method.__name__)
                raise
        finally:
            current_origin.line = None
            if current_origin.given:
                current_origin.given = ()
        return traced(*own[0], **own[1])

    traced.is_traced = True  # type: ignore[attr-defined]
    return traced  # type: ignore[return-value]


def _note_name(node: UOp) -> None:
    """Note that a user's tensor has this node, and the one below a reshape, which another reshape leaves out."""
    node.was_named = node.was_named or 1
    while node.op is Ops.RESHAPE and not node.own:
        node = node.src[0]
        node.was_named = node.was_named or 1


def trace_function(function: Method) -> Method:
    """Decorate a public function of tensors: like a method of `trace_origins`."""
    return _traced(function, function.__name__)


Class = TypeVar("Class", bound=type)


def trace_origins(cls: Class) -> Class:
    """Class decorator: nodes that a public method or operator makes carry the line that called it."""
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] != "kernmill":
            continue
        for name, member in list(vars(base).items()):
            if (name.startswith("_") and name not in _OPERATORS) or name in _READERS:
                continue
            inner = getattr(member, "__func__", member)
            if not callable(inner) or isinstance(inner, type) or hasattr(inner, "is_traced"):
                continue
            if hasattr(inner, "__code__"):  # Python's errors for wrong arguments use the class that users know
                inner.__qualname__ = f"{cls.__name__}.{inner.__name__}"
                inner.__module__ = cls.__module__  # where pickle finds it: Tensor.relu is a layer of models
            wrapped = _traced(inner, name)
            wrapped.__qualname__ = f"{cls.__name__}.{name}"  # an alias has its own name
            if isinstance(member, (classmethod, staticmethod)):
                setattr(base, name, type(member)(wrapped))
            elif isinstance(member, type(trace_origins)):
                setattr(base, name, wrapped)
    with_sentences_at_init(cls)
    return cls


_READERS = frozenset({"numpy"})  # make no nodes but by realize(); to find the line takes 40 us when caches have lost it
_NAMES = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift neg abs invert lt le gt ge eq ne"
_OPERATORS = frozenset(
    f"__{prefix}{name}__" for name in [*_NAMES.split(), "getitem", "setitem"] for prefix in ("", "r", "i")
)
