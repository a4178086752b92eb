"""Guards: everything that a captured function depends on in addition to its arguments, compiled into one quick check.

The walk starts at a function: its closure cells, the globals its code names, its defaults, the object of a method. It
continues into containers, attributes of objects, and functions called from there. Plain values are compared with `==`
and type, objects with `is`. Library code is not entered. Values deeper than DEPTH steps, or behind C code, are not
seen. The first value that is too deep, and values too large to be compared at each call, are in `Walk.unwatched`, for a
warning.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from operator import is_
from typing import Any

from kernmill.ir import ShapeError

from ..lazy import OURS, Lazy
from ..size import SymbolicSize
from .pytree import contents, kind_of

__all__ = ["Guard", "Walk"]

DEPTH = 32  # models of models: a step for each attribute, and one for each index of a list
MOST_CHECKS = 20_000
MOST_ENTRIES = 4096  # longer containers are compared by identity and length only
MOST_BYTES = 1 << 20  # larger NumPy arrays are compared by identity and shape only
_WIDE = 256  # longer containers of plain values are compared in one step
_SMALL_BYTES = 4096  # NumPy arrays up to here are compared by value, larger ones by checksum
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OPEN = (  # of the standard library, but data of the user
    "types.SimpleNamespace",
    "argparse.Namespace",
    "collections.ChainMap",
    "collections.UserDict",
    "collections.UserList",
)
_LIBRARY = (os.path.dirname(os.__file__), "<frozen")


@functools.cache
def _is_foreign(filename: str) -> bool:
    """True if code belongs to Python, to an installed package or to kernmill."""
    return filename.startswith(_LIBRARY) or filename.startswith(OURS) or "site-packages" in filename


@functools.cache
def _is_open(cls: Any) -> bool:
    """True if the attributes of instances are checked: user classes, layers and optimizers."""
    if f"{cls.__module__}.{cls.__qualname__}" in _OPEN:
        return True
    if cls.__module__.partition(".")[0] == "kernmill":
        return bool(cls.__module__.startswith("kernmill.nn"))
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    return bool(cls.__module__ not in sys.builtin_module_names and (file is None or not _is_foreign(file)))


def _class_of(value: Any) -> Any:
    return type(value)


def _named(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Global names and attribute names that code uses, nested functions included."""
    import dis  # takes a few milliseconds, and many programs capture nothing

    names: set[str] = set()
    attributes: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(step.argval)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            more = _named(const)
            names |= more[0]
            attributes |= more[1]
    return names, attributes


class Walk:
    """A walk. `tensors`: the tensor at each location, a location being a Python expression over `scope`."""

    def __init__(self, scope: dict[str, Any] | None = None) -> None:
        self.scope: dict[str, Any] = {} if scope is None else scope  # shared by the walks before and after a capture
        self._names = {id(value): name for name, value in self.scope.items()}
        self._seen: set[int] = set()
        self._inside: set[int] = set()
        self._owner = ""  # the location of the outermost tuple that contains the current value
        self.checks: dict[str, str] = {}  # condition: the user's name of it
        self.tensors: dict[str, Lazy] = {}
        self.containers: dict[str, tuple[Any, dict[Any, Any]]] = {}  # mutable, by location, with their parts
        self._large: dict[str, str] = {}  # the user's name: why changes are not noticed
        self._deep: dict[str, str] = {}  # by location of what was too deep: the user's name
        self._locations: set[str] = set()  # that were not
        self._waiting: deque[tuple[Any, str, int]] = deque()  # objects still to be visited: the nearest first
        self.generators: dict[str, Any] = {}  # random generators of Python and NumPy, by the user's name
        self._is_full = False
        self.owners: dict[str, str] = {}  # of a location in a tuple: the location that can be assigned to

    def name(self, value: object) -> str:
        """Return a name for an object, and keep it alive."""
        if id(value) not in self._names:
            self._names[id(value)] = f"o{len(self.scope)}"
            self.scope[self._names[id(value)]] = value
        return self._names[id(value)]

    def forget_tensors(self) -> None:
        """Release the tensors: gradients of the call before a capture would keep their memory as long as the walk."""
        self.tensors.clear()
        self.containers.clear()

    @property
    def unwatched(self) -> dict[str, str]:
        """Return why changes are not noticed, by the user's name."""
        seen = self._locations  # by a shorter path
        deep = [label for location, label in self._deep.items() if location not in seen]
        return self._large | dict.fromkeys(
            deep[:1], f"it is nested more than {DEPTH} levels deep, and other values may be too"
        )

    def visit(self, roots: Iterable[tuple[str, Any, str]]) -> None:
        """Record what must stay unchanged at these locations, each with its value and the user's name, and at all
        locations reachable from them. Each is reached by the shortest path, which decides whether it is too deep."""
        for location, value, label in roots:
            self._look(location, value, label, 0)
        while self._waiting:
            self._object(*self._waiting.popleft())

    # --- one value
    def _look(self, location: str, value: Any, label: str, depth: int) -> None:
        if self._is_full:
            return
        if depth > DEPTH:
            if not isinstance(value, types.ModuleType):  # attributes that are read from it are recorded separately
                self._deep.setdefault(location, label)
            return
        self._locations.add(location)
        if len(self.checks) + len(self.tensors) > MOST_CHECKS:
            self._is_full = True
            self._large[label] = f"it comes after {MOST_CHECKS:,} other values, and further ones may too"
            return
        if isinstance(value, Lazy):
            self._tensor(location, value, label)
        elif isinstance(value, SymbolicSize):
            raise ShapeError(
                f"jit: {label} is the symbolic size {value!r} and changes per call. Return it, or set it outside "
                "the function."
            )
        elif isinstance(value, _PLAIN):
            self.checks[_equal(self, location, value)] = label
        elif isinstance(value, (set, frozenset)):
            self._set(location, value, label)
        elif type(value) in (list, tuple, dict) or isinstance(value, (list, dict, tuple, deque)):
            self._container(location, value, label, depth)
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            self._array(location, value, label)
        elif isinstance(value, types.MethodType):
            self.checks[f"{location}.__func__ is {self.name(value.__func__)}"] = label
            if isinstance(value.__func__, types.FunctionType):
                self._function(value.__func__, label, depth)
            self._look(f"{location}.__self__", value.__self__, f"{label}.__self__", depth + 1)
        else:
            self.checks[f"{location} is {self.name(value)}"] = label
            if type(value).__module__ == "random" or type(value).__module__.startswith("numpy.random"):
                self.generators[label] = value
            self._waiting.append((value, label, depth))

    def _tensor(self, location: str, value: Lazy, label: str) -> None:
        self.tensors[location] = value
        if self._owner:
            self.owners[location] = self._owner
        self.checks[f"{location}._requires_grad is {value.requires_grad}"] = f"{label}.requires_grad"
        grad = value.grad
        outer, self._owner = self._owner, ""
        if grad is None:
            self.checks[f"{location}.grad is None"] = f"{label}.grad"
        else:
            self._tensor(f"{location}.grad", grad, f"{label}.grad")
        self._owner = outer

    def _container(self, location: str, value: Any, label: str, depth: int) -> None:
        if id(value) in self._inside or len(value) > MOST_ENTRIES:
            self.checks[f"{location} is {self.name(value)} and len({location}) == {len(value)}"] = label
            if id(value) not in self._inside:
                self._large[label] = f"a {type(value).__name__} of {len(value):,} entries"
            return
        kind = type(value)
        kind_name = kind.__name__ if kind in (list, tuple, dict) else self.name(kind)
        self.checks[f"type({location}) is {kind_name} and len({location}) == {len(value)}"] = label
        if isinstance(value, deque):
            self.checks[f"{location}.maxlen == {value.maxlen}"] = label
        if (found := kind_of(value)) is not None and found.can_change(value):
            self.containers[location] = value, contents(value, found)
            if self._owner:
                self.owners[location] = self._owner
        if len(value) > _WIDE and self._snapshot(location, value, label):
            return
        items = value.items() if isinstance(value, dict) else enumerate(value)
        outer = self._owner
        self._inside.add(id(value))
        if isinstance(value, tuple) and not outer:
            self._owner = location
        for key, item in items:
            if isinstance(key, (str, int, type(None))):
                self._look(f"{location}[{key!r}]", item, f"{label}[{key!r}]", depth + 1)
            else:
                self._look(f"{location}[{self.name(key)}]", item, f"{label}[{key!r}]", depth + 1)
        self._owner = outer
        self._inside.discard(id(value))

    def _set(self, location: str, value: Any, label: str) -> None:
        if len(value) <= MOST_ENTRIES and all(isinstance(item, _PLAIN) for item in value):
            self.checks[
                f"type({location}) is {self.name(type(value))} and {location} == {self.name(frozenset(value))}"
            ] = label
        else:
            self.checks[f"{location} is {self.name(value)} and len({location}) == {len(value)}"] = label
            if not isinstance(value, frozenset):
                self._large[label] = f"a set of {len(value):,} entries, not all of them immutable"

    def _snapshot(self, location: str, value: Any, label: str) -> bool:
        """One check for all entries; False: they are not all plain."""
        parts = {f"tuple({location})": tuple(value)}
        if isinstance(value, dict):
            parts[f"tuple({location}.values())"] = tuple(value.values())
        if not all(type(item) in _PLAIN for part in parts.values() for item in part):
            return False
        for now, then in parts.items():
            self.checks[f"{self.name(_same)}({now}, {self.name(then)})"] = label
        return True

    def _array(self, location: str, value: Any, label: str) -> None:
        self.checks[f"{location} is {self.name(value)} and {location}.shape == {value.shape}"] = label
        if value.dtype.hasobject or value.nbytes > MOST_BYTES:
            self._large[label] = f"a NumPy array of {value.dtype}, {value.nbytes:,} bytes"
        elif value.nbytes <= _SMALL_BYTES:
            self.checks[f"{location}.tobytes() == {self.name(value.tobytes())}"] = label
        else:
            checksum = zlib.crc32(value.tobytes())
            self.checks[f"{self.name(zlib.crc32)}({location}.tobytes()) == {checksum}"] = label

    # --- one object, once
    def _object(self, value: Any, label: str, depth: int) -> None:
        """Visit the attributes of an object, or the references of a function."""
        if id(value) in self._seen:
            return
        if isinstance(value, types.FunctionType):
            self._function(value, label, depth)
        elif isinstance(value, functools.partial):
            for part in ("func", "args", "keywords"):
                self._look(f"{self.name(value)}.{part}", getattr(value, part), f"{label}.{part}", depth + 1)
        elif isinstance(value, type):
            self._class(value, label, depth)
        elif hasattr(value, "__kernmill_captured__"):  # a jitted function: the wrapped one
            self._look(f"{self.name(value)}.__kernmill_captured__", value.__kernmill_captured__, label, depth)
        elif not isinstance(value, types.ModuleType) and _is_open(_class_of(value)):
            self._seen.add(id(value))
            for key, item in _attributes(value):
                self._look(f"{self.name(value)}.{key}", item, f"{label}.{key}", depth + 1)
            self._class(type(value), label, depth)

    def _class(self, cls: type, label: str, depth: int) -> None:
        for base in cls.__mro__:
            if base is object or id(base) in self._seen or not _is_open(base):
                continue
            self._seen.add(id(base))
            for key, item in vars(base).items():
                inner = getattr(item, "__func__", getattr(item, "fget", item))
                inner = getattr(inner, "__kernmill_captured__", inner)
                if isinstance(inner, types.FunctionType):
                    self._function(inner, f"{base.__name__}.{key}", depth + 1)
                elif isinstance(item, (*_PLAIN, tuple, list, dict, Lazy)) and not key.startswith("__"):
                    self._look(f"{self.name(base)}.{key}", item, f"{base.__name__}.{key}", depth + 1)

    def _module(self, module: types.ModuleType, attributes: set[str], label: str, depth: int) -> None:
        """Visit what code names of a module, and of the modules in it: `package.settings.rate`."""
        waiting, known = [(module, label)], set[int]()
        for found, name in waiting:
            path = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), "<frozen")
            if id(found) in known or _is_foreign(path):
                continue
            known.add(id(found))
            for key in sorted(attributes & vars(found).keys()):
                value = vars(found)[key]
                self._look(f"{self.name(found)}.{key}", value, f"{name}.{key}", depth)
                if isinstance(value, types.ModuleType):
                    waiting.append((value, f"{name}.{key}"))

    def _function(self, function: types.FunctionType, label: str, depth: int) -> None:
        """Closure cells, globals and defaults."""
        if id(function) in self._seen or depth > DEPTH or _is_foreign(function.__code__.co_filename):
            return
        self._seen.add(id(function))
        outer, self._owner = self._owner, ""
        names, attributes = _named(function.__code__)
        read: dict[str, tuple[str, Any]] = {}
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a name that is not yet bound
                read[f"{self.name(cell)}.cell_contents"] = key, cell.cell_contents
        for key in sorted(names & function.__globals__.keys()):
            read[f"{self.name(function.__globals__)}[{key!r}]"] = key, function.__globals__[key]
        for location, (key, value) in read.items():
            self._look(location, value, key, depth + 1)
            if isinstance(value, types.ModuleType):
                self._module(value, attributes, key, depth + 2)
        for part in ("__defaults__", "__kwdefaults__"):
            if getattr(function, part):
                self._look(f"{self.name(function)}.{part}", getattr(function, part), f"{label}.{part}", depth + 1)
        self._owner = outer


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes set in __dict__ and __slots__, and plain ones of the class, which an instance may come to hide."""
    found = {
        key: item
        for cls in reversed(type(value).__mro__)
        if cls is not object and _is_open(cls)
        for key, item in vars(cls).items()
        if isinstance(item, _PLAIN) and not key.startswith("__")
    }
    found |= getattr(value, "__dict__", {})
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                found[slot] = getattr(value, slot)
    return ((k, v) for k, v in found.items() if k.isidentifier() and not k.startswith("_jit_"))


def _equal(walk: Walk, location: str, value: Any) -> str:
    """A condition: this plain value, of this type."""
    if value is None or value is True or value is False:
        return f"{location} is {value}"
    if isinstance(value, float) and (value != value or value == 0.0):
        return f"type({location}) is float and repr({location}) == {repr(value)!r}"
    name = walk.name(value)
    return f"({location} is {name} or {location} == {name} and type({location}) is {walk.name(type(value))})"


def _same(now: Collection[Any], then: Collection[Any]) -> bool:
    """Plain values of equal types; 0.0 is not -0.0, and nan is nan. As quick as can be where nothing was changed."""
    if len(now) != len(then):
        return False
    return all(map(is_, now, then)) or all(
        a is b or (type(a) is type(b) and (repr(a) == repr(b) if isinstance(a, (float, complex)) else a == b))
        for a, b in zip(now, then, strict=True)
    )


class Guard:
    """The checks of a walk. `check()` returns the tensors at all locations, in order, or None if something changed."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.locations = list(walk.tensors)
        condition = "\n  and ".join(walk.checks) or "True"
        found = "".join(f"{location}, " for location in self.locations)
        source = f"def check():\n try:\n  if ({condition}):\n   return ({found})\n except GONE:\n  pass\n return None\n"
        scope = {**walk.scope, "GONE": (AttributeError, LookupError, ValueError, TypeError)}
        exec(compile(source, "<guards of a captured function>", "exec"), scope)
        check: Any = scope["check"]
        self.check: Callable[[], tuple[Lazy, ...] | None] = check

    def explain(self) -> str:
        """Return what changed, in the user's words; empty: nothing."""
        for condition, label in self.walk.checks.items():
            try:
                holds = bool(eval(condition, dict(self.walk.scope)))
            except Exception:
                holds = False
            if not holds:
                return label
        return ""

    def value(self, location: str) -> Any:
        """Return the current value at a location. Raises LookupError or AttributeError if it no longer exists."""
        return eval(location, dict(self.walk.scope))
