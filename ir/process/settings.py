"""Settings: one row each. The name is the environment variable and the `Context` keyword.

A setting is read from the environment once, at its first use; an empty variable counts as unset. `Context(DEBUG=2)`
overrides it for a block, in the calling thread only. An unknown name or value is an error that lists the valid ones: a
misspelt switch that is silently ignored costs an afternoon.
"""

# ruff: noqa: E501 - a row is a line

from __future__ import annotations

import contextvars
import os
import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from .errors import SettingError

__all__ = [
    "DEBUG_LEVELS",
    "SETTINGS",
    "Context",
    "Setting",
    "active_overrides",
    "check_environment",
    "setting",
    "text_hooks",
]

Value = int | str


class Setting(NamedTuple):
    """A row of the table: name, default, meaning, valid values."""

    name: str
    default: Value
    meaning: str
    valid: str
    parse: Callable[[str], Value]
    is_captured: bool = False  # a captured function is captured again when the value changes


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


def _pins(text: str) -> str:
    """Check `REGEX=DEVICE;REGEX=DEVICE`."""
    for part in text.split(";"):
        pattern, equals, device = part.rpartition("=")
        if not pattern or not equals or not device.strip():
            raise ValueError(part)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(part) from error
    return text


def _or_empty(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    return lambda text: parse(text) if text else ""


SETTINGS: dict[str, Setting] = {
    row.name: row
    for row in [
        Setting("DEVICE", "LLVM", "default device of new tensors; of a list the first one, and graphs are placed on all", "a device name: LLVM, CL, CUDA, HTP, PYTHON, NULL, NAME:1; or several: CL,LLVM", str, is_captured=True),
        Setting("PLACE", "cost", "how graphs over several devices are placed. cost: least predicted time; passes: as ggml's scheduler does it, to compare", "cost or passes", _one_of("cost", "passes"), is_captured=True),
        Setting("PIN", "", "what is computed on a given device: patterns of source lines and layers, the first that is found decides. PIN='attn=CL;train.py:41=LLVM'", "REGEX=DEVICE, several separated by ;", _or_empty(_pins), is_captured=True),
        Setting("DEBUG", 0, "how much is printed (see the table below)", "0 to 6", _between(0, 6)),
        Setting("DUMP", "", "folder that receives UOps, source, assembly and figures of every kernel", "a folder", str),
        Setting("PROFILE", "", "file that receives a trace of the whole process, or with .html a report; read when kernmill is imported", "a .json or .html file", str),
        Setting("PROGRESS", 1, "0: no progress bars (extra `progress`; on terminals and in notebooks only)", "0 or 1", _between(0, 1)),
        Setting("OVERRIDE", "", "folder with <kernel>.schedule files that replace the heuristic", "a folder", str, is_captured=True),
        Setting("BEAM", "", "beam width of the search for kernels without a stored schedule; empty: no search; 0: stored schedules are ignored too", "empty, or 0 to 64",
                _or_empty(_between(0, 64)), is_captured=True),
        Setting("BEAM_SECONDS", 10, "seconds that the search for one kernel may take", "1 to 86400", _between(1, 86_400)),
        Setting("TRY", 0, "candidates of a new kernel that are measured at its first use: the heuristic's schedule, and its neighbours with the least estimated time. The fastest is stored. 0 and 1: none", "0 to 16", _between(0, 16), is_captured=True),
        Setting("CACHE", "1", "compiled kernels on disk: off, on, read only", "0, 1 or ro", _one_of("0", "1", "ro")),
        Setting("CACHE_DIR", "", "folder of the kernel cache; empty: the user's cache folder", "a folder", str),
        Setting("CACHE_MAX_MB", 1024, "size limit of the kernel cache; least recently used entries are evicted", "1 to 1000000",
                _between(1, 1_000_000)),
        Setting("KEEP_WEIGHTS_MB", 0, "size limit of the interleaved weights of models that are kept in the cache folder, so that a later start maps them; 0: none are kept", "0 to 1000000", _between(0, 1_000_000)),
        Setting("PLANS_MAX_MB", 64, "memory for the plans of computed graphs; least recently used plans are evicted", "1 to 1000000", _between(1, 1_000_000)),
        Setting("THREADS", 0, "threads of a CPU device; 0: as many as the process may use", "0 to 1024", _between(0, 1024), is_captured=True),
        Setting("SPIN", 30, "microseconds that a waiting worker spins before it sleeps", "0 to 1000000", _between(0, 1_000_000)),
        Setting("COMPILER_PROCESS", 1, "1: a second process helps to compile graphs of many new kernels; 2: it compiles every new kernel; 0: no second process", "0, 1 or 2", _between(0, 2)),
        Setting("CHECK", 0, "1: verify every compiler stage, and run every kernel on PYTHON too; then no kernel is timed or dumped", "0 or 1", _between(0, 1), is_captured=True),
        Setting("QUANT_ACT", "int8", "precision of activations in quantized products. int8: blocks of 32 int8 values (large batches on a matrix unit: bfloat16); float: unchanged", "int8 or float", _one_of("int8", "float"), is_captured=True),
        Setting("QUANT_FORM", "fast", "layout of interleaved IQ1, IQ2, IQ3 and TQ1_0 weights in memory. fast: decoded values if the device has byte dot products, 1.2 to 1.6 times the size of the file; small: the size of the file", "fast or small", _one_of("fast", "small"), is_captured=True),
        Setting("TARGET", "", "override the target. sse, avx2, avx512: lower CPU level; gpu, cpu: kernel shape on CL and PYTHON; amx: emulated matrix unit; mma: NVIDIA's matrix unit without its self-test; small: caches of some KB, for tests", "empty, sse, avx2, avx512, small, amx, gpu, cpu or mma", _one_of("", "sse", "avx2", "avx512", "small", "amx", "gpu", "cpu", "mma"), is_captured=True),
        Setting("COMM_TIMEOUT", 120, "seconds that a rank waits for another one before it is an error", "1 to 86400", _between(1, 86_400)),
        Setting("SEED", 0, "seed of the random numbers", "0 to 4294967295", _between(0, 2**32 - 1)),
    ]
}  # fmt: skip

DEBUG_LEVELS: tuple[tuple[int, str], ...] = (
    (1, "devices as they are opened; each compilation and each capture with its reason"),
    (
        2,
        "a line per kernel, each timed separately: device, name, time, GFLOP/s, GB/s, the source line, "
        "what bounds it (symbolic sizes at their greatest)",
    ),
    (3, "once per kernel: the schedule that was chosen, as OVERRIDE reads it, and the parts of its estimated time"),
    (4, "once per kernel: its UOps before optimization"),
    (5, "once per kernel: the source that was rendered"),
    (6, "once per kernel: the assembly"),
)


text_hooks: dict[str, Callable[[str], str]] = {}  # by setting: its effective text, from that of its variable
_environment: dict[str, Value] = {}
_overrides: contextvars.ContextVar[dict[str, Value] | None] = contextvars.ContextVar("settings", default=None)


def _parse(row: Setting, text: str, origin: str) -> Value:
    try:
        return row.parse(text)
    except ValueError:
        raise SettingError(f"{origin}: {text!r} is not a value of {row.name}. Valid: {row.valid}.") from None


def _known(name: str, origin: str) -> Setting:
    if name not in SETTINGS:
        raise SettingError(f"{origin}: {name!r} is not a setting. Known settings: {', '.join(sorted(SETTINGS))}.")
    return SETTINGS[name]


def setting(name: str) -> Value:
    """Return the current value: from the innermost `Context`, else the environment, else the default.

    Raises:
        SettingError: the environment has a value that the setting does not accept.
    """
    overrides = _overrides.get()
    if overrides is not None and name in overrides:
        return overrides[name]
    value = _environment.get(name)
    if value is None:
        row, text = SETTINGS[name], os.environ.get(name)
        text = text_hooks[name](text or "") if name in text_hooks else text
        value = _environment[name] = _parse(row, text, "environment") if text else row.default
    return value


active_overrides = _overrides.get
"""Return the overrides of the innermost `Context` as one object (None outside). It changes with settings."""


def debug() -> int:
    """Return `DEBUG` as an int. It is read before anything is printed, so it has its own function."""
    return int(setting("DEBUG"))


def Context(**values: Value) -> AbstractContextManager[None]:  # reads as a noun in `with Context(DEBUG=2):`
    """Override settings for a block: `with Context(DEBUG=2, THREADS=1): ...`. Alone, without `with`, it does nothing.

    Raises:
        SettingError: unknown name or invalid value; raised at the call, not when the block is entered.
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
