"""GGUF files of the shared data for these tests: metadata and plain tensors; and a small file made here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.formats.gguf import read
from kernmill.quant import QuantizedTensor, save

_PLAIN = {"F32": "<f4", "F16": "<f2"}


@pytest.fixture(autouse=True)
def on_device() -> str:
    """Instead of the front's fixture: most tests here compute nothing, and a model takes long on PYTHON."""
    return "the default device"


class Gguf(NamedTuple):
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]  # F32 and F16 only


@cache
def _read(path: Path) -> Gguf:
    file = read(path)
    tensors = {
        name: np.frombuffer(file.values(name), _PLAIN[entry.type.name]).reshape(entry.shape)
        for name, entry in file.entries.items()
        if entry.type.name in _PLAIN
    }
    return Gguf(path, dict(file.metadata), tensors)


@pytest.fixture(scope="session")
def gguf(shared_data: Callable[[str], Path]) -> Callable[[str], Gguf]:
    """`gguf("stories260K/stories260Ktok512.gguf")`; the test is skipped where the file is absent."""
    return lambda name: _read(shared_data(name.split("/")[0]) / name.split("/", 1)[1])


# --- a file made here ------------------------------------------------------------------------------------------------
WIDTH, CONTEXT = 32, 64
WORDS = ("\u2581", "a", "b", "ab")


def parts(kind: str | None = None) -> tuple[dict[str, Tensor | QuantizedTensor], dict[str, Any]]:
    """Random weights of a small llama, its matrices as blocks of a type if one is given, and its metadata."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{name}_norm": (WIDTH,) for name in ("attn", "ffn")}
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes |= {f"blk.0.{name}": (WIDTH, WIDTH) for name in matrices}
    chance = np.random.default_rng(4)
    tensors: dict[str, Tensor | QuantizedTensor] = {}
    for name, shape in shapes.items():
        values = Tensor(chance.standard_normal(shape).astype(np.float32))
        tensors[f"{name}.weight"] = (
            values if kind is None or len(shape) == 1 else QuantizedTensor.quantize(values, kind)
        )
    sizes = {
        "context_length": CONTEXT, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": WIDTH,
        "attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    metadata: dict[str, Any] = {f"llama.{key}": value for key, value in sizes.items()} | {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *(6 for _ in range(256)), *(1 for _ in WORDS)],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in range(len(WORDS))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return tensors, metadata


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """`made("Q8_0")`: a file; `made(drop=NAME)` leaves out a tensor, `tensors={..}` and `metadata={..}` change some."""
    pytest.importorskip("tokenizers")

    def make(kind: str | None = None, drop: str = "", tensors: Any = None, metadata: Any = None) -> Path:
        weights, keys = parts(kind)
        kept = {name: weight for name, weight in (weights | (tensors or {})).items() if name != drop}
        save(tmp_path / "made.gguf", kept, keys | (metadata or {}))
        return tmp_path / "made.gguf"

    return make
