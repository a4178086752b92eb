"""`kernmill demo`: train a tiny language model on made-up stories, generate some from its file, and show the time
per kernel."""

from __future__ import annotations

import tempfile
import textwrap
import time
from itertools import takewhile
from pathlib import Path

from kernmill.ir import SettingError

from ..lazy import device_name
from ..llm import Learner, Model, Sampler, Vocabulary, llama_metadata, stories
from ..llm.stories import END
from ..profiling import profile
from ..quantize import run as quantize
from ..tensor import Tensor

__all__ = ["run"]

WIDTH, LAYERS, CONTEXT, BATCH = 64, 2, 112, 12
STORIES, MIX, SHOWN = 2000, "Q8_0", 2


def run(steps: int = 240, seed: int = 1) -> float:
    """Train, write a file, tell stories from it, print the most expensive kernels; the last loss."""
    start = time.perf_counter()
    if (Tensor([1.0]) + 1).item() != 2:
        raise SettingError(
            f"demo: {device_name(None)} computes nothing and cannot train a model. Choose another device with "
            "--device or DEVICE.")  # fmt: skip
    texts = stories(STORIES, seed)
    vocabulary = Vocabulary(texts)
    print(f"Training a llama of {LAYERS} layers on stories, on {device_name(None)}.")
    with profile() as found:
        metadata = llama_metadata(WIDTH, LAYERS, CONTEXT) | vocabulary.metadata()
        learner = Learner(metadata, len(vocabulary), CONTEXT, seed)
        whole = [vocabulary.encode(text, is_whole=True) for text in texts]
        loss = learner.fit(whole, steps, batch=BATCH, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            tell(learner, vocabulary, Path(folder), seed)
    print(found.text(5))
    seconds, devices = time.perf_counter() - start, sorted({row.device for row in found.rows})
    print(f"\n{seconds:.1f} s in all, on {', '.join(devices) or 'no device'}.")
    return loss


def tell(learner: Learner, vocabulary: Vocabulary, folder: Path, seed: int) -> None:
    """Write the model as a GGUF file, quantize it, and print text from the second file."""
    learner.save(folder / "stories.gguf")
    small = folder / f"stories-{MIX.lower()}.gguf"
    quantize(folder / "stories.gguf", small, MIX, report=lambda line: None)
    print(f"\nWhat {small.name} ({small.stat().st_size / 2**10:.0f} KiB) generates:\n")
    model = Model.from_gguf(small, tokenizer=None, capacity=CONTEXT)  # the package `tokenizers` may not be installed
    for n in range(SHOWN):
        ids = model.generate(vocabulary.encode(""), Sampler(temperature=0.7, seed=seed + n))
        text = vocabulary.decode(takewhile(lambda token: token != END, ids))  # without a tokenizer nothing ends it
        print(textwrap.fill(text, 100, initial_indent="  | ", subsequent_indent="  | "), end="\n\n")
