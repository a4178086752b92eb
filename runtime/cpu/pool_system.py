"""The pool's LLVM IR for system and Python calls: waiting, the clock, CPUs, signals.

`pool_ir.py` inserts it into its module and documents its use. It replaces FIELDS, FUTEX and the other words in
capitals.
"""

from __future__ import annotations

__all__ = ["APART", "CLOCK", "ELSEWHERE", "LINUX", "LOOK"]

LINUX = """
declare i64 @syscall(i64, ...)
define internal void @wait(ptr %word, i32 %seen) nounwind noinline optnone {
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i64 128, i32 %seen, ptr null, ptr null, i64 0)
  ret void
}
define internal void @wake(ptr %word, i64 %most) nounwind noinline optnone {
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i64 129, i64 %most, ptr null, ptr null, i64 0)
  ret void
}
define internal i1 @is_main() nounwind noinline optnone {
  %thread = call i64 (i64, ...) @syscall(i64 GETTID)
  %process = call i64 (i64, ...) @syscall(i64 GETPID)
  %same = icmp eq i64 %thread, %process
  ret i1 %same
}
"""

ELSEWHERE = """
declare i32 @usleep(i32)
define internal void @wait(ptr %word, i32 %seen) nounwind noinline optnone {
  %r = call i32 @usleep(i32 50)
  ret void
}
define internal void @wake(ptr %word, i64 %most) nounwind noinline optnone {
  ret void
}
define internal void @apart(ptr %s) nounwind {
  ret void
}
define internal i1 @is_main() nounwind {
  ret i1 true
}
"""

# Tie the workers to all allowed CPUs but the caller's, when that is another one than the last time.
APART = """
declare i32 @sched_getcpu()
define internal void @apart(ptr %s) nounwind noinline optnone {
entry:FIELDS
  %cpu = call i32 @sched_getcpu()
  %home = load atomic i32, ptr %home.p monotonic, align 4
  %same = icmp eq i32 %cpu, %home
  %unknown = icmp uge i32 %cpu, 1024
  %stay = or i1 %same, %unknown
  br i1 %stay, label %out, label %moved
moved:
  store atomic i32 %cpu, ptr %home.p monotonic, align 4
  call void @llvm.memcpy.p0.p0.i64(ptr %others.p, ptr %allowed.p, i64 128, i1 false)
  %place = lshr i32 %cpu, 3
  %bit = and i32 %cpu, 7
  %bit8 = trunc i32 %bit to i8
  %one = shl i8 1, %bit8
  %others = xor i8 %one, -1
  %byte.p = getelementptr i8, ptr %others.p, i32 %place
  %byte = load i8, ptr %byte.p
  %less = and i8 %byte, %others
  store i8 %less, ptr %byte.p
  %count = load atomic i32, ptr %workers.p monotonic, align 4
  br label %loop
loop:
  %i = phi i32 [ 0, %moved ], [ %i1, %body ], [ %i1, %tie ]
  %more = icmp ult i32 %i, %count
  br i1 %more, label %body, label %out
body:
  %id.p = getelementptr i32, ptr %ids.p, i32 %i
  %id = load atomic i32, ptr %id.p monotonic, align 4
  %i1 = add i32 %i, 1
  %started = icmp ne i32 %id, 0
  br i1 %started, label %tie, label %loop
tie:
  %r = call i64 (i64, ...) @syscall(i64 AFFINITY, i32 %id, i64 128, ptr %others.p)
  br label %loop
out:
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

# Have Python run the handlers of signals, if that was some time ago. All of a kernel by this thread, in slices.
LOOK = """
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyErr_CheckSignals()
define internal void @look(ptr %s) nounwind noinline optnone {
entry:FIELDS
  %clock = call i64 @now()
  %last = load i64, ptr %looked.p, align 8
  %since = sub i64 %clock, %last
  %nested = load i32, ptr %nested.p, align 4
  %late = icmp sgt i64 %since, LOOK_NS
  %outer = icmp eq i32 %nested, 0
  %due = and i1 %late, %outer
  br i1 %due, label %who, label %out
who:
  store i64 %clock, ptr %looked.p, align 8
  %main = call i1 @is_main()
  br i1 %main, label %ask, label %out
ask:
  store i32 1, ptr %nested.p, align 4
  %released = load ptr, ptr %python.p, align 8
  call void @PyEval_RestoreThread(ptr %released)
  %raised = call i32 @PyErr_CheckSignals()
  %again = call ptr @PyEval_SaveThread()
  store ptr %again, ptr %python.p, align 8
  store i32 0, ptr %nested.p, align 4
  %fine = icmp eq i32 %raised, 0
  br i1 %fine, label %out, label %cancel
cancel:
  store atomic i32 1, ptr %cancel.p monotonic, align 4
  br label %out
out:
  ret void
}
define internal void @alone(ptr %s, ptr %fn, ptr %args, i64 %n, i64 %chunk, i64 %slice) nounwind noinline {
entry:FIELDS
  %step = mul i64 %chunk, %slice
  br label %loop
loop:
  %at = phi i64 [ 0, %entry ], [ %end, %next ]
  %full = add i64 %at, %step
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %n)
  call void %fn(ptr %args, i64 %at, i64 %end) nounwind
  call void @look(ptr %s)
  %cancelled = load atomic i32, ptr %cancel.p monotonic, align 4
  %go.on = icmp eq i32 %cancelled, 0
  br i1 %go.on, label %next, label %out
next:
  %more = icmp slt i64 %end, %n
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""

CLOCK = """
declare i32 @clock_gettime(i32, ptr)
define internal i64 @now() nounwind noinline {
  %t = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 CLOCK, ptr %t)
  %seconds = load i64, ptr %t, align 8
  %nanos.p = getelementptr i8, ptr %t, i64 8
  %nanos = load i64, ptr %nanos.p, align 8
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %nanos
  ret i64 %sum
}
"""
