"""A model of gpt-oss' shape over four sessions of a Hexagon NPU: `python -m bench.sessions`.

The weights are made up here: experts in MXFP4, other matrices in Q4_0 and Q8_0. A session has less
memory than the model needs. The tokens are those of the CPU; what is where, times and memory are printed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernmill import Context, KernmillError, Tensor
from kernmill.llm import Model, Sampler
from kernmill.llm.arch import ARCHITECTURES, Config
from kernmill.llm.run import Options, run
from kernmill.llm.split import SplitOptions
from kernmill.quant import QuantizedTensor, save

LAYERS, WIDTH, EXPERTS, LETTERS = 8, 256, 4, " etaoinshrdlucmfw"
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]
SESSIONS = 4
PROMPT = "the loom is on"
SIZES = {
    "context_length": 512, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": WIDTH,
    "attention.head_count": 8, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0, "expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": WIDTH,
    "attention.sliding_window": 128,
}  # fmt: skip
VOCABULARY = {
    "model": "llama", "tokens": TOKENS, "token_type": [2, 3, 3, *[6] * 256, *[1] * len(LETTERS)],
    "scores": [0.0] * 259 + [-float(n) for n in range(len(LETTERS))],
    "unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def write(path: Path) -> None:
    """The model as a GGUF file."""
    kind, chance = "gpt-oss", np.random.default_rng(1)
    metadata = {"general.architecture": kind, **{f"{kind}.{key}": value for key, value in SIZES.items()},
                **{f"tokenizer.ggml.{key}": value for key, value in VOCABULARY.items()}}  # fmt: skip
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output.weight": (len(TOKENS), WIDTH),
              "output_norm.weight": (WIDTH,)}  # fmt: skip
    config = Config.of(metadata)
    for n in range(LAYERS):
        known, needed = ARCHITECTURES[kind].names_in(config, n)
        shapes |= {f"blk.{n}.{name}": shape for name, shape in known.items() if name in needed}
    tensors: dict[str, Tensor | QuantizedTensor] = {}
    words = chance.standard_normal((len(TOKENS), WIDTH)).astype(np.float32)
    next_words = words[chance.permutation(len(TOKENS))]  # then the likeliest token does not hang on the last bit
    for name, shape in shapes.items():
        values = chance.standard_normal(shape).astype(np.float32)
        values = words if name.startswith("token_embd") else next_words if name == "output.weight" else values
        if "norm" in name:
            tensors[name] = Tensor(1 + values / 4)
        elif len(shape) == 1 or name.endswith(".bias") or "gate_inp" in name:
            tensors[name] = Tensor(values / 4)
        else:
            type_ = "MXFP4" if "_exps" in name else "Q4_0" if name.startswith("blk.") else "Q8_0"
            tensors[name] = QuantizedTensor.quantize(Tensor(values * np.float32(0.7 / shape[-1] ** 0.5)), type_)
    save(path, tensors, metadata)


def tokens_of(path: Path, devices: str, count: int) -> list[int]:
    """The next tokens, each the likeliest."""
    split = SplitOptions(-1, (1.0,) * SESSIONS) if "," in devices else None
    model = Model.from_gguf(path, capacity=256, cache_type="q8_0", device=devices, wanted=split)
    assert model.tokenizer is not None
    return [*model.generate(model.tokenizer.encode(PROMPT), Sampler(temperature=0), max_tokens=count)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("-n", type=int, default=16, help="tokens to make")
    given.add_argument("--limit", type=int, default=4 << 20, help="bytes of a session's memory (default 4 MiB)")
    options = given.parse_args(arguments)
    devices = ",".join([*(f"HTP:{n}?limit={options.limit}" for n in range(SESSIONS)), "LLVM"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt-oss-tiny.gguf"
        write(path)
        print(f"model: {path.stat().st_size / 2**20:.2f} MiB; a session has {options.limit / 2**20:.2f}", flush=True)
        wanted = tokens_of(path, "LLVM", options.n)
        with Context(DEVICE=devices):
            split = SplitOptions(-1, (1.0,) * SESSIONS)
            chosen = Options(PROMPT, tokens=options.n, capacity=256, cache_type="q8_0", ignores_end=True, split=split)
            run(path, chosen, Sampler(temperature=0))
        gc.collect()  # the first model's memory: a session has no room for two
        found = tokens_of(path, devices, options.n)
    print("tokens of the CPU:     ", *wanted)
    print("tokens of the sessions:", *found)
    return int(found != wanted)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KernmillError as error:
        sys.exit(f"bench.sessions: {error}")
