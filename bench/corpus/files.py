"""The files of the corpus: kernels as text, and for each the candidates that were measured."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .models import MODEL_KERNELS

__all__ = ["KERNELS", "TIMES", "Measured", "load_kernels", "load_times", "model_kernels", "save_kernels", "save_times"]

_HERE = Path(__file__).parent
_LINES = re.compile(r"  # .*$", re.MULTILINE)  # of the program: not part of a kernel
KERNELS = _HERE / "kernels.json.xz"
TIMES = _HERE / "times-{machine}.json.xz"


class Measured(NamedTuple):
    """One kernel: the thread CPU time of each candidate in nanoseconds, by schedule, the heuristic's first."""

    kernel: str
    times: dict[str, float]


def load_kernels(device: str = "LLVM") -> dict[str, Any]:
    """The kernels by the name of their row and their own."""
    from kernmill.runtime import kernel_text

    rows = json.loads(lzma.decompress(KERNELS.read_bytes()))
    return {name: kernel_text.kernel_from_text(text, device) for name, text in rows}


def model_kernels() -> list[tuple[str, Any]]:
    """The kernels of ONNX models in the file, each with its model's name."""
    known = load_kernels()
    return [(model, known[f"{model} {name}"]) for model, names in MODEL_KERNELS.items() for name in names]


def save_kernels(found: Iterable[tuple[str, Any]]) -> None:
    """Write the kernels; of two with one name the second gets a number."""
    from kernmill.runtime import kernel_text

    texts: dict[str, str] = {}
    for row, kernel in found:
        name, text = f"{row} {kernel.name}", _LINES.sub("", kernel_text.kernel_to_text(kernel))
        number = 2
        while texts.get(name, text) != text:
            name = f"{row} {kernel.name} {number}"
            number += 1
        texts[name] = text
    KERNELS.write_bytes(lzma.compress(json.dumps(list(texts.items())).encode(), preset=9))


def load_times(machine: str) -> list[Measured]:
    """Return what was measured on a machine; nothing for a machine without a file."""
    path = Path(str(TIMES).format(machine=machine))
    if not path.exists():
        return []
    return [Measured(name, times) for name, times in json.loads(lzma.decompress(path.read_bytes()))]


def save_times(machine: str, measured: Iterable[Measured]) -> None:
    """Write what was measured; times are rounded to three digits."""
    rows = [(one.kernel, {text: float(f"{ns:.2e}") for text, ns in one.times.items()}) for one in measured]
    Path(str(TIMES).format(machine=machine)).write_bytes(lzma.compress(json.dumps(rows).encode(), preset=9))
