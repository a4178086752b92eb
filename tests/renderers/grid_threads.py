"""Runs a kernel for GPUs on this CPU, from the text that LLVM would compile for the GPU: a thread for each work-item.

Barriers are Python's. A step of a matrix unit is computed by NumPy from the words that 32 items hold; which item has
which is said here as the PTX ISA and AMD's manual say it, from an item to its rows and columns.
"""

from __future__ import annotations

import ctypes
import re
import threading
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from kernmill.ir import DType, dtypes

_IDS = {"tid.x": "%item", "workitem.id.x": "%item", "ctaid.x": "%block", "workgroup.id.x": "%block"}
_STEP = re.compile(r"declare (.+) (@llvm\.(?:nvvm\.mma|amdgcn\.wmma)\.\S+)\((.+)\)")
_STEP_BYTES = 128
Array = np.ndarray[Any, Any]


def run_grid(text: str, buffers: list[Array], pair: tuple[DType, DType], items: int, blocks: int) -> None:
    """Run the kernel `k` on the arrays, which it may write."""
    together = threading.Barrier(items, timeout=60)
    slots = np.zeros((items, _STEP_BYTES), np.uint8)
    has_wave = "amdgcn" in text

    def step(item: int) -> None:
        together.wait()
        try:
            if item % 32 == 0:
                (_amd if has_wave else _nvidia)(slots[item : item + 32], pair)
        except BaseException:
            together.abort()  # the others would wait for ever
            raise
        together.wait()

    wait_type, step_type = ctypes.CFUNCTYPE(None), ctypes.CFUNCTYPE(None, ctypes.c_int32)
    calls = wait_type(lambda: together.wait() and None), step_type(step)
    for name, call in zip(("test_wait", "test_step"), calls, strict=True):
        llvm.add_symbol(name, ctypes.cast(call, ctypes.c_void_p).value)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_for_this_cpu(text, slots.ctypes.data)), machine)
    engine.finalize_object()
    kinds = (*(ctypes.c_void_p for _ in buffers), ctypes.c_int32, ctypes.c_int32)
    kernel = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("k"))

    def run(item: int) -> None:
        for block in range(blocks):
            kernel(*(b.ctypes.data for b in buffers), item, block)
            together.wait()

    threads = [threading.Thread(target=run, args=(item,)) for item in range(items)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _for_this_cpu(text: str, slots: int) -> str:
    text = re.sub(r',? ?addrspace\(\d\)|syncscope\("\w+"\) ', "", text)
    text = re.sub(r"define \w+_kernel void (@k\(.*)\) #0", r"define void \1, i32 %item, i32 %block) #0", text)
    text = re.sub(
        r"call i32 @llvm\.(?:nvvm\.read\.ptx\.sreg|amdgcn)\.([\w.]+)\(\)", lambda m: f"add i32 0, {_IDS[m[1]]}", text
    )
    text = re.sub(r"call void @llvm\.(?:nvvm\.barrier|amdgcn\.s\.barrier).*", "call void @test_wait()", text)
    made = ["declare void @test_wait()", "declare void @test_step(i32)"]
    for number, (result, name, given) in enumerate(_STEP.findall(text)):
        kinds = re.findall(r"<[^>]+>|\w+", given)
        made.append(_step_function(f"@step{number}", result, kinds, slots))
        text = re.sub(rf"(call .+? ){re.escape(name)}\((.*)\)", rf"\1@step{number}(\2, i32 %item)", text)
    return "\n".join([re.sub(r"^declare .*@llvm\.(nvvm|amdgcn)\..*$", "", text, flags=re.MULTILINE), *made])


def _step_function(name: str, result: str, kinds: list[str], slots: int) -> str:
    """It stores an item's words, and returns what the step leaves in place of its results."""
    held = [(n, kind) for n, kind in enumerate(kinds) if kind != "i1"]
    sizes = [_size_bytes(kind) for _, kind in held]
    lines = ["%far = sext i32 %item to i64", f"%own = mul i64 %far, {_STEP_BYTES}", f"%first = add i64 %own, {slots}",
             "%slot = inttoptr i64 %first to ptr"]  # fmt: skip
    for (n, kind), at in zip(held, np.cumsum([0, *sizes]), strict=False):
        lines += [f"%p{n} = getelementptr i8, ptr %slot, i64 {at}", f"store {kind} %a{n}, ptr %p{n}, align 1"]
    lines += ["call void @test_step(i32 %item)", f"%p = getelementptr i8, ptr %slot, i64 {_STEP_BYTES - 32}",
              f"%r = load {result}, ptr %p, align 1", f"ret {result} %r"]  # fmt: skip
    head = ", ".join(f"{kind} %a{n}" for n, kind in enumerate(kinds))
    return f"define {result} {name}({head}, i32 %item) {{\n" + "\n".join(lines) + "\n}"


def _size_bytes(kind: str) -> int:
    each = {"half": 2, "float": 4, "i16": 2, "i32": 4, "bfloat": 2}
    found = re.match(r"<(\d+) x (\w+)>", kind)
    return int(found[1]) * each[found[2]] if found else each[kind]


def _values(words: Array, dtype: DType) -> Array:
    if dtype is dtypes.bfloat16:
        return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return words.view(dtype.name).astype(np.int32 if dtype.is_int else np.float32)


def _product(a: Array, b: Array, pair: tuple[DType, DType]) -> Array:
    return _values(a, pair[0]) @ _values(b, pair[1]).T


def _nvidia(held: Array, pair: tuple[DType, DType]) -> None:
    """Groups of four items; registers of an operand are words, rows of a and columns of b have eight."""
    words = np.ascontiguousarray(held[:, :24]).view(np.uint32)
    sums = np.ascontiguousarray(held[:, 24:40]).view(np.int32 if pair[0].is_int else np.float32)
    a, b, item = np.zeros((16, 8), np.uint32), np.zeros((8, 8), np.uint32), np.arange(32)
    group, inside = item // 4, item % 4
    for n in range(4):
        a[group + n % 2 * 8, inside + n // 2 * 4] = words[:, n]
    for n in range(2):
        b[group, inside + n * 4] = words[:, 4 + n]
    total = _product(a, b, pair)
    for n in range(4):
        sums[:, n] += total[group + n // 2 * 8, inside * 2 + n % 2]
    held[:, -32:-16] = sums.view(np.uint8)


def _amd(held: Array, pair: tuple[DType, DType]) -> None:
    """Lanes 0 to 15 have a row of a and a column of b, the others the same; results are in the rows by turns."""
    size = 16 * pair[0].size_bytes
    a, b = (np.ascontiguousarray(held[:, n * size : (n + 1) * size]) for n in (0, 1))
    assert (a[:16] == a[16:]).all()
    assert (b[:16] == b[16:]).all()
    sums = np.ascontiguousarray(held[:, 2 * size : 2 * size + 32]).view(np.int32 if pair[0].is_int else np.float32)
    total, lane = _product(a[:16], b[:16], pair), np.arange(32)
    for n in range(8):
        sums[:, n] += total[2 * n + lane // 16, lane % 16]
    held[:, -32:] = sums.view(np.uint8)
