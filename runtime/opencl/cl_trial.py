"""What a driver's functions cost, measured once: the forms of a kernel's text that do without them.

PoCL whose compiler is older than the CPU compiles each function of the language (fma, vload4) as a call, many times
slower than an operator. Other drivers inline them. Text with operators is only used if it compiles, computes the
same and takes no more time. The result is kept in the cache of kernels, with the driver's version.
"""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..cpu.cpu_target import host_target
from ..cpu.host import Host
from ..programs.compile_cache import cache_key, default_cache
from .cl_driver import ClFacts
from .cl_program import quietly

__all__ = ["ClCosts", "measured_costs"]

_ITERATIONS = 1 << 17  # Mesa's llvmpipe ends the loops of a work-item after 65,535
_COUNT = 4000  # iterations of a timed kernel: some 50 microseconds
_CHAINS = 8  # independent sums: more than the latency of an FMA on any CPU
_ROUNDS = 15
_BATCHES = 20  # of rounds at most: each takes under 3 ms
_STEADY = 1.05  # a batch that finds no time shorter by this is the last
_NOT_SLOWER = 1.2  # times of two equal forms differ by less
_FAR_BELOW = 3.0  # times slower than the CPU can be, or than an operator: a driver that is not meant for this CPU
# By a function and without. The language has no function for `hints`, stores past the caches and prefetches, nor for
# `dots`, products of bytes; with these come vectors of up to 64 lanes.
_FORMS = {
    "fma": ("fma(a, b, c)", "(a) * (b) + (c)"),
    "load": ("vload{lanes}(0, p)", "*(const __global vector_at *)(p)"),
    "hints": ("*(p) = (x)", "__builtin_prefetch((const void *)(ulong)(p), 0, 3), __builtin_nontemporal_store(x, p)"),
    "dots": (
        "(float{lanes})(24.0f)",
        "__builtin_convertvector(__builtin_astype(__builtin_ia32_pmaddwd{bits}(__builtin_astype("
        "__builtin_ia32_pmaddubsw{bits}((bytes)(2), (bytes)(3)), words), (words)(1)), int{lanes}), vector)",
    ),
}
_OF_A_CPU = (
    "hints",
    "dots",
)  # only tried on PoCL, which compiles for the CPU: Mesa's translator to SPIR-V ends the process
_SOURCE = """
#pragma OPENCL FP_CONTRACT ON
typedef float{lanes} vector;
typedef vector vector_at __attribute__((aligned(sizeof(float))));
typedef char bytes __attribute__((ext_vector_type(4 * {lanes})));
typedef short words __attribute__((ext_vector_type(2 * {lanes})));
#define FMA(a, b, c) ({fma})
#define LOAD(p) ({load})
#define STORE(p, x) ({hints})
#define EACH(to) to(0) to(1) to(2) to(3) to(4) to(5) to(6) to(7)
#define START(n) vector s##n = LOAD(p + n);
#define PRODUCT(n) s##n = FMA(s##n, a, b);
#define ADD(n) s##n += LOAD(p + (i & 15) * 8 + n);
#define PUT(n) STORE((__global vector *)p + n, s##n);
#define KERNEL(name, to) __kernel void name(__global float *p, long count) {{ \\
  vector a = LOAD(p + 1), b = LOAD(p + 1); EACH(START) \\
  for (long i = 0; i < count; ++i) {{ EACH(to) }} \\
  EACH(PUT) }}
KERNEL(time_fma, PRODUCT)
KERNEL(time_load, ADD)
__kernel void right(__global float *p, long count) {{
  vector a = LOAD(p + 1), b = LOAD(p + 1 + {lanes}), c = LOAD(p + 1 + 2 * {lanes});
  vector once = FMA(a, b, c);
  vector product = a * b;
  vector twice = product + c;
  for (long i = 0; i < count; ++i) {{
    STORE((__global vector *)p, once);
    STORE((__global vector *)p + 1, twice);
    STORE((__global vector *)p + 2, {dots});
  }}
}}
__kernel void iterations(__global float *p, long count) {{
  float s = 0.0f;
  for (long i = 0; i < count; ++i) s += p[1 + (i & 15)];
  p[0] = s;
}}
"""


class ClCosts(NamedTuple):
    """How a driver compiles. Units: nanoseconds of an operation on one vector; 0 where the form is refused."""

    plain: tuple[str, ...] = ()  # Target.plain
    fma_ns: tuple[float, ...] = (0.0, 0.0)  # by the function, by operators
    load_ns: tuple[float, ...] = (0.0, 0.0)  # by the function, by a pointer
    cpu_fma_ns: float = 0.0  # what the CPU takes for as many floats, in its own vectors
    iterations: int = _ITERATIONS  # that a loop ran of as many

    @property
    def calls(self) -> float:
        """How many times slower a function is than an operator; 0 if unknown."""
        return max((call / plain for call, plain in (self.fma_ns, self.load_ns) if plain), default=0.0)

    @property
    def below(self) -> float:
        """How many times slower than the CPU's own vectors the chosen form is; 0 if unknown."""
        best = self.fma_ns["fma" in self.plain] or self.fma_ns[0]
        return best / self.cpu_fma_ns if self.cpu_fma_ns else 0.0

    def line(self) -> str:
        """One line for people; empty for what was not measured."""
        if not self.fma_ns[0]:
            return ""
        pairs = zip(("fma", "vload"), (self.fma_ns, self.load_ns), ("an operator", "a pointer"), strict=True)
        said = [f"{name}() {call / plain:.1f} times {other}" for name, (call, plain), other in pairs if plain]
        used = ", ".join(sorted(self.plain)) or "none"
        return f"functions: {', '.join(said) or 'without an operator'}; kernels do without: {used}"

    def warning(self) -> str:
        """Return a warning about a driver that ends long loops or is slow, with the remedy; else an empty text."""
        if self.iterations < _ITERATIONS:
            return (
                f"this driver ends loops after {self.iterations:,} iterations without an error, so results of large "
                "tensors are wrong. Use another driver, such as Debian's package pocl-opencl-icd, or DEVICE=LLVM."
            )
        if max(self.calls, self.below) < _FAR_BELOW:
            return ""
        why = (
            f"its compiler does not know this CPU: a function of the language costs {self.calls:.0f} times an operator"
            if self.calls >= _FAR_BELOW
            else f"a sum of products takes {self.below:.0f} times as long as this CPU needs"
        )
        return (
            f"this driver runs far below its CPU: {why}. Install a newer one, such as Debian's package "
            "pocl-opencl-icd, or use DEVICE=LLVM."
        )


def measured_costs(cl: Any, queue: Any, facts: ClFacts, host: Host) -> ClCosts:
    """Return the costs of a driver for CPUs, from the cache of kernels or by two small programs."""
    lanes = facts.lanes
    key = cache_key("OpenCL costs", _SOURCE, repr(_FORMS), facts.name, facts.version, str(lanes), repr(host))
    stored = default_cache().get(key)
    if stored is not None:
        plain, fma_ns, load_ns, cpu_fma_ns, iterations = json.loads(stored.payload)
        return ClCosts(tuple(plain), tuple(fma_ns), tuple(load_ns), cpu_fma_ns, iterations)
    costs = _compare_forms(cl, queue, lanes, host, [form for form in _FORMS if facts.is_pocl or form not in _OF_A_CPU])
    default_cache().put(key, json.dumps(costs).encode(), {"name": "OpenCL costs"})
    if costs.warning():
        logging.getLogger("kernmill").warning(f"CL: {facts.name}: {costs.warning()}")
    return costs


def _compare_forms(cl: Any, queue: Any, lanes: int, host: Host, forms: Sequence[str]) -> ClCosts:
    """Compare both ways of each form, alone: a driver may take one and refuse another."""
    functions = _Trial(cl, queue, lanes, "")
    if not functions.is_right():
        return ClCosts()
    trials = {form: trial for form in forms if (trial := _Trial(cl, queue, lanes, form)).is_right()}
    times = {form: _best_ns(form, functions, trials.get(form)) for form in ("fma", "load")}
    slower = {form for form, (before, after) in times.items() if after > _NOT_SLOWER * before}
    target = host_target(host)
    per_ns = target.machine.fma * target.machine.clock_ghz * target.vector_bytes / (4 * lanes)
    chosen = tuple(form for form in trials if form not in slower)
    ran, _ = functions.run("iterations", [0.0, *[1.0] * 16], _ITERATIONS)
    return ClCosts(chosen, times["fma"], times["load"], 1 / per_ns, int(ran[0]))


class _Trial:
    """The trial's program with one form plain."""

    def __init__(self, cl: Any, queue: Any, lanes: int, plain: str) -> None:
        self.cl, self.queue, self.lanes = cl, queue, lanes
        forms = {name: pair[name == plain].format(lanes=lanes, bits=32 * lanes) for name, pair in _FORMS.items()}
        try:
            self.program: Any = quietly(
                cl.Program(queue.context, _SOURCE.format(lanes=lanes, **forms)), queue.device, "-w"
            )
        except cl.Error:
            self.program = None

    def run(self, name: str, values: Sequence[float], count: int) -> tuple[list[float], float]:
        """Launch one work-item of a kernel; return the memory afterwards, and nanoseconds."""
        memory = (ctypes.c_float * (_CHAINS * self.lanes + 32 * _CHAINS))(*values)
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        buffer = self.cl.Buffer(self.queue.context, flags, hostbuf=memory)
        kernel = self.cl.Kernel(self.program, name)
        kernel.set_args(buffer, count.to_bytes(8, "little"))
        event = self.cl.enqueue_nd_range_kernel(self.queue, kernel, (1,), (1,))
        self.cl.enqueue_copy(self.queue, memory, buffer)
        return list(memory), float(event.profile.end - event.profile.start)

    def is_right(self) -> bool:
        """True if it was built, a product and its sum in one statement are rounded once, in two statements twice."""
        if self.program is None:
            return False
        lanes, factor = self.lanes, 1 + 2.0**-12
        given = [0.0, *[factor] * (2 * lanes), *[-1 - 2.0**-11] * lanes]
        try:
            found, _ = self.run("right", given, 1)
        except self.cl.Error:
            return False
        once, twice, dots = (found[n * lanes : (n + 1) * lanes] for n in range(3))
        return once == [2.0**-24] * lanes and twice == [0.0] * lanes and dots == [24.0] * lanes


def _best_ns(form: str, *trials: _Trial | None) -> tuple[float, ...]:
    """Return the nanoseconds of one operation of a form's kernel in each trial, 0 without one; they take turns.

    On a busy machine all rounds of a few milliseconds can be slow. So rounds are repeated until the best times no
    longer improve.
    """
    best: tuple[float, ...] | None = None
    for _ in range(_BATCHES):
        rounds = [
            [trial.run(f"time_{form}", (), _COUNT)[1] if trial else 0.0 for trial in trials] for _ in range(_ROUNDS)
        ]
        before, best = best, tuple(map(min, zip(*rounds, *([best] if best else []), strict=True)))
        if before and all(old <= _STEADY * new for old, new in zip(before, best, strict=True)):
            break
    return tuple(ns / (_COUNT * _CHAINS) for ns in best or ())
