"""`kernmill demo`: train a small character model on a story that comes with the package, and show what it cost."""

from __future__ import annotations

import time
from pathlib import Path

from kernmill.runtime import profile

from . import nn
from .jit import jit
from .lazy import device_name, no_grad
from .random import manual_seed
from .tensor import Tensor

__all__ = ["CharacterModel", "run"]

CONTEXT, WIDTH, HEADS, BLOCKS, BATCH = 48, 64, 4, 2, 24
STORY = Path(__file__).resolve().parent / "data" / "story.txt"


class Block(nn.Module):
    """Attention to the characters before, then two linear layers."""

    def __init__(self) -> None:
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiHeadAttention(WIDTH, HEADS)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, length, width) -> the same."""
        x = x + self.attention(self.attention_norm(x), is_causal=True)
        result: Tensor = x + self.down(self.up(self.norm(x)).gelu("tanh"))
        return result


class CharacterModel(nn.Module):
    """A causal transformer that says for each character which one comes next."""

    def __init__(self, characters: int) -> None:
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = Tensor.normal((CONTEXT, WIDTH), std=0.1, requires_grad=True)
        self.blocks = [Block() for _ in range(BLOCKS)]
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, characters)

    def forward(self, index: Tensor) -> Tensor:
        """Shapes: (batch, length) -> (batch, length, characters)."""
        x = self.characters(index) + self.places
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.out(self.norm(x))
        return result


def run(steps: int = 800, seed: int = 1) -> float:
    """Train, write some lines, print the most expensive kernels; the last loss."""
    start = time.perf_counter()
    manual_seed(seed)
    text = STORY.read_text(encoding="ascii")
    alphabet = sorted(set(text))
    print(f"A model of {BLOCKS} blocks learns {len(text)} characters of {STORY.name} on {device_name(None)}.")
    profile.totals.clear()
    profile.collecting, before = True, profile.collecting
    try:
        model = CharacterModel(len(alphabet))
        loss = train(model, [alphabet.index(c) for c in text], steps, seed)
        print("\nWhat it writes now:\n")
        print(write(model, alphabet, text, seed))
    finally:
        profile.collecting = before
    show_costs(time.perf_counter() - start)
    return loss


def train(model: CharacterModel, codes: list[int], steps: int, seed: int) -> float:
    """Batches from random places of the story; the last loss."""
    import numpy as np

    story = np.array(codes, np.int32)
    rng = np.random.default_rng(seed)
    optimizer = nn.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).flatten(0, 1).cross_entropy(y.flatten())
        loss.backward()
        optimizer.step(loss)
        result: Tensor = loss.detach()
        return result

    start, value = time.perf_counter(), 0.0
    for number in range(1, steps + 1):
        at = rng.integers(0, len(story) - CONTEXT - 1, BATCH)[:, None] + np.arange(CONTEXT)
        if number > steps * 2 // 3:
            optimizer.lr = 1e-3
        loss = step(Tensor(story[at]), Tensor(story[at + 1]))
        if number == 1 or number % max(1, steps // 12) == 0 or number == steps:
            value = float(loss.item())
            print(f"  step {number:4}  loss {value:.3f}  {time.perf_counter() - start:5.1f} s", flush=True)
    return value


def write(model: CharacterModel, alphabet: list[str], text: str, seed: int, length: int = 240) -> str:
    """Characters drawn one by one from what the model thinks, after the first ones of the story."""
    import numpy as np

    model.eval()

    @jit
    def chances(x: Tensor) -> Tensor:
        with no_grad():
            result: Tensor = (model(x)[0, -1] / 0.6).softmax(-1)
        return result

    rng = np.random.default_rng(seed)
    start = text.index("\n\n") + 2
    codes = [alphabet.index(c) for c in text[start : start + CONTEXT]]
    for _ in range(length):
        p = chances(Tensor(np.array([codes[-CONTEXT:]], np.int32))).numpy().astype(np.float64)
        codes.append(int(rng.choice(len(alphabet), p=p / p.sum())))
    written = "".join(alphabet[code] for code in codes)
    return "\n".join(f"  | {line}" for line in written.splitlines())


def show_costs(seconds: float) -> None:
    """The five most expensive kernels, their share, and where they ran."""
    totals = sorted(profile.totals.items(), key=lambda item: -item[1].time_ns)
    whole = sum(total.time_ns for _, total in totals)
    print(f"\nThe most expensive of {len(totals)} kernels, {whole / 1e9:.1f} s of {seconds:.1f} s:\n")
    print("  share  calls      each  GFLOP/s  kernel")
    for _, total in totals[:5]:
        each, rate = total.time_ns / max(1, total.calls), total.flops / max(1, total.time_ns)
        print(f"  {total.time_ns / max(1, whole):5.1%} {total.calls:6} {each / 1e3:6.0f} us {rate:8.1f}  {total.name}")
    devices = sorted({name.partition(" ")[0] for name, _ in totals})
    print(f"\n{seconds:.1f} s in all, on {', '.join(devices) or 'no device'}.")
