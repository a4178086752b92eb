"""Rows of `python -m bench` on this checkout and an old one, in turns: does any row fall?

    git worktree add ../old COMMIT
    python -m bench.against ../old                       # a choice of rows, five rounds
    python -m bench.against ../old --rows '*' --rounds 3 # all rows that both have

Each round runs both checkouts, each in processes of its own with a cache of its own. A round's ratio is the old median
divided by the new one: above 1, this checkout is faster. Let nothing else run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .fresh_rows import cache_environment

__all__ = ["main", "ratios"]

_NEW = Path(__file__).resolve().parent.parent
_CHOICE = (
    "matmul_256,matmul_1024,rows_8,bf16_1024,int8_1024,attention_f32,conv_3x3,softmax,layer_norm,gelu_chain,transpose,"
    "sum,sort,quant_q8_0_1,quant_q4_k_1,quant_q4_0_128,graph_100,launch_100,jit_arguments,mlp_step,convnet_step,"
    "mlp_step_memory,import,first_cold,first_warm,block_forward_cold,block_forward_warm"
)
Medians = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("old", type=Path, help="a checkout of an old commit")
    parser.add_argument("--rows", default=_CHOICE, help="names or patterns, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="shorter samples: a look, no measurement")
    given = parser.parse_args(arguments)
    rounds: list[tuple[Medians, Medians]] = []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(given.rounds):
            order = (given.old, _NEW) if n % 2 else (_NEW, given.old)
            found = {checkout: _run(checkout, given.rows, Path(folder), given.quick) for checkout in order}
            rounds.append((found[given.old], found[_NEW]))
            print(f"round {n + 1} of {given.rounds}", file=sys.stderr, flush=True)
    for name, values in ratios(rounds).items():
        least, middle, most = min(values), statistics.median(values), max(values)
        mark = "  <- slower in every round" if most < 1 else ""
        print(f"{name:24} old / new {middle:5.2f} ({least:.2f} to {most:.2f}){mark}")


def ratios(rounds: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> dict[str, list[float]]:
    """Old divided by new, of each round, for the rows that all rounds have on both sides."""
    names = [name for name in rounds[0][1] if all(name in side for pair in rounds for side in pair)]
    return {name: [old[name] / new[name] for old, new in rounds] for name in names}


def _run(checkout: Path, rows: str, folder: Path, is_quick: bool) -> Medians:
    """The median of each row's samples in one checkout. A row that failed is left out."""
    kept = folder / "rows.json"
    command = [
        sys.executable,
        "-m",
        "bench",
        "--peers",
        "kernmill",
        "--rows",
        rows,
        "--limit",
        "1e6",
        "--json",
        str(kept),
    ]
    cache = cache_environment(str(folder / ("new" if checkout == _NEW else "old")))
    run = subprocess.run(
        [*command, *(["--quick"] if is_quick else [])],
        cwd=checkout, env=os.environ | cache, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not kept.exists():
        raise SystemExit(f"bench.against: {checkout} has no result.\n{run.stderr.strip()}")
    found = {
        row["name"]: statistics.median(row["samples"]["kernmill"])
        for row in json.loads(kept.read_text())["rows"] if row["samples"].get("kernmill")
    }  # fmt: skip
    kept.unlink()
    return found


if __name__ == "__main__":
    main()
