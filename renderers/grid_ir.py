"""Kernels for GPUs as LLVM IR: work-items, groups, shared memory, barriers. A GPU's words are in ptx.py and amdgcn.py.

A kernel is `void name(buffers.., variables..)`. GLOBAL loops are the grid; with LOCAL loops a group runs one iteration
of all of them, else a work-item does. Buffers start on 16 bytes, so vectors at multiples of their size are one access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kernmill.ir import AxisKind, CompileError, Ops, Target, UOp

from .base import grid_digits
from .llvm_text import llvm_type
from .llvmir import LLVMFunction

__all__ = ["GRID_GROUP"]

GRID_GROUP: Final = 128  # work-items of a group that share nothing
_ALIGNED: Final = 16  # bytes, of a buffer; and the widest access
_REGISTERS_BYTES: Final = 256 << 10  # of one work-item's arrays; the driver allows 512 KB in all


class GridFunction(LLVMFunction):
    """The text of one kernel under construction."""

    convention = ""  # how LLVM marks a kernel
    item_register = ""  # the function of a work-item's number in its group
    group_register = ""  # of the group's number
    private_space = 0  # the address space of arrays of one work-item

    def group_attribute(self, items: int) -> str:
        """The attribute that says how many work-items a group has."""
        raise NotImplementedError

    def wait(self) -> None:
        """Emit a barrier of a group, behind which its work-items see each other's stores."""
        raise NotImplementedError

    def __init__(self, name: str, uops: Sequence[UOp], target: Target) -> None:
        super().__init__(name, uops, target)
        self.grid = grid_digits(uops)
        self.group = self.signature.group
        self.item = ""
        self.number = ""  # of the group; without groups of the work-item
        self.shared: list[str] = []
        self.handlers[Ops.BARRIER] = lambda u: self.wait()

    def begin_kernel(self) -> None:
        self.item = self._special_register(self.item_register)
        block = self._special_register(self.group_register)
        if self.group:
            self.number = block
            return
        first = self.define(f"mul i64 {block}, {GRID_GROUP}")
        self.number = self.define(f"add i64 {first}, {self.item}")
        inside = self.define(f"icmp ult i64 {self.number}, {max(1, self.signature.threads)}")
        self.emit(f"br i1 {inside}, label %inside, label %outside")
        self.label("outside")
        self.emit("ret void")
        self.label("inside")

    def _special_register(self, name: str) -> str:
        value = self.define(self.call("i32", name))
        return self.define(f"zext i32 {value} to i64")

    def head(self) -> str:
        parameters = [f"ptr addrspace(1) noalias align {_ALIGNED} %b{p.arg[0]}" for p in self.signature.params]
        parameters += [f"i64 %n{number}" for number in range(len(self.signature.variables))]
        return "\n".join([*self.shared, f"define {self.convention} void @{self.name}({', '.join(parameters)}) #0 {{"])

    def tail(self) -> list[str]:
        items = self.group or GRID_GROUP
        attributes = f'attributes #0 = {{ nounwind "no-trapping-math"="true" {self.group_attribute(items)} }}'
        return [*(f"declare {text}" for text in self.declarations), attributes, "!0 = !{i32 1}"]

    def argument(self, u: UOp) -> None:
        if u.op is Ops.VARIABLE:
            self.values[u] = f"%n{self.signature.variables.index(u)}"
        else:
            self.values[u], self.spaces[u] = f"%b{u.arg[0]}", 1

    def local(self, u: UOp) -> None:
        """An array shared by a group is a global of the module; others are in a work-item's memory."""
        kind = f"[{u.arg[1]} x {llvm_type(u.dtype, True)}]"
        if "shared" in u.arg:
            name = f"@{self.name}.shared{len(self.shared)}"
            self.shared.append(f"{name} = internal addrspace(3) global {kind} undef, align {_ALIGNED}")
            self.values[u], self.spaces[u] = name, 3
            return
        size_bytes = u.arg[1] * max(1, u.dtype.bits // 8)
        if size_bytes > _REGISTERS_BYTES:
            raise CompileError(
                f"kernel {self.name}: an array of {size_bytes:,} bytes in each work-item; a GPU takes "
                f"{_REGISTERS_BYTES:,}. Realize some of what it reads first."
            )
        name = self.fresh()
        space = f", addrspace({self.private_space})" if self.private_space else ""
        self.allocas.append(f"  {name} = alloca {kind}, align {_ALIGNED}{space}")
        self.values[u], self.spaces[u] = name, self.private_space

    def open_loop(self, u: UOp) -> None:
        kind = u.arg[1]
        if u in self.grid:
            inner, size = self.grid[u]
            digit = self.number if inner == 1 else self.define(f"udiv i64 {self.number}, {inner}")
            is_last = u is next(reversed(self.grid))
            self.values[u] = digit if is_last else self.define(f"urem i64 {digit}, {size}")
        elif kind == AxisKind.LOCAL and self._is_whole(u):
            self.values[u] = self.item
        elif kind == AxisKind.LOCAL:  # a loop that the first work-items run once
            self.loop(u, self.item, self.values[u.src[0]], is_guarded=True, step=self.group)
        else:
            super().open_loop(u)

    def close_loop(self, u: UOp) -> None:
        if u.src[0] not in self.grid and not self._is_whole(u.src[0]):
            super().close_loop(u)

    def _is_whole(self, u: UOp) -> bool:
        return bool(u.arg[1] == AxisKind.LOCAL and u.src[0].arg == self.group)

    def shuffle(self, u: UOp) -> None:
        self.steps.clear()  # no fences: nothing here has networks of shuffles
        super().shuffle(u)
