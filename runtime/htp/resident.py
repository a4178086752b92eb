"""The program that runs in a session, as LLVM IR: it reads commands, and answers each with 8 bytes.

A command is 16 ints of 32 bits: an operation, an address, and a count. There is no C library here: a
system call is three words of code. The process ends when its input does.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from .functions import FUNCTIONS

__all__ = ["CODE_BYTES", "COMMAND_BYTES", "Command", "resident_ir"]

COMMAND_BYTES: Final = 64
CODE_BYTES: Final = 7 << 20  # for kernels, behind the program: calls reach 8 MiB
_SYSTEM_CALLS: Final = {"read": 63, "write": 64, "exit": 94, "clock": 113, "munmap": 215, "mmap": 222}


class Command(IntEnum):
    """The operations of a session."""

    END = 0
    COPY_IN = 1  # count bytes follow, to the address; no answer: the pipe keeps the order
    COPY_OUT = 2  # count bytes from the address are the answer
    MAP = 3  # count bytes of a file, by its number; the answer is the address, or minus an error number
    RUN = 4  # count entries of 16 bytes at the address: function, arguments, begin, end; the answer is nanoseconds
    PING = 5
    REFUSED = 6  # the answer is the bytes that a kernel could not get since the last question


def _system_call(number: int) -> str:
    """r6 = number; trap0(1); jumpr r31. LLVM in llvmlite has no assembler for Hexagon."""
    load = 0x7800C006 | number >> 3 << 8 | (number & 7) << 5
    return f"[3 x i32] [i32 {load}, i32 {0x5400C004}, i32 {0x529FC000}]"


def resident_ir() -> str:
    """The module; its entry is `_start`, and `code` the memory for kernels."""
    stubs = "\n".join(
        f'@sys.{name} = internal constant {_system_call(number)}, section ".text.sys", align 16'
        for name, number in _SYSTEM_CALLS.items()
    )
    return f"{stubs}\n@code = global [{CODE_BYTES} x i8] zeroinitializer, align 4096\n{_LOOP}\n{FUNCTIONS}"


_LOOP = f"""
@command = internal global [16 x i32] zeroinitializer, align 128
@answer = internal global [2 x i64] zeroinitializer, align 128
@time = internal global [2 x i64] zeroinitializer, align 128

; read (0) or write (1) all n bytes at p: a pipe takes and gives fewer at a time
define internal void @transfer(i32 %how, ptr %p, i32 %n) nounwind noinline {{
entry:
  %writes = icmp eq i32 %how, 1
  br label %loop
loop:
  %at = phi i32 [ 0, %entry ], [ %next, %more ]
  %q = getelementptr i8, ptr %p, i32 %at
  %left = sub i32 %n, %at
  %any = icmp ne i32 %left, 0
  br i1 %any, label %go, label %out
go:
  br i1 %writes, label %write, label %read
write:
  %written = call i32 @sys.write(i32 1, ptr %q, i32 %left)
  br label %check
read:
  %got = call i32 @sys.read(i32 0, ptr %q, i32 %left)
  br label %check
check:
  %moved = phi i32 [ %written, %write ], [ %got, %read ]
  %bad = icmp sle i32 %moved, 0
  br i1 %bad, label %dead, label %more
more:
  %next = add i32 %at, %moved
  br label %loop
dead:
  %e = call i32 @sys.exit(i32 3)
  unreachable
out:
  ret void
}}
; nanoseconds of a clock that only advances; its two fields have 32 bits each
define internal i64 @now() nounwind noinline {{
  %r = call i32 @sys.clock(i32 1, ptr @time)
  %s32 = load volatile i32, ptr @time, align 8
  %p = getelementptr i8, ptr @time, i32 4
  %n = load volatile i32, ptr %p, align 4
  %n64 = zext i32 %n to i64
  %s = zext i32 %s32 to i64
  %m = mul i64 %s, 1000000000
  %t = add i64 %m, %n64
  ret i64 %t
}}
define void @_start() noreturn nounwind {{
entry:
  br label %loop
loop:
  call void @transfer(i32 0, ptr @command, i32 {COMMAND_BYTES})
  %op = load volatile i32, ptr @command, align 4
  %pa = getelementptr i32, ptr @command, i32 1
  %a = load volatile i32, ptr %pa, align 4
  %pn = getelementptr i32, ptr @command, i32 2
  %n = load volatile i32, ptr %pn, align 4
  %ap = inttoptr i32 %a to ptr
  switch i32 %op, label %bad [
    i32 {Command.END:d}, label %quit i32 {Command.COPY_IN:d}, label %copyin i32 {Command.COPY_OUT:d}, label %copyout
    i32 {Command.MAP:d}, label %map i32 {Command.RUN:d}, label %run
    i32 {Command.PING:d}, label %ping i32 {Command.REFUSED:d}, label %refusals ]
quit:
  %q0 = call i32 @sys.exit(i32 0)
  unreachable
bad:
  %q4 = call i32 @sys.exit(i32 4)
  unreachable
copyin:
  call void @transfer(i32 0, ptr %ap, i32 %n)
  br label %loop
copyout:
  call void @transfer(i32 1, ptr %ap, i32 %n)
  br label %loop
map:
  %m = call i32 @sys.mmap(i32 0, i32 %n, i32 3, i32 1, i32 %a, i32 0)
  %m64 = zext i32 %m to i64
  br label %reply
ping:
  br label %reply
refusals:
  %refused = load i64, ptr @refused, align 8
  store i64 0, ptr @refused, align 8
  br label %reply
run:
  %t0 = call i64 @now()
  br label %each
each:
  %i = phi i32 [ 0, %run ], [ %i1, %one ]
  %any = icmp ult i32 %i, %n
  br i1 %any, label %one, label %done
one:
  %e0 = getelementptr [4 x i32], ptr %ap, i32 %i
  %fn = load ptr, ptr %e0, align 4
  %e1 = getelementptr i32, ptr %e0, i32 1
  %args = load ptr, ptr %e1, align 4
  %e2 = getelementptr i32, ptr %e0, i32 2
  %b32 = load i32, ptr %e2, align 4
  %e3 = getelementptr i32, ptr %e0, i32 3
  %n32 = load i32, ptr %e3, align 4
  %b64 = zext i32 %b32 to i64
  %n64 = zext i32 %n32 to i64
  call void %fn(ptr %args, i64 %b64, i64 %n64)
  %i1 = add i32 %i, 1
  br label %each
done:
  %t1 = call i64 @now()
  %took = sub i64 %t1, %t0
  br label %reply
reply:
  %v = phi i64 [ %m64, %map ], [ 0, %ping ], [ %refused, %refusals ], [ %took, %done ]
  store i64 %v, ptr @answer, align 8
  call void @transfer(i32 1, ptr @answer, i32 8)
  br label %loop
}}
"""
