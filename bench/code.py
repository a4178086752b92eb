"""Generated code, judged without running it: `python -m bench.code --target aarch64-neoverse-n1`.

The kernels of a small set are compiled for another machine, and the block of each with the most arithmetic is read:
its instructions, how many of them are on vector registers, accumulators, accesses of the stack, products of bytes,
and the estimate of llvm-mca where that is installed (`LLVM_MCA` names it, else the newest on the path).
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

__all__ = ["KERNELS", "TARGETS", "Machine", "Reading", "kernels_for", "read_block", "report"]

_STACK = {"aarch64": r"\[sp", "hexagon": r"\(r29|\(r30", "x86_64": r"\(%rsp|\(%rbp|\[rsp|\[rbp", "nvptx64": r"%SP",
          "amdgcn": r"scratch_"}  # fmt: skip

_VECTORS = {"aarch64": r"\b[vq]\d+", "hexagon": r"\b[vq]\d+", "x86_64": r"\b[xyz]mm\d+"}


@dataclass(frozen=True)
class Machine:
    """A machine that code is compiled for. `pipes`: vector multiplications that it starts in a cycle."""

    host: Any
    renderer: Any
    accumulates: str  # instructions that add to their first operand, as a pattern
    multiplies: str  # all that do the work
    pipes: int


def _arm(core: str, pipes: int) -> Callable[[], Machine]:
    def made() -> Machine:
        from kernmill.renderers import LLVMRenderer
        from kernmill.runtime import cpu_target, host

        machine = host.named_host(core)
        target = cpu_target.host_target(machine)
        adds = r"fmla|fmls|[su]mlal2?|mla|[su]dot|usdot|[su]mmla|bfdot|bfmmla|fmlal2?"
        return Machine(machine, LLVMRenderer(target), adds, adds + r"|fmul|mul|[su]mull2?|tbl", pipes)

    return made


def _hexagon(version: int) -> Callable[[], Machine]:
    def made() -> Machine:
        from kernmill.renderers import LLVMRenderer
        from kernmill.runtime import hexagon

        target = hexagon.hexagon_target(version)
        return Machine(
            hexagon.hexagon_host(version), LLVMRenderer(target), r"vrmpy|vmpy", r"vrmpy|v\w*mpy|sfmpy|mpyi?|vadd", 2
        )

    return made


def _cuda(generation: int) -> Callable[[], Machine]:
    def made() -> Machine:
        from kernmill.renderers import PTXRenderer
        from kernmill.runtime import cuda_target

        renderer = PTXRenderer(cuda_target.cuda_target(generation))
        adds = r"fma|mad|dp4a|mma"
        return Machine(cuda_target.cuda_host(generation), renderer, adds, adds + r"|mul\.(?:rn\.)?f\d+", 1)

    return made


def _amd(name: str) -> Callable[[], Machine]:
    def made() -> Machine:
        from kernmill.renderers import AMDRenderer
        from kernmill.runtime import amd_target

        adds = r"v_(?:dual_|pk_)?(?:fmac?|fmaak|fmamk|mad_[iu]32_[iu]24|wmma|dot4)_\w+"
        return Machine(
            amd_target.amd_host(name),
            AMDRenderer(amd_target.amd_target(name)),
            adds,
            adds + r"|v_(?:dual_)?mul_f\w+",
            1,
        )

    return made


def _x86(*, has_dots: bool = True) -> Machine:
    from kernmill.renderers import LLVMRenderer
    from kernmill.runtime import cpu_target, host

    machine = host.this_host()
    target = cpu_target.host_target(machine)
    if not has_dots:
        target = replace(target, name=f"{target.name}-no-dots", dots=frozenset())
    adds = r"vfn?m(?:add|sub)\d+[ps][sd]|vpdpbusds?|vdpbf16ps|tdp\w+"
    return Machine(machine, LLVMRenderer(target), adds, adds + r"|vmulp[sd]|vpmul[dl]\w+|vpmadd\w+", 2)


TARGETS: dict[str, Callable[[], Machine]] = {
    "aarch64-cortex-a72": _arm("cortex-a72", 2), "aarch64-neoverse-n1": _arm("neoverse-n1", 2),
    "aarch64-neoverse-v1": _arm("neoverse-v1", 4), "aarch64-neoverse-v2": _arm("neoverse-v2", 4),
    "aarch64-apple-m1": _arm("apple-m1", 4), "hexagon-v67": _hexagon(67), "hexagon-v73": _hexagon(73),
    "sm_75": _cuda(75), "sm_90": _cuda(90), "gfx1100": _amd("gfx1100"), "x86_64": _x86,
    "x86_64-no-dots": partial(_x86, has_dots=False),
}  # fmt: skip


# --- kernels ---------------------------------------------------------------------------------------------------------
def _ones(kind: str, *shape: int) -> Any:
    from kernmill import Tensor

    return Tensor(np.ones(shape, kind)).realize()


def _quantized(name: str, rows: int) -> Any:
    from kernmill import Tensor
    from kernmill.quant import QuantizedTensor, block_type

    kind = block_type(name)
    blocks = np.zeros((256, 1024 // kind.values, kind.size_bytes), np.uint8)
    weights = QuantizedTensor(Tensor(blocks), name, (256, 1024)).interleaved()
    return weights.linear(_ones("float32", rows, 1024))


KERNELS: dict[str, Callable[[], Any]] = {
    "matmul_f32": lambda: _ones("float32", 512, 512) @ _ones("float32", 512, 512),
    "matmul_f64": lambda: _ones("float64", 512, 512) @ _ones("float64", 512, 512),
    "matmul_f16": lambda: _ones("float16", 512, 512) @ _ones("float16", 512, 512),
    "matmul_s8": lambda: _ones("int8", 512, 512).cast("int32") @ _ones("int8", 512, 512).cast("int32"),
    "matvec_f32": lambda: _ones("float32", 2048, 2048) @ _ones("float32", 2048),
    "q4_0_row": lambda: _quantized("Q4_0", 1),
    "q4_0_rows": lambda: _quantized("Q4_0", 16),
    "q8_0_row": lambda: _quantized("Q8_0", 1),
    "q8_0_rows": lambda: _quantized("Q8_0", 16),
    "exp": lambda: _ones("float32", 512, 512).exp(),
    "gelu": lambda: _ones("float32", 512, 512).gelu(),
    "softmax": lambda: _ones("float32", 512, 512).softmax(-1),
    "sum": lambda: _ones("float32", 512, 512).sum(),
    "transpose": lambda: _ones("float32", 512, 512).T + 0,
}


def kernels_for(machine: Machine, names: Sequence[str]) -> dict[str, str]:
    """The IR of the largest kernel of each case, by the name of the case. Nothing is run."""
    from kernmill.ir import Context
    from kernmill.runtime import get_device

    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="bench-code-") as folder, Context(DEVICE="NULL", CACHE_DIR=folder):
        device: Any = get_device("NULL")
        kept: list[str] = []
        before = device.__dict__.copy()
        device.renderer, device.compile = machine.renderer, lambda name, source: kept.append(source) or source.encode()
        try:
            for name in names:
                kept.clear()
                KERNELS[name]().realize()
                texts[name] = max(kept, key=_weight, default="")
        finally:
            device.__dict__.clear()
            device.__dict__.update(before)
    return texts


def _weight(text: str) -> int:
    dots = len(re.findall(r"dot|vrmpy|vpdpbusd|dpbf16|dp4a", text))
    return len(re.findall(r"fma\.|fmul|mul ", text)) * 10 + dots * 100 + text.count("\n")


# What a block with that many `sdot` needs for Q4_0 and Q8_0, counted by hand without prefetches: weights and
# activations in pairs of registers, `sdot` by element, scales widened and multiplied, sums started, converted
# and added; two pointers, a loop. By kernel: sdot, instructions.
BY_HAND = {
    "q4_0_row": (32, 32 + 8 + 32 + 1 + 5 + (2 + 4) + (4 + 4 + 4) + 4),  # 16 rows; two codes in a byte
    "q8_0_row": (32, 32 + 16 + 1 + 4 + (2 + 4) + (4 + 4 + 4) + 4),
    "q4_0_rows": (64, 64 + 8 + 4 + 8 + (2 + 2) + (8 + 8 + 8) + 6),  # 8 rows by 4 of the activations, codes in bytes
    "q8_0_rows": (64, 64 + 8 + 4 + 8 + (2 + 2) + (8 + 8 + 8) + 6),
}


# --- reading ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reading:
    """What the hot block of a kernel has."""

    instructions: int
    vectors: int  # of them, those on vector registers
    accumulators: int
    stack: int  # accesses in the block
    products: dict[str, int]
    block: str
    registers: str  # of the whole kernel, where the text says so

    @property
    def multiplications(self) -> int:
        return sum(self.products.values())


def read_block(assembly: str, machine: Machine) -> Reading:
    """Read the block of a function that does the most work."""
    assembly = assembly.replace(" :: ", "\n\t")  # AMD's: two instructions in one
    blocks = re.split(r"\n(?=\.?L?\w*\$L?_*BB\w+:|\.?L?BB\w+:|\.L\w+:)", assembly)
    blocks = [_loop(block) for block in blocks]
    work = re.compile(rf"^\s+[{{ ]*(?:[\w.+()]+ = )?({machine.multiplies})\b", re.MULTILINE)
    best = max(blocks, key=lambda block: len(_found(work, block, machine)))
    names = collections.Counter(_found(work, best, machine))
    lines = [line for line in best.splitlines() if _is_instruction(line)]
    adds = re.compile(machine.accumulates)
    stack = re.compile(_STACK[machine.host.arch])
    sums = {_first_register(line) for line in lines if adds.search(line)}
    vectors = re.compile(_VECTORS.get(machine.host.arch, r"(?!)"))
    on_vectors, on_stack = (sum(bool(kind.search(line)) for line in lines) for kind in (vectors, stack))
    return Reading(len(lines), on_vectors, len(sums), on_stack, dict(names), best,
                   "".join(re.findall(r"\.vgpr_count:\s+(\d+)", assembly)))  # fmt: skip


def _loop(block: str) -> str:
    """The block up to its jump back, if it is a loop: what follows is run once. Hexagon marks the end of a loop."""
    block = block.split(":endloop0")[0]
    lines = block.splitlines()
    name = re.escape(lines[0].split(":")[0].strip()) if lines and ":" in lines[0] else ""
    back = [n for n, line in enumerate(lines[1:], 1) if name and re.search(rf"{name}(?!\w)", line)]
    return "\n".join(lines[: back[-1] + 1]) if back else block


def _found(work: re.Pattern[str], block: str, machine: Machine) -> list[str]:
    if machine.host.arch == "hexagon":
        return re.findall(rf"\b({machine.multiplies})\w*\(", block)
    return work.findall(block)


def _is_instruction(line: str) -> bool:
    text = line.strip().strip("{}").strip()
    return bool(text) and not text.startswith((".", "//", "#", ":")) and not text.split()[0].endswith(":")


def _first_register(line: str) -> str:
    text = line.strip().strip("{}").strip()
    if "=" in text:  # Hexagon: the result is to the left
        return text.split("=")[0].strip(" +")
    operands = text.split(None, 1)[-1]
    return operands.split(",")[-1 if "%" in operands else 0].strip().split(".")[0]


def estimate(reading: Reading, machine: Machine) -> str:
    """Cycles of one iteration of the block by llvm-mca; empty where it cannot be had or does not know the CPU."""
    program = os.environ.get("LLVM_MCA") or next(
        (found for name in ("llvm-mca-22", "llvm-mca-21", "llvm-mca-19", "llvm-mca") if (found := shutil.which(name))),
        "",
    )
    if not program or machine.host.arch == "hexagon":
        return ""
    triple = machine.host.triple or "x86_64-unknown-linux-gnu"
    text = "\n".join(line for line in reading.block.splitlines() if _is_instruction(line) and "\tb." not in line)
    command = [program, f"-mtriple={triple}", f"-mcpu={machine.host.cpu}", f"-mattr={','.join(machine.host.features)}"]
    done = subprocess.run([*command, "-iterations=100"], input=text, capture_output=True, text=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return f"{int(found[1]) / 100:.1f}" if found else ""


def report(name: str, cases: Sequence[str]) -> str:
    """A table of the cases for one target."""
    from kernmill.runtime import llvm_process

    machine = TARGETS[name]()
    rows = ["| kernel | instructions | on vectors | accumulators | registers | on the stack | products | "
            "cycles (mca) | cycles at least | of a hand count |",
            "| --- | --: | --: | --: | --: | --: | --- | --: | --: | --: |"]  # fmt: skip
    for case, text in kernels_for(machine, cases).items():
        own, apart = machine.host, llvm_process.CompilerProcess()  # LLVM ends with an assertion for some targets
        made = apart.submit(text, own.cpu, ",".join(own.features), own.triple, how="emit_assembly")()
        what = "LLVM ended while it compiled it" if apart.is_lost else "LLVM refuses it"
        apart.close()
        if made is None:
            rows.append(f"| {case} | {what} | | | | | | | | |")
            continue
        reading = read_block(made.decode(), machine)
        share = f"{100 * reading.vectors / max(1, reading.instructions):.0f} %" if own.arch in _VECTORS else ""
        products = ", ".join(f"{count} {what}" for what, count in sorted(reading.products.items()))
        dots, needed = BY_HAND.get(case, (0, 1))
        ratio = f"{reading.instructions / needed:.2f}" if dots and reading.products.get("sdot") == dots else ""
        least = f"{reading.multiplications / machine.pipes:.1f}"
        rows.append(f"| {case} | {reading.instructions} | {share} | {reading.accumulators} | {reading.registers} | "
                    f"{reading.stack} | {products} | {estimate(reading, machine)} | {least} | {ratio} |")  # fmt: skip
    return "\n".join([f"{name}: the block with the most arithmetic", "", *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m bench.code", description=__doc__)
    made.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"of {', '.join(KERNELS)}; all without any")
    made.add_argument("--target", action="append", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    given = made.parse_args(arguments)
    for kind, names, known in (("kernel", given.kernels, KERNELS), ("target", given.target or [], TARGETS)):
        for name in names:
            if name not in known:
                raise SystemExit(f"bench.code: there is no {kind} {name!r}. Known: {', '.join(known)}.")
    names = given.target or ["aarch64-neoverse-n1"]
    if len(names) == 1:
        print(report(names[0], given.kernels or list(KERNELS)), end="\n\n", flush=True)
    for name in names if len(names) > 1 else ():  # plans and layouts of one target are not those of another
        subprocess.run([sys.executable, "-m", "bench.code", "--target", name, *given.kernels], check=True)


if __name__ == "__main__":
    sys.exit(main())
