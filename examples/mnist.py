"""Train a small convolutional network on the MNIST digits: `python examples/mnist.py --data ../shared/data/mnist`."""

from __future__ import annotations

import argparse
import gzip
import math
import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np

from kernmill import Context, KernmillError, Tensor, jit, manual_seed, nn, no_grad

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


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
        sys.exit(f"mnist: {folder} lacks {', '.join(missing)}. Give the folder of the four MNIST files with --data.")
    train_x, train_y, test_x, test_y = (read_idx(folder / name) for name in FILES)
    for x, y in ((train_x, train_y), (test_x, test_y)):
        if x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or not len(x):
            sys.exit(f"mnist: images of shape {x.shape} with labels of shape {y.shape}. Fetch the files again.")
    return [scaled(train_x), train_y.astype(np.int32), scaled(test_x), test_y.astype(np.int32)]


def scaled(images: np.ndarray) -> np.ndarray:
    return ((images.astype(np.float32) / 255 - 0.1307) / 0.3081).reshape(-1, 1, 28, 28)


def moved(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each batch shifted by up to two pixels: a digit stays the same digit."""
    down, right = rng.integers(-2, 3, 2)
    return np.roll(images, (int(down), int(right)), (2, 3))


# --- training --------------------------------------------------------------------------------------------------------
class Progress:
    """A bar on the terminal; nothing where stderr is a file."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.start = label, total, time.perf_counter()
        self.is_shown = sys.stderr.isatty()

    def show(self, done: int, text: str) -> None:
        if self.is_shown:
            full = 30 * done // self.total
            left = (time.perf_counter() - self.start) / done * (self.total - done)
            bar = "#" * full + "-" * (30 - full)
            sys.stderr.write(f"\r{self.label} [{bar}] {done}/{self.total} {text} {left:4.0f} s left ")
            sys.stderr.write("\n" if done == self.total else "")
            sys.stderr.flush()


def train_epoch(step, data: list[np.ndarray], batch: int, rng: np.random.Generator, label: str) -> float:  # type: ignore[no-untyped-def]
    """One pass over the images in random order; the mean loss."""
    images, labels = data[:2]
    order = rng.permutation(len(images))
    count = max(1, len(images) // batch)
    progress, losses = Progress(label, count), []
    for i in range(count):
        chosen = order[i * batch : (i + 1) * batch]
        losses.append(step(Tensor(moved(images[chosen], rng)), Tensor(labels[chosen])).item())
        progress.show(i + 1, f"loss {np.mean(losses[-50:]):.4f}")
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

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss.detach()

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
        print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {100 * result:.2f} %, {seconds:.1f} s", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four MNIST files (idx, gzip)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default=None, help="such as LLVM; default: the setting DEVICE")
    parser.add_argument("--limit", type=int, default=None, help="use so many training images only")
    given = parser.parse_args()
    if given.epochs < 1 or given.batch < 1:
        parser.error("--epochs and --batch are 1 or more")
    data = read_data(given.data)
    data[:2] = [part[: given.limit] for part in data[:2]]
    try:
        with Context(**({"DEVICE": given.device} if given.device else {})):
            print(f"accuracy {100 * run(data, given.epochs, min(given.batch, len(data[0])), given.seed):.2f} %")
    except KernmillError as error:
        sys.exit(f"mnist: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
