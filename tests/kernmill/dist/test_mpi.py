"""Jobs of `mpirun`: captured collectives, training, and how a job ends. Skipped without mpi4py and an mpirun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kernmill.dist.ranks import MPIRUN, ROOT, job, needs_mpi
from tests.tiny_models import CASES, write

pytestmark = needs_mpi


@pytest.fixture
def device() -> str:
    """The default one: each job opens its own."""
    return "LLVM"


def test_a_captured_collective_is_part_of_each_replay() -> None:
    done = job("""
import numpy as np
from kernmill import Tensor, dist, jit
f = jit(lambda a: dist.all_reduce(a * 2).sum(1) + dist.broadcast(a, root=1)[:, 0])
for i in range(5):
    a = np.full((2, 3), i + dist.rank(), np.float32)
    assert f(Tensor(a)).tolist() == [6.0 * (2 * i + 1) + i + 1] * 2, (i, f(Tensor(a)).tolist())
found = dist.communicator().all_objects((dist.rank(), dist.size()))
if dist.rank() == 0: print(found)
""")
    assert done.stdout == "[(0, 2), (1, 2)]\n", done.stderr


def test_replays_of_different_captures_are_not_mixed_up() -> None:
    """Each rank replays another function: without a comparison MPI would write over the end of memory."""
    done = job("""
from kernmill import Tensor, dist, jit
small = jit(lambda a: dist.all_reduce(a))
large = jit(lambda a: dist.all_reduce(a) + dist.all_reduce(a * 2))
a, b = Tensor.ones(4).realize(), Tensor.ones(5000).realize()
for _ in range(4): small(a), large(b)
small(a) if dist.rank() else large(b)
""")
    assert done.returncode == 1
    assert "rank 0 has all_reduce sum float32(5000,); all_reduce sum float32(5000,), rank 1 has" in done.stderr
    assert "[rank 1]" not in done.stderr


def test_random_numbers_continue_from_those_of_rank_0() -> None:
    done = job("""
from kernmill import Tensor, dist, manual_seed, nn
manual_seed(dist.rank())
weight = Tensor([1.0], requires_grad=True)
dist.data_parallel([weight], nn.optim.SGD([weight]))
found = dist.communicator().all_objects(Tensor.rand(3).tolist())
if dist.rank() == 0: print(found[0] == found[1])
""")
    assert done.stdout == "True\n", done.stderr


def test_ranks_of_one_machine_share_its_cpus() -> None:
    """The setting had been read before, and a variable of the environment then has no effect."""
    program = """
from kernmill import Tensor, dist
from kernmill.runtime import host
(Tensor([1.0]) + 1).realize()
dist.rank()
found = dist.communicator().all_objects((host.cpu_sharers(), host.this_host().threads() == host.own_cpus()))
if dist.rank() == 0: print(found)
"""
    assert job(program, THREADS="0").stdout == "[(2, True), (2, True)]\n"


def test_an_mpirun_of_another_mpi_is_one_sentence() -> None:
    """Each rank would train alone, and write over the files of the others."""
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    program = "from kernmill import dist; dist.rank()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "mpirun started 2 ranks, and the MPI library of Python sees 1" in done.stderr


def test_a_captured_training_step_on_two_ranks() -> None:
    program = """
import numpy as np
from kernmill import Tensor, dist, jit, manual_seed, nn
manual_seed(dist.rank())
model = nn.Sequential(nn.Linear(5, 8), Tensor.tanh, nn.Linear(8, 3))
optimizer = nn.optim.Adam(model.parameters(), lr=0.05)
rng = np.random.default_rng(3)
x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.integers(0, 3, 32)
x, y = dist.data_parallel(model, optimizer, x, y, check_every=2)
@jit
def step(x, y):
    optimizer.zero_grad()
    loss = model(x).cross_entropy(y)
    loss.backward()
    nn.optim.clip_grad_norm(optimizer.parameters, 0.1)
    optimizer.step()
    return loss.detach()
for i in range(6):
    half = slice(i % 2, None, 2)
    loss = dist.all_reduce(step(Tensor(x[half]), Tensor(y[half])), op="mean").item()
    if dist.rank() == 0: print(f"{loss:.5f}")
"""
    alone, both = job(program, 1), job(program, 2)
    assert both.stderr == ""
    assert len(both.stdout.splitlines()) == 6
    alone_first, both_first = (float(done.stdout.splitlines()[0]) for done in (alone, both))
    assert abs(alone_first - both_first) < 0.5  # other halves: the sums over both are equal, in test_ranks.py


def test_gradients_in_buckets_are_exchanged_while_backward_goes_on() -> None:
    """Each parameter is a bucket: kernels run between the exchanges, and the parameters are those of eager steps."""
    done = job("""
import numpy as np
from kernmill import Tensor, dist, jit, manual_seed, nn
from kernmill.dist import training
from kernmill.runtime import HostCall, Recording
roles = []
def overlapped(recorded, inner=Recording.overlapped):
    found = inner(recorded)
    roles.append([step.role if isinstance(step, HostCall) else "kernels" for step in found.steps])
    return found
training.bucket_bytes, Recording.overlapped = lambda whole, link: 1, overlapped
rng = np.random.default_rng(dist.rank())
x, y = Tensor(rng.normal(size=(32, 5)).astype(np.float32)), Tensor(rng.integers(0, 3, 32))
def trained(wrap):
    manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), Tensor.tanh, nn.Linear(8, 8), Tensor.tanh, nn.Linear(8, 3))
    optimizer = nn.optim.Adam(model.parameters(), lr=0.05)
    dist.data_parallel(model, optimizer, check_every=2)
    @wrap
    def step(x, y):
        optimizer.zero_grad()
        model(x).cross_entropy(y).backward()
        optimizer.step()
    for _ in range(6): step(x, y)
    return [p.numpy().copy() for p in model.parameters()]
for mine, truth in zip(trained(jit), trained(lambda f: f), strict=True):
    np.testing.assert_allclose(mine, truth, rtol=1e-5, atol=1e-6)
found = max(roles, key=len)
begins = [n for n, role in enumerate(found) if role == "begin"]
if dist.rank() == 0: print(len(begins) - 1, "kernels" in found[begins[1]:begins[-1]], found.index("end") > begins[-1])
""")
    assert done.stdout == "6 True True\n", done.stderr


ENDS = {
    "raise": ("raise ValueError('no such file')", 1, "[rank 1] ValueError: no such file"),
    "exit": ("sys.exit(3)", 3, ""),
    "kill": ("os.kill(os.getpid(), 9)", 9, ""),
    "thread": ("import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 1, "[rank 1] Zero"),
    "end": ("sys.exit()", 1, "all_reduce: rank 1 has ended."),
    "raise an exit": ("raise SystemExit(3)", 1, "all_reduce: rank 1 has ended."),
    "silent": ("time.sleep(30)", 1, "all_reduce: rank 1 has not answered for 1 s."),
}


@pytest.mark.parametrize("end", ENDS)
def test_one_rank_that_ends_ends_all(end: str) -> None:
    """An exit status other than 0, the rank's own traceback, and no rank that waits for ever."""
    action, status, words = ENDS[end]
    done = job(f"""
import os, sys, time
from kernmill import Tensor, dist
if dist.rank() == 1:
    {action}
dist.all_reduce(Tensor([1.0])).item()
time.sleep(30)
""", 3, COMM_TIMEOUT="1" if end == "silent" else "20")  # fmt: skip
    assert done.returncode == status
    assert words in done.stderr
    assert end == "silent" or "not answered" not in done.stderr
    assert "MPI_Abort" not in done.stderr  # the sentence of MPICH after ours


EARLY_ENDS = {
    "raise": ("raise ValueError('no such file')", 1, "[rank 1] ValueError: no such file"),
    "exit": ("sys.exit('no data')", 1, "no data"),
    "no mpi4py": ("sys.modules['mpi4py'] = None", 1, "[rank 1] kernmill.dist.communicator.DistError: mpirun started"),
}


@pytest.mark.parametrize("end", EARLY_ENDS)
def test_a_rank_that_ends_before_mpi_starts_ends_all(end: str) -> None:
    """The others wait in the start of MPI, where neither Python nor a time limit reaches them."""
    action, status, words = EARLY_ENDS[end]
    done = job(f"""
import os, sys
from kernmill import dist
if os.environ["PMI_RANK"] == "1":
    {action}
dist.rank()
""")  # fmt: skip
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr


def test_messages_of_another_kind_and_nan_over_processes() -> None:
    """MPI compares neither shapes nor dtypes of messages, and its maximum of NaN is another one on each rank."""
    done = job("""
import numpy as np
from kernmill import Tensor, dist
nan = float("nan")
for dtype in ("float32", "float64"):
    x = Tensor([1.0, nan, -5.0, nan] if dist.rank() else [nan, 2.0, -6.0, nan]).cast(dtype)
    np.testing.assert_array_equal(dist.all_reduce(x, op="max").numpy(), [nan, nan, -5.0, nan])
    np.testing.assert_array_equal(dist.all_reduce(x, x[1:3], op="min")[1].numpy(), [nan, -6.0])
    np.testing.assert_array_equal(dist.reduce_scatter(x, op="max").numpy(), [[nan, nan], [-5.0, nan]][dist.rank()])
for given, like in ((Tensor.ones(2), Tensor.ones(5)), (Tensor.ones(2), Tensor.ones(2).int())):
    if dist.rank() == 0: dist.send(given, 1)
    else:
        try: print(dist.recv(like, 0).tolist())
        except dist.DistError as error: print(str(error).partition(".")[0])
if dist.rank() == 0: dist.send(Tensor.ones(5), 1)
else: dist.recv(Tensor.ones(2), 0)
""")
    sentence = "recv: rank 0 has sent another shape or dtype than"
    assert done.stdout.splitlines() == [f"{sentence} float32(5,)", f"{sentence} int32(2,)"], done.stderr
    assert "recv: the ranks exchange different things (Message truncated)" in done.stderr


def test_the_roll_call_counts_collectives_only() -> None:
    """Rank 0 also sent something: it is not ahead of rank 1, and only rank 2 is silent."""
    done = job("""
import time
from kernmill import Tensor, dist
if dist.rank() == 0: dist.send(Tensor([1.0]), 1)
if dist.rank() == 1: dist.recv(Tensor([1.0]), 0), dist.send(Tensor([1.0]), 2)
if dist.rank() == 2: dist.recv(Tensor([1.0]), 1), time.sleep(30)
dist.barrier()
""", 3, COMM_TIMEOUT="1")  # fmt: skip
    assert done.returncode == 1
    assert "barrier: rank 2 has not answered for 1 s" in done.stderr


def test_ranks_that_disagree_end_with_one_sentence() -> None:
    done = job("from kernmill import Tensor, dist; dist.all_reduce(Tensor.ones(2 + dist.rank()))")
    assert done.returncode == 1
    assert done.stderr.count("the ranks differ in what they exchange") == 1
    assert "[rank 1]" not in done.stderr


@pytest.mark.parametrize("error", ["ImportError('No module named mpi4py')", "RuntimeError('cannot load MPI library')"])
def test_mpirun_without_the_extra_is_one_sentence(tmp_path: Path, error: str) -> None:
    (tmp_path / "mpi4py.py").write_text(f"raise {error}")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = job("from kernmill import dist; dist.rank()", PYTHONPATH=path)
    assert done.returncode != 0
    assert done.stderr.count("pip install 'kernmill[dist]'") == 1


def test_ctrl_c_ends_all() -> None:
    assert MPIRUN is not None
    program = "from kernmill import dist, Tensor\nif dist.rank(): dist.barrier()\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen(
        [MPIRUN, "-n", "2", sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        running.stdout.readline()
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        assert running.wait(20) != 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.gguf", "-p", "x"], "no.gguf: cannot be read"),
        (["no.gguf"], "run: no prompt"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence_and_ends_all(arguments: list[str], words: str) -> None:
    """Rank 0 says it; a rank that waits for it would wait for ever."""
    program = "from kernmill.__main__ import main; import sys; end = sys.exit; end(main())"
    done = job(program, 2, "run", *arguments)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if words in line] == done.stderr.splitlines()[:1]
    assert done.stderr.count("kernmill:") == 1


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_ranks_without_memory_for_their_part_are_one_sentence(tmp_path: Path, mode: str) -> None:
    path = write(CASES["llama"], tmp_path / "llama.gguf")
    program = "from kernmill.__main__ import main; import sys; sys.exit(main())"
    done = job(program, 2, "run", str(path), "-p", "x", "-c", str(1 << 40), "--split", mode)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("kernmill:")]
    assert "this model does not fit: " in line
    assert "Start more ranks, or" in line


def test_other_versions_on_ranks_are_one_sentence() -> None:
    done = job("""
import os, kernmill
if os.environ["PMI_RANK"] == "1": kernmill.__version__ = "0.0.1"
from kernmill import dist
dist.rank()
""")
    assert done.returncode == 1
    assert done.stderr.count("the ranks differ in the version of kernmill: rank 0 has") == 1
    assert "[rank 1]" not in done.stderr


def test_a_model_over_ranks_without_mpirun_is_an_error() -> None:
    done = job("from kernmill.__main__ import main; import sys; sys.exit(main())", 1,
               "run", "no.gguf", "-p", "x", "--split", "tensor")  # fmt: skip
    assert done.returncode == 2
    assert "start it with mpirun -n 2" in done.stderr


@pytest.mark.parametrize("end", ["dist.share(range(7))", "sys.exit('share: 7 rows over 2 ranks')"])
def test_a_batch_that_does_not_divide_is_said_once(end: str) -> None:
    done = job(f"import sys; from kernmill import dist; dist.rank(); {end}")
    assert done.returncode == 1
    assert done.stderr.count("share: 7 rows over 2 ranks") == 1
