"""Programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

START = """
import sys
import numpy as np
from kernmill.ir import *
from kernmill.runtime import counters, download, get_device, realize, upload
def leaf(array):
    flat = np.ascontiguousarray(array).reshape(-1)
    return reshape(upload(flat, as_dtype(flat.dtype), get_device().name), array.shape)
def value(root):
    realize([root])
    return np.array(download(root)).reshape(root.shape)
"""


def environment(cache: Path | None = None, **settings: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), **({"CACHE_DIR": str(cache)} if cache else {}), **settings}


def start(code: str, cache: Path | None = None, **settings: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START + code]
    return subprocess.Popen(
        command, env=environment(cache, **settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(code: str, cache: Path | None = None, **settings: str) -> tuple[str, str]:
    """Standard output and standard error of a program that ends well."""
    process = start(code, cache, **settings)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err
