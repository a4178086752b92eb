"""What was measured on: CPU, caches, versions, load."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["machine", "machine_line"]

_PACKAGES = ("kernmill", "numpy", "torch", "jax", "onnxruntime", "tinygrad", "llvmlite")


def cpu_model() -> str:
    """The CPU's own name, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def caches() -> dict[str, int]:
    """Bytes of each data cache, as kernmill sees them."""
    from kernmill.runtime import host

    here = host.this_host()
    return {"L1": here.l1, "L2": here.l2, "L3": here.l3}


def versions() -> dict[str, str]:
    """Of the packages that matter, where they are installed."""
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "kernmill":
                found[name] = "checkout"
    return found


def commit() -> str:
    """The commit of the checkout, with a + if files differ from it; empty where there is none."""
    git = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def machine() -> dict[str, object]:
    """All of it. `load` is the mean number of busy processes in the last minute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "cpu": cpu_model(), "cores": cores, "caches": caches(), "system": f"{sys.platform} {platform.machine()}",
        "versions": versions(), "load": round(load, 2),
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": commit(),
    }  # fmt: skip


def machine_line(facts: dict[str, object]) -> str:
    """One sentence for people."""
    sizes, found = facts["caches"], facts["versions"]
    assert isinstance(sizes, dict)
    assert isinstance(found, dict)
    levels = ", ".join(f"{name} {show_cache(size)}" for name, size in sizes.items())
    packages = ", ".join(f"{name} {version}" for name, version in found.items())
    hardware = f"{facts['cpu']}, {facts['cores']} cores, {levels}; {facts['system']}"
    return f"{hardware}; {packages}; load before {facts['load']}"


def show_cache(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
