"""What two ranks gain over one here: training steps of the MNIST and the story example, a sum against mpi4py's own, and
tokens of a model.

    mpirun -n 2 python -m bench.ranks             # each rank has one thread
    mpirun -n 2 python -m bench.ranks --rounds 20 --rows sum
    mpirun -n 2 python -m bench.ranks --rows layer,tensor --model model.gguf --rounds 100

A step of all ranks is compared with the step of one rank that has the whole batch, while the others wait; a token of a
divided model with one of the whole model on rank 0. The rounds alternate, and a ratio is the median of the rounds'
ratios. On a machine that others use, the CPU time of rank 0 and its part in exchanges say more than the time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from examples.mnist import Network, make_up_data, training_step
from kernmill import Context, Tensor, dist, manual_seed, nn
from kernmill.dist.communicator import Solo
from kernmill.llm import Learner, Model, Vocabulary, llama_metadata, stories
from kernmill.llm.follow import follow
from kernmill.llm.split import SplitOptions
from kernmill.runtime import wait_for_large_pages

__all__ = ["ROWS", "SPLITS", "Took", "compare", "timed_waits", "tokens"]

SUM_BYTES = 16 << 20
SPLITS = "layer", "tensor"
CAPACITY = 512  # tokens of a model's cache
_WARM = 10  # rounds: captures, the first replays, and the large pages of other ranks


class Took(NamedTuple):
    """Seconds of a call: by the clock, of this thread's CPU, and of the CPU time the part in exchanges."""

    wall: float
    cpu: float
    exchange: float


def mnist(rows: int) -> Callable[[], object]:
    """A step of the MNIST example's network on `rows` images in all."""
    manual_seed(1)
    model = Network()
    optimizer = nn.optim.Adam(model.parameters(), lr=2e-3)
    images, labels = (part[:rows] for part in make_up_data(1)[:2])
    images, labels = dist.data_parallel(model, optimizer, images, labels)
    step = training_step(model, optimizer)
    return lambda: step(Tensor(images), Tensor(labels)).item()


def story(rows: int) -> Callable[[], object]:
    """A step of the story example's model on `rows` texts in all."""
    texts = stories(200, 1)
    vocabulary = Vocabulary(texts, 640)
    learner = Learner({**llama_metadata(128, 4, 128), **vocabulary.metadata()}, len(vocabulary), 128)
    optimizer = nn.optim.AdamW(learner.parameters(), lr=3e-3)
    ids = [(vocabulary.encode(text, is_whole=True) * 129)[:129] for text in texts[:rows]]
    data = dist.data_parallel(learner.parameters(), optimizer, np.array(ids, np.int32))
    step = learner.captured_step(optimizer)
    return lambda: step(Tensor(data)).item()


def took(call: Callable[[], object], count: int, spent: list[float]) -> Took:
    """The mean of some calls."""
    spent.clear()
    start, cpu = time.perf_counter(), time.thread_time()
    for _ in range(count):
        call()
    return Took((time.perf_counter() - start) / count, (time.thread_time() - cpu) / count, sum(spent) / count)


def timed_waits(call: Callable[..., Callable[[], Any]], spent: list[float]) -> Callable[..., Callable[[], Any]]:
    """A call of a communicator, which begins an exchange, with the CPU seconds of it and of its wait."""

    def timed(function: Callable[..., Any], *given: Any) -> Any:
        start = time.thread_time()
        result = function(*given)
        spent.append(time.thread_time() - start)
        return result

    return lambda *given: partial(timed, timed(call, *given))


def exchanges(ranks: Any) -> list[float]:
    """CPU seconds that this rank is in exchanges, from now on."""
    spent: list[float] = []
    for name in ("all_reduce", "all_gather", "are_equal", "send", "recv"):
        setattr(ranks, name, timed_waits(getattr(ranks, name), spent))
    return spent


def compare(name: str, make: Callable[[int], Callable[[], object]], rows: int, rounds: int, count: int) -> str:
    """One rank with the whole batch against all ranks, each with its part of it."""
    ranks = dist.communicator()
    spent = exchanges(ranks)
    with ExitStack() as alone_only:
        alone = None
        if ranks.rank == 0:
            alone_only.enter_context(dist.use(Solo()))
            alone = make(rows)
    together = make(rows)
    pairs: list[tuple[Took, Took]] = []
    for number in range(rounds + 2):
        ranks.barrier()()
        first = Took(0.0, 0.0, 0.0)
        if alone is not None:
            with dist.use(Solo()):
                first = took(alone, count, spent)
        ranks.barrier()()
        pair = first, took(together, count, spent)
        if number >= 2:  # captures and the first replays are over
            pairs.append(pair)
    ones, alls = zip(*pairs, strict=True)
    wall = [one.wall / both.wall for one, both in pairs if both.wall]
    cpu = median(one.cpu for one in ones) / median(both.cpu for both in alls)
    return (
        f"{name}: {rows} rows on one rank {1e3 * median(one.wall for one in ones):.2f} ms, on {ranks.size} ranks "
        f"{1e3 * median(both.wall for both in alls):.2f} ms: {median(wall):.2f}x ({min(wall):.2f} to {max(wall):.2f}). "
        f"CPU of rank 0: {1e3 * median(one.cpu for one in ones):.2f} and {1e3 * median(both.cpu for both in alls):.2f} "
        f"ms ({cpu:.2f}x), of it in exchanges {1e3 * median(both.exchange for both in alls):.2f} ms."
    )


def sums(rounds: int) -> str:
    """A sum of 16 MB into memory that exists: ours, and mpi4py's blocking call."""
    from mpi4py import MPI

    ranks = dist.communicator()
    given = np.ones(SUM_BYTES // 4, np.float32)
    mine, theirs = np.empty_like(given), np.empty_like(given)
    found: list[tuple[float, float]] = []
    for _ in range(rounds + 2):
        ranks.barrier()()
        start = time.perf_counter()
        ranks.all_reduce([mine], [given], "sum")()
        middle = time.perf_counter()
        ranks.barrier()()
        again = time.perf_counter()
        MPI.COMM_WORLD.Allreduce(given, theirs)
        found.append((middle - start, time.perf_counter() - again))
    own, other = (sorted(times) for times in zip(*found[2:], strict=True))
    return (
        f"sum of 16 MB: {1e3 * median(own):.2f} ms (least {1e3 * own[0]:.2f}), mpi4py's Allreduce "
        f"{1e3 * median(other):.2f} ms (least {1e3 * other[0]:.2f}): {median(a / b for a, b in found[2:]):.2f}x"
    )


def tokens(
    path: Path, mode: str, rounds: int, spent: list[float], before: Callable[[], object] = tuple
) -> list[tuple[Took, Took]]:
    """Tokens of the whole model on rank 0 and of the divided one, in turn; on the other ranks nothing.

    `spent`: CPU seconds in exchanges, which others add. `before`: called before each token.
    """
    if dist.rank():
        follow()
        return []
    wanted, pairs, ids = SplitOptions(mode=mode, over_ranks=True), list[tuple[Took, Took]](), [1, 2, 3]
    with ExitStack() as models:
        opened = list[Model]()
        for how in (None, wanted):  # links are measured when the first one's pages are there
            model = models.enter_context(Model.from_gguf(path, capacity=CAPACITY, wanted=how))
            model.next_logits([1, 2])
            wait_for_large_pages()  # of this rank; the others have as much
            opened.append(model)
        for number in range(rounds + _WARM):
            ids = [*ids[: CAPACITY - 2], 4] if len(ids) < CAPACITY - 1 else [1, 2, 3]
            first, second = [(before(), took(partial(model.next_logits, ids), 1, spent))[1] for model in opened]
            if number >= _WARM and len(ids) > 3:
                pairs.append((first, second))
    dist.communicator().announce(("end",))
    return pairs


def split(mode: str, path: Path | None, rounds: int) -> str:
    """A token of a divided model against one of the whole model on one rank."""
    assert path is not None
    spent = exchanges(dist.communicator())
    pairs = tokens(path, mode, rounds, spent)
    if not pairs:
        return ""
    ones, alls = zip(*pairs, strict=True)
    ratio = median(one.wall / both.wall for one, both in pairs)
    least = min(one.wall for one in ones) / min(both.wall for both in alls)
    return (
        f"{mode} split: a token on one rank {1e3 * median(one.wall for one in ones):.2f} ms, on {dist.size()} ranks "
        f"{1e3 * median(both.wall for both in alls):.2f} ms: {ratio:.2f}x ({least:.2f}x by the least times), "
        f"{100 * (1 / ratio - 1):+.0f} % a token. CPU of rank 0: {1e3 * median(one.cpu for one in ones):.2f} and "
        f"{1e3 * median(both.cpu for both in alls):.2f} ms, of it in exchanges "
        f"{1e3 * median(both.exchange for both in alls):.2f} ms."
    )


ROWS: dict[str, Callable[[int], str]] = {
    "mnist": lambda rounds: compare("MNIST step", mnist, 128 * dist.size(), rounds, 20),
    "story": lambda rounds: compare("story step", story, 16 * dist.size(), rounds, 4),
    "sum": sums,
}


def main(given: Sequence[str] | None = None) -> int:
    """Print a line for each row."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), help="default: %(default)s; also " + ", ".join(SPLITS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", type=Path, metavar="GGUF", help="what layer and tensor divide")
    asked = parser.parse_args(given)
    rows = asked.rows.split(",")
    if asked.model is None and not {*SPLITS}.isdisjoint(rows):
        parser.error("layer and tensor divide a model: give --model")
    if dist.size() < 2:
        parser.error("ranks are compared: start it with mpirun -n 2")
    with Context(THREADS=1):
        for row in rows:
            line = split(row, asked.model, asked.rounds) if row in SPLITS else ROWS[row](asked.rounds)
            if dist.rank() == 0:
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
