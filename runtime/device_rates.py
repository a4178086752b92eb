"""Rates of devices and links, measured once and stored: what placement on several devices computes with.

Each device runs small kernels: an empty one, streams of several lengths, additions, exponentials, matrix products, sums
of rows and of columns, rows read twice, and a transpose. Products and columns are measured with short rows and with
long ones. All run in several takes. Each link makes two copies. A slow device is measured at small sizes only. Figures
are rounded to two digits: a placement that changes with noise would change the bits of results.
Tests: tests/runtime/test_device_rates.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, TypeAlias

from kernmill.ir import (
    CompileError,
    DeviceError,
    DeviceSpec,
    DeviceTable,
    DType,
    Kernel,
    Link,
    Op,
    Ops,
    UOp,
    const,
    dtypes,
    elementwise,
    expand,
    permute,
    reduce_axes,
    reshape,
    setting,
)

from . import later
from .cpu.host import cpu_sharers
from .device import Call, Device, device_list, failure, get_device, room
from .execute import allocate_buffer
from .memory.buffer import Buffer
from .opening import asked
from .pins import pins
from .programs.build import build_all
from .programs.compile_cache import cache_key, default_cache
from .programs.schedules import stamp
from .replay import copy_between

__all__ = ["Ceilings", "device_table", "least_ns", "measured_ceilings", "measured_device", "measured_link"]

_ENOUGH_NS = 1_000_000  # of a small kernel: longer ones are of a device that is slow
_FEW = 1 << 10  # elements of a small kernel
_RUNS, _BUDGET_NS = 50, 20_000_000  # of a kernel at most; of all its runs, but for a slow one
_TAKES = 3  # that the runs are divided in: other programs come and go
_BATCH = 8  # kernels of a batch, in the measurement of launches
_STREAM = 1 << 24  # elements of the longest stream
_ROWS = 32  # of the product with long rows
_ADDITIONS = 64  # of each element, in the kernel that measures them
_CHAINS = 4  # polynomials that these are in
_FUNCTIONS = 8  # exponentials of each element, in the kernel that measures operations
_NEAR = 0.75  # of the best rate: a longer stream that is slower than this exceeds the caches
_NOISE = 100  # of a time, the part that two equal runs differ by at least
_SMALL, _LARGE = 256, 1 << 20  # bytes of the copies over a link

timer: Callable[[], int] = time.perf_counter_ns  # another clock where other programs run (bench/placed_graphs.py)
Work: TypeAlias = "tuple[UOp, list[int]]"  # a graph, and elements of its inputs
_tables: dict[tuple[str, ...], DeviceTable] = {}


def device_table(leaves: Sequence[str], nodes: Iterable[UOp]) -> DeviceTable:
    """The devices of the setting DEVICE, and those that `leaves` are on, with what they cannot compute of `nodes`.

    Raises:
        DeviceError: a device cannot be measured.
    """
    listed = device_list()
    names = (*listed, *sorted({*leaves}.difference(listed)))
    known = (*names, str(setting("TARGET")))
    if known not in _tables:
        specs = [measured_device(get_device(name))._replace(computes=name in listed) for name in names]
        pairs = [(a, b) for a in names for b in names if a != b]
        links = {(a, b): measured_link(get_device(a), get_device(b)) for a, b in pairs}
        _tables[known] = DeviceTable(tuple(specs), links)
    table = _tables[known]
    kinds = {(node.op, tuple([s.dtype for s in node.src])): node for node in nodes}
    specs = [_now(spec, kinds) for spec in table.specs]
    return table._replace(specs=tuple(specs), method=str(setting("PLACE")), pins=pins())


def _now(spec: DeviceSpec, kinds: Mapping[tuple[Op, tuple[DType, ...]], UOp]) -> DeviceSpec:
    """The device with its free memory, and with what it refuses."""
    device = get_device(spec.name)
    limits = device.limits
    refused: dict[tuple[Op, tuple[DType, ...]], str] = {}
    for kind, node in kinds.items():
        answer: object = asked(device.name, "supports", device.supports, node.op, node) if spec.computes else True
        if answer is not True:
            names = " and ".join(dict.fromkeys(dtype.name for dtype in kind[1])) or "no operand"
            refused[kind] = answer if isinstance(answer, str) and answer else f"{node.op.name} of {names}"
    return spec._replace(limit_bytes=room(device), max_alloc_bytes=limits.max_alloc_bytes, refused=refused)


# --- devices ---------------------------------------------------------------------------------------------------------
def measured_device(device: Device) -> DeviceSpec:
    """The rates of a device, from the cache or measured now.

    Raises:
        DeviceError: they cannot be measured.
    """
    figures = _stored(["device", *_tag(device)], lambda: _measured(device, device, _measure_device))
    return DeviceSpec(device.name).with_rates(figures)


class Ceilings(NamedTuple):
    """The most that a device can do, measured with kernels of ours. Units: flop/ns, byte/ns, ns, bytes."""

    flops_per_ns: float
    bytes_per_ns: float  # of data that no cache has
    cached_bytes_per_ns: float  # of data that a cache has
    launch_ns: float
    cache_bytes: int  # below which data may be in a cache


def measured_ceilings(device: Device) -> Ceilings:
    """The ceilings of a device, from the rates that placement has."""
    spec = measured_device(device)
    far = min(spec.bytes_per_ns, spec.far_bytes_per_ns)
    cached = max(spec.bytes_per_ns, spec.far_bytes_per_ns)
    return Ceilings(2 * spec.products_per_ns, far, cached, spec.launch_ns, 4 * device.target.l2_bytes)


def _tag(device: Device) -> list[str]:
    """Return what the rates of a device depend on. Equal devices have equal rates: noise must not decide."""
    threads = f"{setting('THREADS')} of {cpu_sharers()}" if cpu_sharers() > 1 else str(setting("THREADS"))
    kind, options = device.name.partition(":")[0], json.dumps(sorted(device.options.items()))
    return [kind, options, device.cache_tag(), device.description, str(setting("TARGET")), threads]


def _measure_device(device: Device) -> list[float]:
    """The rates of a DeviceSpec, in the order of its fields."""
    first = _Workbench(device, _FEW)
    launches = [first.time("batch of 1", _EMPTY) for _ in range(_TAKES)]
    is_slow = min(launches) > _ENOUGH_NS or first.time("additions", _elementwise(_FEW, _ADDITIONS)) > _ENOUGH_NS
    del first  # and its memory
    room = _room(device) // dtypes.float32.size_bytes
    count, many, side = (_FEW, _FEW, 16) if is_slow else (min(1 << 16, room), min(1 << 20, room), 256)
    side = side if side * side < room else 16
    lengths = _lengths(many, 1 if is_slow else room)
    works, bench = _works(count, many, side, lengths), _Workbench(device, lengths[-1])
    least = dict.fromkeys(works, math.inf)
    for take in range(_TAKES):
        launches.append(bench.time("batch of 1", _EMPTY))
        for name, work in works.items():
            if take and least[name] > _BUDGET_NS / _TAKES:
                continue
            with contextlib.suppress(CompileError):  # it has no functions
                least[name] = min(least[name], bench.time(name, work))
    launch = min(launches)
    times = {name: max(1.0, time - launch, time / _NOISE) for name, time in least.items()}
    return _figures(times, statistics.median(launches), (count, many, side, lengths))


def _works(count: int, many: int, side: int, lengths: Sequence[int]) -> dict[str, Work]:
    """The kernels that are measured, but for the empty one."""
    row = math.isqrt(many)
    return {
        "additions": _additions(count),
        "functions": _functions(count),
        "product": _product(side, side),
        "long product": _product(min(_ROWS, row), row),
        "rows": _sums(-(-many // 256), 256, 1),
        "columns": _sums(-(-many // 256), 256, 0),
        "long columns": _sums(row, row, 0),
        "transposed": _transposed(row),
        "rescaled": _rescaled(row),
        "batch": _EMPTY,
        **{f"stream {n}": _elementwise(n, 1) for n in lengths},
    }


def _figures(times: Mapping[str, float], launch: float, sizes: tuple[int, int, int, Sequence[int]]) -> list[float]:
    """Rates from the times of the kernels beyond a launch."""
    count, many, side, lengths = sizes
    size, row, most = dtypes.float32.size_bytes, math.isqrt(many), lengths[-1]
    additions = _ADDITIONS * count / times["additions"]
    functions = times["functions"] if times["functions"] < math.inf else times["additions"]
    streams = {n: 2 * size * n / times[f"stream {n}"] for n in lengths}
    near = max(n for n, rate in streams.items() if rate >= _NEAR * max(streams.values()))
    reading = size * many / streams[many]  # what is left of the time of sums is computing
    summing = max(many / additions, math.sqrt(max(0.0, times["rows"] ** 2 - reading**2)))
    computing = row**2 * (1 / additions + summing / many)
    once = size * row**2 / streams[many]
    again = math.sqrt(max(0.0, times["rescaled"] ** 2 - computing**2)) - 2 * once
    again = min(max(times["rescaled"] / _NOISE, again), once)  # the second reading is not slower than the first one
    return [
        launch,
        additions,
        side**3 / times["product"],
        streams[many],
        float(1 << 62 if near == most else 2 * near * size),
        streams[most],
        _FUNCTIONS * (Ops.EXP.cost + 2) * count / functions,
        many / summing,
        2 * size * row**2 / times["transposed"],
        size * (-(-many // 256)) * 256 / times["columns"],
        min(launch, max(1.0, times["batch"] / (_BATCH - 1))),
        size * row**2 / again,
        min(_ROWS, row) * row**2 / times["long product"],
        size * row**2 / times["long columns"],
    ]


def _lengths(first: int, most: int) -> list[int]:
    """Elements of streams: up to several times what caches hold."""
    found = [first]
    while 2 * found[-1] <= min(most, _STREAM):
        found.append(2 * found[-1])
    return found


def _additions(size: int) -> Work:
    """The sum of several polynomials: some operations depend on each other, and others do not."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, size))
    chains = [x.alu(Ops.ADD, const(dtypes.float32, n + 0.5)) for n in range(_CHAINS)]
    for step in range((_ADDITIONS // _CHAINS - 2) // 2):
        chains = [y.alu(Ops.MUL, x).alu(Ops.ADD, const(dtypes.float32, step + n / 8)) for n, y in enumerate(chains)]
    return reduce(lambda a, b: a.alu(Ops.ADD, b), chains), [size]


def _functions(size: int) -> Work:
    """Exponentials of small numbers: what limits a kernel without products, where memory does not."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, size))
    terms = [x.alu(Ops.MUL, const(dtypes.float32, 0.3 + 0.1 * n)).alu(Ops.EXP) for n in range(_FUNCTIONS)]
    return reduce(lambda a, b: a.alu(Ops.ADD, b), terms), [size]


def _sums(rows: int, columns: int, axis: int) -> Work:
    """Sums of a matrix along one axis. What limits those of short rows is each row's chain, or reading."""
    size = rows * columns
    matrix = reshape(UOp(Ops.PARAM, dtypes.float32, (), (0, size)), (rows, columns))
    return reduce_axes(matrix, Ops.ADD, (axis,)), [size]


def _rescaled(side: int) -> Work:
    """The rows of a square matrix times their sums: a kernel that reads each row twice."""
    x = reshape(UOp(Ops.PARAM, dtypes.float32, (), (0, side * side)), (side, side))
    return elementwise(Ops.MUL, x, expand(reduce_axes(x, Ops.ADD, (1,)), (side, side))), [side * side]


def _transposed(side: int) -> Work:
    """The transpose of a square matrix, stored."""
    x = reshape(UOp(Ops.PARAM, dtypes.float32, (), (0, side * side)), (side, side))
    return permute(x, (1, 0)).alu(Ops.ADD, const(dtypes.float32, 1.0)), [side * side]


def _room(device: Device) -> int:
    """Bytes that one buffer of a measurement may take: little of what is free."""
    return min(room(device), device.limits.max_alloc_bytes) // 16


def _elementwise(size: int, additions: int) -> Work:
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, size))
    y = x
    for n in range(additions):
        y = y.alu(Ops.ADD, const(dtypes.float32, n + 0.5)).alu(Ops.MUL, x) if n % 2 else y.alu(Ops.ADD, x)
    return y, [size]


def _product(rows: int, side: int) -> Work:
    """A matrix times a square one."""
    a, b = (
        reshape(UOp(Ops.PARAM, dtypes.float32, (), (n, high * side)), (high, side))
        for n, high in enumerate((rows, side))
    )
    shape = (rows, side, side)
    left, right = expand(reshape(a, (rows, side, 1)), shape), expand(reshape(b, (1, side, side)), shape)
    return reduce_axes(elementwise(Ops.MUL, left, right), Ops.ADD, (1,)), [rows * side, side * side]


_EMPTY = _elementwise(16, 1)


class _Workbench:
    """Kernels that run on a device in turns, over the same memory."""

    def __init__(self, device: Device, most: int) -> None:
        self.device, self.most = device, most  # elements of a buffer
        self.memory: dict[tuple[bool, int], Buffer] = {}  # by: is it an input, which one
        self.prepared: dict[str, Callable[[], None]] = {}

    def time(self, name: str, work: Work) -> float:
        """The least time of a graph, or of a batch of it, in nanoseconds: a take of all measurements."""
        if name not in self.prepared:
            self.prepared[name] = self._prepare(work, _BATCH if name == "batch" else 1)
        return least_ns(self.prepared[name], _TAKES)

    def _prepare(self, work: Work, batch: int) -> Callable[[], None]:
        root, sizes = work
        device, name, given = self.device, self.device.name, len(sizes)
        graph, _ = later.planning.planned((root,), (name,) * given, frozenset(), name)
        kernels = [item for item in graph.items if isinstance(item, Kernel)]
        programs = build_all([(device, kernel) for kernel in kernels])
        buffers = [self._buffer(n < given, n, wanted.numel) for n, wanted in enumerate(graph.buffers)]
        calls = [
            Call(program, tuple([buffers[n] for n in kernel.buffers]), (), program.threads)
            for kernel, program in zip(kernels, programs, strict=True)
        ] * batch

        def run() -> None:
            device.run(calls)
            device.synchronize()

        return run

    def _buffer(self, is_input: bool, number: int, count: int) -> Buffer:
        name, place = self.device.name, (is_input, number)
        if place not in self.memory:
            self.memory[place] = whole = allocate_buffer(name, dtypes.float32, max(count, self.most))
            self.device.copy_in(whole, memoryview(bytes(whole.nbytes)))
        whole = self.memory[place]
        if count > whole.numel:
            return allocate_buffer(name, dtypes.float32, count)
        return Buffer(name, dtypes.float32, count, whole, whole.address)


def least_ns(run: Callable[[], object], takes: int = 1) -> float:
    """Return the least time of a few runs, in nanoseconds: other programs can only make a run longer. The first one
    does not count: it may have started threads. Of several takes this is one, with its part of the runs."""
    run()
    times: list[int] = []
    budget = _BUDGET_NS / takes
    while len(times) < _RUNS / takes and sum(times) < (budget if len(times) > 1 else 5 * budget):
        start = timer()
        run()
        times.append(timer() - start)
    return float(min(times))


# --- links -----------------------------------------------------------------------------------------------------------
def measured_link(source: Device, target: Device) -> Link:
    """Latency and rate of copies from one device to another.

    Raises:
        DeviceError: they cannot be measured.
    """
    figures = _stored(["link", *_tag(source), *_tag(target)], lambda: _measured(source, target, _measure_link))
    latency, rate = figures
    return Link(latency, rate)


def _measured(source: Device, target: Device, measure: Callable[..., list[float]]) -> list[float]:
    """Measure a device (given twice), or a link between two."""
    is_link = source is not target
    what = f"copies from {source.name} to {target.name}" if is_link else f"rates of {target.name}"
    listed = "Leave one of them out of DEVICE" if is_link else f"Leave {target.name} out of DEVICE"
    try:
        return measure(source, target) if is_link else measure(target)
    except Exception as error:  # whatever the author's code raises
        found = failure(target, error, f"measuring the {what}")
        raise DeviceError(
            f"placement: the {what} cannot be measured, so nothing can be placed there. {listed}. {found}"
        ) from error


def _measure_link(source: Device, target: Device) -> list[float]:
    times, large = [], max(2 * _SMALL, min(_LARGE, _room(source), _room(target)))
    for size in (_SMALL, large):
        pair = allocate_buffer(target.name, dtypes.uint8, size), allocate_buffer(source.name, dtypes.uint8, size)
        source.copy_in(pair[1], memoryview(bytes(size)))

        def run(pair: tuple[Buffer, Buffer] = pair) -> None:
            copy_between(*pair)
            target.synchronize()

        times.append(least_ns(run))
    rate = (large - _SMALL) / max(1.0, times[1] - times[0])
    return [max(1.0, times[0] - _SMALL / rate), rate]


# --- kept ------------------------------------------------------------------------------------------------------------
def _stored(key: Sequence[str], measure: Callable[[], list[float]]) -> list[float]:
    """Figures of this machine from the cache, else measured and stored, rounded to two digits."""
    cache, digest = default_cache("rates"), cache_key("rates", *key, stamp())
    entry = cache.get(digest)
    if entry is not None:
        with contextlib.suppress(ValueError):
            found = json.loads(entry.payload)
            if isinstance(found, list) and found and all(isinstance(f, float) and f > 0 for f in found):
                return found
    figures = [float(f"{figure:.1e}") for figure in measure()]
    cache.put(digest, json.dumps(figures).encode(), {"name": " ".join(key[:2])})
    return figures
