"""What the thread pool costs and gains: starting, waking, spinning, alone and while another process holds a core.

    python tools/profile_threads.py                 # launches, waits and sharing: docs/topics/threads.md
    python tools/profile_threads.py --threads 4 --spin 0,100,1000 --rounds 41

A kernel here is a chain of multiplications of a known length, cut into a chunk for each thread, so that memory plays no
part: with t threads it could be t times faster. Every number of a table is measured in turn with the others and is the
median of the rounds. `pause` is how long the caller stays away between two calls: workers may have gone to sleep.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernmill.runtime import host, llvm_codegen, loader, pool  # noqa: E402

LENGTHS_US = (5, 20, 100, 300, 1000)
PAUSES_US = (0, 50, 5000)
IR = """
; slot 0: how many dependent multiplications an index is
define void @chain(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %each = load i64, ptr %args
  %width = sub i64 %end, %begin
  %n = mul i64 %each, %width
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %v = phi double [ 1.0, %entry ], [ %v1, %loop ]
  %v1 = fmul double %v, 0x3FF0000000000001
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %out
out:
  %bits = bitcast double %v1 to i64
  %odd = icmp eq i64 %bits, 0
  br i1 %odd, label %never, label %done
never:
  store i64 %bits, ptr %args
  br label %done
done:
  ret void
}
"""
HOG = "i = 0\nwhile True: i += 1"


def seconds(table: pool.LaunchTable, crew: pool.ThreadPool) -> float:
    """One run of a table, by the clock."""
    start = time.perf_counter_ns()
    crew.run(table)
    return (time.perf_counter_ns() - start) * 1e-9


def chain_table(steps: int, chunks: int, entries: int = 1) -> pool.LaunchTable:
    """A table whose entries each do `steps` multiplications in so many chunks."""
    kernel = loader.load_object(llvm_codegen.compile_ir(IR, host.this_host()), ["chain"])
    launch = pool.Launch(kernel.symbols["chain"], [max(1, steps // chunks)], n=chunks, chunk=1)
    table = pool.LaunchTable([launch] * entries)
    table.kernel = kernel  # type: ignore[attr-defined]  # the code lives as long as the table
    return table


def steps_per_us(alone: pool.ThreadPool) -> float:
    """Multiplications in a microsecond, the best of some runs."""
    table = chain_table(200_000, 1)
    return 200_000 / min(seconds(table, alone) for _ in range(20)) * 1e-6


def costs(threads: int, rounds: int) -> list[tuple[str, float]]:
    """Nanoseconds of what happens around kernels, kernels themselves being next to nothing."""
    alone, fresh, together = pool.ThreadPool(1), [], pool.ThreadPool(threads)
    single, cut = chain_table(1, 1, 100), chain_table(threads, threads, 100)
    for _ in range(rounds):
        crew = pool.ThreadPool(threads)
        fresh.append(seconds(chain_table(threads, threads), crew))
        crew.close()
    one = [seconds(single, alone) / 100 for _ in range(rounds)]
    both = [seconds(cut, together) / 100 for _ in range(rounds)]
    figures = {"the first launch, workers started for it": fresh, "a launch on one thread": one,
               f"a launch on {threads} threads, workers awake": both}  # fmt: skip
    return [(name, statistics.median(values) * 1e9) for name, values in figures.items()]


def wait(pause_us: float) -> None:
    """Stay away: asleep if it is long, and busy elsewhere if it is short."""
    if pause_us >= 1000:
        time.sleep(pause_us * 1e-6)
    end = time.perf_counter_ns() + pause_us * 1000
    while time.perf_counter_ns() < end:
        pass


def gains(threads: int, spins: Sequence[int], rounds: int) -> list[tuple[int, int, list[float]]]:
    """For every kernel length and pause: how many times faster than one thread, by spin."""
    crews = [pool.ThreadPool(1), *(pool.ThreadPool(threads, spin) for spin in spins)]
    rate = steps_per_us(crews[0])
    found = []
    for length, pause in itertools.product(LENGTHS_US, PAUSES_US):
        tables = [chain_table(int(length * rate), 1 if crew.threads == 1 else threads) for crew in crews]
        times: list[list[float]] = [[] for _ in crews]
        for _ in range(rounds):
            for crew, table, took in zip(crews, tables, times, strict=True):
                seconds(table, crew)  # its workers have been called a moment ago, as in a program that runs kernels
                wait(pause)
                took.append(seconds(table, crew))
        middle = [statistics.median(took) for took in times]
        found.append((length, pause, [middle[0] / one for one in middle[1:]]))
    for crew in crews:
        crew.close()
    return found


def show(threads: int, spins: Sequence[int], rounds: int) -> None:
    """Print the table of costs and those of gains."""
    print(f"| what, {threads} threads | time |\n| --- | --: |")
    for name, ns in costs(threads, rounds):
        print(f"| {name} | {ns / 1000:.2f} us |")
    for held in (False, True):
        hog = subprocess.Popen([sys.executable, "-c", HOG]) if held else None
        time.sleep(0.3)
        try:
            print(f"\n| kernel, pause ({'another process holds a core' if held else 'nothing else runs'}) |", end="")
            print("".join(f" SPIN={spin} |" for spin in spins) + "\n| --- |" + " --: |" * len(spins))
            for length, pause, values in gains(threads, spins, rounds):
                print(f"| {length} us, {pause} us | " + " | ".join(f"{value:.2f}x" for value in values) + " |")
        finally:
            if hog is not None:
                hog.kill()
                hog.wait()


def main() -> None:
    """Read the command line, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=host.this_host().threads(), help="the caller included")
    parser.add_argument("--spin", default="0,30,100,1000", help="microseconds before a worker sleeps, by commas")
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    show(options.threads, [int(part) for part in options.spin.split(",")], options.rounds)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `| head` reads no further: end, without a traceback
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
