"""Which functions of kernmill run, in order, in a first matrix product and in calls of a captured function.

They are recorded by `sys.setprofile`.

Each runs in a process of its own with settings of its own, so that nothing of this machine, of its caches or of what
was computed before shows: the product on the device NULL, whose target is fixed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["capture_paths", "matmul_path", "replay_path"]

ROOT = Path(__file__).resolve().parent.parent
_SETTINGS = {"CACHE": "0", "COMPILER_PROCESS": "0", "THREADS": "1", "DEBUG": "", "BEAM": "", "TARGET": "", "CHECK": "",
             "OVERRIDE": "", "DUMP": "", "QUANT_ACT": "", "QUANT_FORM": "", "SEED": "", "SPIN": "",
             "PYTHONHASHSEED": "0"}  # fmt: skip

_RECORD = """
import gc, json, os, sys
sys.path.insert(0, sys.argv[1])
from kernmill import Tensor, jit
folders = ("kernmill", "runtime", "compiler", "renderers", "ir")
seen = []

def profile(frame, event, arg):
    code = frame.f_code
    file = os.path.relpath(code.co_filename, sys.argv[1]).replace(os.sep, "/")
    if event == "call" and file.split("/")[0] in folders and code.co_flags & 1 and not code.co_name.startswith("<"):
        seen.append((file, code.co_name))
    elif event == "call" and code.co_filename.startswith("<") and code.co_name == "run":
        seen.append(("kernmill/captures/fast_path.py", "run (written for this call)"))
"""
_MATMUL = """
(Tensor.ones(5, 7).exp() * 2).sum(1).realize()  # imports all that compiling needs
a, b = Tensor.ones(64, 32).realize(), Tensor.ones(32, 48).realize()
gc.disable()
sys.setprofile(profile)
(a @ b).realize()
sys.setprofile(None)
"""
_REPLAY = """
w = Tensor.ones(32, 48).realize()
f = jit(lambda x: (x @ w).relu())
x = Tensor.ones(64, 32).realize()
for _ in range(6):
    y = f(x)
gc.disable()
sys.setprofile(profile)
y = f(x)
sys.setprofile(None)
"""
_CAPTURE = """
w = Tensor.ones(32, 48).realize()
f = jit(lambda x: (x @ w).relu())
x = Tensor.ones(64, 32).realize()
gc.disable()
for _ in range(4):
    seen.append(("", ""))
    sys.setprofile(profile)
    y = f(x)
    sys.setprofile(None)
"""
_PRINT = "\nprint(json.dumps(seen))\n"


def _recorded(program: str, device: str) -> list[tuple[str, str]]:
    """The calls of a program, as (file, function)."""
    environment = {**os.environ, **_SETTINGS, "DEVICE": device}
    command = [sys.executable, "-c", _RECORD + program + _PRINT, str(ROOT)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [(file, name) for file, name in json.loads(run.stdout)]


def matmul_path() -> list[tuple[str, str]]:
    """Each file with the first function that is entered there, in this order."""
    first: dict[str, str] = {}
    for file, name in _recorded(_MATMUL, "NULL"):
        first.setdefault(file, name)
    return list(first.items())


def replay_path() -> list[tuple[str, str]]:
    """Every call."""
    return _recorded(_REPLAY, "LLVM")


def capture_paths() -> list[dict[str, list[str]]]:
    """The first four calls of a captured function: each file of captures/ in order, with its functions as entered."""
    calls: list[dict[str, list[str]]] = []
    for file, name in _recorded(_CAPTURE, "LLVM"):
        if not file:
            calls.append({})
        elif file.startswith("kernmill/captures/") or file == "runtime/replay.py":
            functions = calls[-1].setdefault(file.rpartition("/")[2], [])
            if name not in functions:
                functions.append(name)
    return calls
