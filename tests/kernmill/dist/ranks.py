"""Ranks that are threads, and jobs of `mpirun`, for tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dist
from kernmill.dist import Communicator, run_threads

ROOT = Path(__file__).resolve().parents[3]
MPIRUN = next(
    (found for folder in (str(Path(sys.executable).parent), None) if (found := shutil.which("mpirun", path=folder))),
    None,
)
needs_mpi = pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None, reason="needs the extra dist: mpi4py, and an mpirun"
)


def given(rank: int, dtype: str = "float32") -> Tensor:
    """The tensor of a rank. Shape: (6, 4)."""
    values = np.random.default_rng(rank).integers(0, 9, (6, 4))
    return Tensor(values.astype(np.float64)).cast(dtype).realize()


def everywhere(size: int, function: Callable[[int], Any], limit_s: float = 30) -> list[Any]:
    """What `function(rank)` returns on each rank."""

    def work(ranks: Communicator) -> Any:
        with dist.use(ranks):
            return function(ranks.rank)

    return run_threads(size, work, limit_s)


def job(program: str, ranks: int = 2, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a job; hydra, MPICH's launcher, ends it after a minute."""
    assert MPIRUN is not None
    command = [MPIRUN, "-n", str(ranks), sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "THREADS": "1", "MPIEXEC_TIMEOUT": "60", **settings}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
