"""`python -m tests.llama_cpp [NAME ..]`: tiny random models, kernmill's results against llama.cpp's.

It needs the package llama-cpp-python. Logits of all tokens of a text at once and of its last token computed one by one;
of encoders the states of tokens and the vector of the text. The distance is the largest difference in standard
deviations of all results.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernmill.llm import Model

from .tiny_models import CASES, Case, write

Array = np.ndarray[Any, Any]
IDS = [1, *np.random.default_rng(7).integers(3, 279, 40).tolist()]
SOURCE = [*IDS[20:33], 2]  # of a model with an encoder and a decoder
RESULTS = Path(__file__).with_name("llama_cpp.json")
LIMIT, GELU_LIMIT = 1e-4, 6e-3  # standard deviations; where llama.cpp reads gelu from a table of float16
TIE = 1e-6  # standard deviations: two tokens of llama.cpp whose order the rounding of float32 decides


def _show(level: int, text: bytes, data: object) -> None:
    if level == 4:  # errors
        print(text.decode(errors="replace"), end="", file=sys.stderr)


class Found(NamedTuple):
    """Distances: of a prompt, of the last token after single steps, of vectors; whether greedy tokens agree, or
    tie."""

    prompt: float
    step: float
    greedy: bool


class Theirs:
    """A file in llama.cpp: float32 keys and values, one thread."""

    def __init__(self, path: Path, *, embeds: bool) -> None:
        self.c = c = importlib.import_module("llama_cpp")
        self._silent = c.llama_log_callback(_show)
        c.llama_log_set(self._silent, ctypes.c_void_p(0))
        options = c.llama_model_default_params()
        options.use_extra_bufts = False
        self.model = c.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot open {path.name}")
        context = c.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = 256
        context.n_threads = context.n_threads_batch = 1
        context.type_k = context.type_v = 0
        context.flash_attn_type = 0
        context.embeddings = embeds
        self.context = c.llama_init_from_model(self.model, context)
        self.width = c.llama_model_n_embd(self.model)
        self.rows = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))

    def _decode(self, ids: list[int], first: int) -> None:
        batch = self.c.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for n, token in enumerate(ids):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, first + n, 1, 1
            batch.seq_id[n][0] = 0
        status = self.c.llama_decode(self.context, batch)
        self.c.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def logits(self, ids: list[int]) -> Array:
        self._decode(ids, 0)
        rows = [self.c.llama_get_logits_ith(self.context, n)[: self.rows] for n in range(len(ids))]
        return np.array(rows, np.float64)

    def encode(self, ids: list[int]) -> None:
        """Read a source."""
        batch = self.c.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for n, token in enumerate(ids):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, n, 1, 1
            batch.seq_id[n][0] = 0
        status = self.c.llama_encode(self.context, batch)
        self.c.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_encode returned {status}")

    def step(self, token: int, position: int) -> Array:
        self._decode([token], position)
        return np.array(self.c.llama_get_logits_ith(self.context, 0)[: self.rows], np.float64)

    def vector(self, ids: list[int]) -> Array:
        self._decode(ids, 0)
        return np.array(self.c.llama_get_embeddings_seq(self.context, 0)[: self.width], np.float64)

    def close(self) -> None:
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)


def compare(name: str, folder: Path) -> Found:
    """Write the tiny model of this name, and compute with both."""
    case = CASES[name]
    path = write(case, folder / f"{name.replace(' ', '-')}.gguf")
    embeds = "pooling_type" in case.keys
    theirs = Theirs(path, embeds=embeds)
    ours = Model.from_gguf(path, tokenizer=None, capacity=256, block=16)
    try:
        if case.arch == "t5":
            theirs.encode(SOURCE)
            ours.encode(SOURCE)
        if embeds:
            return _of_vectors(ours, theirs)
        return _of_logits(ours, theirs)
    finally:
        theirs.close()
        ours.close()


def _apart(ours: Any, theirs: Array) -> float:
    return float(np.abs(np.asarray(ours, np.float64) - theirs).max() / theirs.std())


def _of_vectors(ours: Model, theirs: Theirs) -> Found:
    vector = ours.embed(IDS, normalize=False)
    apart = _apart(vector.numpy(), theirs.vector(IDS))
    return Found(apart, 0.0, True)


def _of_logits(ours: Model, theirs: Theirs) -> Found:
    expected = theirs.logits(IDS)
    found = ours.logits(IDS).numpy()
    ids, apart = list(IDS), 0.0
    ours.reset()
    ours.next_logits(ids)
    last, agree = expected[-1], True
    for _ in range(12):
        step = ours.next_logits(ids) if len(ids) > len(IDS) else found[-1]
        apart = max(apart, _apart(step, last))
        best = int(last.argmax())
        agree = agree and float(last[best] - last[int(step.argmax())]) <= TIE * float(expected.std())
        last = theirs.step(best, len(ids))
        ids.append(best)
    return Found(_apart(found, expected), apart, agree)


def limit(case: Case) -> float:
    return GELU_LIMIT if case.gelu else LIMIT


def main(names: list[str]) -> int:
    """Compare, print, and write the results of all that were asked for."""
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or CASES:
            try:
                found = compare(name, Path(folder))
            except Exception as error:
                print(f"{name:24} {type(error).__name__}: {str(error)[:300]}", flush=True)
                failed += 1
                continue
            is_near = max(found.prompt, found.step) <= limit(CASES[name]) and found.greedy
            failed += not is_near and not CASES[name].differs
            known[name] = {"prompt": float(f"{found.prompt:.1e}"), "step": float(f"{found.step:.1e}"),
                           "greedy": found.greedy}  # fmt: skip
            print(f"{name:24} {found.prompt:.1e} {found.step:.1e} {'' if is_near else 'FAR'}", flush=True)
    RESULTS.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
