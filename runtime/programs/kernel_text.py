"""A kernel as text, to be sent to another process: its UOps; buffers are numbered by slot there."""

from __future__ import annotations

from kernmill.compiler import KernelInfo
from kernmill.ir import Kernel, Ops, parse_uops, print_uops

__all__ = ["kernel_from_text", "kernel_to_text"]


def kernel_to_text(kernel: Kernel) -> str:
    """The kernel's UOps; the SINK's arg as a tuple, which parses back."""
    return print_uops(kernel.ast.replace(arg=(kernel.ast.arg.name, kernel.ast.arg.order)))


def kernel_from_text(text: str, device: str) -> Kernel:
    """The kernel of that text."""
    sink = parse_uops(text)
    ast = sink.replace(arg=KernelInfo(str(sink.arg[0]), tuple(sink.arg[1])))
    slots = sorted(int(node.arg[0]) for node in ast.toposort() if node.op is Ops.PARAM)
    written = tuple(dict.fromkeys(int(store.src[0].src[0].arg[0]) for store in ast.src))
    return Kernel.of(ast, tuple(slots), written, device, ())
