"""What `kernmill run` prints of memory: where weights and caches are, and a table whose columns add up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernmill.formats import gguf
from kernmill.llm import Model
from kernmill.llm.memory_lines import load_lines, memory_table
from kernmill.llm.split import SplitOptions


def test_lines_of_one_device(made: Callable[..., Path]) -> None:
    path = made("Q8_0")
    model = Model.from_gguf(path, capacity=32, device="PYTHON")
    first, *weights, context, cache = load_lines(model, gguf.read(path))
    layers, count = model.config.layers, len(gguf.read(path).entries)
    assert first.startswith(f"load: llama, {layers} layers, {count} tensors (")
    assert "q8_0" in first
    assert len(weights) == 1
    assert weights[0].startswith("load: PYTHON ")
    assert weights[0].count("MiB") == 2
    assert context.startswith("context: 32 of the ")
    assert cache == f"cache: k f32, v f32, PYTHON {model.memory().context / 2**20:.2f} MiB"


def test_lines_of_two_devices(made: Callable[..., Path]) -> None:
    path = made("Q8_0")
    model = Model.from_gguf(path, capacity=32, device="PYTHON,LLVM", wanted=SplitOptions(2))
    lines = load_lines(model, gguf.read(path))
    width = model.config.width
    assert f"load: 1 of {model.config.layers} layers and the output are not on LLVM" in lines
    assert lines[-1] == f"splits: 2, copies of a token: 1 x {4 * width} bytes"
    assert [line.split()[1] for line in lines[3:5]] == ["PYTHON", "LLVM"]


@pytest.mark.parametrize(("devices", "names"), [("LLVM", "LLVM"), ("LLVM,PYTHON", "LLVM LLVM-REPACK PYTHON")])
def test_columns_add_up(made: Callable[..., Path], devices: str, names: str) -> None:
    model = Model.from_gguf(
        made("Q8_0"), capacity=32, device=devices, wanted=SplitOptions(2) if "," in devices else None
    )
    model.next_logits([1, 2])
    head, *rows = memory_table(model)
    assert [row.split()[0] for row in rows] == names.split()  # the weights of what is not the host are interleaved
    for row in rows:
        if "REPACK" in row:  # a part of the line above
            continue
        found = dict(zip(head.split()[2:], row.split()[1:], strict=True))
        assert float(found["self"]) == pytest.approx(
            sum(float(found[name]) for name in ("model", "context", "compute")), abs=0.02
        )
        if "-" not in (found["total"], found["free"]):
            used = sum(float(found[name]) for name in ("free", "self", "unaccounted"))
            assert float(found["total"]) == pytest.approx(used, abs=0.02)
