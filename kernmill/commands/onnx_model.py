"""`kernmill onnx MODEL`: what an ONNX model takes and gives, and its time next to onnxruntime's."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from kernmill.ir import Context, SettingError, setting

from ..onnx import load
from ..onnx.bench import measure
from ..onnx.reading import model_of

__all__ = ["run"]


def run(path: str, *, bench: bool, sizes: Sequence[str], runs: int, threads: int | None, seed: int | None) -> int:
    """Print inputs, outputs and operators of a model; with `bench`, a table of times.

    Raises:
        KernmillError: as `load`; a size that is not NAME=NUMBER.
    """
    if not bench:
        model = load(path)
        for name, shape in model.inputs.items():
            kind = model.dtypes[name]
            shown = "of unknown shape" if shape is None else f"({', '.join(str(n or '?') for n in shape)})"
            print(f"input   {name}  {kind.name if kind else ''} {shown}")
        for name in model.outputs:
            print(f"output  {name}")
        counts = collections.Counter(node.op_type for node in model_of(path).graph.node)
        print("nodes   " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
        return 0
    count = threads or int(setting("THREADS"))
    with Context(THREADS=count):
        found = measure(path, dict(map(_named_size, sizes)), runs=runs, threads=count, seed=seed)
    print(f"{'':12} {'first call':>12} {'median':>12} {'speed':>8} {'difference':>11}")
    base = found[-1].median_ms
    for row in found:
        ratio, difference = base / row.median_ms, "" if row.difference is None else f"{row.difference:.1e}"
        print(f"{row.name:12} {row.first_ms:9.1f} ms {row.median_ms:9.2f} ms {ratio:7.2f}x {difference:>11}")
    if len(found) == 1:
        print("onnxruntime is not installed. Run: pip install onnxruntime")
    return 0


def _named_size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdigit():
        raise SettingError(f"onnx: --size {text!r} is not NAME=NUMBER. Write for example --size batch=8.")
    return name, int(number)
