"""States of texts in files: a later model goes on from them, and refuses those of others."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill.formats import safetensors
from kernmill.ir import FormatError, KernmillError, SettingError
from kernmill.llm import Model, load_state, save_state
from tests.tiny_models import CASES, write

IDS = [1, 5, 9, 200, 33, 12, 7, 88, 3]


def opened(path: Path, **options: Any) -> Model:
    return Model.from_gguf(path, tokenizer=None, **{"capacity": 64, **options})


@pytest.mark.parametrize("name", ["llama", "gemma2", "mamba2", "jamba", "deepseek2"])
@pytest.mark.parametrize("cache_type", ["f32", "bf16"])
def test_another_model_continues_a_text(name: str, cache_type: str, tmp_path: Path) -> None:
    path = write(CASES[name], tmp_path / "model.gguf")
    with opened(path, cache_type=cache_type) as model:
        made = [*model.generate(IDS, max_tokens=12)]
        count = save_state(model, tmp_path / "state")
        longer = [*IDS, *made, 4, 2]
        wanted = [*model.generate(longer, max_tokens=6)]
    with opened(path, cache_type=cache_type, capacity=80) as other:
        assert load_state(other, tmp_path / "state") == count >= len(IDS)
        assert [*other.generate(longer, max_tokens=6)] == wanted
        assert other.computed_tokens <= 3 + 6 + (len(made) if CASES[name].arch in ("mamba2", "jamba") else 0)


def test_a_prompt_alone(tmp_path: Path) -> None:
    path = write(CASES["llama"], tmp_path / "model.gguf")
    with opened(path) as model:
        wanted = [*model.generate(IDS, max_tokens=12)]
        assert save_state(model, tmp_path / "state", len(IDS)) == len(IDS)
    with opened(path) as other:
        assert load_state(other, tmp_path / "state") == len(IDS)
        assert [*other.generate(IDS, max_tokens=12)] == wanted
        assert other.computed_tokens == 12


def changed(path: Path, **metadata: str) -> Path:
    """The same state with other metadata."""
    file = safetensors.read(path)
    tensors = {name: (one.dtype, one.shape, file.values(name)) for name, one in file.entries.items()}
    safetensors.write(path, tensors, file.metadata | metadata)
    return path


def test_states_of_others_are_refused(tmp_path: Path) -> None:
    path, state = write(CASES["llama"], tmp_path / "model.gguf"), tmp_path / "state"
    with opened(path) as model:
        with pytest.raises(SettingError, match=r"^save_state: the model has no tokens in its cache\."):
            save_state(model, state)
        [*model.generate(IDS, max_tokens=2)]
        save_state(model, state)
    others = [
        (opened(write(CASES["llama"], tmp_path / "other.gguf", seed=2)), FormatError, "it is of another model, or of"),
        (opened(write(replace(CASES["qwen2"]), tmp_path / "q.gguf")), FormatError, "it is of another model, or of"),
        (opened(path, cache_type="f16"), FormatError, "it has 'f32 keys, f32 values', and the model's cache f16 keys"),
        (opened(path, capacity=8), SettingError, "has 10 tokens, which exceed the cache capacity of 8. Build"),
    ]
    for other, kind, sentence in others:
        with other, pytest.raises(kind, match=re.escape(sentence)):
            load_state(other, state)
    with opened(path) as model:
        before = [*model.generate(IDS, max_tokens=5)]
        for metadata, sentence in (
            ({"kind": "x"}, "it is not the state of a text"),
            ({"kind": "state of a text", "version": "9"}, "its version is '9', not 1"),
            ({"version": "1", "kept": "-1"}, "kept='-1' is not a number of its tokens"),
        ):
            with pytest.raises(FormatError, match=re.escape(sentence)):
                load_state(model, changed(state, **metadata))
        state.write_bytes(b"")
        with pytest.raises(FormatError):
            load_state(model, state)
        assert [*model.generate(IDS, max_tokens=5)] == before


def test_damaged_states_change_nothing(tmp_path: Path) -> None:
    """Each byte that is another one gives a sentence, or a state of the same size."""
    path, state = write(CASES["llama"], tmp_path / "model.gguf"), tmp_path / "state"
    with opened(path) as model:
        [*model.generate(IDS, max_tokens=2)]
        save_state(model, state)
        whole, chance = state.read_bytes(), np.random.default_rng(5)
        for where in chance.integers(0, 1200, 40):
            state.write_bytes(whole[:where] + bytes([whole[where] ^ 0x15]) + whole[where + 1 :])
            with suppress(KernmillError):  # its values, or the name of a fact: a state of the same size
                load_state(model, state)
        state.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FormatError):
            load_state(model, state)
