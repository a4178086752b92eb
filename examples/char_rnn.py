"""Learn a text letter by letter with a GRU and continue it: `python examples/char_rnn.py [--text FILE] [--steps N]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernmill import Tensor, jit, manual_seed, nn, no_grad

TEXT = "the quick brown fox jumps over the lazy dog. " * 20


class CharModel(nn.Module):
    """Letters in, logits of the next letter out."""

    def __init__(self, letters: int, width: int) -> None:
        self.embedding = nn.Embedding(letters, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.gru(self.embedding(ids))[0])


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="a file; without one a sentence is learned")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=32, help="letters that are learned together")
    options = parser.parse_args(given)
    text = options.text.read_text(encoding="utf-8") if options.text else TEXT
    alphabet = sorted(set(text))
    ids = np.array([alphabet.index(letter) for letter in text])
    manual_seed(0)
    model = CharModel(len(alphabet), options.width)
    optimizer = nn.optim.Adam(model.parameters(), lr=1e-2)

    @jit
    def step(windows: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = model(windows[:, :-1])
        loss = logits.flatten(0, 1).cross_entropy(windows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    random = np.random.default_rng(0)
    for number in range(options.steps):
        starts = random.integers(0, len(ids) - options.length, 16)
        loss = step(Tensor(np.stack([ids[start : start + options.length] for start in starts])))
        if number % 50 == 0:
            print(f"step {number}: loss {loss.item():.3f}")
    written = [int(one) for one in ids[: options.length - 1]]
    with no_grad():
        for _ in range(20):
            window = Tensor(np.array([written[-(options.length - 1) :]]))
            written.append(int(model(window)[0, -1].argmax().item()))
    print("continued: " + "".join(alphabet[one] for one in written[options.length - 1 :]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
