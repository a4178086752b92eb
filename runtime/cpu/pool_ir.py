"""The thread pool and launcher as LLVM IR text; `pool.py` compiles it, loads it and says what it does.

State block: the fields of STATE, then for each thread a line with its range. Data that different threads write is on
different cache lines.

Claiming. A range is generation << 32 | begin << 16 | end, in chunks. A job gives each thread an equal one. A thread
reads its own, then the job, then takes from the front by compare-and-swap: half of what is left, at least one chunk.
Where nothing is left it takes the rear half of the next thread that has something, and goes on with that as its own. A
job is written only while all ranges are empty and nobody works, so a swap that succeeds proves that the job just read
belongs to this generation. A thread that slept through a generation fails its swap. An empty range is written by its
own thread alone, or by the caller with a job.

Sleeping. Worker: sleepers += 1, then look at its range once more, then wait on `epoch`. Caller: publish the ranges,
then look at `sleepers`. Both orders are sequentially consistent, so one of them sees the other; `epoch` moves before
the wake, so a worker on its way to sleep stays awake. Which worker is woken does not matter: it finds what is left. The
caller waits for stragglers the same way on `done`, `waiting` is the flag.

Apart (Linux). Before workers are woken they are kept off the caller's CPU, `home`. Otherwise a scheduler may put a
woken thread behind the one that woke it for a time slice, while another CPU is idle.

Backing off. If sharing took clearly longer than one thread would have, judged by the caller's own chunks, something
else runs on the workers' CPUs. The caller does the next jobs alone, for `penalty` ns of work, of which `debt` is left.
A failure doubles the penalty; where sharing `earned` more since the last one than this one lost, it is the least again.
Once it earned as much as the penalty, that is halved. Where the caller had no chunk nothing is judged. While nothing
failed the clock is not read again where workers are soon done.

Signals. A call releases Python's lock itself. The caller looks at the clock after each slice of a job, and after every
64th entry of a table. LOOK_NS after the last time, in the main thread, it takes the lock for a moment and has Python
run the handlers of signals. Where one raises, `cancel` is set: every thread drops the chunks that it takes, the table
ends, and the exception is the caller's. A handler may itself run a table: that is `nested`, shares nothing, and does
not look. A slice is what an estimate says is done in about SLICE_NS.

What waits for the system anyway is optnone: LLVM takes a quarter less for the module, which is in every cold start.
"""

from __future__ import annotations

from .pool_system import APART, CLOCK, ELSEWHERE, LINUX, LOOK

__all__ = ["CPU_BYTES", "MOST_CHUNKS", "MOST_WORKERS", "POOL_FUNCTIONS", "RANGE_BYTES", "STATE", "pool_ir"]

STATE = {  # byte offsets of fields
    "done": 0, "waiting": 4,
    "fn": 64, "args": 72, "n": 80, "chunk": 88, "chunks": 96, "generation": 104, "slice": 112, "cancel": 120,
    "epoch": 128, "sleepers": 132, "stop": 136,
    "threads": 192, "spin": 200, "home": 208, "debt": 216, "penalty": 224, "earned": 232, "looked": 240, "python": 248,
    "workers": 256, "nested": 260, "ids": 264,  # of the workers' threads
    "allowed": 1984, "others": 2112,  # CPUs; those except the caller's
    "ranges": 2240,
}  # fmt: skip
RANGE_BYTES, MOST_CHUNKS = 64, (1 << 16) - 1  # of a thread; of a job
MOST_WORKERS, CPU_BYTES = 430, 128  # that fit into the ids; 8 CPUs a byte
POOL_FUNCTIONS = ("km_run", "km_run_timed", "km_worker", "km_stop", "km_chain", "km_copy", "km_touch")

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
# Linux's numbers of futex, sched_setaffinity, gettid and getpid
_CALLS = {
    "x86_64": (202, 203, 186, 39), "aarch64": (98, 122, 178, 172), "riscv64": (98, 122, 178, 172),
    "ppc64le": (221, 222, 207, 20), "s390x": (238, 239, 236, 20),
}  # fmt: skip
_LEAST_PENALTY_NS, _MOST_PENALTY_NS = 4_000_000, 128_000_000
_GLANCE = 255  # pauses before the next look at the clock, less one: 3 to 13 us; a caller that waits less judges nothing
_LOOK_NS = 20_000_000  # between two looks at signals: a person notices 100 ms
_SLACK_NS = 500_000  # by which it may be late: waking an idle CPU of a virtual machine takes up to 400 us

# Take chunks until none is left, of the own range and then of others; returns how many this thread did.
_WORK = """
define internal i64 @left(i64 %range) nounwind alwaysinline {
  %low = lshr i64 %range, 16
  %ahead = sub i64 %range, %low
  %r = and i64 %ahead, 65535
  ret i64 %r
}
define internal i32 @work(ptr %s, i64 %self) nounwind noinline {
entry:FIELDS
  %threads = load i64, ptr %threads.p, align 8
  %own.at = shl i64 %self, 6
  %own.p = getelementptr i8, ptr %ranges.p, i64 %own.at
  %caller = icmp eq i64 %self, 0
  br label %look
look:
  %count = phi i32 [ 0, %entry ], [ %count, %claim ], [ %more, %body ], [ %more, %call ], [ %more, %signals ],
    [ %count, %keep ], [ %count, %rob ]
  %range = load atomic i64, ptr %own.p acquire, align 8
  %left = call i64 @left(i64 %range)
  %none = icmp eq i64 %left, 0
  br i1 %none, label %seek, label %claim
claim:
  %fn = load atomic ptr, ptr %fn.p monotonic, align 8
  %args = load atomic ptr, ptr %args.p monotonic, align 8
  %n = load atomic i64, ptr %n.p monotonic, align 8
  %chunk = load atomic i64, ptr %chunk.p monotonic, align 8
  %half = lshr i64 %left, 1
  %slice = load atomic i64, ptr %slice.p monotonic, align 8
  %some = call i64 @llvm.umax.i64(i64 %half, i64 1)
  %limited = call i64 @llvm.umin.i64(i64 %some, i64 %slice)
  %sliced = icmp ne i64 %slice, 0
  %take = select i1 %sliced, i64 %limited, i64 %some
  %taken = shl i64 %take, 16
  %less = add i64 %range, %taken
  %swap = cmpxchg ptr %own.p, i64 %range, i64 %less seq_cst seq_cst, align 8
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %body, label %look
body:
  %low = lshr i64 %range, 16
  %first = and i64 %low, 65535
  %begin = mul i64 %first, %chunk
  %size = mul i64 %take, %chunk
  %full = add i64 %begin, %size
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %n)
  %took = trunc i64 %take to i32
  %more = add i32 %count, %took
  %cancelled = load atomic i32, ptr %cancel.p monotonic, align 4
  %dropped = icmp ne i32 %cancelled, 0
  br i1 %dropped, label %look, label %call
call:
  call void %fn(ptr %args, i64 %begin, i64 %end) nounwind
  %looks = and i1 %sliced, %caller
  br i1 %looks, label %signals, label %look
signals:
  call void @look(ptr %s)
  br label %look
seek:
  %turn = phi i64 [ 1, %look ], [ %further, %other ]
  %over = icmp uge i64 %turn, %threads
  br i1 %over, label %out, label %other
other:
  %further = add i64 %turn, 1
  %sum = add i64 %self, %turn
  %victim = urem i64 %sum, %threads
  %at = shl i64 %victim, 6
  %its.p = getelementptr i8, ptr %ranges.p, i64 %at
  %its = load atomic i64, ptr %its.p acquire, align 8
  %its.left = call i64 @left(i64 %its)
  %empty = icmp eq i64 %its.left, 0
  %apart = xor i64 %its, %range
  %other.job = icmp ugt i64 %apart, 4294967295
  %nothing = or i1 %empty, %other.job
  br i1 %nothing, label %seek, label %rob
rob:
  %up = add i64 %its.left, 1
  %rear = lshr i64 %up, 1
  %its.less = sub i64 %its, %rear
  %swap2 = cmpxchg ptr %its.p, i64 %its, i64 %its.less seq_cst seq_cst, align 8
  %robbed = extractvalue { i64, i1 } %swap2, 1
  br i1 %robbed, label %keep, label %look
keep:
  %front = sub i64 %its.left, %rear
  %front16 = shl i64 %front, 16
  %new = add i64 %its, %front16
  store atomic i64 %new, ptr %own.p release, align 8
  br label %look
out:
  ret i32 %count
}
declare i64 @llvm.umax.i64(i64, i64)
"""

# One job shared with the workers, unless that did not pay lately; returns when every chunk is done.
_SHARE = """
define internal void @share(ptr %s, ptr %fn, ptr %args, i64 %n, i64 %chunk, i64 %slice) nounwind noinline {
entry:FIELDS
  %begun = call i64 @now()
  %debt = load i64, ptr %debt.p, align 8
  %shunned = icmp sgt i64 %debt, 0
  br i1 %shunned, label %solo, label %publish
solo:
  %quick = icmp eq i64 %slice, 0
  br i1 %quick, label %at.once, label %sliced
at.once:
  call void %fn(ptr %args, i64 0, i64 %n) nounwind
  br label %solved
sliced:
  call void @alone(ptr %s, ptr %fn, ptr %args, i64 %n, i64 %chunk, i64 %slice)
  br label %solved
solved:
  %ended = call i64 @now()
  %worked = sub i64 %ended, %begun
  %debt1 = sub i64 %debt, %worked
  store i64 %debt1, ptr %debt.p, align 8
  ret void
publish:
  %up = add i64 %n, %chunk
  %up1 = sub i64 %up, 1
  %chunks = udiv i64 %up1, %chunk
  store atomic ptr %fn, ptr %fn.p monotonic, align 8
  store atomic ptr %args, ptr %args.p monotonic, align 8
  store atomic i64 %n, ptr %n.p monotonic, align 8
  store atomic i64 %chunk, ptr %chunk.p monotonic, align 8
  store atomic i64 %slice, ptr %slice.p monotonic, align 8
  store atomic i64 %chunks, ptr %chunks.p monotonic, align 8
  store atomic i32 0, ptr %done.p monotonic, align 4
  %threads = load i64, ptr %threads.p, align 8
  %parts = call i64 @llvm.umin.i64(i64 %chunks, i64 %threads)
  %old = load i64, ptr %generation.p, align 8
  %generation = add i64 %old, 4294967296
  store i64 %generation, ptr %generation.p, align 8
  br label %give
give:
  %i = phi i64 [ 0, %publish ], [ %i1, %give ]
  %first = phi i64 [ 0, %publish ], [ %last, %give ]
  %i1 = add i64 %i, 1
  %given = call i64 @llvm.umin.i64(i64 %i1, i64 %parts)
  %product = mul i64 %chunks, %given
  %last = udiv i64 %product, %parts
  %first16 = shl i64 %first, 16
  %both = or i64 %first16, %last
  %range = or i64 %generation, %both
  %at = shl i64 %i, 6
  %range.p = getelementptr i8, ptr %ranges.p, i64 %at
  store atomic i64 %range, ptr %range.p release, align 8
  %further = icmp ult i64 %i1, %threads
  br i1 %further, label %give, label %published
published:
  fence seq_cst
  %sleepers = load atomic i32, ptr %sleepers.p monotonic, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %go
rouse:
  %e = atomicrmw add ptr %epoch.p, i32 1 seq_cst, align 4
  %wide = zext i32 %sleepers to i64
  %others = sub i64 %chunks, 1
  %most = call i64 @llvm.smin.i64(i64 %others, i64 %wide)
  call void @apart(ptr %s)
  call void @wake(ptr %epoch.p, i64 %most)
  br label %go
go:
  %mine = call i32 @work(ptr %s, i64 0)
  %total = trunc i64 %chunks to i32
  %alone = icmp eq i32 %mine, %total
  br i1 %alone, label %out, label %join
join:
  %own = call i64 @now()
  %before = atomicrmw add ptr %done.p, i32 %mine seq_cst, align 4
  %spin = load i64, ptr %spin.p, align 8
  %penalty = load i64, ptr %penalty.p, align 8
  br label %poll
poll:
  %turn = phi i64 [ 0, %join ], [ %next, %again ], [ %next, %glance ]
  %d = load atomic i32, ptr %done.p seq_cst, align 4
  %finished = icmp eq i32 %d, %total
  br i1 %finished, label %arrived, label %again
arrived:
  %patient = icmp ule i64 %turn, GLANCE
  %calm = icmp eq i64 %penalty, 0
  %fine = and i1 %patient, %calm
  br i1 %fine, label %out, label %judge
again:
  PAUSE
  %next = add i64 %turn, 1
  %late = and i64 %next, GLANCE
  %due = icmp eq i64 %late, 0
  br i1 %due, label %glance, label %poll
glance:
  %clock = call i64 @now()
  %waited = sub i64 %clock, %own
  %tired = icmp sge i64 %waited, %spin
  br i1 %tired, label %sleep, label %poll
sleep:
  store atomic i32 1, ptr %waiting.p seq_cst, align 4
  br label %check
check:
  %d2 = load atomic i32, ptr %done.p seq_cst, align 4
  %finished2 = icmp eq i32 %d2, %total
  br i1 %finished2, label %awake, label %rest
rest:
  call void @wait(ptr %done.p, i32 %d2)
  br label %check
awake:
  store atomic i32 0, ptr %waiting.p seq_cst, align 4
  br label %judge
judge:
  %none = icmp eq i32 %mine, 0
  %cancelled = load atomic i32, ptr %cancel.p monotonic, align 4
  %dropped = icmp ne i32 %cancelled, 0
  %idle = or i1 %none, %dropped
  br i1 %idle, label %out, label %weigh
weigh:
  %end = call i64 @now()
  %took = sub i64 %end, %begun
  %busy = sub i64 %own, %begun
  %mine64 = zext i32 %mine to i64
  %all = mul i64 %busy, %chunks
  %single = udiv i64 %all, %mine64
  %gain = sub i64 %single, %took
  %worse = icmp slt i64 %gain, -SLACK
  %earned = load i64, ptr %earned.p, align 8
  %sum = add i64 %earned, %gain
  %paid = icmp sgt i64 %sum, 0
  %double = shl i64 %penalty, 1
  %capped = call i64 @llvm.smin.i64(i64 %double, i64 MOST)
  %tried = select i1 %paid, i64 0, i64 %capped
  %raised = call i64 @llvm.smax.i64(i64 %tried, i64 LEAST)
  %enough = icmp sge i64 %sum, %penalty
  %half = lshr i64 %penalty, 1
  %eased = select i1 %enough, i64 %half, i64 %penalty
  %penalty1 = select i1 %worse, i64 %raised, i64 %eased
  %debt2 = select i1 %worse, i64 %raised, i64 0
  %anew = or i1 %worse, %enough
  %earned1 = select i1 %anew, i64 0, i64 %sum
  store i64 %penalty1, ptr %penalty.p, align 8
  store i64 %debt2, ptr %debt.p, align 8
  store i64 %earned1, ptr %earned.p, align 8
  br label %out
out:
  ret void
}
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""

_WORKER = """
define void @km_worker(ptr %s, i64 %self) nounwind {
entry:FIELDS
  %own.at = shl i64 %self, 6
  %own.p = getelementptr i8, ptr %ranges.p, i64 %own.at
  %spin = load i64, ptr %spin.p, align 8
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %next, %idle ], [ 0, %work ], [ 0, %report ], [ 0, %tell ]
  %begun = phi i64 [ 0, %entry ], [ %since, %idle ], [ 0, %work ], [ 0, %report ], [ 0, %tell ]
  %stop = load atomic i32, ptr %stop.p monotonic, align 4
  %leave = icmp ne i32 %stop, 0
  br i1 %leave, label %out, label %peek
peek:
  %range = load atomic i64, ptr %own.p monotonic, align 8
  %left = call i64 @left(i64 %range)
  %none = icmp eq i64 %left, 0
  br i1 %none, label %rest, label %work
work:
  %mine = call i32 @work(ptr %s, i64 %self)
  %some = icmp ne i32 %mine, 0
  br i1 %some, label %report, label %look
report:
  %chunks = load atomic i64, ptr %chunks.p monotonic, align 8
  %before = atomicrmw add ptr %done.p, i32 %mine seq_cst, align 4
  %after = add i32 %before, %mine
  %total = trunc i64 %chunks to i32
  %last = icmp eq i32 %after, %total
  %waiting = load atomic i32, ptr %waiting.p seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  %both = and i1 %last, %asleep
  br i1 %both, label %tell, label %look
tell:
  call void @wake(ptr %done.p, i64 1)
  br label %look
rest:
  %late = and i64 %turn, GLANCE
  %due = icmp eq i64 %late, 0
  br i1 %due, label %glance, label %idle
glance:
  %clock = call i64 @now()
  %fresh = icmp eq i64 %turn, 0
  %then = select i1 %fresh, i64 %clock, i64 %begun
  %waited = sub i64 %clock, %then
  %tired = icmp sge i64 %waited, %spin
  br i1 %tired, label %sleep, label %idle
idle:
  %since = phi i64 [ %begun, %rest ], [ %then, %glance ]
  PAUSE
  %next = add i64 %turn, 1
  br label %look
sleep:
  %e = load atomic i32, ptr %epoch.p seq_cst, align 4
  %s0 = atomicrmw add ptr %sleepers.p, i32 1 seq_cst, align 4
  fence seq_cst
  %range2 = load atomic i64, ptr %own.p monotonic, align 8
  %left2 = call i64 @left(i64 %range2)
  %stop2 = load atomic i32, ptr %stop.p seq_cst, align 4
  %stop64 = zext i32 %stop2 to i64
  %any = or i64 %left2, %stop64
  %lie = icmp eq i64 %any, 0
  br i1 %lie, label %down, label %up
down:
  call void @wait(ptr %epoch.p, i32 %e)
  br label %up
up:
  %s1 = atomicrmw sub ptr %sleepers.p, i32 1 seq_cst, align 4
  br label %work
out:
  ret void
}

define void @km_stop(ptr %s) nounwind noinline optnone {FIELDS
  store atomic i32 1, ptr %stop.p seq_cst, align 4
  %e = atomicrmw add ptr %epoch.p, i32 1 seq_cst, align 4
  call void @wake(ptr %epoch.p, i64 2147483647)
  ret void
}
; an exchange that changes nothing: the system gives the page, whoever else may be writing there
define void @km_touch(ptr %first, i64 %bytes) nounwind {
  br label %loop
loop:
  %at = phi i64 [ 0, %0 ], [ %next, %loop ]
  %p = getelementptr i8, ptr %first, i64 %at
  %same = cmpxchg ptr %p, i8 0, i8 0 monotonic monotonic
  %next = add i64 %at, 4096
  %more = icmp ult i64 %next, %bytes
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""

# Walk the table; entry = { fn, args, n, chunk, slice }. Two versions: plain, and one that writes the nanoseconds of the
# clock before the first and after each.
_RUN = """
define void @NAME(ptr %s, ptr %table, i64 %countOUT) nounwind {
entry:FIELDS
  %threads = load i64, ptr %threads.p, align 8
  %nested = load i32, ptr %nested.p, align 4
  %several = icmp sgt i64 %threads, 1
  %outer = icmp eq i32 %nested, 0
  %many = and i1 %several, %outer
  %before = load ptr, ptr %python.p, align 8
  %released = call ptr @PyEval_SaveThread()
  store ptr %released, ptr %python.p, align 8
  br i1 %outer, label %clear, label %begin
clear:
  store atomic i32 0, ptr %cancel.p monotonic, align 4
  br label %begin
begin:
  START
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %loop, label %out
loop:
  %i = phi i64 [ 0, %begin ], [ %i1, %on ]
  %e = getelementptr { ptr, ptr, i64, i64, i64 }, ptr %table, i64 %i
  %job = load { ptr, ptr, i64, i64, i64 }, ptr %e, align 8
  %fn = extractvalue { ptr, ptr, i64, i64, i64 } %job, 0
  %args = extractvalue { ptr, ptr, i64, i64, i64 } %job, 1
  %n = extractvalue { ptr, ptr, i64, i64, i64 } %job, 2
  %chunk = extractvalue { ptr, ptr, i64, i64, i64 } %job, 3
  %slice = extractvalue { ptr, ptr, i64, i64, i64 } %job, 4
  %large = icmp sgt i64 %n, %chunk
  %shared = and i1 %large, %many
  br i1 %shared, label %share, label %single
single:
  %quick = icmp eq i64 %slice, 0
  br i1 %quick, label %alone, label %sliced
alone:
  call void %fn(ptr %args, i64 0, i64 %n) nounwind
  br label %next
sliced:
  call void @alone(ptr %s, ptr %fn, ptr %args, i64 %n, i64 %chunk, i64 %slice)
  br label %next
share:
  call void @share(ptr %s, ptr %fn, ptr %args, i64 %n, i64 %chunk, i64 %slice)
  br label %next
next:
  %i1 = add i64 %i, 1
  STOP
  %part = and i64 %i1, 63
  %sixty.fourth = icmp eq i64 %part, 0
  br i1 %sixty.fourth, label %signals, label %check
signals:
  call void @look(ptr %s)
  br label %check
check:
  %cancelled = load atomic i32, ptr %cancel.p monotonic, align 4
  %dropped = icmp ne i32 %cancelled, 0
  br i1 %dropped, label %out, label %on
on:
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %out
out:
  %mine = load ptr, ptr %python.p, align 8
  store ptr %before, ptr %python.p, align 8
  call void @PyEval_RestoreThread(ptr %mine)
  ret void
}
"""

# a kernel linked from others, all of which run on `together` of its parts, then on the next ones. args = { together,
# then for each: fn, args, iterations of it in a part; null }
_CHAIN = """
define void @km_chain(ptr %chain, i64 %begin, i64 %end) nounwind {
entry:
  %together = load i64, ptr %chain, align 8
  %first = getelementptr i64, ptr %chain, i64 1
  br label %part
part:
  %at = phi i64 [ %begin, %entry ], [ %next, %last ]
  %next = add i64 %at, %together
  %to = call i64 @llvm.smin.i64(i64 %next, i64 %end)
  br label %step
step:
  %e = phi ptr [ %first, %part ], [ %e1, %step ]
  %job = load { ptr, ptr, i64 }, ptr %e, align 8
  %fn = extractvalue { ptr, ptr, i64 } %job, 0
  %args = extractvalue { ptr, ptr, i64 } %job, 1
  %each = extractvalue { ptr, ptr, i64 } %job, 2
  %e1 = getelementptr i64, ptr %e, i64 3
  %from = mul i64 %at, %each
  %until = mul i64 %to, %each
  call void %fn(ptr %args, i64 %from, i64 %until) nounwind
  %fn1 = load ptr, ptr %e1, align 8
  %more = icmp ne ptr %fn1, null
  br i1 %more, label %step, label %last
last:
  %again = icmp slt i64 %next, %end
  br i1 %again, label %part, label %out
out:
  ret void
}
"""

# a copy as a kernel. args = { target, source, bytes }
_COPY = """
declare ptr @memmove(ptr, ptr, i64)
define void @km_copy(ptr %args, i64 %begin, i64 %end) nounwind {
  %target = load ptr, ptr %args, align 8
  %source.p = getelementptr i64, ptr %args, i64 1
  %source = load ptr, ptr %source.p, align 8
  %bytes.p = getelementptr i64, ptr %args, i64 2
  %bytes = load i64, ptr %bytes.p, align 8
  %same = call ptr @memmove(ptr %target, ptr %source, i64 %bytes)
  ret void
}
"""

_START = """%t0 = call i64 @now()
  store i64 %t0, ptr %times, align 8"""

_STOP = """%now = call i64 @now()
  %now.p = getelementptr i64, ptr %times, i64 %i1
  store i64 %now, ptr %now.p, align 8"""


def pool_ir(arch: str, system: str) -> str:
    """The module for `arch` ("x86_64") and `system` (`sys.platform`): the functions of `POOL_FUNCTIONS`."""
    declare, pause = _PAUSE.get(arch, ("", "fence seq_cst"))
    calls = _CALLS.get(arch) if system == "linux" else None
    waiting = LINUX + APART if calls else ELSEWHERE
    plain = _RUN.replace("NAME", "km_run").replace("OUT", "").replace("START", "").replace("STOP", "")
    timed = _RUN.replace("NAME", "km_run_timed").replace("OUT) nounwind", ", ptr %times) nounwind noinline optnone")
    timed = timed.replace("START", _START).replace("STOP", _STOP)
    clock = CLOCK.replace("CLOCK", "6" if system == "darwin" else "1")
    text = "\n".join((declare, waiting, clock, LOOK, _WORK, _SHARE, _WORKER, _CHAIN, _COPY, plain, timed))
    fields = "".join(f"\n  %{name}.p = getelementptr i8, ptr %s, i64 {at}" for name, at in STATE.items())
    numbers = dict(zip(("FUTEX", "AFFINITY", "GETTID", "GETPID"), calls or (), strict=False))
    words = {
        **numbers, "FIELDS": fields, "PAUSE": pause, "GLANCE": _GLANCE, "LOOK_NS": _LOOK_NS, "SLACK": _SLACK_NS,
        "LEAST": _LEAST_PENALTY_NS, "MOST": _MOST_PENALTY_NS,
    }  # fmt: skip
    for word, value in words.items():
        text = text.replace(word, str(value))
    return text
