"""A real model split over several devices writes the text of one device, and its memory is where the split says."""

from __future__ import annotations

from typing import Any

import pytest

from kernmill import Context
from kernmill.ir import OutOfMemoryError
from kernmill.llm import Model, Sampler
from kernmill.llm.run import Options, run
from kernmill.llm.split import SplitOptions


def text_of(path: Any, **options: Any) -> tuple[list[int], Model]:
    model = Model.from_gguf(path, capacity=64, **options)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("Once upon a time")
    return list(model.generate(ids, Sampler(temperature=0), max_tokens=12)), model


@pytest.mark.parametrize("names", ["PYTHON,LLVM", "LLVM,FAR:0..2"])
def test_a_model_over_devices_writes_the_same_text(names: str, gguf: Any, far: Any) -> None:
    if "FAR" in names:
        names = ",".join(["LLVM", *(far(n, mib=2) for n in range(3))])
    path = gguf("stories260K/stories260Ktok512.gguf").path
    alone, _ = text_of(path)
    devices = [name for name in names.split(",") if name != "LLVM"]  # which is the host: the last CPU of the list
    shares = (1.0,) * len(devices)
    split, model = text_of(path, device=names, wanted=SplitOptions(5, shares))
    assert split == alone
    assert model.split is not None
    assert [name for name, _, _ in model.split.ranges()] == ["LLVM", *devices][: len(model.split.ranges())]
    memory = model.memory_by_device()
    assert all(memory[name].weights and memory[name].context for name, _, _ in model.split.ranges())
    assert sum(m.weights for m in memory.values()) == model.memory().weights


def test_a_model_that_fits_no_single_device(gguf: Any, far: Any) -> None:
    """Each of these devices holds less than the weights and the cache."""
    path = gguf("stories260K/stories260Ktok512.gguf").path
    alone, whole = text_of(path)
    assert whole.memory().weights > 0.6 * (1 << 20)
    names = ",".join([far(0, mib=1), far(1, mib=1), "LLVM"])
    split, model = text_of(path, device=names)
    assert split == alone
    assert model.split is not None


def test_a_list_that_is_too_small_says_so_by_device(gguf: Any, far: Any) -> None:
    """The table was replaced by the sentence of one device."""
    path = gguf("stories260K/stories260Ktok512.gguf").path
    names = f"{far(0, mib=1)},{far(1, mib=1)}"
    with (
        Context(DEVICE=names),
        pytest.raises(OutOfMemoryError, match=r"this model does not fit: its layers.*\nFAR +\d+\.\d MiB free"),
    ):
        run(path, Options("Once", capacity=4096), Sampler(temperature=0))
