"""Train a small convolutional network on digits: `python examples/mnist.py [--data folder]`.

`--data` is a folder with the four files of MNIST, as Yann LeCun and others published them. PyTorch's torchvision leaves
them in `MNIST/raw` of the folder that `torchvision.datasets.MNIST(folder, download=True)` gets. Without `--data` the
digits are made up: a font, turned, scaled, moved and with noise.
"""

from __future__ import annotations

import argparse
import gzip
import math
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import numpy as np

from kernmill import Context, KernmillError, Progress, Tensor, dist, jit, manual_seed, nn, no_grad

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


FONT = (  # rows of 5 pixels for each digit, the left pixel is the highest bit
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31), (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14), (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14), (14, 17, 17, 15, 1, 2, 12),
)  # fmt: skip


class Network(nn.Module):
    """Two convolutions of 5x5, each followed by a maximum over 2x2, then two linear layers."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 16, 5)  # 28x28 -> 24x24, pooled 12x12
        self.second = nn.Conv2d(16, 32, 5)  # 12x12 -> 8x8, pooled 4x4
        self.hidden = nn.Linear(32 * 4 * 4, 128)
        self.dropout = nn.Dropout(0.25)
        self.out = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).max_pool2d(2).relu()
        x = self.second(x).max_pool2d(2).relu()
        x = self.hidden(x.flatten(1)).relu()
        out: Tensor = self.out(self.dropout(x))
        return out


# --- data ------------------------------------------------------------------------------------------------------------
def read_idx(path: Path) -> np.ndarray:
    """One file of the set: a magic number (unsigned bytes, so many axes), the sizes, the bytes."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        sys.exit(f"mnist: {path}: {error}. Fetch the file again.")
    axes = raw[3] if len(raw) >= 4 else 0
    head = 4 + 4 * axes
    if raw[:3] != b"\0\0\x08" or axes not in (1, 3) or len(raw) < head:
        sys.exit(f"mnist: {path} is no file of unsigned bytes in the idx format. Fetch it again.")
    sizes = struct.unpack(f">{axes}I", raw[4:head])
    if len(raw) - head != math.prod(sizes):
        sys.exit(f"mnist: {path} should hold {sizes} bytes after its head, it holds {len(raw) - head}. Fetch it again.")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(sizes)


def read_data(folder: Path) -> list[np.ndarray]:
    """Images as float32 of mean 0, labels as int32."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        sys.exit(f"mnist: {folder} lacks {', '.join(missing)}. Give the folder of the four MNIST files with --data, or "
                 "leave it out for digits that are made up.")  # fmt: skip
    train_x, train_y, test_x, test_y = (read_idx(folder / name) for name in FILES)
    for x, y in ((train_x, train_y), (test_x, test_y)):
        if x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or not len(x):
            sys.exit(f"mnist: images of shape {x.shape} with labels of shape {y.shape}. Fetch the files again.")
    return [scaled(train_x), train_y.astype(np.int32), scaled(test_x), test_y.astype(np.int32)]


def make_up(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images like those of the set, and their labels: digits of a font, each turned, scaled and moved, with noise."""
    glyphs = np.array([[[row >> bit & 1 for bit in (4, 3, 2, 1, 0)] for row in rows] for rows in FONT])
    labels = rng.integers(0, 10, count)
    y, x = np.mgrid[:28, :28] - 13.5
    angle, shift = rng.uniform(-0.25, 0.25, (count, 1, 1)), rng.uniform(-3, 3, (2, count, 1, 1))
    zoom = rng.uniform(2.2, 3.2, (2, count, 1, 1))  # pixels for each one of the font
    down, right = y - shift[0], x - shift[1]
    row = np.floor((np.cos(angle) * down - np.sin(angle) * right) / zoom[0] + 3.5).astype(int)
    column = np.floor((np.sin(angle) * down + np.cos(angle) * right) / zoom[1] + 2.5).astype(int)
    is_inside = (row >= 0) & (row < 7) & (column >= 0) & (column < 5)
    ink = glyphs[labels[:, None, None], row.clip(0, 6), column.clip(0, 4)] * is_inside
    return (ink * 200 + rng.integers(0, 56, ink.shape)).astype(np.uint8), labels


def make_up_data(seed: int) -> list[np.ndarray]:
    """6,000 images to train with and 1,000 to test, as `read_data` gives them."""
    rng = np.random.default_rng(seed)
    (train_x, train_y), (test_x, test_y) = make_up(6000, rng), make_up(1000, rng)
    return [scaled(train_x), train_y.astype(np.int32), scaled(test_x), test_y.astype(np.int32)]


def scaled(images: np.ndarray) -> np.ndarray:
    return ((images.astype(np.float32) / 255 - 0.1307) / 0.3081).reshape(-1, 1, 28, 28)


def moved(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each batch shifted by up to two pixels: a digit stays the same digit."""
    down, right = rng.integers(-2, 3, 2)
    return np.roll(images, (int(down), int(right)), (2, 3))


# --- training --------------------------------------------------------------------------------------------------------
def say(text: str, file: TextIO | None = None) -> None:
    """Print a line; under mpirun the first rank does."""
    if dist.rank() == 0:
        print(text, file=file, flush=True)


def training_step(model: Network, optimizer: nn.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    """A captured step on images and their labels, which returns the loss."""

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        result: Tensor = loss.detach()
        return result

    return step


def train_epoch(step, data: list[np.ndarray], batch: int, rng: np.random.Generator, label: str) -> float:  # type: ignore[no-untyped-def]
    """One pass over the images in random order; the mean loss."""
    images, labels = data[:2]
    order = rng.permutation(len(images))
    count = max(1, len(images) // batch)
    losses = []
    with Progress(label, count) as bar:
        for i in range(count):
            chosen = order[i * batch : (i + 1) * batch]
            losses.append(step(Tensor(moved(images[chosen], rng)), Tensor(labels[chosen])).item())
            bar.advance(text=f"loss {np.mean(losses[-50:]):.4f}")
    return float(np.mean(losses))


def accuracy(predict, images: np.ndarray, labels: np.ndarray, batch: int = 500) -> float:  # type: ignore[no-untyped-def]
    """The share of images whose largest output is their label."""
    hits = 0
    for i in range(0, len(images), batch):
        hits += int((predict(Tensor(images[i : i + batch])).numpy() == labels[i : i + batch]).sum())
    return hits / len(images)


def run(data: list[np.ndarray], epochs: int, batch: int, seed: int) -> float:
    """Train and test; the accuracy on the test images."""
    manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = Network()
    optimizer = nn.optim.Adam(model.parameters(), lr=2e-3)
    data[:2] = dist.data_parallel(model, optimizer, *data[:2])  # under mpirun: each rank its part
    step = training_step(model, optimizer)

    @jit
    def predict(x: Tensor) -> Tensor:
        with no_grad():
            return model(x).argmax(1)

    start, result = time.perf_counter(), 0.0
    for epoch in range(epochs):
        optimizer.lr = 2e-3 * (0.5 * (1 + np.cos(np.pi * epoch / epochs)))
        model.train()
        loss = train_epoch(step, data, batch, rng, f"epoch {epoch + 1}/{epochs}")
        model.eval()
        result = accuracy(predict, data[2], data[3])
        seconds = time.perf_counter() - start
        say(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {100 * result:.2f} %, {seconds:.1f} s")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the four MNIST files (idx, gzip); default: made-up digits")
    parser.add_argument("--epochs", type=int, help="passes over the images (default: 5, of made-up digits 2)")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default=None, help="such as LLVM; default: the setting DEVICE")
    parser.add_argument("--limit", type=int, default=None, help="use so many training images only")
    given = parser.parse_args()
    epochs = given.epochs if given.epochs is not None else 5 if given.data else 2
    if epochs < 1 or given.batch < 1:
        parser.error("--epochs and --batch are 1 or more")
    if given.data is None:
        say("mnist: no --data, so the digits are made up (6,000 to train, 1,000 to test)")
    data = read_data(given.data) if given.data else make_up_data(given.seed)
    data[:2] = [part[: given.limit] for part in data[:2]]
    try:
        with Context(**({"DEVICE": given.device} if given.device else {})):
            say(f"accuracy {100 * run(data, epochs, min(given.batch, len(data[0])), given.seed):.2f} %")
    except KernmillError as error:
        sys.exit(f"mnist: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
