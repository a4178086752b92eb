"""Kernels for GPUs as LLVM IR: work-items, groups, shared memory, barriers. A GPU's words are in ptx.py and amdgcn.py.

A kernel is `void name(buffers.., variables..)`. GLOBAL loops are the grid; with LOCAL loops a group runs one iteration
of all of them, else a work-item does. Buffers start on 16 bytes, so vectors at multiples of their size are one access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kernmill.ir import AxisKind, CompileError, Ops, Target, UOp, memory_of

from .base import grid_digits
from .llvm_text import llvm_type
from .llvmir import LLVMFunction
from .mma import MMA_ITEMS, Share

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

    def shares(self, u: UOp) -> tuple[Share, Share, Share]:
        """Return the share of a work-item in the blocks of an MMA: a, b and c."""
        raise NotImplementedError

    def __init__(self, name: str, uops: Sequence[UOp], target: Target) -> None:
        self.parts: dict[UOp, Share] = {}  # loads of blocks
        super().__init__(name, self._own_parts(uops) if any(u.op is Ops.MMA for u in uops) else uops, target)
        self.grid = grid_digits(uops)
        self.group = self.signature.group
        self.item = ""
        self.number = ""  # of the group; without groups of the work-item
        self.shared: list[str] = []
        self.handlers[Ops.BARRIER] = lambda u: self.wait()
        load = self.handlers[Ops.LOAD]
        self.handlers[Ops.LOAD] = lambda u: self._load_words(u) if u in self.parts else load(u)

    # --- matrix units
    def _own_parts(self, uops: Sequence[UOp]) -> list[UOp]:
        """Blocks become what one work-item has of them: words of an operand, results as a vector. Memory of results has
        those of the work-item only, and the index of each is its position among them."""
        units = [u for u in uops if u.op is Ops.MMA]
        held = {block: share for u in units for block, share in zip(u.src[:2], self.shares(u), strict=False)}
        results = self.shares(units[0])[2]
        blocks = {u.dtype for u in units}
        dealt = {memory_of(u.src[0]) for u in uops if u.op is Ops.STORE and u.src[1].dtype in blocks}
        far, near = results.run
        new: dict[UOp, UOp] = {}
        made: dict[UOp, None] = {}
        for u in uops:
            src, dtype, arg = tuple(new.get(s, s) for s in u.src), u.dtype, u.arg
            if u in held:
                dtype = dtype.scalar.vec(len(held[u].others) * 4 // dtype.scalar.size_bytes)
            elif u.op is Ops.INDEX:
                dtype = dtype.scalar if u.dtype in blocks or u.dtype in {block.dtype for block in held} else dtype
                if memory_of(u) in dealt:
                    index = src[1]
                    own = index.alu(Ops.SHR, far.bit_length() - 1).alu(Ops.MUL, near)
                    own = own.alu(Ops.ADD, index.alu(Ops.AND, near - 1)) if near > 1 else own
                    made.update(dict.fromkeys(node for node in own.toposort() if node not in made))
                    src = (src[0], own, *src[2:])
            elif u.dtype in blocks:
                dtype = dtype.scalar.vec(len(results.others))
            elif u in dealt:
                arg = (arg[0], arg[1] // MMA_ITEMS, *arg[2:])
            new[u] = u.replace(dtype=dtype, src=src, arg=arg)
            if u in held:
                self.parts[new[u]] = held[u]
            made[new[u]] = None
        return list(made)

    def _load_words(self, u: UOp) -> None:
        """Load a work-item's words of a block."""
        share, (index,), total = self.parts[u], u.src, "poison"
        pointer, kind = self.pointer(index), f"<{len(share.others)} x i32>"
        item = self.define(f"urem i64 {self.item}, {MMA_ITEMS}")
        over, inside = (self.define(f"{verb} i64 {item}, {share.inner}") for verb in ("udiv", "urem"))
        over, inside = self.define(f"mul i64 {over}, {share.down}"), self.define(f"mul i64 {inside}, {share.across}")
        first = self.define(f"add i64 {over}, {inside}")
        own = self.define(f"getelementptr i32, {pointer} {self.values[index]}, i64 {first}")
        for n, distance in enumerate(share.others):
            at = self.define(f"getelementptr i32, {pointer} {own}, i64 {distance}")
            word = self.define(f"load i32, {pointer} {at}, align 4")
            total = self.define(f"insertelement {kind} {total}, i32 {word}, i64 {n}")
        self.values[u] = self.define(f"bitcast {kind} {total} to {llvm_type(u.dtype)}")

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
