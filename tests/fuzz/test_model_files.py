"""Damaged files of every architecture: each is opened, or refused with one sentence; nothing else happens."""

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.formats import gguf
from kernmill.ir import KernmillError
from kernmill.llm import Model
from kernmill.llm.arch import ARCHITECTURES
from kernmill.llm.model_file import config_in
from tests.tiny_models import CASES, metadata_of, weights_of, write

SEEDS = int(os.environ.get("FUZZ_SEEDS", "1"))
NAMES = sorted(ARCHITECTURES)
VALUES: list[Any] = [0, 1, 2, 3, 7, 63, 65, 2**31, -1, 0.0, -0.5, 1e30, float("nan"), float("inf"), "", "x", True, [],
                     [1], [0] * 3, [2, 1, 0], ["a"] * 3, [1.5] * 5]  # fmt: skip
MOST_TENSORS = 400  # of a model that is built here


def opened(metadata: dict[str, Any], weights: dict[str, Any]) -> None:
    """Build a model; errors for users are fine."""
    try:
        Model.of(metadata, weights.get, capacity=16, tokenizer=None)
    except KernmillError as error:
        text = str(error)
        assert text.endswith((".", ")"))
        assert len(text) < 3000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_numbers_that_are_wrong(name: str, seed: int) -> None:
    """One or two keys have another value or are missing."""
    case, rng = CASES[name], random.Random(f"{name} {seed}")
    metadata = {key: value for key, value in metadata_of(case).items() if not key.startswith("tokenizer.")}
    weights = {key: Tensor(array) for key, array in weights_of(case).items()}
    if len(weights) > MOST_TENSORS:
        pytest.skip("many layers")
    for _ in range(12):
        changed = dict(metadata)
        for key in rng.sample(sorted(metadata.keys() - {"general.architecture"}), rng.choice([1, 1, 2])):
            value = rng.choice([None, *VALUES])
            changed[key] = value
            if value is None:
                del changed[key]
        opened(changed, weights)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_tensors_that_are_wrong(name: str, seed: int) -> None:
    """A tensor is missing, or has another shape or dtype."""
    case, rng = CASES[name], random.Random(f"{name} {seed}")
    metadata = {key: value for key, value in metadata_of(case).items() if not key.startswith("tokenizer.")}
    arrays = weights_of(case)
    if len(arrays) > MOST_TENSORS:
        pytest.skip("many layers")
    weights = {key: Tensor(array) for key, array in arrays.items()}
    for _ in range(6):
        key, changed = rng.choice(sorted(arrays)), dict(weights)
        kind = rng.randrange(4)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[key] = Tensor(arrays[key][:-1])
        elif kind == 2:
            changed[key] = Tensor(np.zeros((*arrays[key].shape, 1), np.float32))
        else:
            changed[key] = Tensor(arrays[key].astype(np.int32))
        opened(metadata, changed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_bytes_that_are_wrong(name: str, seed: int, tmp_path: Path) -> None:
    """Bytes of the head are others, or the file ends early: it is read, and its sizes are checked."""
    rng = random.Random(f"{name} {seed}")
    whole = write(CASES[name], tmp_path / "whole.gguf").read_bytes()
    head = whole.find(b"token_embd.weight")
    for n in range(20):
        data = bytearray(whole[: rng.randrange(head, len(whole))] if n % 4 == 0 else whole)
        for _ in range(rng.choice([1, 1, 4])):
            data[rng.randrange(min(len(data), head + 4000))] = rng.randrange(256)
        path = tmp_path / f"{n}.gguf"
        path.write_bytes(data)
        with contextlib.suppress(KernmillError):
            config_in(gguf.read(path))
        path.unlink()
