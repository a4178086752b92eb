import ctypes
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernmill.ir import Context
from kernmill.runtime import elf, host, llvm_codegen, loader, pool, pool_ir

KERNELS = """
; slot 0: i64 array; every index of [begin, end) is counted up by slot 1
define void @bump(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %array = load ptr, ptr %args
  %by.p = getelementptr i64, ptr %args, i64 1
  %by = load i64, ptr %by.p
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %out
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %loop ]
  %p = getelementptr i64, ptr %array, i64 %i
  %v = load i64, ptr %p
  %v1 = add i64 %v, %by
  store i64 %v1, ptr %p
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}
; counts its own calls in slot 0
define void @count(ptr %args, i64 %begin, i64 %end) nounwind {
  %p = load ptr, ptr %args
  %old = atomicrmw add ptr %p, i64 1 seq_cst
  ret void
}
; a[i] = a[i + n] on the first half: depends on the entry before it being finished
define void @sum(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %array = load ptr, ptr %args
  %n.p = getelementptr i64, ptr %args, i64 1
  %n = load i64, ptr %n.p
  %out.p = getelementptr i64, ptr %args, i64 2
  %out = load ptr, ptr %out.p
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %s = phi i64 [ 0, %entry ], [ %s1, %loop ]
  %p = getelementptr i64, ptr %array, i64 %i
  %v = load i64, ptr %p
  %s1 = add i64 %s, %v
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %done
done:
  store i64 %s1, ptr %out
  ret void
}
define internal void @dawdle(ptr %at) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %i1 = add i64 %i, 1
  %r = atomicrmw add ptr %at, i64 0 seq_cst
  %on = icmp slt i64 %i1, 500000
  br i1 %on, label %loop, label %out
out:
  ret void
}
; of two indices the one begun first ends when the other has begun, which takes long; slot 0: begun, calls with both
define void @straggle(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %begun = load ptr, ptr %args
  %both.p = getelementptr i64, ptr %begun, i64 1
  %width = sub i64 %end, %begin
  %both = icmp sgt i64 %width, 1
  br i1 %both, label %single, label %shared
single:
  %more = atomicrmw add ptr %both.p, i64 1 seq_cst
  ret void
shared:
  %old = atomicrmw add ptr %begun, i64 1 seq_cst
  %odd = and i64 %old, 1
  %first = icmp eq i64 %odd, 0
  br i1 %first, label %await, label %dawdle
await:
  %now = load atomic i64, ptr %begun seq_cst, align 8
  %next = add i64 %old, 1
  %unmet = icmp eq i64 %now, %next
  br i1 %unmet, label %await, label %out
dawdle:
  call void @dawdle(ptr %args)
  br label %out
out:
  ret void
}
; slot 0: for each index a place in its thread's stack; index 1 takes long
define void @late(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %here = alloca i64
  %places = load ptr, ptr %args
  %p = getelementptr i64, ptr %places, i64 %begin
  %place = ptrtoint ptr %here to i64
  store i64 %place, ptr %p
  %long = icmp sgt i64 %begin, 0
  br i1 %long, label %dawdle, label %out
dawdle:
  call void @dawdle(ptr %here)
  br label %out
out:
  ret void
}
; slot 0: done indices, whether one waited in vain; the call that begins at slot 1 ends when slot 2 others are done
define void @hold(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %done = load ptr, ptr %args
  %held.p = getelementptr i64, ptr %args, i64 1
  %held = load i64, ptr %held.p
  %others.p = getelementptr i64, ptr %args, i64 2
  %others = load i64, ptr %others.p
  %holds = icmp eq i64 %begin, %held
  br i1 %holds, label %await, label %out
await:
  %i = phi i64 [ 0, %entry ], [ %i1, %again ]
  %now = load atomic i64, ptr %done seq_cst, align 8
  %met = icmp sge i64 %now, %others
  br i1 %met, label %out, label %again
again:
  %i1 = add i64 %i, 1
  %r = atomicrmw add ptr %done, i64 0 seq_cst
  %on = icmp slt i64 %i1, 500000000
  br i1 %on, label %await, label %vain
vain:
  %vain.p = getelementptr i64, ptr %done, i64 1
  store i64 1, ptr %vain.p
  br label %out
out:
  %width = sub i64 %end, %begin
  %old = atomicrmw add ptr %done, i64 %width seq_cst
  ret void
}
define void @empty(ptr %args, i64 %begin, i64 %end) nounwind {
  ret void
}
"""


@functools.cache
def kernels() -> elf.ElfModule:
    data = llvm_codegen.compile_ir(KERNELS, host.this_host())
    return loader.load_object(data, ["bump", "count", "sum", "straggle", "late", "hold", "empty"])


def address_of(array: "ctypes.Array[ctypes.c_int64]") -> int:
    return ctypes.addressof(array)


def launch(name: str, *args: int, n: int = 1, chunk: int = 1) -> pool.Launch:
    return pool.Launch(kernels().symbols[name], args, n, chunk)


@pytest.fixture(params=[(1, None), (2, None), (2, 0), (3, 50)], ids=["1", "2", "2-sleepy", "3-crowded"])
def crew(request: pytest.FixtureRequest) -> Iterator[pool.ThreadPool]:
    threads, spin = request.param
    crew = pool.ThreadPool(threads, spin)
    yield crew
    crew.close()


@pytest.mark.parametrize(("n", "chunk"), [(1, 1), (2, 1), (7, 3), (64, 64), (1000, 1), (1000, 7), (1001, 250)])
def test_every_index_exactly_once(crew: pool.ThreadPool, n: int, chunk: int) -> None:
    array = (ctypes.c_int64 * (n + 1))()
    table = pool.LaunchTable([launch("bump", address_of(array), 3, n=n, chunk=chunk)])
    for _ in range(20):
        crew.run(table)
    assert list(array) == [60] * n + [0]


@pytest.mark.parametrize(("threads", "held", "others"), [(2, 0, 6), (2, 4, 6), (3, 0, 7), (3, 2, 7), (3, 5, 7)])
def test_what_a_slow_thread_has_left_is_taken_by_others(threads: int, held: int, others: int) -> None:
    """Of 8 chunks each thread takes half of its own first; where one of them is held up there, all others are done."""
    crew, state = pool.ThreadPool(threads), (ctypes.c_int64 * 2)()
    table = pool.LaunchTable([launch("hold", address_of(state), held, others, n=8, chunk=1)])
    for _ in range(20):
        if field(crew, "debt") > 0:  # on a busy machine a thread came late, and the next runs would be one thread's
            work_off(crew)
        state[0] = 0
        crew.run(table)
        assert list(state) == [8, 0]
    crew.close()


def test_chunks_are_taken_together(crew: pool.ThreadPool) -> None:
    calls = (ctypes.c_int64 * 1)()
    crew.run(pool.LaunchTable([launch("count", address_of(calls), n=6400, chunk=64)]))
    assert crew.threads <= calls[0] < 50 if crew.threads > 1 else calls[0] == 1


def test_entries_run_in_order(crew: pool.ThreadPool) -> None:
    """Each sum reads what all chunks of the bump before it wrote."""
    n, pairs = 512, 30
    array, sums = (ctypes.c_int64 * n)(), (ctypes.c_int64 * pairs)()
    launches = []
    for k in range(pairs):
        launches.append(launch("bump", address_of(array), 1, n=n, chunk=16))
        launches.append(launch("sum", address_of(array), n, address_of(sums) + 8 * k))
    table = pool.LaunchTable(launches)
    for turn in range(10):
        crew.run(table)
        assert list(sums) == [n * (turn * pairs + k + 1) for k in range(pairs)]


@pytest.mark.parametrize(("parts", "together", "chunk"), [(8, 1, 1), (8, 3, 8), (8, 8, 8), (24, 5, 7)])
def test_linked_entries(crew: pool.ThreadPool, parts: int, together: int, chunk: int) -> None:
    """Each part by all entries in turn, each entry with as many iterations as it has in a part."""
    a, b, calls = (ctypes.c_int64 * 24)(), (ctypes.c_int64 * 96)(), (ctypes.c_int64 * 1)()
    bumps = [launch("bump", address_of(a), 1, n=24), launch("bump", address_of(b), 3, n=96)]
    table = pool.LaunchTable([*bumps, launch("count", address_of(calls), n=24)])
    short = pool.LaunchTable([table.linked(0, 3, parts, together, chunk), table.linked(1, 2, 96, 96, 96)])
    for _ in range(5):
        crew.run(short)
    assert list(a) == [5] * 24
    assert list(b) == [30] * 96
    if crew.threads == 1:
        assert calls[0] == 5 * -(-parts // together)
    slots, place = table.argument(0, 1)
    slots[place] = 2  # the arguments are those of the first table
    crew.run(short)
    assert list(a) == [7] * 24


def test_sleeping_workers_are_woken() -> None:
    crew = pool.ThreadPool(2, spin=10)
    array = (ctypes.c_int64 * 64)()
    table = pool.LaunchTable([launch("bump", address_of(array), 1, n=64, chunk=1)])
    for _ in range(30):
        time.sleep(0.001)
        crew.run(table)
    assert list(array) == [30] * 64


def test_a_worker_spins_for_a_time() -> None:
    """It counted pauses, which take 13 ns here and four times as long elsewhere."""
    crew, array = pool.ThreadPool(2, spin=100_000), (ctypes.c_int64 * 64)()
    table = pool.LaunchTable([launch("bump", address_of(array), 1, n=64, chunk=1)])
    crew.run(table)
    while field(crew, "sleepers") == 0:  # until the worker is there, and tired
        time.sleep(0.001)
    for _ in range(3):
        crew.run(table)  # wakes it
        while field(crew, "sleepers"):
            time.sleep(0.001)
        begun = time.monotonic()
        while field(crew, "sleepers") == 0:
            time.sleep(0.001)
        assert time.monotonic() - begun > 0.05
    crew.close()


def test_arguments_and_ranges_may_change(crew: pool.ThreadPool) -> None:
    a, b = (ctypes.c_int64 * 10)(), (ctypes.c_int64 * 10)()
    table = pool.LaunchTable([launch("empty"), launch("bump", address_of(a), 1, n=10, chunk=2)])
    crew.run(table)
    for slot, value in enumerate((address_of(b), -5)):
        slots, place = table.argument(1, slot)
        slots[place] = value
    table._words[7], table._words[8] = 4, 1  # a shorter range
    crew.run(table)
    assert list(a) == [1] * 10
    assert list(b) == [-5] * 4 + [0] * 6
    with pytest.raises(IndexError, match="entry 0 has 0 slots, not slot 0"):
        table.argument(0, 0)


def test_odd_tables(crew: pool.ThreadPool) -> None:
    crew.run(pool.LaunchTable([]))
    calls = (ctypes.c_int64 * 1)()
    crew.run(pool.LaunchTable([launch("count", address_of(calls), n=0, chunk=0)]))
    crew.run(pool.LaunchTable([launch("count", address_of(calls), n=1 << 50, chunk=1 << 40)]))
    assert 2 <= calls[0] <= 1 + 1024
    table = pool.LaunchTable([launch("empty", n=1 << 60, chunk=1)])
    assert table._words[3] == -(-(1 << 60) // pool_ir.MOST_CHUNKS)
    assert pool.ThreadPool(1).run_timed(table)[0] >= 0


def test_timed_run(crew: pool.ThreadPool) -> None:
    array = (ctypes.c_int64 * 200_000)()
    big = launch("bump", address_of(array), 1, n=200_000, chunk=10_000)
    start = time.perf_counter_ns()
    times = crew.run_timed(pool.LaunchTable([launch("empty"), big, launch("empty")]))
    wall = time.perf_counter_ns() - start
    assert len(times) == 3
    assert all(one >= 0 for one in times)
    assert 10_000 < times[1] <= sum(times) <= wall
    assert set(array) == {1}


def test_python_threads_share_a_pool(crew: pool.ThreadPool) -> None:
    arrays = [(ctypes.c_int64 * 300)() for _ in range(3)]

    def work(array: "ctypes.Array[ctypes.c_int64]") -> None:
        table = pool.LaunchTable([launch("bump", address_of(array), 1, n=300, chunk=10)] * 3)
        for _ in range(100):
            crew.run(table)

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(set(array) == {300} for array in arrays)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="a CPU beside the caller's"
)
def test_woken_workers_are_kept_off_the_callers_cpu() -> None:
    """A worker woken on the caller's CPU waited behind it for a time slice, and two threads were as slow as one."""
    mine = os.sched_getaffinity(0)
    crew = pool.ThreadPool(2, 0)
    array = (ctypes.c_int64 * 50)()
    table = pool.LaunchTable([launch("bump", address_of(array), 1, n=50, chunk=1)])
    try:
        for cpu in sorted(mine)[:2]:
            os.sched_setaffinity(0, {cpu})  # so that it is known where the caller is
            for _ in range(20):
                crew.run(table)
                time.sleep(0.002)  # long enough for the worker to fall asleep
            worker = crew._crew.threads[0].native_id
            assert worker is not None
            assert os.sched_getaffinity(worker) == mine - {cpu}
    finally:
        os.sched_setaffinity(0, mine)
        crew.close()
    assert set(array) == {40}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a system with affinity")
def test_workers_follow_the_process_to_other_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process moved to as many other CPUs (`taskset -ap`) had its workers tied to those it had before."""
    cpus = {0, 1}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cpus))
    with Context(THREADS=2, SPIN=7):
        crew = pool.default_pool()
        if crew.threads < 2:
            pytest.skip("a limit of one CPU")
        assert field(crew, "allowed") == 0b11
        cpus = {2, 3}
        monkeypatch.setattr(pool, "_lately", None)  # a second later
        assert pool.default_pool() is crew
        assert field(crew, "allowed") == 0b1100
    monkeypatch.undo()
    crew._crew.follow()
    assert crew._crew.cpus == os.sched_getaffinity(0)


def field(crew: pool.ThreadPool, name: str) -> int:
    """A field of the pool's state."""
    at = pool_ir.STATE[name]
    return int.from_bytes(crew._crew.memory[at : at + 8], "little", signed=True)


def put(crew: pool.ThreadPool, name: str, value: int) -> None:
    at = pool_ir.STATE[name]
    crew._crew.memory[at : at + 8] = value.to_bytes(8, "little", signed=True)


def fail(crew: pool.ThreadPool, state: "ctypes.Array[ctypes.c_int64]", earned: int = -(10**12)) -> None:
    """Share a kernel whose worker holds up the caller until that was noticed."""
    slow = pool.LaunchTable([launch("straggle", address_of(state), n=2, chunk=1)])
    for _ in range(100):
        put(crew, "earned", earned)
        crew.run(slow)
        if field(crew, "debt") > 0:
            return
    raise AssertionError("sharing was never found to be slow")


def work_off(crew: pool.ThreadPool) -> int:
    """Run small kernels until one is shared again: of how many calls that table was."""
    calls = (ctypes.c_int64 * 1)()
    small = pool.LaunchTable([launch("count", address_of(calls), n=100, chunk=9)])
    while field(crew, "debt") > 0:
        before = calls[0]
        crew.run(small)
        assert calls[0] == before + 1
    before = calls[0]
    crew.run(small)
    return calls[0] - before


def test_what_does_not_pay_is_not_shared_for_a_while() -> None:
    """Where a worker holds up the caller, jobs are done by the caller alone; later sharing is tried again."""
    crew = pool.ThreadPool(2)
    state = (ctypes.c_int64 * 2)()
    fail(crew, state)
    crew.run(pool.LaunchTable([launch("straggle", address_of(state), n=2, chunk=1)]))
    assert state[1] == 1
    assert work_off(crew) > 1
    crew.close()


def test_a_failure_is_remembered_over_pauses_and_failures_in_a_row_for_longer() -> None:
    """By the clock alone a process that paused had forgotten, and each of its bursts began with a slow kernel."""
    crew = pool.ThreadPool(2)
    state, penalties = (ctypes.c_int64 * 2)(), list[int]()
    for _ in range(3):
        fail(crew, state)
        penalties.append(field(crew, "penalty"))
        left = field(crew, "debt")
        time.sleep(0.02)
        assert field(crew, "debt") == left == penalties[-1]
        assert work_off(crew) > 1
    assert penalties == [4_000_000, 8_000_000, 16_000_000]
    fail(crew, state, earned=10**12)  # since the last failure: two threads are the faster ones all the same
    assert field(crew, "penalty") == 4_000_000
    crew.close()


def test_where_workers_were_there_first_nothing_is_judged() -> None:
    """A caller without a chunk does not know what one costs: it took that for nothing, and two threads for slow."""
    crew, places = pool.ThreadPool(2, spin=10**7), (ctypes.c_int64 * 2)()
    late = [pool.LaunchTable([launch("late", address_of(places), n=n, chunk=1)]) for n in (1, 2)]
    crew.run(late[0])
    own, seen = places[0], 0
    for _ in range(200):
        for name in ("debt", "penalty", "earned", "sleepers"):
            put(crew, name, int(name == "sleepers"))  # so that the caller is held up by waking nobody
        crew.run(late[1])
        if all(abs(place - own) > 1 << 16 for place in places):
            assert (field(crew, "debt"), field(crew, "penalty"), field(crew, "earned")) == (0, 0, 0)
            seen += 1
        if seen > 2:
            break
    put(crew, "sleepers", 0)
    crew.close()


def test_what_pays_again_is_forgiven_step_by_step() -> None:
    crew = pool.ThreadPool(2)
    array = (ctypes.c_int64 * 200_000)()
    big = pool.LaunchTable([launch("bump", address_of(array), 1, n=200_000, chunk=10_000)])
    penalties = [16_000_000]
    put(crew, "penalty", penalties[0])
    for _ in range(500):
        put(crew, "earned", 16_000_000)
        crew.run(big)
        if field(crew, "penalty") != penalties[-1] and field(crew, "debt") <= 0:
            penalties.append(field(crew, "penalty"))
        if penalties[-1] == 0:
            break
    assert penalties == sorted({*penalties}, reverse=True)
    assert len(penalties) > 4, "a busy machine hides a step or two"
    assert {*penalties} <= {16_000_000 >> step for step in range(24)} | {0}
    assert penalties[-1] == 0
    crew.close()


def test_close_and_use_again() -> None:
    crew = pool.ThreadPool(2)
    array = (ctypes.c_int64 * 50)()
    table = pool.LaunchTable([launch("bump", address_of(array), 1, n=50, chunk=1)])
    for _ in range(3):
        crew.run(table)
        crew.close()
    assert set(array) == {3}


def test_workers_go_with_their_pool() -> None:
    before = threading.active_count()
    for _ in range(5):
        crew = pool.ThreadPool(3)
        crew.run(pool.LaunchTable([launch("empty", n=10)]))
        del crew
    assert threading.active_count() <= before + 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_forked_child_has_its_own_workers() -> None:
    crew = pool.ThreadPool(2)
    array = (ctypes.c_int64 * 100)()
    table = pool.LaunchTable([launch("bump", address_of(array), 1, n=100, chunk=1)])
    crew.run(table)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            try:
                for _ in range(50):
                    crew.run(table)
                os._exit(0 if set(array) == {51} and crew._crew.threads else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    crew.run(table)
    assert set(array) == {2}


EXIT = """
import atexit, ctypes, sys, threading, time
from kernmill.runtime import host, llvm_codegen, loader, pool
data = llvm_codegen.compile_ir("define void @f(ptr %a, i64 %b, i64 %e) nounwind {\\n ret void\\n}", host.this_host())
module = loader.load_object(data, ["f"])
table = pool.LaunchTable([pool.Launch(module.symbols["f"], [], 64, 1)] * 20)
crew = pool.ThreadPool(2, int(sys.argv[2]))
crew.run(table)
if sys.argv[1] == "busy":
    def forever():
        while True:
            crew.run(table)
    threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.02)
if sys.argv[1] == "atexit":
    atexit.register(crew.run, table)
if sys.argv[1] == "idle":
    time.sleep(0.02)
print("done")
"""


@pytest.mark.parametrize("case", ["plain", "idle", "busy", "atexit"])
@pytest.mark.parametrize("spin", ["0", "100", "1000000"])
def test_interpreter_exits_cleanly(case: str, spin: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-X", "faulthandler", "-c", EXIT, case, spin]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_warm_start_needs_no_llvmlite() -> None:
    pool.ThreadPool(1)  # compiled and cached now at the latest
    code = (
        "import sys; from kernmill.runtime import compile_cache, pool; pool.default_pool().run(pool.LaunchTable([])); "
        "sys.exit(compile_cache.default_cache().misses or 'llvmlite' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if environment.get("CACHE", "1") == "1":
        assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_default_pool_follows_the_settings() -> None:
    with Context(THREADS=1, SPIN=7):
        crew = pool.default_pool()
        assert (crew.threads, crew.spin) == (1, 7)
        assert pool.default_pool() is crew


def test_overhead_of_an_entry() -> None:
    crew = pool.ThreadPool(1)
    many = pool.LaunchTable([launch("empty")] * 1000)
    best = 1.0
    for _ in range(200):
        start = time.perf_counter()
        crew.run(many)
        best = min(best, time.perf_counter() - start)
    assert best / 1000 < 100e-9


@pytest.mark.skipif(sys.platform != "linux" or host.this_host().arch != "x86_64", reason="tries another system's text")
def test_polling_variant_works() -> None:
    """What systems without futex run, linked by LLVM as there."""
    data = llvm_codegen.compile_ir(pool_ir.pool_ir("x86_64", "freebsd"), host.this_host())
    libc = ctypes.CDLL(None)
    names = ("usleep", "clock_gettime")
    calls = {name: getattr(libc, name) for name in names}
    calls |= {name: getattr(ctypes.pythonapi, name) for name in pool._PYTHON}
    externs = {name: ctypes.cast(call, ctypes.c_void_p).value or 0 for name, call in calls.items()}
    module = loader.load_object(data, pool_ir.POOL_FUNCTIONS, externs, use_lljit=True)
    state = (ctypes.c_int64 * ((pool_ir.STATE["ranges"] + 2 * pool_ir.RANGE_BYTES) // 8))()
    state[pool_ir.STATE["threads"] // 8] = 2
    serve = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(module.symbols["km_worker"])
    worker = threading.Thread(target=serve, args=(ctypes.addressof(state), 1), daemon=True)
    worker.start()
    array = (ctypes.c_int64 * 100)()
    table = pool.LaunchTable([launch("bump", address_of(array), 1, n=100, chunk=1)])
    run = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(module.symbols["km_run"])
    for _ in range(50):
        run(ctypes.addressof(state), table.address, table.count)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(module.symbols["km_stop"])(ctypes.addressof(state))
    worker.join(5)
    assert not worker.is_alive()
    assert set(array) == {50}


EXPECTED = """
import os, sys
from kernmill.runtime import get_device, pool
get_device("LLVM").expect_many()
begun = len(pool._begun)
if sys.argv[1] == "fork":
    child = os.fork()
    if child:
        sys.exit(os.waitpid(child, 0)[1])
    begun += len(pool._begun)
pool.default_pool().run(pool.LaunchTable([]))
print(begun, len(pool._begun), "llvmlite" in sys.modules, flush=True)
os._exit(0) if sys.argv[1] == "fork" else get_device("LLVM").expect_many()
assert not pool._begun
"""


@pytest.mark.parametrize(("case", "said"), [("plain", "1 0 False"), ("fork", "1 0 True")])
def test_code_that_was_expected_comes_from_the_other_process(tmp_path: Path, case: str, said: str) -> None:
    """Importing llvmlite and compiling the pool were 70 ms behind the last kernel of a first call; a child compiles."""
    if host.usable_cpus() < 2 or not hasattr(os, "fork"):
        pytest.skip("there is no other process")
    folders = os.pathsep.join(path for path in sys.path if path)
    wanted = {"PYTHONPATH": folders, "CACHE_DIR": str(tmp_path), "COMPILER_PROCESS": "1", "CACHE": "1"}
    environment = {**os.environ, **wanted}
    command = [sys.executable, "-W", "ignore", "-c", EXPECTED, case]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


def test_code_that_threads_expect_at_once_is_begun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_begun", [])
    monkeypatch.setattr(pool, "_loaded", functools.cache(lambda: None))
    monkeypatch.setattr(pool, "_code", lambda is_later: time.sleep(0.05))
    threads = [threading.Thread(target=pool.expect_pool) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pool._begun) == 1


def test_threads_that_need_the_code_at_once_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first had loaded was unmapped under its pool when the second's took its place."""
    loaded: list[object] = []

    def load(*_: object) -> None:
        time.sleep(0.05)
        loaded.append(_)

    monkeypatch.setattr(pool, "_loaded", functools.cache(load))
    threads = [threading.Thread(target=pool._native) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 1
