"""Train a tiny llama on stories made up here and write it as a GGUF file: `python examples/train_story_model.py`.

The stories come from a small grammar, so nothing is downloaded. The file is like any other: `kernmill run` opens it,
and so does llama.cpp.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from itertools import islice
from pathlib import Path

import numpy as np

from kernmill import Context, KernmillError, dist
from kernmill.llm import Learner, Model, Sampler, Vocabulary, llama_metadata, stories
from kernmill.quantize import mix_named
from kernmill.quantize import run as quantize

CONTEXT = 128  # tokens: what is longer is cut
HELD_OUT = 20  # stories that are not learned


def perplexity(model: Model, texts: list[list[int]]) -> float:
    """How many tokens the model hesitates between, on average."""
    losses = []
    for ids in texts:
        logits = model.logits(ids[:-1]).numpy().astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        chances = logits[np.arange(len(logits)), ids[1:]] - np.log(np.exp(logits).sum(1))
        losses += (-chances).tolist()
    return float(np.exp(np.mean(losses)))


def quantized_path(given: argparse.Namespace) -> Path:
    """Where the second file goes: beside the first."""
    return Path(given.out.with_name(f"{given.out.stem}-{given.mix.lower()}.gguf"))


def check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """What is wrong with the arguments is said before the training, whose result would be lost."""
    if min(given.width // 8, given.layers, given.steps, given.batch) < 1 or given.width % 8:
        parser.error("--width is a multiple of 8; --layers, --steps and --batch are 1 or more")
    if given.seed < 0:
        parser.error("--seed is 0 or more")
    if given.stories <= HELD_OUT:
        parser.error(f"--stories is more than the {HELD_OUT} that are held out")
    if not given.out.parent.is_dir():
        parser.error(f"--out: there is no folder {given.out.parent}")
    try:
        mix_named(given.mix)
    except KernmillError as error:
        parser.error(f"--mix: {error}")
    if given.out.is_dir() or quantized_path(given).is_dir():
        parser.error(f"--out: {given.out}, or the second file beside it, is a folder; give the path of a file")


def run(given: argparse.Namespace) -> None:
    """Train, save, quantize, and compare the two files."""
    start = time.perf_counter()
    texts = stories(given.stories, given.seed)
    vocabulary = Vocabulary(texts, given.vocabulary)
    ids = [vocabulary.encode(text, is_whole=True) for text in texts]
    learned, held_out = ids[HELD_OUT:], [text[: CONTEXT + 1] for text in ids[:HELD_OUT]]

    metadata = {
        "general.name": "stories",
        **llama_metadata(given.width, given.layers, CONTEXT),
        **vocabulary.metadata(),
    }
    learner = Learner(metadata, len(vocabulary), CONTEXT, given.seed)
    count = sum(weight.numel() for weight in learner.parameters())
    if dist.rank() == 0:
        print(f"{count:,} weights learn {len(learned)} stories in words of {len(vocabulary)} pieces.")
    learner.fit(learned, given.steps, batch=given.batch, seed=given.seed)  # under mpirun: all ranks one model
    if dist.rank():
        return

    learner.save(given.out)
    small = quantized_path(given)
    quantize(given.out, small, given.mix, report=lambda line: None)
    for path in (given.out, small):
        model = Model.from_gguf(path, capacity=CONTEXT, block=CONTEXT)
        print(f"{path}: {path.stat().st_size / 2**20:.2f} MiB, perplexity {perplexity(model, held_out):.3f}")
    words = model.complete("Once upon a time", Sampler(temperature=0.7, seed=given.seed))
    print("\n" + textwrap.fill("Once upon a time" + "".join(islice(words, CONTEXT)), 100) + "\n")
    print(f"{time.perf_counter() - start:.0f} s. More: kernmill run {small} -p 'Once upon a time'")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("stories.gguf"), help="file to write (default %(default)s)")
    parser.add_argument("--mix", default="Q8_0", help="of the second file, such as Q4_K_M (default %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="Q4_K wants 256 (default %(default)s)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=640, help="tokens (default %(default)s)")
    parser.add_argument("--stories", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default=None, help="such as LLVM; default: the setting DEVICE")
    given = parser.parse_args()
    check(parser, given)
    try:
        with Context(**({"DEVICE": given.device} if given.device else {})):
            run(given)
    except KernmillError as error:
        sys.exit(f"train_story_model: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
