"""OpenCL programs: source to a driver's binary that can be stored, binary to a kernel, and messages of failed builds.

The source and the driver's binary are stored: a driver that rejects its old binary gets the source again. The store
itself, `compile_cache`, has a checksum over both, since some drivers end the process on a damaged one.
"""

from __future__ import annotations

import contextlib
import re
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernmill.ir import CompileError

__all__ = ["build_program", "pack_program", "quietly", "unpack_program"]

_HEAD = struct.Struct("<Q")  # bytes of the source
_SAVED = re.compile(r"\(source saved as (.*)\)")
_PLACES = (re.compile(r":(\d+):(\d+):\s*(?:fatal )?error:\s*(.*)"), re.compile(r"error:.*?:(\d+):(\d+):\s*(.*)"))
_LOG_LINES = 12
_REMEDY = "Please report it, and use another device until it is fixed."


def build_program(cl: Any, context: Any, device: Any, source: str, options: Sequence[str], name: str) -> Any:
    """A program for a device, with the first options that work. Raises CompileError with the log and its line."""
    text = ""
    for choice in options:
        try:
            return quietly(cl.Program(context, source), device, choice)
        except cl.Error as error:
            text = str(error)
            saved = _SAVED.search(text)
            if saved is not None:  # the binding leaves a copy of the source behind
                with contextlib.suppress(OSError):
                    Path(saved.group(1)).unlink()
    raise CompileError(explain_build(name, source, options[-1], text, str(device.name)))


def quietly(program: Any, device: Any, options: str) -> Any:
    """Build without the binding's warnings: drivers with much to say are not drivers that failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.build(options, devices=[device])


def explain_build(name: str, source: str, options: str, log: str, device: str) -> str:
    """Return the message for a failed build: the driver's error, and the source line that it names."""
    log = _SAVED.sub("", log).strip()
    place = next((found for pattern in _PLACES if (found := pattern.search(log))), None)
    head = f"kernel {name}: the driver of {device} rejected the source (options: {options or 'none'})"
    if place is not None:
        number, column, message = int(place.group(1)), int(place.group(2)), place.group(3)
        lines = source.splitlines()
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        return f"{head}: {message}\n{number:5} | {line}\n{' ' * (5 + 3 + max(0, column - 1))}^\n{_REMEDY}"
    shown = [line for line in log.splitlines() if line.strip()][:_LOG_LINES]
    if len(shown) < 2:
        said = " ".join(shown)
        return f"{head} and left no log. On NVIDIA that means: install libnvidia-nvvm, it is missing. It said: {said}"
    return "\n".join([f"{head}:", *shown, _REMEDY])


def pack_program(source: str, binary: bytes) -> bytes:
    """Source and binary as one."""
    text = source.encode()
    return _HEAD.pack(len(text)) + text + binary


def unpack_program(stored: bytes) -> tuple[str, bytes]:
    """The source and the driver's binary, which may be empty."""
    (size,) = _HEAD.unpack_from(stored)
    end = _HEAD.size + size
    return stored[_HEAD.size : end].decode(), stored[end:]
