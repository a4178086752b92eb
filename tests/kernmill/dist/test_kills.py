"""Kills of one rank at random moments: the job ends, and its checkpoint is whole and continues."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernmill.nn.state import load, load_metadata
from tests.kernmill.dist.ranks import MPIRUN, ROOT, needs_mpi

KILLS = 200
PROGRAM = """
import os, sys
from pathlib import Path
folder = Path(sys.argv[1])
import numpy as np
from kernmill import Tensor, dist, jit, nn
from kernmill.nn.state import load, load_metadata, save
(folder / f"pid{dist.rank()}").write_text(str(os.getpid()))
model = nn.Sequential(nn.Linear(5, 64), Tensor.tanh, nn.Linear(64, 3))
optimizer = nn.optim.Adam(model.parameters(), lr=0.05)
path, done = folder / "state.safetensors", 0
if path.exists():
    state = load(path)
    model.load_state_dict({n[6:]: t for n, t in state.items() if n.startswith("model.")})
    optimizer.load_state_dict({n[4:]: t for n, t in state.items() if n.startswith("opt.")})
    done = int(load_metadata(path)["step"])
dist.agree("the step of the checkpoint", done)
rng = np.random.default_rng(3)
x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.integers(0, 3, 32)
x, y = dist.data_parallel(model, optimizer, x, y, check_every=2)
@jit
def step(x, y):
    optimizer.zero_grad()
    loss = model(x).cross_entropy(y)
    loss.backward()
    optimizer.step()
    return loss.detach()
while True:
    step(Tensor(x), Tensor(y))
    done += 1
    if done % 5 == 0 and dist.rank() == 0:
        tensors = {f"model.{n}": t for n, t in model.state_dict().items()}
        tensors |= {f"opt.{n}": t for n, t in optimizer.state_dict().items()}
        save(path, tensors, {"step": str(done)})
        (folder / "saved").write_text("yes")
"""


@pytest.fixture
def device() -> str:
    """The default one: each job opens its own."""
    return "LLVM"


def killed(folder: Path, chance: random.Random) -> float:
    """Kill a rank up to 2.5 s after the start of a job, or after its first checkpoint. Return the time until
    the job has ended, in seconds."""
    assert MPIRUN is not None
    for name in ("pid0", "pid1", "saved"):
        (folder / name).unlink(missing_ok=True)
    command = [MPIRUN, "-n", "2", sys.executable, "-c", PROGRAM, str(folder)]
    environment = {**os.environ, "THREADS": "1"}
    victim, end = folder / f"pid{chance.randrange(2)}", time.monotonic() + 60
    mark = chance.choice([victim, folder / "saved"])
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as running:
        while not (mark.exists() and mark.read_text()) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 2.5))
        os.kill(int(victim.read_text()), signal.SIGKILL)
        start = time.monotonic()
        try:
            running.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            running.kill()
            raise AssertionError("the job goes on without a rank") from None
        assert running.returncode != 0
    return time.monotonic() - start


@needs_mpi
@pytest.mark.slow
def test_a_killed_rank_leaves_no_hang_and_no_damaged_checkpoint(tmp_path: Path) -> None:
    chance, before = random.Random(5), 0
    times: list[float] = []
    for _ in range(int(os.environ.get("KILLS", KILLS))):
        times.append(killed(tmp_path, chance))
        path = tmp_path / "state.safetensors"
        if path.exists():
            assert sum(name.startswith("model.") for name in load(path)) == 4  # whole
            step = int(load_metadata(path)["step"])
            assert step >= before
            before = step
    assert before > 0
    times.sort()
    print(f"{len(times)} kills, step {before}; until the job ended: median {times[len(times) // 2]:.2f} s, "
          f"most {times[-1]:.2f} s")  # fmt: skip
