"""Reading the arguments of a captured call: straight-line code for their structure, made once, run at each call.

`tree_flatten` (pytree.py) describes any call. This code answers one question, fast: does this call have the structure
of one capture, and if so, which tensors does it pass, in which memory? Other cases (a tensor that is not computed yet,
memory that two arguments share, gradients) are left to `tree_flatten`. fast_path.py continues from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernmill.ir import SETTINGS, Ops, active_overrides, setting
from kernmill.runtime import is_quiet

from ..autocasting import autocast_state
from ..lazy import Lazy, grad_state, training_state
from ..tensor import _stored
from ..variable import Bound
from .pytree import Kind, kind_of

__all__ = ["CAPTURED_SETTINGS", "MISS", "Reading", "read_call", "settings_now"]

_GONE = (AttributeError, LookupError, TypeError)
CAPTURED_SETTINGS = [row.name for row in SETTINGS.values() if row.is_captured]


def settings_now() -> tuple[Any, ...]:
    """The values of the settings that a capture depends on."""
    return tuple([setting(name) for name in CAPTURED_SETTINGS])


MISS: Any = object()  # result of code for one structure for calls of another


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reading | None:
    """Return the code that reads calls like this one, in the current settings; None if there is none."""
    reading = Reading()
    reading.test(f"len(args) != {len(args)} or len(kwargs) != {len(kwargs)}")
    reading.settings()
    items = [(f"args[{n}]", value) for n, value in enumerate(args)]
    items += [(f"kwargs[{name!r}]", kwargs[name]) for name in sorted(kwargs)]
    is_known = all(reading.visit(location, value) for location, value in items) and reading.has_own_memory()
    return reading if is_known else None


class Reading:
    """The code that reads the arguments of one call. In it t0 is the first tensor and b0 its memory.

    `values`: of its variables, each the code for its number. `quiet[0]`: profiling and DEBUG are off.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"stored": _stored, "RESHAPE": Ops.RESHAPE, "MISS": MISS, "GONE": _GONE}
        self.buffers: list[Any] = []
        self.values: dict[str, str] = {}
        self.count = 0
        self.holders: set[int] = set()

    def name(self, value: object) -> str:
        """A name for an object."""
        self.scope[f"o{len(self.scope)}"] = value
        return f"o{len(self.scope) - 1}"

    def test(self, condition: str) -> None:
        """Miss if this condition is true."""
        self.lines.append(f"  if {condition}: return MISS")

    def settings(self) -> None:
        """The modes and settings have the values of now. Settings are looked at again in another Context."""
        self.scope |= {"grad": grad_state, "training": training_state, "overrides": active_overrides}
        self.scope |= {"autocast": autocast_state, "half": autocast_state()}
        self.scope |= {"settings_now": settings_now, "seen": [active_overrides()]}
        self.scope |= {"quiet": [is_quiet()], "is_quiet": is_quiet}
        modes = f"grad() is not {grad_state()} or training() is not {training_state()}"
        self.test(f"{modes} or autocast() is not half")
        self.lines += [
            "  if overrides() is not seen[0]:",
            f"   if settings_now() != {self.name(settings_now())}: return MISS",
            "   seen[0], quiet[0] = overrides(), is_quiet()",
        ]

    def local(self, location: str) -> str:
        """Return a variable with the value at a location."""
        self.count += 1
        self.lines.append(f"  v{self.count} = {location}")
        return f"v{self.count}"

    def has_own_memory(self) -> bool:
        """True if no two tensors share memory; the code checks it, too."""
        count = len(self.buffers)
        if count > 1:
            self.test(f"len({{{', '.join(f'b{n}' for n in range(count))}}}) != {count}")
        return len(set(map(id, self.buffers))) == count

    def visit(self, location: str, value: Any) -> bool:
        """Write the code for one value; return False if there is none."""
        if isinstance(value, Lazy):
            return self.tensor(location, value)
        kind = type(value)
        if value is None or value is True or value is False:
            self.test(f"{location} is not {value}")
            return True
        here = self.local(location)
        self.test(f"type({here}) is not {self.name(kind)}")
        if kind is Bound:
            return self.bound(here, value)
        if kind in (int, str, bytes):
            self.test(f"{here} != {self.name(value)}")
        elif isinstance(value, float):
            self.test(f"{here}.hex() != {value.hex()!r}")
        elif (container := kind_of(value)) is not None:
            return self.container(here, value, container)
        elif kind.__hash__ is None:
            return False
        else:
            self.test(f"{here} is not {self.name(value)}")
        return True

    def container(self, here: str, value: Any, kind: Kind) -> bool:
        """Write the code for a container and its parts; containers that differ in `key_mark` have other keys."""
        if kind.can_change(value) and id(value) in self.holders:
            return False
        self.holders.add(id(value))
        self.test(f"not ({kind.same_keys(here, value, self.name)})")
        for key in kind.keys(value):
            is_plain = type(key) is int or "." in kind.text
            if not self.visit(kind.text.format(here, key if is_plain else self.name(key)), kind.part(value, key)):
                return False
        return True

    def bound(self, here: str, value: Bound) -> bool:
        """A variable: the same one, with any value."""
        self.test(f"{here}.variable.uop is not {self.name(value.variable.uop)}")
        is_new = value.variable.name not in self.values
        self.values[value.variable.name] = f"int({here})"
        return is_new

    def tensor(self, location: str, value: Lazy) -> bool:
        """A tensor in memory, of the same kind; `t0` is the tensor, `b0` its memory."""
        node = _stored(value.uop)
        if node is None or value.requires_grad or value.grad is not None:
            return False
        n = len(self.buffers)
        self.buffers.append(node.storage)
        self.lines += [
            f"  t{n} = {location}",
            f"  u = t{n}.uop",
            f"  b{n} = u.storage",
            f"  if b{n} is None:",
            f"   b{n} = u.src[0].storage if u.op is RESHAPE else None",
            f"   if b{n} is None:",
            "    u = stored(u)",
            "    if u is None: return MISS",
            f"    b{n}, u = u.storage, t{n}.uop",
        ]
        shape = self.name(value.uop.shape)
        self.test(
            f"u._shape is not {shape} and u.shape != {shape} or u.dtype is not {self.name(value.dtype)} "
            f"or b{n}.device != {node.storage.device!r} or t{n}._requires_grad or t{n}.grad is not None "
            f"or type(t{n}) is not {self.name(type(value))}"
        )
        return True

    def values_text(self) -> str:
        """Python for the values of the variables by name."""
        return "{" + ", ".join(f"{name!r}: {text}" for name, text in self.values.items()) + "}"

    def function(self, lines: list[str]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """Return a function of args and kwargs that runs these lines after it has read them."""
        last = " u = None"  # it would add to the reference counts of nodes
        body = "\n".join([" try:", *self.lines, " except GONE:", "  return MISS", last, *lines])
        exec(compile(f"def call(args, kwargs):\n{body}\n", "<call of a captured function>", "exec"), self.scope)
        found: Callable[[tuple[Any, ...], dict[str, Any]], Any] = self.scope["call"]
        return found
