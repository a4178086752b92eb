"""Settings: one row each. The name is the environment variable and the `Context` keyword.

A setting is read from the environment once, when first asked for, an empty variable as none; `Context(DEBUG=2)`
overrides it for a block, in the calling thread only. An unknown name or value is an error that prints the valid ones: a misspelt switch that is silently
ignored costs an afternoon.
"""

# ruff: noqa: E501 - a row is a line

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from .errors import SettingError

__all__ = ["DEBUG_LEVELS", "SETTINGS", "Context", "Setting", "active_overrides", "check_environment", "setting"]

Value = int | str


class Setting(NamedTuple):
    """One row of the table: how it is spelled, what it means, what it may be."""

    name: str
    default: Value
    meaning: str
    valid: str
    parse: Callable[[str], Value]
    is_captured: bool = False  # a captured function is captured anew where the value is another one


def _checked(read: Callable[[str], Value], fits: Callable[[Any], bool]) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        if not fits(value := read(text)):
            raise ValueError(text)
        return value

    return parse


def _between(low: int, high: int) -> Callable[[str], Value]:
    return _checked(int, lambda value: low <= value <= high)


def _one_of(*words: str) -> Callable[[str], Value]:
    return _checked(str, words.__contains__)


def _or_empty(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    return lambda text: parse(text) if text else ""


SETTINGS: dict[str, Setting] = {
    row.name: row
    for row in [
        Setting("DEVICE", "LLVM", "default device of new tensors", "a device name: LLVM, CL, PYTHON, NULL, NAME:1", str, is_captured=True),
        Setting("DEBUG", 0, "how much is printed (see the table below)", "0 to 6", _between(0, 6)),
        Setting("DUMP", "", "folder that receives UOps, source, assembly and figures of every kernel", "a folder", str),
        Setting("OVERRIDE", "", "folder with <kernel>.schedule files that replace the heuristic", "a folder", str, is_captured=True),
        Setting("BEAM", "", "search: 1 or more tries schedules for kernels without a stored result, keeping so many; empty: stored results are used; 0: not even those", "empty, or 0 to 64",
                _or_empty(_between(0, 64)), is_captured=True),
        Setting("BEAM_SECONDS", 10, "how long the search for one kernel may take", "1 to 86400", _between(1, 86_400)),
        Setting("CACHE", "1", "compiled kernels on disk: off, on, read only", "0, 1 or ro", _one_of("0", "1", "ro")),
        Setting("CACHE_DIR", "", "folder of the kernel cache; empty: the user's cache folder", "a folder", str),
        Setting("CACHE_MAX_MB", 1024, "size cap of the kernel cache; the least recently used go first", "1 to 1000000",
                _between(1, 1_000_000)),
        Setting("PLANS_MAX_MB", 64, "memory for the plans of graphs that were computed; the least recently used are dropped", "1 to 1000000", _between(1, 1_000_000)),
        Setting("THREADS", 0, "threads of a CPU device; 0: as many as the process may use", "0 to 1024", _between(0, 1024), is_captured=True),
        Setting("SPIN", 30, "microseconds that a waiting worker spins before it sleeps", "0 to 1000000", _between(0, 1_000_000)),
        Setting("COMPILER_PROCESS", 1, "1: graphs of many new kernels are compiled by a second process beside this one; 2: every new kernel is", "0, 1 or 2", _between(0, 2)),
        Setting("CHECK", 0, "1: verify every compiler stage, and run every kernel on PYTHON too", "0 or 1", _between(0, 1), is_captured=True),
        Setting("QUANT_ACT", "int8", "what a product with quantized weights makes of its other operand: blocks of 32 in 8 bits (many rows, through a matrix unit: bfloat16), or nothing", "int8 or float", _one_of("int8", "float"), is_captured=True),
        Setting("QUANT_FORM", "fast", "how interleaved weights of IQ1, IQ2, IQ3 and TQ1_0 lie in memory. fast: their values are written out where the device has dot products of bytes, in 1.2 to 1.6 times the bytes of the file; small: in as many", "fast or small", _one_of("fast", "small"), is_captured=True),
        Setting("TARGET", "", "force a lower CPU level; gpu and cpu: the shape of kernels on CL and PYTHON; amx: kernels for a matrix unit, which functions stand for; mma: those for NVIDIA's unit, not tried before; small: caches of some KB, so that small tensors meet what is done for large ones", "empty, sse, avx2, avx512, small, amx, gpu, cpu or mma", _one_of("", "sse", "avx2", "avx512", "small", "amx", "gpu", "cpu", "mma"), is_captured=True),
        Setting("SEED", 0, "seed of the random numbers", "0 to 4294967295", _between(0, 2**32 - 1)),
    ]
}  # fmt: skip

DEBUG_LEVELS: tuple[tuple[int, str], ...] = (
    (1, "devices as they are opened"),
    (2, "a line per kernel, each timed by itself: device, name, time, GFLOP/s, GB/s, the user's source line"),
    (3, "once per kernel: the schedule that was chosen, in the form that OVERRIDE reads"),
    (4, "once per kernel: its UOps before optimization"),
    (5, "once per kernel: the source that was rendered"),
    (6, "once per kernel: the assembly"),
)


_environment: dict[str, Value] = {}
_overrides: contextvars.ContextVar[dict[str, Value] | None] = contextvars.ContextVar("settings", default=None)


def _parse(row: Setting, text: str, origin: str) -> Value:
    try:
        return row.parse(text)
    except ValueError:
        raise SettingError(f"{origin}: {text!r} is not a value of {row.name}. Valid: {row.valid}.") from None


def _known(name: str, origin: str) -> Setting:
    if name not in SETTINGS:
        raise SettingError(f"{origin}: there is no setting {name!r}. Known settings: {', '.join(sorted(SETTINGS))}.")
    return SETTINGS[name]


def setting(name: str) -> Value:
    """The value in force: from the innermost `Context`, else the environment, else the default.

    Raises:
        SettingError: the environment holds a value that the setting does not take.
    """
    overrides = _overrides.get()
    if overrides is not None and name in overrides:
        return overrides[name]
    value = _environment.get(name)
    if value is None:
        row, text = SETTINGS[name], os.environ.get(name)
        value = _environment[name] = _parse(row, text, "environment") if text else row.default
    return value


active_overrides = _overrides.get
"""What the innermost `Context` says, as one object; None outside of any. While it is the same, every setting is."""


def debug() -> int:
    """`DEBUG` as a number: asked before anything is printed, so it has its own word."""
    return int(setting("DEBUG"))


def Context(**values: Value) -> AbstractContextManager[None]:  # reads as a noun in `with Context(DEBUG=2):`
    """Override settings for a block: `with Context(DEBUG=2, THREADS=1): ...`. Alone, without `with`, it does nothing.

    Raises:
        SettingError: an unknown name, or a value that the setting does not take; at once, not when it is entered.
    """
    return _overriding({name: _parse(_known(name, "Context"), str(v), "Context") for name, v in values.items()})


@contextmanager
def _overriding(parsed: dict[str, Value]) -> Generator[None]:
    token = _overrides.set({**(_overrides.get() or {}), **parsed})
    try:
        yield
    finally:
        _overrides.reset(token)


def check_environment() -> None:
    """Read every setting from the environment now, so that a bad value fails at start and not in the middle."""
    for name in SETTINGS:
        setting(name)
