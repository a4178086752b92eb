"""Pickles as data: plain containers and arrays, without running any code of the file.

An interpreter of the opcodes with a fixed table of names. Every other name in a file gives an `Unknown`, and the names
of all of them are in one error. Memory and time are proportional to the bytes of the pickle.

Source: docs.python.org/3/library/pickletools.html; pytorch.org, torch/_utils.py (arguments of `_rebuild_tensor_v2`).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernmill.ir import DType, FormatError, dtypes

from .quoting import quoted

__all__ = ["Storage", "StoredTensor", "decode", "mapped_tree"]

_MARK_OPS = ("TUPLE", "LIST", "DICT", "FROZENSET", "APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK", "INST", "OBJ")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {  # opcodes that are followed by a value
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
    *("SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set}
_FREE_COPIES = 1 << 16  # elements that calls may copy in addition to 4 for each byte
_MOST_DEPTH = 200  # containers in containers
_MOST_KEY = 1 << 60  # larger ints could be chosen so that a dict becomes slow

_DTYPES: dict[str, DType] = {
    "bool": dtypes.bool, "int8": dtypes.int8, "int16": dtypes.int16, "int32": dtypes.int32, "int64": dtypes.int64,
    "uint8": dtypes.uint8, "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64,
    "float16": dtypes.float16, "bfloat16": dtypes.bfloat16, "float32": dtypes.float32, "float64": dtypes.float64,
}  # fmt: skip
_OTHER_DTYPES = {  # bytes of an element
    "complex32": 4, "complex64": 8, "complex128": 16, "qint8": 1, "quint8": 1, "qint32": 4, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
_STORAGES = {
    "Bool": "bool", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Byte": "uint8",
    "Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32",
}  # fmt: skip


@dataclass(frozen=True)
class TorchDType:
    """A dtype by PyTorch's name; `dtype` is None if kernmill has none."""

    name: str
    dtype: DType | None
    size_bytes: int

    @staticmethod
    def named(name: str) -> TorchDType:
        """The dtype of that name."""
        dtype = _DTYPES.get(name)
        return TorchDType(name, dtype, dtype.size_bytes if dtype else _OTHER_DTYPES.get(name, 0))


@dataclass(frozen=True)
class Storage:
    """Elements in the file under a key. Untyped storages have bytes as elements."""

    key: str
    kind: TorchDType
    numel: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor over a storage, or over bytes of the pickle itself; offset and strides are in elements."""

    source: Storage | bytes
    kind: TorchDType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class DamagedPickleError(Exception):
    """The pickle contradicts itself."""


@dataclass(frozen=True)
class _Name:
    """A class or function that a pickle names, with its meaning here."""

    name: str
    call: Callable[..., Any] | None  # None for an unknown one
    value: Any = None  # of a name that is used without a call: a dtype, the type of a storage


class _Unknown:
    """The result of calling an unknown name."""


class _Array:
    """An array of NumPy that BUILD fills."""

    found: StoredTensor | None = None


class _ArrayType:
    """A dtype of NumPy that BUILD gives its byte order."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "<"


def decode(stream: Any, where: str, storage: Callable[[Any], Any] | None = None) -> Any:
    """Decode one pickle from a file object, which is left at its end.

    Dicts, lists, tuples, sets, numbers, strings and bytes are themselves; `mapped_tree` replaces tensors and arrays.
    `storage` decodes a persistent id.

    Raises:
        FormatError: the pickle is damaged, or names unknown classes or functions.
    """
    unknown = set[str]()
    machine = _Machine(storage, unknown)
    try:
        result = machine.run(stream)
    except DamagedPickleError as error:
        raise FormatError(f"{where}: the pickle is damaged: {error}. Fetch the file again.") from None
    except FormatError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{where}: the pickle is damaged: {quoted(str(error))}. Fetch the file again.") from None
    if unknown:
        shown = ", ".join(quoted(name)[1:-1] for name in sorted(unknown)[:8])
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        raise FormatError(
            f"{where}: it holds objects of {shown}{more}, and kernmill runs no code of a file. Save tensors in plain "
            "containers: torch.save(model.state_dict(), path)."
        )
    return result


class _Machine:
    """The stack, the memo, and the names of one pickle."""

    def __init__(self, storage: Callable[[Any], Any] | None, unknown: set[str]) -> None:
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storage, self.unknown = storage, unknown
        self.copied = 0  # elements that calls have copied

    def run(self, stream: Any) -> Any:
        """Return the object that the opcodes make."""
        for opcode, argument, position in pickletools.genops(stream):
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name in _MARK_OPS:
                self._with_mark(name, argument)
            elif not self._push(name, argument) and not self._with_memo(name, argument):
                self._without_mark(name, argument)
            if self.copied > 4 * (position or 0) + _FREE_COPIES:
                raise DamagedPickleError("its calls copy the same elements again and again")
        raise DamagedPickleError("it has no end")

    def _push(self, name: str, argument: Any) -> bool:
        """Push a constant or an empty container."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name.endswith(("BYTES", "BYTES8", "BYTEARRAY8")):
            self.stack.append(bytes(argument))
        elif name in _VALUES:
            self.stack.append(argument)
        else:
            return False
        return True

    def _with_memo(self, name: str, argument: Any) -> bool:
        if name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name.endswith("PUT"):
            self.memo[argument] = self.stack[-1]
        elif name.endswith("GET"):
            self.stack.append(self.memo[argument])
        else:
            return False
        return True

    def _without_mark(self, name: str, argument: Any) -> None:  # opcodes without a mark
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name == "MARK":
            self.outer.append(stack)
            self.stack = []
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])] if len(stack) >= count else _damaged("an empty stack")
        elif name == "APPEND":
            value = stack.pop()
            _of(list, stack[-1]).append(value)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _update(stack[-1], [(key, value)])
        elif name == "POP":
            stack.pop() if stack else self._pop_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "GLOBAL":
            stack.append(self._looked_up(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(self._looked_up(_of(str, module), _of(str, attribute)))
        else:
            self._call_step(name, argument)

    def _call_step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._result_of(function, _of(tuple, arguments)))
        elif name == "NEWOBJ_EX":
            named, arguments, function = stack.pop(), stack.pop(), stack.pop()
            _of(dict, named)
            stack.append(self._result_of(function, _of(tuple, arguments)) if not named else self._refused(function))
        elif name == "BUILD":
            state = stack.pop()
            self.copied += _lengths(state) if isinstance(state, tuple) else 0
            _fill(stack[-1], state)
        elif name in ("BINPERSID", "PERSID"):
            if self.storage is None:
                raise DamagedPickleError("it refers to storages, and there are none")
            stack.append(self.storage(stack.pop() if name == "BINPERSID" else argument))
        else:
            raise DamagedPickleError(f"the opcode {name} is not supported")

    def _pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    def _with_mark(self, name: str, argument: Any) -> None:
        items = self._pop_mark()
        stack = self.stack
        if name == "TUPLE":
            stack.append(tuple(items))
        elif name == "LIST":
            stack.append(items)
        elif name == "DICT":
            stack.append(_update({}, zip(items[::2], items[1::2], strict=True)))
        elif name == "FROZENSET":
            stack.append(frozenset(map(_checked_key, items)))
        elif name == "APPENDS":
            _of(list, stack[-1]).extend(items)
        elif name == "SETITEMS":
            _update(stack[-1], zip(items[::2], items[1::2], strict=True))
        elif name == "ADDITEMS":
            _of(set, stack[-1]).update(map(_checked_key, items))
        elif name == "INST":
            stack.append(self._result_of(self._looked_up(*argument.split(" ", 1)), tuple(items)))
        elif name == "OBJ":
            stack.append(self._result_of(items[0], tuple(items[1:])))

    def _looked_up(self, module: str, attribute: str) -> _Name:
        """Look a name up in the tables."""
        name = f"{module}.{attribute}"
        if module == "torch" and (attribute in _DTYPES or attribute in _OTHER_DTYPES):
            return _Name(name, None, TorchDType.named(attribute))
        if module in ("torch", "torch.cuda") and attribute.removesuffix("Storage") in _STORAGES:
            return _Name(name, None, TorchDType.named(_STORAGES[attribute.removesuffix("Storage")]))
        if name in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
            return _Name(name, None, TorchDType.named("uint8"))
        return _Name(name, _CALLS.get(name))

    def _result_of(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        if isinstance(function, _Unknown):
            return function
        if not isinstance(function, _Name):
            raise DamagedPickleError(f"it calls {type(function).__name__}")
        if function.name == "torch._tensor._rebuild_from_type_v2":  # a subclass: its name is checked, its state unused
            inner, kind, given, _ = arguments
            known = isinstance(kind, _Name) and kind.name in _TENSOR_CLASSES
            return self._result_of(inner, _of(tuple, given)) if known else self._refused(kind)
        if function.call is None:
            return self._refused(function)
        self.copied += _lengths(arguments)
        return function.call(*arguments)

    def _refused(self, function: Any) -> _Unknown:
        self.unknown.add(function.name if isinstance(function, _Name) else type(function).__name__)
        return _Unknown()


def _damaged(text: str) -> Any:
    raise DamagedPickleError(text)


def _lengths(values: tuple[Any, ...]) -> int:
    return sum(len(v) for v in values if isinstance(v, (str, bytes, list, tuple, dict, set)))


def _of(kind: type, value: Any) -> Any:
    """Check the type of an operand."""
    if type(value) is not kind:
        raise DamagedPickleError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _checked_key(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, float)) or (isinstance(value, int) and abs(value) < _MOST_KEY):
        return value
    raise DamagedPickleError(f"a key is of type {type(value).__name__}, not a string or a number")


def _update(target: Any, pairs: Any) -> Any:
    if not isinstance(target, _Unknown):
        _of(dict, target).update((_checked_key(key), value) for key, value in pairs)
    return target


# --- names that are known --------------------------------------------------------------------------------------------
def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    found = dict[Any, Any]()
    _update(found, pairs.items() if type(pairs) is dict else [_of_two(pair) for pair in pairs])
    return found


def _of_two(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise DamagedPickleError("a pair does not have two parts")
    return pair[0], pair[1]


def _as_sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or not all(type(v) is int and 0 <= v < 1 << 62 for v in values):
        raise DamagedPickleError("a shape or strides are not integers of at least 0")
    return tuple(values)


def _tensor_v2(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> StoredTensor:
    found: Storage = _of(Storage, storage)
    (start,) = _as_sizes((offset,))
    return StoredTensor(found, found.kind, _as_sizes(shape), _as_sizes(strides), start)


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any,
               *_: Any) -> StoredTensor:  # fmt: skip
    kind: TorchDType = _of(TorchDType, _of(_Name, dtype).value)
    (start,) = _as_sizes((offset,))
    return StoredTensor(_of(Storage, storage), kind, _as_sizes(shape), _as_sizes(strides), start)


def _same(data: Any, *_: Any) -> Any:
    return data


def _device_name(kind: Any, index: Any = None) -> str:
    return _of(str, kind) if index is None else f"{_of(str, kind)}:{_of(int, index)}"


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:  # as pickles of protocol 2 write bytes
    if encoding not in ("latin1", "latin-1"):
        raise DamagedPickleError(f"bytes in the encoding {quoted(encoding)}")
    return str(_of(str, text)).encode("latin-1")


def _numpy_scalar(kind: Any, data: Any) -> Any:
    import numpy as np

    dtype = _numpy_type(kind)
    raw = _encoded(data) if isinstance(data, str) else _of(bytes, data)
    return np.frombuffer(raw, dtype, 1)[0].item()


def _numpy_type(kind: Any) -> Any:
    import numpy as np

    return np.dtype(_of(_ArrayType, kind).code).newbyteorder(kind.order)


def _new_type(code: Any, *_: Any) -> _ArrayType:
    if _of(str, code)[:1] not in "biuf" or not code[1:].isdigit() or int(code[1:]) not in (1, 2, 4, 8):
        raise DamagedPickleError(f"arrays of NumPy's type {quoted(code)} are not supported")
    return _ArrayType(code)


def _fill(target: Any, state: Any) -> None:
    """BUILD: dtypes and arrays of NumPy; attributes of other objects are not kept."""
    if isinstance(target, _ArrayType):
        target.order = state[1] if state[1] in ("<", ">", "|") else _damaged("an unknown byte order")
    elif isinstance(target, _Array):
        _, shape, kind, is_fortran, data = state
        target.found = _stored_array(data, kind, shape, "F" if is_fortran else "C")


def _stored_array(data: Any, kind: Any, shape: Any, order: Any) -> StoredTensor:
    dtype = _numpy_type(kind)
    if dtype.byteorder == ">":
        raise DamagedPickleError("arrays of big-endian numbers are not supported")
    raw = _encoded(data) if isinstance(data, str) else _of(bytes, data)
    sizes = _as_sizes(shape)
    steps, step = list[int](), 1
    for size in sizes if order == "F" else reversed(sizes):
        steps.append(step)
        step *= size
    return StoredTensor(raw, TorchDType.named(dtype.name), sizes, tuple(steps if order == "F" else reversed(steps)), 0)


_TENSOR_CLASSES = ("torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
_CALLS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_tensor": _tensor_v2,
    "torch._utils._rebuild_parameter": _same,
    "torch._utils._rebuild_parameter_with_state": _same,
    "torch._tensor._rebuild_from_type_v2": _damaged,  # `_result_of` knows it
    "torch.Size": _as_sizes,
    "torch.device": _device_name,
    "_codecs.encode": _encoded,
    **dict.fromkeys(("builtins.bytes", "__builtin__.bytes"), lambda: b""),  # protocol 2
    "numpy.dtype": _new_type,
    **dict.fromkeys(("builtins.set", "__builtin__.set"), lambda items=(): set(map(_checked_key, items))),
    **dict.fromkeys(
        ("builtins.frozenset", "__builtin__.frozenset"), lambda items=(): frozenset(map(_checked_key, items))
    ),
    **dict.fromkeys(("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"), _numpy_scalar),
    **dict.fromkeys(("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"), _stored_array),
    **dict.fromkeys(("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"), lambda *_: _Array()),
}


# --- what was decoded ------------------------------------------------------------------------------------------------
def mapped_tree(tree: Any, make: Callable[[StoredTensor, str], Any], where: str) -> Any:
    """Copy a decoded object, with `make` of each tensor and its dotted name; what is shared remains shared.

    Raises:
        FormatError: a cycle, containers nested too deeply, or a class or function as a value.
    """
    return _Mapper(make, where).mapped(tree, "", 0)


class _Mapper:
    def __init__(self, make: Callable[[StoredTensor, str], Any], where: str) -> None:
        self.make, self.where = make, where
        self.done: dict[int, Any] = {}  # by id of what the tree keeps alive

    def mapped(self, value: Any, path: str, depth: int) -> Any:
        if value is None or isinstance(value, (bool, int, float, str, bytes, set, frozenset)):
            return value
        if depth > _MOST_DEPTH:
            raise FormatError(f"{self.where}: containers are nested deeper than {_MOST_DEPTH}, or in a cycle.")
        if id(value) not in self.done:
            self.done[id(value)] = self._converted(value, path, depth)
        return self.done[id(value)]

    def _converted(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, _Array) and value.found is not None:
            value = value.found
        if isinstance(value, StoredTensor):
            return self.make(value, path)
        if isinstance(value, _Name) and isinstance(value.value, TorchDType):
            return value.value.name
        if isinstance(value, dict):
            return {key: self.mapped(part, _dotted(path, key), depth + 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.mapped(part, _dotted(path, i), depth + 1) for i, part in enumerate(value))
        name = value.name if isinstance(value, _Name) else "a storage without a tensor"
        raise FormatError(
            f"{self.where}: {quoted(path)} is {name}, not a tensor, number, string or container. Save it without."
        )


def _dotted(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
