"""A folder that reproduces what a kernel did: its UOps, schedule, inputs, and a `repro.py` to run.

A kernel that a compiler rejects, that fails when it is launched, or that has a wrong result under CHECK=1 leaves one.
Only the last has the inputs of the program; the others run with random ones.
Tests: tests/runtime/programs/test_reproduce.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernmill.compiler import parse_schedule, show_schedule
from kernmill.ir import SETTINGS, Context, Kernel, KernmillError, np, setting

from .. import later
from ..device import Call, get_device, write_buffer
from ..execute import allocate_buffer
from ..memory.buffer import Buffer
from .check import difference
from .kernel_inputs import params_of, random_inputs
from .kernel_text import kernel_from_text, kernel_to_text

__all__ = ["explain_failure", "leave_folder", "run_folder"]

_MOST_BYTES = 64 << 20  # of inputs in a folder
_MOST_FOLDERS = 10  # of one process
_SETTINGS = sorted(SETTINGS.keys() - {"DUMP", "DEBUG", "CHECK", "PROFILE", "CACHE", "CACHE_DIR"})
_left: dict[tuple[bytes, ...], Path] = {}
_SCRIPT = '''"""Run the kernels of this folder again, and compare their results with the reference (facts.json)."""

import sys
from pathlib import Path

try:
    import kernmill.runtime as runtime
except ImportError:
    sys.path.append({root!r})
    import kernmill.runtime as runtime

raise SystemExit(runtime.run_folder(Path(__file__).parent))
'''


def explain_failure(error: KernmillError) -> None:
    """Leave a folder for the kernels of an error, and name it in the message."""
    folder = leave_folder(error)
    if folder is not None:
        gap = "\n" if "\n" in str(error) else " "  # behind generated code
        error.args = (f"{error}{gap}`python {folder}/repro.py` repeats it.", *error.args[1:])


def leave_folder(error: KernmillError) -> Path | None:
    """Write a folder for the kernels of an error, in that of DUMP or in the system's temporary one. None if there are
    none, if ten folders have been written, or if it cannot be written."""
    key = tuple([kernel.key for kernel in error.kernels])
    if not key or (len(_left) >= _MOST_FOLDERS and key not in _left):
        return None
    if key not in _left or not _left[key].exists():
        try:
            _left[key] = _written_folder(error)
        except OSError:
            return None
    return _left[key]


def _written_folder(error: KernmillError) -> Path:
    parent = str(setting("DUMP")) or None
    if parent:
        Path(parent).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="kernmill-repro-", dir=parent))
    inputs, variables = error.inputs or ((), ())
    facts = {
        "about": str(error), "variables": [*variables],
        "settings": {name: setting(name) for name in _SETTINGS if setting(name) != SETTINGS[name].default},
        "kernels": [_write_kernel(folder, number, kernel) for number, kernel in enumerate(error.kernels)],
    }  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if inputs and sum(array.nbytes for array in inputs) <= _MOST_BYTES:
        np.savez_compressed(folder / "inputs.npz", **{f"slot{slot}": array for slot, array in enumerate(inputs)})
    script = _SCRIPT.format(root=str(Path(__file__).resolve().parents[2]))
    (folder / "repro.py").write_text(script, encoding="utf-8")
    return folder


def _write_kernel(folder: Path, number: int, kernel: Kernel) -> dict[str, Any]:
    """Write the UOps of a kernel; return its other facts."""
    (folder / f"kernel{number}.uops").write_text(kernel_to_text(kernel), encoding="utf-8")
    try:
        schedule: str | None = show_schedule(later.compiling.schedule_of(get_device(kernel.device), kernel))
    except KernmillError:  # the heuristic itself fails
        schedule = None
    return {"name": kernel.name, "device": kernel.device, "line": kernel.origin or "", "schedule": schedule}


def run_folder(folder: str | Path) -> int:
    """Run the kernels of a folder, and print what happens. Returns 1 if one fails or has a wrong result, else 0.

    Raises:
        KernmillError: the folder is not one of these.
    """
    path = Path(folder)
    try:
        facts = json.loads((path / "facts.json").read_text(encoding="utf-8"))
        texts = [(path / f"kernel{n}.uops").read_text(encoding="utf-8") for n in range(len(facts["kernels"]))]
        given = dict(np.load(path / "inputs.npz")) if (path / "inputs.npz").exists() else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernmillError(f"run_folder: {path} is damaged or is not a folder of this kind: {error}") from None
    print(f"then: {facts['about']}")
    failed = 0
    with Context(**facts["settings"]):
        for text, of in zip(texts, facts["kernels"], strict=True):
            try:
                said = _run_again(kernel_from_text(text, of["device"]), of["schedule"], given, facts["variables"])
            except KernmillError as error:
                said = f"fails: {error}"
            failed += said != ""
            print(f"now: {of['name']} on {of['device']} {said or 'agrees with PYTHON'}")
    return 1 if failed else 0


def _run_again(kernel: Kernel, schedule: str | None, given: Mapping[str, Any], variables: Sequence[int]) -> str:
    """Compile a kernel and run it; where it differs from the reference, or ""."""
    device = get_device(kernel.device)
    actions = later.compiling.heuristic_schedule(device, kernel) if schedule is None else parse_schedule(schedule)
    program = later.compiling.compile_with(device, kernel, actions)
    values, buffers, inputs = random_inputs(kernel), list[Buffer](), list[Any]()
    for param in params_of(kernel):
        slot, count = int(param.arg[0]), int(param.arg[1])
        empty = np.zeros(count, param.dtype.stored_as)
        inputs.append(given.get(f"slot{slot}", values.get(slot, empty)))
        buffers.append(allocate_buffer(device.name, param.dtype, count))
        write_buffer(device, buffers[-1], inputs[-1].view("uint8").data)
    numbers = tuple(variables) or tuple(greatest for _, _, greatest in kernel.variables)
    said = difference(device, kernel, Call(program, tuple(buffers), numbers, program.threads), inputs)
    return f"differs from PYTHON {said}" if said else ""
