"""The schedule of a kernel: the one in OVERRIDE if it fits, else the one a search stored, else the heuristic's.

Results of searches are stored in the kernel cache, in a separate folder, under the kernel, the device's tag and a stamp
of the compiler's sources. They are always used; BEAM=0 ignores them. The number of threads is not part of the key: it
must not change the bits of a result.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from functools import cache

from kernmill.ir import Kernel, SettingError, setting

from .. import later
from ..device import Device
from .compile_cache import cache_key, default_cache

__all__ = ["given_schedule", "stamp", "store_schedule", "stored_schedule", "symbol"]


_FORM = r"(?:[a-z][a-z0-9_]*(?: [\w.-]+)*\n?)*"  # an action per line


def symbol(kernel: Kernel) -> str:
    """The kernel's name as an identifier; the same for equal kernels."""
    return "".join(c if c.isalnum() else "_" for c in kernel.name)


def given_schedule(device: Device, kernel: Kernel) -> str | None:
    """Return the text of the schedule that overrides the heuristic's, if there is one."""
    written = written_schedule(device, kernel)
    return stored_schedule(device, kernel) if written is None else written


def written_schedule(device: Device, kernel: Kernel) -> str | None:
    """Return the text of OVERRIDE/<kernel>.schedule, if there is one that fits; one that does not is a warning.

    Raises:
        SettingError: OVERRIDE is not a folder.
    """
    folder = str(setting("OVERRIDE"))
    if not folder:
        return None
    for name in (f"{symbol(kernel)}_{kernel.key.hex()[:8]}", symbol(kernel)):  # the first as DUMP names its folders
        path = os.path.join(folder, f"{name}.schedule")
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            why = later.compiling.misfit(kernel.ast, device.target, text)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            text, why = "", f"{path} cannot be read as text ({error})."
        if not why:
            return text
        warnings.warn(f"OVERRIDE: {why} The kernel gets the schedule that it has without the file.", stacklevel=2)
        return None
    if not os.path.isdir(folder):
        raise SettingError(f"OVERRIDE: {folder} is not a folder. Give a folder with <kernel>.schedule files.")
    return None


def stored_schedule(device: Device, kernel: Kernel) -> str | None:
    """Return the result of a search, now or in an earlier process; None without one, or with BEAM=0."""
    if setting("BEAM") == 0:
        return None
    entry = default_cache("schedules").get(_key(device, kernel))
    if entry is None:
        return None
    text = entry.payload.decode(errors="replace")
    return text if re.fullmatch(_FORM, text) else None


def store_schedule(device: Device, kernel: Kernel, schedule: str, facts: Mapping[str, object]) -> None:
    """Store the result of a search; `facts` are for people."""
    default_cache("schedules").put(_key(device, kernel), schedule.encode(), {"name": kernel.name, **facts})


def _key(device: Device, kernel: Kernel) -> str:
    return cache_key("schedule 2", kernel.key, device.tag, stamp())


@cache
def stamp() -> str:
    """Changes when the compiler's own files do: the version that is installed; path, size and time of each file."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    facts = _installed(root)
    for folder in ("ir", "compiler", "renderers", "runtime"):
        for where, _, files in os.walk(os.path.join(root, folder)):
            for name in sorted(files):
                if name.endswith(".py"):
                    path = os.path.join(where, name)
                    status = os.stat(path)
                    facts.append(f"{path[len(root) + 1 :]} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(sorted(facts))


def _installed(root: str) -> list[str]:
    """Return the folders of metadata (`kernmill-0.1.0.dist-info`) next to a package: reproducible installers set the
    time of every file to one day. Python's own reader of versions takes longer than everything else here."""
    beside, name = os.path.split(root)
    try:
        return [found for found in os.listdir(beside) if found.startswith(f"{name}-") and found.endswith(".dist-info")]
    except OSError:  # a folder that may be entered and not read
        return []


stamp()  # now: this process does not run edits from here on
