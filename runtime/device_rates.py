"""Rates of devices and links, measured once and stored: what placement on several devices computes with.

Each device runs small kernels: an empty one, streams of several lengths, additions, exponentials, a matrix product,
sums of rows and of columns, rows read twice, and a transpose. Each link makes two copies. A slow device is measured at
small sizes only. Figures are rounded to two digits: a placement that changes with noise would change the bits of
results. Tests: tests/runtime/test_device_rates.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

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
_BATCH = 8  # kernels of a batch, in the measurement of launches
_SIDE, _STREAM, _SHORT = 512, 1 << 24, 1 << 16  # of the product; elements of the long and the short stream
_ADDITIONS = 64  # of each element, in the kernel that measures them
_CHAINS = 4  # polynomials that these are in
_FUNCTIONS = 8  # exponentials of each element, in the kernel that measures operations
_NEAR = 0.75  # of the best rate: a longer stream that is slower than this exceeds the caches
_NOISE = 100  # of a time, the part that two equal runs differ by at least
_SMALL, _LARGE = 256, 1 << 20  # bytes of the copies over a link

timer: Callable[[], int] = time.perf_counter_ns  # another clock where other programs run (bench/placed_graphs.py)
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


def _beyond(device: Device, work: tuple[UOp, list[int]], launch_ns: float) -> float:
    """The time of a graph beyond that of a launch: of a difference within the noise a rate would be absurd."""
    time_ns = _time(device, work)
    return max(1.0, time_ns - launch_ns, time_ns / _NOISE)


def _measure_device(device: Device, most: float = math.inf) -> list[float]:
    launch = min(most, _time(device, _elementwise(16, 1)))
    is_slow = launch > _ENOUGH_NS or _time(device, _elementwise(_FEW, _ADDITIONS)) > _ENOUGH_NS
    room = _room(device) // dtypes.float32.size_bytes
    count, many, side = (_FEW, _FEW, 16) if is_slow else (min(1 << 16, room), min(1 << 20, room), 256)
    side = side if side * side < room else 16
    adding, product = (_beyond(device, work, launch) for work in (_additions(count), _product(side)))
    try:
        functions = _beyond(device, _functions(count), launch)
    except CompileError:  # it has none
        functions = adding
    streams = {n: _stream_rate(device, n, launch) for n in _lengths(many, 1 if is_slow else room)}
    near = max(n for n, rate in streams.items() if rate >= _NEAR * max(streams.values()))
    size, additions = dtypes.float32.size_bytes, _ADDITIONS * count / adding
    side_of_many = math.isqrt(many)
    rows, columns, crossed = (
        _beyond(device, work, launch)
        for work in (_sums(many // 256, 256, 1), _sums(side_of_many, side_of_many, 0), _transposed(side_of_many))
    )
    reading = size * many / streams[many]  # what is left of the time of sums is computing
    summing = max(many / additions, math.sqrt(max(0.0, rows**2 - reading**2)))
    if (again := _time(device, _elementwise(16, 1))) < launch / 2:  # other programs ran during the first ones
        return _measure_device(device, again)
    batch = (_time(device, _elementwise(16, 1), _BATCH) - launch) / (_BATCH - 1)
    scaled = _beyond(device, _rescaled(side_of_many), launch)
    computing = side_of_many**2 * (1 / additions + summing / many)
    once = size * side_of_many**2 / streams[many]
    again = math.sqrt(max(0.0, scaled**2 - computing**2)) - 2 * once
    again = min(max(scaled / _NOISE, again), once)  # the second reading is not slower than the first one
    return [
        launch,
        additions,
        side**3 / product,
        streams[many],
        float(1 << 62 if near == max(streams) else 2 * near * size),
        streams[max(streams)],
        _FUNCTIONS * (Ops.EXP.cost + 2) * count / functions,
        many / summing,
        2 * size * side_of_many**2 / crossed,
        size * side_of_many**2 / columns,
        min(launch, max(1.0, batch)),
        size * side_of_many**2 / again,
    ]


def _lengths(first: int, most: int) -> list[int]:
    """Elements of streams: up to several times what caches hold."""
    found = [first]
    while 2 * found[-1] <= min(most, _STREAM):
        found.append(2 * found[-1])
    return found


def _stream_rate(device: Device, count: int, launch_ns: float) -> float:
    """Bytes per nanosecond of a kernel that reads and writes `count` values."""
    return 2 * count * dtypes.float32.size_bytes / _beyond(device, _elementwise(count, 1), launch_ns)


def _additions(size: int) -> tuple[UOp, list[int]]:
    """The sum of several polynomials: some operations depend on each other, and others do not."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, size))
    chains = [x.alu(Ops.ADD, const(dtypes.float32, n + 0.5)) for n in range(_CHAINS)]
    for step in range((_ADDITIONS // _CHAINS - 2) // 2):
        chains = [y.alu(Ops.MUL, x).alu(Ops.ADD, const(dtypes.float32, step + n / 8)) for n, y in enumerate(chains)]
    return reduce(lambda a, b: a.alu(Ops.ADD, b), chains), [size]


def _functions(size: int) -> tuple[UOp, list[int]]:
    """Exponentials of small numbers: what limits a kernel without products, where memory does not."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, size))
    terms = [x.alu(Ops.MUL, const(dtypes.float32, 0.3 + 0.1 * n)).alu(Ops.EXP) for n in range(_FUNCTIONS)]
    return reduce(lambda a, b: a.alu(Ops.ADD, b), terms), [size]


def _sums(rows: int, columns: int, axis: int) -> tuple[UOp, list[int]]:
    """Sums of a matrix along one axis. What limits those of short rows is each row's chain, or reading."""
    size = rows * columns
    matrix = reshape(UOp(Ops.PARAM, dtypes.float32, (), (0, size)), (rows, columns))
    return reduce_axes(matrix, Ops.ADD, (axis,)), [size]


def _rescaled(side: int) -> tuple[UOp, list[int]]:
    """The rows of a square matrix times their sums: a kernel that reads each row twice."""
    x = reshape(UOp(Ops.PARAM, dtypes.float32, (), (0, side * side)), (side, side))
    return elementwise(Ops.MUL, x, expand(reduce_axes(x, Ops.ADD, (1,)), (side, side))), [side * side]


def _transposed(side: int) -> tuple[UOp, list[int]]:
    """The transpose of a square matrix, stored."""
    x = reshape(UOp(Ops.PARAM, dtypes.float32, (), (0, side * side)), (side, side))
    return permute(x, (1, 0)).alu(Ops.ADD, const(dtypes.float32, 1.0)), [side * side]


def _room(device: Device) -> int:
    """Bytes that one buffer of a measurement may take: little of what is free."""
    return min(room(device), device.limits.max_alloc_bytes) // 16


def _elementwise(size: int, additions: int) -> tuple[UOp, list[int]]:
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, size))
    y = x
    for n in range(additions):
        y = y.alu(Ops.ADD, const(dtypes.float32, n + 0.5)).alu(Ops.MUL, x) if n % 2 else y.alu(Ops.ADD, x)
    return y, [size]


def _product(side: int) -> tuple[UOp, list[int]]:
    a, b = (reshape(UOp(Ops.PARAM, dtypes.float32, (), (n, side * side)), (side, side)) for n in range(2))
    rows = expand(reshape(a, (side, side, 1)), (side, side, side))
    columns = expand(reshape(b, (1, side, side)), (side, side, side))
    return reduce_axes(elementwise(Ops.MUL, rows, columns), Ops.ADD, (1,)), [side * side, side * side]


def _time(device: Device, work: tuple[UOp, list[int]], batch: int = 1) -> float:
    """The least time of a graph on a device, or of several of it in one batch, in nanoseconds."""
    root, sizes = work
    graph, _ = later.planning.planned((root,), (device.name,) * len(sizes), frozenset(), device.name)
    kernels = [item for item in graph.items if isinstance(item, Kernel)]
    programs = build_all([(device, kernel) for kernel in kernels])
    buffers = [allocate_buffer(device.name, wanted.dtype, wanted.numel) for wanted in graph.buffers]
    for buffer in buffers:
        device.copy_in(buffer, memoryview(bytes(buffer.nbytes)))
    calls = [
        Call(program, tuple([buffers[n] for n in kernel.buffers]), (), program.threads)
        for kernel, program in zip(kernels, programs, strict=True)
    ] * batch

    def run() -> None:
        device.run(calls)
        device.synchronize()

    return least_ns(run)


def least_ns(run: Callable[[], object]) -> float:
    """Return the least time of a few runs, in nanoseconds: other programs can only make a run longer. The first one
    does not count: it may have started threads."""
    run()
    times: list[int] = []
    while len(times) < _RUNS and sum(times) < (_BUDGET_NS if len(times) > 1 else 5 * _BUDGET_NS):
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
