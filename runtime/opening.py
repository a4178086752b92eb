"""Opening a device: what its class has to give is checked first, and whatever it raises becomes a sentence.

Also what stored binaries depend on in addition to the compiler: the device's Target, and the files of a device and a
renderer that come from outside of kernmill. Tests: tests/runtime/test_far_device.py.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kernmill.ir import DeviceError, KernmillError, Target

__all__ = [
    "CONTRACT", "PAGE", "asked", "check_class", "check_limits", "checked_options", "own_files", "parse_options",
    "split_names", "target_text",
]  # fmt: skip

CONTRACT = 1
"""The version of the contract between kernmill and a device. It goes up when a device has to be changed."""

PAGE = "docs/how-to/add-a-device.md"
_MEMORY = ("allocate", "free", "copy_in", "copy_out")  # all of them, or none
Result = TypeVar("Result")


def asked(name: str, what: str, ask: Callable[..., Result], *given: object) -> Result:
    """The answer of a device's own code. Any foreign exception becomes a DeviceError that names the device."""
    try:
        return ask(*given)
    except KernmillError:
        raise
    except Exception as error:  # whatever the author's code raises
        raise DeviceError(
            f"device {name!r}: {what} failed ({type(error).__name__}: {error}). It cannot be used as long as it does; "
            f"what a device has to give is in {PAGE}."
        ) from error


def split_names(text: str) -> list[str]:
    """The names in a list of devices: `CL,FAR:0..1?mib=8` is CL, and FAR:0 and FAR:1 with an option."""
    return [name for part in text.split(",") for name in _each(part.strip())]


def _each(part: str) -> list[str]:
    """`FAR:0..3` as four names."""
    head, question, options = part.partition("?")
    base, _, index = head.partition(":")
    first, dots, last = index.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or not int(first) <= int(last) < 4096:
        return [part]
    return [f"{base}:{number}{question}{options}" for number in range(int(first), int(last) + 1)]


def parse_options(name: str, text: str) -> dict[str, str]:
    """`key=value&key=value`. Raises DeviceError for another form."""
    found: dict[str, str] = {}
    for part in text.split("&"):
        key, equals, value = part.partition("=")
        if not key or not equals or key in found:
            raise DeviceError(f"device {name!r}: options are written {name}?key=value&key=value, each key once.")
        found[key] = value
    return found


def checked_options(name: str, known: Mapping[str, str], given: Mapping[str, str]) -> Mapping[str, str]:
    """The options, if the device has them all. Raises DeviceError for others."""
    if unknown := sorted(given.keys() - known.keys()):
        has = "; ".join(f"{key}: {meaning}" for key, meaning in known.items())
        raise DeviceError(f"device {name!r}: it has no option {', '.join(unknown)}. It has {has or 'none'}.")
    return given


def check_class(name: str, cls: type[Any], base: type[Any]) -> None:
    """Raise DeviceError for a class that lacks what the contract asks for."""
    where = f"device {name!r}: {cls.__module__}.{cls.__qualname__}"
    missing = sorted([*getattr(cls, "__abstractmethods__", ()), *["renderer"][: cls.renderer is base.renderer]])
    if missing:
        raise DeviceError(f"{where} has no {', '.join(missing)}. A device has to have them; see {PAGE}.")
    version: object = cls.CONTRACT
    if version != CONTRACT:
        says = "does not say which contract it keeps" if version is None else f"keeps contract {version}"
        raise DeviceError(f"{where} {says}, and this is contract {CONTRACT}. {PAGE} says what to write.")
    given = [member for member in _MEMORY if getattr(cls, member) is not getattr(base, member)]
    if cls.allocator is not base.allocator:
        given = list(dict.fromkeys([*_MEMORY[:2], *given]))
    if given and len(given) < len(_MEMORY):
        lacking = [member for member in _MEMORY if member not in given]
        raise DeviceError(
            f"{where} gives {', '.join(given)}, and not {', '.join(lacking)}. These four go together: write them all, "
            f"or none for memory of the host ({PAGE})."
        )
    code = getattr(cls.run, "__code__", None)
    if code is not None and "is_timed" not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        raise DeviceError(f"{where}: run takes no is_timed. It is called as run(calls, is_timed=True); see {PAGE}.")


def check_limits(name: str, limits: Any, *, has_memory: bool) -> None:
    """Raise DeviceError for properties that cannot be true."""

    def refuse(text: str) -> None:
        raise DeviceError(f"device {name!r}: {text} See `props` in {PAGE}.")

    if not limits.is_host_visible and not has_memory:
        refuse(f"the host cannot address its memory, and it gives no {', '.join(_MEMORY)}.")
    if limits.alignment < 1 or limits.alignment & (limits.alignment - 1):
        refuse(f"an alignment of {limits.alignment} is not a power of two.")
    if min(limits.total_bytes, limits.free_bytes) < 0 or (
        limits.total_bytes and limits.free_bytes > limits.total_bytes
    ):
        refuse(f"{limits.free_bytes:,} bytes free of {limits.total_bytes:,}.")
    if min(limits.max_alloc_bytes, limits.max_mapped_bytes, limits.max_buffers) < 1:
        refuse(
            f"a buffer of at most {limits.max_alloc_bytes:,} bytes, {limits.max_mapped_bytes:,} in all, "
            f"{limits.max_buffers} in a kernel: it could run nothing."
        )


def target_text(target: Target) -> str:
    """All that a Target says, the same in every process."""
    return " ".join(f"{field.name}={_plain(getattr(target, field.name))}" for field in dataclasses.fields(target))


def _plain(value: Any) -> str:
    if isinstance(value, frozenset):
        return "{" + ",".join(sorted(map(_plain, value))) + "}"
    return "(" + ",".join(map(_plain, value)) + ")" if isinstance(value, tuple) else str(value)


def own_files(classes: Iterable[type[Any]]) -> list[str]:
    """Path, size and time of each file of the classes and their bases outside of kernmill, and of their packages.

    So an edited device or renderer does not find what the one before has stored.
    """
    loaded = dict(sys.modules)
    names = {base.__module__ for cls in classes for base in cls.__mro__ if not _is_ours(base.__module__)}
    found: set[str] = set()
    for name in names:
        package = name.rpartition(".")[0]
        for other, module in loaded.items():
            path = getattr(module, "__file__", None)
            if path and (other == name or (package and other.startswith(f"{package}."))) and os.path.exists(path):
                status = os.stat(path)
                found.add(f"{path} {status.st_size} {status.st_mtime_ns}")
    return sorted(found)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("kernmill", "builtins", "abc")
