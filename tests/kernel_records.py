"""Kernels that tests launch: recorded with their arguments and results, then run again under a checker.

    pytest --record-kernels FOLDER --device LLVM tests/devices  # writes them; the device does not matter
    OCL_ICD_VENDORS=.. python -m tests.kernel_records FOLDER  # runs them on DEVICE=CL in both shapes, and compares

Of kernels with the same ops on the same dtypes, which differ in sizes, two are kept, and none that would be simulated
for many seconds. Recording costs no more than the tests. The second command is for Oclgrind, which looks at each access
of a kernel: there a buffer is exactly as large as it must be. It finds what it finds without failing, so its log
(OCLGRIND_LOG) must stay empty: what it says is shown with the kernel's name.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import math
import os
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernmill.ir import Context, DType, Kernel, KernmillError, Ops
from kernmill.runtime import Call, allocate_buffer, build, get_device

LIMIT_BYTES = 1 << 18  # of all buffers of a kernel
LIMIT_STEPS = 1 << 16  # nodes, each as often as its loops go round: the checker does less than a million a second
ALIKE = 2  # kernels of the same ops
_texts = importlib.import_module("kernmill.runtime.programs.kernel_text")
SHAPES = ("cpu", "gpu", "small")
# Constants of compiler/optimize/gpu.py for groups that suit tensors of some hundred elements.
SMALL_GROUPS = {"_SHORT": 4, "_TILES": ((4, 2), (2, 2)), "_ROWS": 2, "_GROUPS": 4}


@dataclass(slots=True)
class Record:
    """A kernel as text, its arguments, and what its outputs held after it ran."""

    text: str
    outputs: list[int]  # slots
    values: list[Any]  # arrays of bytes, by slot
    results: list[Any]
    variables: tuple[int, ...]


# --- recording --------------------------------------------------------------------------------------------------------
def start_recording(folder: Path) -> None:
    """From here on every kernel that this process launches is written there, if it is small and new."""
    folder.mkdir(parents=True, exist_ok=True)
    execute: Any = importlib.import_module("kernmill.runtime.execute")
    launch = execute.run_batch

    def run_batch(batch: list[tuple[Kernel, Call]], *others: Any) -> None:
        for kernel, call in batch:
            path = _path(folder, kernel, call)
            if path is None:
                launch([(kernel, call)], *others)
                continue
            before = [_bytes(buffer) for buffer in call.buffers]
            launch([(kernel, call)], *others)
            slots = [kernel.buffers.index(number) for number in kernel.outputs]
            after = [_bytes(call.buffers[slot]) for slot in slots]
            made = pickle.dumps(Record(_texts.kernel_to_text(kernel), slots, before, after, call.variables))
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(made)
            part.replace(path)

    execute.run_batch = run_batch


def _path(folder: Path, kernel: Kernel, call: Call) -> Path | None:
    """Where a kernel is kept; None for one that is large, known, or like others."""
    order = kernel.ast.toposort()
    steps = sum(math.prod(int(loop.src[0].bounds[1]) for loop in u.ranges) for u in order)
    runs = kernel.device != "NULL" and get_device(kernel.device).props().is_host_visible
    if not runs or steps > LIMIT_STEPS or sum(b.nbytes for b in call.buffers) > LIMIT_BYTES:
        return None
    ops = repr([(u.op.name, u.dtype.name, len(u.src)) for u in order])
    start = hashlib.sha256(ops.encode()).hexdigest()[:24]
    path = folder / f"{start}-{kernel.ast.key.hex()[:8]}.kernel"
    alike = list(folder.glob(f"{start}-*.kernel"))
    return None if path in alike or len(alike) >= ALIKE else path


def _bytes(buffer: Any) -> Any:
    get_device(buffer.device).synchronize()
    return np.array(buffer.host_array().view(np.uint8))


# --- running ----------------------------------------------------------------------------------------------------------
@contextmanager
def exact_memory() -> Iterator[None]:
    """Buffers of the driver, and not a byte larger than asked for."""
    ops_cl: Any = importlib.import_module("kernmill.runtime.ops_cl")
    memory: Any = importlib.import_module("kernmill.runtime.opencl.cl_memory")
    facts, bucket = ops_cl.facts_of, memory.ClAllocator.bucket_bytes
    ops_cl.facts_of = lambda handle: replace(facts(handle), is_unified=False)
    memory.ClAllocator.bucket_bytes = lambda _, size: size
    try:
        yield
    finally:
        ops_cl.facts_of, memory.ClAllocator.bucket_bytes = facts, bucket


@contextmanager
def shaped(shape: str) -> Iterator[None]:
    """Kernels of one shape; without the kernel cache, which does not know of `small`."""
    gpu = importlib.import_module("kernmill.compiler.optimize.gpu")
    small = SMALL_GROUPS if shape == "small" else {}
    kept = {name: getattr(gpu, name) for name in small}
    for name, value in small.items():
        setattr(gpu, name, value)
    try:
        with Context(DEVICE="CL", TARGET="cpu" if shape == "cpu" else "gpu", CACHE="0"):
            yield
    finally:
        for name, value in kept.items():
            setattr(gpu, name, value)


def run_again(record: Record) -> str:
    """What is wrong with the results of a kernel on DEVICE=CL; nothing where they are right."""
    kernel = _texts.kernel_from_text(record.text, "CL")
    device = get_device("CL")
    program = build(device, kernel)
    params = {u.arg[0]: u for u in kernel.ast.toposort() if u.op is Ops.PARAM}
    buffers = []
    for slot, value in enumerate(record.values):
        dtype = params[slot].dtype.scalar
        buffers.append(allocate_buffer("CL", dtype, len(value) // dtype.size_bytes))
        if len(value):
            device.copy_in(buffers[-1], value.data)
    device.run([Call(program, tuple(buffers), record.variables, program.threads)])
    if any(u.op is Ops.CAST and u.dtype.is_int and u.src[0].dtype.is_float for u in kernel.ast.toposort()):
        return ""  # a float that no int can hold may become any
    read = [(v, params[s].dtype.scalar) for s, v in enumerate(record.values) if s not in record.outputs]
    size = max((_largest(_numbers(value, dtype)) for value, dtype in read if dtype.is_float), default=0.0)
    for slot, want in zip(record.outputs, record.results, strict=True):
        got = np.empty_like(want)
        device.copy_out(got.data, buffers[slot])
        problem = _difference(got, want, params[slot].dtype.scalar, size)
        if problem:
            return f"slot {slot}: {problem}"
    return ""


def _difference(got: Any, want: Any, dtype: DType, size: float) -> str:
    """What differs by more than sums in another order do, of numbers as large as `size`: they may cancel."""
    a, b = (_numbers(x, dtype) for x in (got, want))
    scale = max(_largest(b), size) if dtype.is_float else 0
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(a - b) <= 64 * dtype.epsilon * scale if dtype.is_float else a == b
    near = (a == b) | (np.isnan(a) & np.isnan(b)) | close
    at = int(np.argmin(near)) if len(near) else 0
    return "" if near.all() else f"{(~near).sum()} of {len(near)} values differ; number {at} is {a[at]}, not {b[at]}"


def _largest(x: Any) -> float:
    return float(np.max(np.abs(x[np.isfinite(x)]), initial=1e-30))


def _numbers(x: Any, dtype: DType) -> Any:
    if dtype.name == "bfloat16":
        return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.view(dtype.name) if dtype.bits > 16 or not dtype.is_float else x.view(dtype.name).astype(np.float32)


def check(paths: Sequence[Path], shapes: Sequence[str], deadline: float) -> int:
    """Run them; how many went wrong. What a checker writes to OCLGRIND_LOG is shown with the kernel that caused it."""
    log = Path(os.environ.get("OCLGRIND_LOG", os.devnull))
    wrong = done = seen = 0
    times: list[tuple[float, str]] = []
    for shape in shapes:
        with shaped(shape):
            for path in paths:
                if time.monotonic() > deadline:
                    print(f"out of time: {done} runs of {len(paths) * len(shapes)}")
                    return wrong + 1
                record: Record = pickle.loads(path.read_bytes())
                start = time.monotonic()
                try:
                    said = run_again(record)
                except KernmillError as error:
                    said = f"{type(error).__name__}: {error}"
                size = log.stat().st_size if log.is_file() else 0
                if size > seen:
                    said += f"\n{log.read_text(errors='replace')[seen : seen + 3000]}"
                    seen = size
                done += 1
                times.append((time.monotonic() - start, f"{path.name} as {shape}"))
                if said:
                    wrong += 1
                    print(f"{path.name} as {shape}: {said}\n{record.text.splitlines()[-1]}", flush=True)
    slowest = "; ".join(f"{name} {seconds:.1f} s" for seconds, name in sorted(times)[-3:])
    print(f"{done} runs of {len(paths)} kernels as {', '.join(shapes)}: {wrong} wrong. The slowest: {slowest}")
    return wrong


def main() -> int:
    """0 when all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", action="append", choices=SHAPES, default=[])
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2 are the halves, for two processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="more than that is a failure")
    given = parser.parse_args()
    number, of = map(int, given.part.split("/"))
    paths = sorted(given.folder.glob("*.kernel"))[number::of]
    if not paths:
        print(f"{given.folder} holds no kernels. Run: pytest --record-kernels {given.folder} tests/devices")
        return 1
    with exact_memory():
        return int(check(paths, given.shape or SHAPES, time.monotonic() + given.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
