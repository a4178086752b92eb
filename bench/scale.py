"""What a model costs over n machines, from measured rates and a table of links: where each split stops paying off.

    python -m bench.scale                      # tables for 7B, 70B and gpt-oss, from this machine's rates
    python -m bench.scale --rates 10 100       # GB/s read by a machine, and GFLOP/s of its products
    mpirun -n 2 python -m bench.scale --check model.gguf   # predicted and measured time of a token, and counts

A token reads all active weights once. A layer split adds a link at each border; a tensor split divides the reads, and
adds two sums a layer. A training step computes 6 operations for each weight and token, and sums the gradients
meanwhile.
Units: nanoseconds, bytes, bytes per nanosecond (GB/s), operations per nanosecond (GFLOP/s).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernmill import Context, Tensor, dist, jit
from kernmill.dist.links import bucket_bytes
from kernmill.formats import gguf
from kernmill.ir import Link
from kernmill.runtime import later

from .ranks import exchanges, tokens

__all__ = ["LINKS", "SHAPES", "Machine", "Shape", "counts", "layer_ns", "sum_ns", "tensor_ns", "training_ns"]

LINKS = {  # latency of a message between two programs, and rate
    "1 Gbit/s": Link(50_000, 0.125), "10 Gbit/s": Link(15_000, 1.25), "100 Gbit/s": Link(3_000, 12.5),
    "400 Gbit/s": Link(2_000, 50.0),
}  # fmt: skip
MOST = 1024  # ranks
_SUMS, _READ_BYTES = 20, 4 << 20  # in a captured chain; bytes read between two, more than an L2 cache
PAYS = 1.25  # twice the ranks pay off where they are this much faster


class Shape(NamedTuple):
    """The sizes of a model. `used`: of `experts` by a token. `bits`: of a weight."""

    width: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    experts: int = 0
    used: int = 0
    bits: float = 4.5

    @property
    def attention(self) -> int:
        """Weights of a layer's attention."""
        return self.width * self.head_width * 2 * (self.heads + self.kv_heads)

    def weights(self, *, active: bool) -> int:
        """Weights of all layers and the output; with `active` those that a token reads."""
        count = (self.used if active else self.experts) if self.experts else 1
        return (
            self.layers * (self.attention + 3 * self.width * self.feed_forward * count) + self.width * self.vocabulary
        )

    @property
    def token_bytes(self) -> float:
        """Bytes that a token reads."""
        return self.weights(active=True) * self.bits / 8


SHAPES = {
    "7B": Shape(4096, 32, 11008, 32, 32, 128, 32000),
    "70B": Shape(8192, 80, 28672, 64, 8, 128, 32000),
    "gpt-oss-20b": Shape(2880, 24, 2880, 64, 8, 64, 201088, 32, 4),
    "gpt-oss-120b": Shape(2880, 36, 2880, 64, 8, 64, 201088, 128, 4),
}


@dataclass(frozen=True)
class Machine:
    """Measured rates of one rank: bytes read, operations of products, and a launch between two sums."""

    bytes_per_ns: float
    ops_per_ns: float
    launch_ns: float = 20_000.0


def sum_ns(link: Link, ranks: int, size: float) -> float:
    """A sum over ranks: by halves where the latency counts, else around a ring."""
    if ranks == 1:
        return 0.0
    rounds = math.ceil(math.log2(ranks))
    ring = 2 * (ranks - 1) * (link.latency_ns + size / ranks / link.bytes_per_ns)
    return min(ring, rounds * (link.latency_ns + size / link.bytes_per_ns))


def layer_ns(shape: Shape, machine: Machine, link: Link, ranks: int) -> float:
    """A token of one text, layers by rank: one rank computes at a time. With as many texts as ranks, `ranks` times
    as many tokens are made."""
    borders = 0 if ranks == 1 else (ranks - 1) * link.time_ns(4 * shape.width) + link.time_ns(4 * shape.vocabulary)
    return shape.token_bytes / machine.bytes_per_ns + borders


def tensor_ns(shape: Shape, machine: Machine, link: Link, ranks: int) -> float:
    """A token of one text, every layer divided: by heads, rows and experts."""
    reads = shape.token_bytes / machine.bytes_per_ns / ranks
    if ranks == 1:
        return reads
    sums = (2 * shape.layers + 1) * (sum_ns(link, ranks, 4 * shape.width) + machine.launch_ns)
    part = 4 * shape.vocabulary / ranks
    return reads + sums + (ranks - 1) * (link.latency_ns + part / link.bytes_per_ns)


def training_ns(shape: Shape, machine: Machine, link: Link, ranks: int, tokens: int = 4096) -> float:
    """A step with `tokens` on each rank. Gradients of float32 are summed in buckets while backward, two thirds of the
    computation, goes on; the last bucket after it."""
    compute = 6 * shape.weights(active=True) * tokens / machine.ops_per_ns
    whole = 4 * shape.weights(active=False)
    last = sum_ns(link, ranks, min(whole, bucket_bytes(whole, link)))
    return compute / 3 + max(compute * 2 / 3, sum_ns(link, ranks, whole)) + last


def counts(shape: Shape, ranks: int) -> dict[str, tuple[int, int]]:
    """Calls of a rank and their bytes for one token of a tensor split."""
    return {
        "all_reduce": (2 * shape.layers + 1, (2 * shape.layers + 1) * 4 * shape.width),
        "all_gather": (1, 4 * -(-shape.vocabulary // ranks)),
    }


def most_that_pay(time_of: Callable[[int], float], most: int = MOST) -> int:
    """The largest power of two of ranks up to which doubling pays off. `time_of`: for as much work on n ranks."""
    ranks = 1
    while 2 * ranks <= most and time_of(ranks) >= PAYS * time_of(2 * ranks):
        ranks *= 2
    return ranks


# --- tables ----------------------------------------------------------------------------------------------------------
def rows(machine: Machine) -> Iterator[str]:
    """A Markdown table: how many ranks pay off, and the tokens a second then."""
    yield (
        "| model | link | one rank: tokens/s | tensor split pays up to | tokens/s | layer split: loss by 8 ranks | "
        "training pays up to |"
    )
    yield "| --- | --- | --: | --: | --: | --: | --: |"
    for name, shape in SHAPES.items():
        alone = layer_ns(shape, machine, LINKS["1 Gbit/s"], 1)
        for speed, link in LINKS.items():
            divides = [n for n in (2**k for k in range(11)) if shape.kv_heads % n == 0 and n <= MOST]
            by_tensors = most_that_pay(lambda n, s=shape, k=link: tensor_ns(s, machine, k, n), max(divides))  # type: ignore[misc]
            tokens = 1e9 / tensor_ns(shape, machine, link, by_tensors)
            loss = layer_ns(shape, machine, link, 8) / alone - 1
            trains = most_that_pay(lambda n, s=shape, k=link: training_ns(s, machine, k, n) / n)  # type: ignore[misc]
            yield (
                f"| {name} | {speed} | {1e9 / alone:.2f} | {by_tensors} ranks | {tokens:.2f} | {100 * loss:.1f} % | "
                f"{trains} ranks |"
            )


def measured() -> Machine:
    """The rates of this machine, which the runtime measures once; no cache has the weights of these models."""
    spec = next(iter(later.device_rates.device_table((), ()).specs))
    return Machine(min(spec.bytes_per_ns, spec.far_bytes_per_ns), 2 * spec.products_per_ns)


# --- check -----------------------------------------------------------------------------------------------------------
_counted: dict[str, tuple[int, int]] = {}


def _count(ranks: Any) -> None:
    """Count the calls of a communicator, and the bytes that this rank gives."""
    for name in ("all_reduce", "all_gather"):
        inner = getattr(ranks, name)

        def call(*given: Any, inner: Any = inner, name: str = name) -> Any:
            arrays = given[1] if name == "all_reduce" else [given[1]]
            calls, size = _counted.get(name, (0, 0))
            _counted[name] = calls + len(arrays), size + sum(array.nbytes for array in arrays)
            return inner(*given)

        setattr(ranks, name, call)


def between_sums_ns(link: Link, ranks: int, width: int) -> float:
    """What a sum costs apart from its exchange: the host between two launches, with caches that the weights have just
    filled. Two captured chains read the same memory, one of them with sums."""
    weights = [Tensor(np.ones(_READ_BYTES // 4, np.float32)).realize() for _ in range(_SUMS)]

    def chain(x: Tensor, sums: bool) -> Tensor:
        for weight in weights:
            x = (x * 0.5 + weight.sum() * 0.0).realize()
            x = dist.all_reduce(x) if sums else x
        return x

    chains = [jit(partial(chain, sums=sums)) for sums in (False, True)]
    x, times = Tensor.ones(1, width).realize(), list[tuple[int, int]]()
    for _ in range(20):
        took = list[int]()
        for one in chains:
            dist.barrier()
            start = time.perf_counter_ns()
            one(x).numpy()
            took.append(time.perf_counter_ns() - start)
        times.append((took[0], took[1]))
    least = min(one for one, _ in times[3:]), min(other for _, other in times[3:])
    return max(0.0, (least[1] - least[0]) / _SUMS - sum_ns(link, ranks, 4 * width))


def _shape_of(file: gguf.GGUFFile) -> Shape:
    """The sizes of a model; `bits` are those of its file."""
    get = {key.partition(".")[2]: file.metadata[key] for key in file.metadata if not key.startswith("tokenizer")}
    embedding = file.entries["token_embd.weight"]
    layers, width = int(get["block_count"]), int(get["embedding_length"])
    heads, kv = int(get["attention.head_count"]), int(get["attention.head_count_kv"])
    return Shape(width, layers, int(get["feed_forward_length"]), heads, kv, width // heads, embedding.shape[0])


def check(path: Path, rounds: int) -> Iterator[str]:
    """Compare predictions with this job: rank 0 gives lines."""
    ranks, shape = dist.communicator(), _shape_of(gguf.read(path))
    link = dist.link_to_next()
    launch_ns = between_sums_ns(link, ranks.size, shape.width)
    if ranks.rank == 0:
        shown = f"{link.latency_ns / 1e3:.1f} us, {link.bytes_per_ns:.1f} GB/s"
        yield f"link: {shown}; between two sums {launch_ns / 1e3:.1f} us"
    spent = exchanges(ranks)
    _count(ranks)
    for mode, predict in (("layer", layer_ns), ("tensor", tensor_ns)):
        pairs = tokens(path, mode, rounds, spent, _counted.clear)
        if not pairs:
            continue
        ones, alls = zip(*pairs, strict=True)
        alone, found = (1e9 * min(each.wall for each in one) for one in (ones, alls))
        busy = min(each.cpu - each.exchange for each in alls)
        guess = predict(shape, Machine(shape.token_bytes / alone, 1.0, launch_ns), link, ranks.size)
        yield (
            f"{mode}: one rank {alone / 1e6:.2f} ms, {ranks.size} ranks {found / 1e6:.2f} ms ({1e3 * busy:.2f} of CPU "
            f"on rank 0 without exchanges), predicted {guess / 1e6:.2f} ms ({100 * (guess / found - 1):+.0f} %)"
        )
        if mode == "tensor":
            expected = counts(shape, ranks.size)
            verdict = "equal" if _counted == expected else "DIFFERENT"
            yield f"counts of a token: {_counted}, predicted {expected}: {verdict}"


def main(given: Sequence[str] | None = None) -> int:
    """Print tables, or the check."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=float, nargs=2, metavar=("GB/s", "GFLOP/s"), help="default: measured here")
    parser.add_argument("--check", type=Path, metavar="GGUF", help="compare with runs of this job's ranks")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args(given)
    if asked.check is not None:
        if dist.size() < 2:
            parser.error("--check compares ranks: start it with mpirun -n 2")
        with Context(THREADS=1):
            for line in check(asked.check, asked.rounds):
                print(line, flush=True)
        return 0
    machine = Machine(*asked.rates) if asked.rates else measured()
    print(f"A rank reads {machine.bytes_per_ns:.1f} GB/s and computes {machine.ops_per_ns:.0f} GFLOP/s.\n")
    print("\n".join(rows(machine)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
