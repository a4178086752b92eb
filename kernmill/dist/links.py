"""Links between ranks: their measured latency and rate, and the size of messages that follows from them."""

from __future__ import annotations

from math import sqrt
from time import perf_counter_ns

from kernmill.ir import Link, np

from .job import communicator

__all__ = ["bucket_bytes", "link_to_next", "slowest_link"]

_LARGE_BYTES = 1 << 20


def link_to_next() -> Link:
    """Measure messages from each rank to the next and back: the least time of an empty one, and the rate of 1 MB."""
    ranks = communicator()
    after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    times: list[float] = []
    for count in (1, _LARGE_BYTES):
        sent, got, least = np.zeros(count, np.uint8), np.empty(count, np.uint8), float("inf")
        for _ in range(40 if count == 1 else 10):
            ranks.barrier()()
            start = perf_counter_ns()
            if ranks.rank % 2 == 0:
                ranks.send(sent, after)()
                ranks.recv(got, before)()
            else:
                ranks.recv(got, before)()
                ranks.send(sent, after)()
            least = min(least, perf_counter_ns() - start)
        times.append(least)
    return Link(times[0], _LARGE_BYTES / max(1.0, times[1] - times[0]))


def slowest_link() -> Link:
    """The link between neighbours on which 1 MB takes longest; the same one on all ranks."""
    found: list[Link] = communicator().all_objects(link_to_next())
    return max(found, key=lambda link: link.time_ns(_LARGE_BYTES))


def bucket_bytes(whole: int, link: Link) -> float:
    """The bytes of a message if `whole` bytes that appear one after the other are exchanged while more are computed.

    What is left after the computation is one message, size / rate, and each of the whole / size messages takes the
    latency of this rank's time. The sum is least where size is the root of whole * latency * rate.
    """
    return sqrt(whole * link.latency_ns * link.bytes_per_ns)
