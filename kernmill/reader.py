"""Reading the arguments of a captured call: their structure as straight code, made once, and run at each call.

`take_apart` (nest.py) says what a call looks like in general. A reader answers one question, fast: does this call look
like that of one capture, and if so, which tensors does it bring, and in which memory do they lie? What it does not
know (a tensor that is not computed yet, memory that two arguments share, gradients) it leaves to `take_apart`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from kernmill.ir import Ops, active_overrides, setting
from kernmill.runtime import Buffer

from .lazy import Lazy, grad_state, training_state
from .nest import Kind, kind_of
from .tensor import _stored  # pyright: ignore[reportPrivateUsage]
from .variable import Bound

__all__ = ["Found", "Reader", "make_reader", "settings_now"]

_SETTINGS = ("DEVICE", "THREADS", "OVERRIDE", "TARGET", "CHECK")


def settings_now() -> tuple[Any, ...]:
    """The values of the settings that a capture depends on."""
    return tuple([setting(name) for name in _SETTINGS])


class Found(NamedTuple):
    """What a call brings: its tensors, where they lie, and the values of its variables by name."""

    tensors: tuple[Lazy, ...]
    buffers: tuple[Buffer, ...]
    values: dict[str, int]


Reader: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], "Found | None"]


def make_reader(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reader | None:
    """A reader for calls like this one, in the settings that are in force; None where there is none."""
    writer = _Writer()
    writer.test(f"len(args) != {len(args)} or len(kwargs) != {len(kwargs)}")
    for name, state in (("grad", grad_state), ("training", training_state)):
        writer.scope[name] = state
        writer.test(f"{name}() is not {state()}")
    writer.settings()
    items = [(f"args[{n}]", value) for n, value in enumerate(args)]
    items += [(f"kwargs[{name!r}]", kwargs[name]) for name in sorted(kwargs)]
    if not all(writer.visit(place, value) for place, value in items) or not writer.has_own_memory():
        return None
    return writer.reader()


class _Writer:
    """The code of one reader."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"stored": _stored, "RESHAPE": Ops.RESHAPE, "Found": Found}
        self.buffers: list[Any] = []
        self.values: dict[str, str] = {}
        self.count = 0
        self.holders: set[int] = set()

    def name(self, value: object) -> str:
        """A name for an object."""
        self.scope[f"o{len(self.scope)}"] = value
        return f"o{len(self.scope) - 1}"

    def test(self, condition: str) -> None:
        """Another call, if this holds."""
        self.lines.append(f"  if {condition}: return None")

    def settings(self) -> None:
        """The settings have the values of now; looked at again when another Context is in force."""
        self.scope |= {"overrides": active_overrides, "now": settings_now, "seen": [active_overrides()]}
        self.lines += ["  if overrides() is not seen[0]:", f"   if now() != {self.name(settings_now())}: return None",
                       "   seen[0] = overrides()"]  # fmt: skip

    def local(self, place: str) -> str:
        """A variable with the value at a place."""
        self.count += 1
        self.lines.append(f"  v{self.count} = {place}")
        return f"v{self.count}"

    def has_own_memory(self) -> bool:
        """Whether no two tensors share theirs; the code says so, too."""
        count = len(self.buffers)
        if count > 1:
            self.test(f"len({{{', '.join(f'b{n}' for n in range(count))}}}) != {count}")
        return len(set(map(id, self.buffers))) == count

    def visit(self, place: str, value: Any) -> bool:
        """The code for one value; False: there is none."""
        if isinstance(value, Lazy):
            return self.tensor(place, value)
        kind = type(value)
        if value is None or value is True or value is False:
            self.test(f"{place} is not {value}")
            return True
        here = self.local(place)
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
        """A container and its parts; what is told apart by `key_mark` has other keys."""
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

    def tensor(self, place: str, value: Lazy) -> bool:
        """A tensor in memory, of the same kind; `t0` is the tensor, `b0` its memory."""
        node = _stored(value.uop)
        if node is None or value.requires_grad or value.grad is not None:
            return False
        n = len(self.buffers)
        self.buffers.append(node.storage)
        self.lines += [
            f"  t{n} = {place}",
            f"  u = t{n}.uop",
            f"  b{n} = u.storage",
            f"  if b{n} is None:",
            f"   b{n} = u.src[0].storage if u.op is RESHAPE else None",
            f"   if b{n} is None:",
            "    u = stored(u)",
            "    if u is None: return None",
            f"    b{n}, u = u.storage, t{n}.uop",
        ]
        self.test(
            f"u.dtype is not {self.name(value.dtype)} or b{n}.device != {node.storage.device!r} "
            f"or u.shape != {value.shape} or t{n}.requires_grad or t{n}.grad is not None "
            f"or type(t{n}) is not {self.name(type(value))}"
        )
        return True

    def reader(self) -> Reader:
        """The function."""
        numbers = range(len(self.buffers))
        tensors, buffers = ("".join(f"{letter}{n}, " for n in numbers) for letter in "tb")
        values = ", ".join(f"{name!r}: {text}" for name, text in self.values.items())
        body = "\n".join(self.lines)
        source = (
            f"def read(args, kwargs):\n try:\n{body}\n  return Found(({tensors}), ({buffers}), {{{values}}})\n"
            " except GONE:\n  return None\n"
        )
        self.scope["GONE"] = (AttributeError, LookupError, TypeError)
        exec(compile(source, "<arguments of a captured function>", "exec"), self.scope)
        found: Reader = self.scope["read"]
        return found
