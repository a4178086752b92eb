"""Ctrl-C while kernels run: it is raised soon, whatever runs, and what comes after is right."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from kernmill.runtime import get_device

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
# On each thread, of the program's own work: a busy machine, and a system that clears new memory, take their own time.
_LIMIT_S = 0.1

_COMMON = """
import os, resource, signal, sys, threading, time
import numpy as np
from kernmill import Tensor, jit
a = Tensor.rand(6000, 6000).realize()
m = Tensor.rand(96, 96).realize()
truth = m.numpy() @ m.numpy() @ m.numpy()
two = jit(lambda x: x @ x @ x)
for _ in range(3):
    two(m)
(m @ m @ m).realize()
sent = [0.0]
def worked_s():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime
def interrupt(after_s):
    def go():
        time.sleep(after_s)
        sent[0] = worked_s()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=go, daemon=True).start()
late = []
def interrupted(run):
    for after_s in (0.3, 0.65):
        interrupt(after_s)
        try:
            run()
        except KeyboardInterrupt:
            late.append(worked_s() - sent[0])
        else:
            raise AssertionError("it was not interrupted")
def right():
    np.testing.assert_allclose((m @ m @ m).numpy(), truth, rtol=1e-4)
    np.testing.assert_allclose(two(m).numpy(), truth, rtol=1e-4)
"""
_RUNS = {
    "eager": "interrupted(lambda: (a @ a @ a).realize())",
    "captured": """
big = Tensor.rand(6000, 6000).realize()
large = jit(lambda x, s: ((x @ x @ x) * s).sum())
small = Tensor.rand(1).realize()
interrupted(lambda: large(big, small))
""",
    "prepared": """
n = 1500
b = Tensor.rand(n, n).realize()
many = jit(lambda x: (x @ x @ x @ x @ x @ x @ x @ x @ x @ x) / n)
wanted = many(b).numpy(); many(b); many(b)
def loop():
    while True:
        many(b)
interrupted(loop)
np.testing.assert_array_equal(many(b).numpy(), wanted)
""",
    "chain": """
c = Tensor.rand(30_000_000).realize()
def long():
    while True:
        ((c.exp().contiguous() + 1).contiguous().log().contiguous() * 2).sum().realize()
interrupted(long)
""",
    "short": """
def loop():
    while True:
        (m @ m).realize()
interrupted(loop)
""",
    "handler": """
b = Tensor.rand(3000, 3000).realize()
wanted = (b @ b @ b).numpy()
seen, busy = [], []
def handler(*_):
    if not busy:  # the next signal may come while this one is handled
        busy.append(1)
        seen.append(np.allclose((m @ m @ m).numpy(), truth, rtol=1e-4))
        busy.clear()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.1)
got = (b @ b @ b).numpy()
signal.setitimer(signal.ITIMER_REAL, 0)
assert all(seen)
assert len(seen) >= 2
np.testing.assert_array_equal(got, wanted)
""",
    "thread": """
found = []
thread = threading.Thread(target=lambda: found.append((m @ m @ m).numpy()))
interrupted(lambda: (thread.start() if not found and not thread.ident else None, (a @ a).realize()))
thread.join()
np.testing.assert_allclose(found[0], truth, rtol=1e-4)
""",
}


def _check(name: str, device: str, threads: int, before: str = "") -> None:
    env = {**os.environ, "THREADS": str(threads), "DEVICE": device}
    command = [sys.executable, "-c", f"{_COMMON}\n{before}\n{_RUNS[name]}\nright()\nprint(max(late, default=0.0))"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    assert float(done.stdout) < _LIMIT_S * threads


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("name", _RUNS)
def test_ctrl_c_is_raised_soon(name: str, threads: str) -> None:
    _check(name, "LLVM", int(threads))


@pytest.mark.parametrize("name", ["eager", "prepared", "thread"])
def test_ctrl_c_is_raised_soon_by_opencl_on_a_cpu(name: str, opencl: str) -> None:
    device: Any = get_device(opencl)
    if not device.facts.is_host_memory:
        pytest.skip("this device has memory of its own")
    built = "a = Tensor.rand(3500, 3500).realize(); (a @ a).realize(); (a @ a @ a).realize()"  # a driver's builds go on
    _check(name, opencl, device.facts.units, built)
