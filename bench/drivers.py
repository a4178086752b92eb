"""Every OpenCL driver that is here, against DEVICE=LLVM: `python -m bench.drivers`.

For each driver some rows of `python -m bench` run with the peer `opencl`, in a process that sees no other driver.
`--list` prints the drivers' names and libraries for `.ci/run drivers`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["DRIVERS", "find_drivers", "main", "ratios"]

_ROWS = ("matmul_512", "int8_512", "softmax", "gelu", "sum")
_VENDORS = Path("/etc/OpenCL/vendors")
DRIVERS: dict[str, str] = {  # where each comes from
    "pypi": "PoCL of pip install '.[cl-cpu]'",
    "debian": "PoCL of the package pocl-opencl-icd",
    "rusticl": "Mesa's, on llvmpipe, of the package mesa-opencl-icd",
    "oclgrind": "a checker, of the package oclgrind: no time of it means anything",
}
_UNTIMED = ("oclgrind",)


def find_drivers() -> dict[str, str]:
    """The drivers of this machine by name, each with its library, as OCL_ICD_VENDORS takes it."""
    found = {"pypi": _of_pypi(), "debian": _of_package("libpocl2", "libpocl.so"), "rusticl": "",
             "oclgrind": _of_package("oclgrind", "rt-icd.so")}  # fmt: skip
    if (file := _VENDORS / "rusticl.icd").exists():
        found["rusticl"] = file.read_text(encoding="utf-8").strip()
    return {name: library for name, library in found.items() if library}


def _of_pypi() -> str:
    spec = importlib.util.find_spec("pyopencl")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    return next((str(path) for path in sorted(folder.glob(".libs/libpocl*"))), "")


def _of_package(package: str, part: str) -> str:
    """The first file of a Debian package whose path has this part."""
    try:
        done = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return next((line for line in done.stdout.splitlines() if part in line and Path(line).is_file()), "")


def ratios(library: str, rows: Sequence[str], *, is_quick: bool) -> Mapping[str, float]:
    """How many times LLVM's time the driver takes, by row: the median of pairs. Rows that failed are absent."""
    with tempfile.TemporaryDirectory(prefix="bench-drivers-") as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "bench", *rows, "--peers", "opencl", "--json", str(file)]
        seen = {"OCL_ICD_VENDORS": library, "RUSTICL_ENABLE": "llvmpipe", "POCL_CACHE_DIR": str(Path(folder) / "pocl")}
        subprocess.run([*command, *(["--quick"] if is_quick else [])], env={**os.environ, **seen},
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        outcomes = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    times = {one["name"]: (one["samples"].get("kernmill", []), one["samples"].get("opencl", [])) for one in outcomes}
    return {name: statistics.median(theirs / ours for ours, theirs in zip(*pair, strict=False))
            for name, pair in times.items() if all(pair)}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.drivers", description=__doc__)
    parser.add_argument("rows", nargs="*", default=list(_ROWS), metavar="ROW", help="of `python -m bench --list`")
    parser.add_argument("--driver", action="append", metavar="NAME=LIBRARY", help="another one, or only this one")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    parser.add_argument("--list", action="store_true", help="name the drivers and their libraries, and stop")
    given = parser.parse_args(arguments)
    for text in given.driver or ():
        if "=" not in text:
            raise SystemExit(f"bench.drivers: --driver {text}: give NAME=LIBRARY, for example mine=/opt/libpocl.so.2.")
    drivers = dict(text.split("=", 1) for text in given.driver) if given.driver else find_drivers()
    if given.list:
        print("\n".join(f"{name}\t{library}" for name, library in drivers.items()))
        return
    print(f"| driver | {' | '.join(given.rows)} |", f"| --- | {' | '.join('--:' for _ in given.rows)} |", sep="\n")
    for name, library in drivers.items():
        if name not in _UNTIMED:
            found = ratios(library, given.rows, is_quick=given.quick)
            cells = (f"{found[row]:.2f}" if row in found else "failed" for row in given.rows)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\nTimes of LLVM's time: 1.00 is as fast.")
    for name in DRIVERS.keys() - drivers.keys() if not given.driver else ():
        print(f"Not here: {name}, {DRIVERS[name]}.")


if __name__ == "__main__":
    main()
