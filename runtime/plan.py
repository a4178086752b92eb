"""From a closed graph to a plan: kernels, memory and programs; known ones come from memory or from disk.

Scheduling depends on the graph, where its data live, what may be overwritten, and the compiler's own sources: that is
the key on disk. Such a plan names its kernels by their digests, under which `build` finds their programs, and holds no
UOps. Reports, searches and a program that is no longer in the cache ask for those: then the graph is scheduled again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from kernmill.ir import (
    BufferPlan,
    CheckItem,
    Copy,
    GraphPlan,
    Kernel,
    KernmillError,
    MemoryPlan,
    Ops,
    UOp,
    arg_text,
    as_dtype,
    dtypes,
    reshape,
    setting,
)

from . import later
from .build import build_all, expect
from .compile_cache import cache_key, default_cache
from .device import Program, canonical_name, get_device
from .replay import narrow
from .schedules import stamp
from .watch import wants_report

__all__ = ["Plan", "closed", "plan_of", "plans"]

_KEPT = 4096
_Scheduled: TypeAlias = "tuple[GraphPlan, MemoryPlan]"
_PART_OF_A_PLAN = ("DEVICE", "OVERRIDE", "BEAM", "TARGET", "CHECK")


class Plan(NamedTuple):
    """What is kept for a graph structure."""

    graph: GraphPlan
    memory: MemoryPlan
    steps: list[Copy | list[tuple[Kernel, Program]]]  # kernels of one device that follow each other go together
    bounds: dict[str, tuple[int, int]]  # what each variable may be
    written: list[int]  # slots that kernels write to


plans: OrderedDict[Any, Plan] = OrderedDict()


def plan_of(structure: Any, nodes: Iterable[UOp], devices: tuple[str, ...], in_place: frozenset[int]) -> Plan:
    """The plan of a graph whose PARAM slot i lives on devices[i]; slots `in_place` may be overwritten.

    The graph is made of its `structure` where that is not known; `nodes` know the user's lines.

    Raises:
        CompileError: a kernel cannot be built.
    """
    key = (structure, devices, in_place, *[setting(name) for name in _PART_OF_A_PLAN])
    found = plans.get(key)
    if found is None:
        default = canonical_name(str(setting("DEVICE")))
        found = plans[key] = _with_programs(*_scheduled(key[:3], [node.origin for node in nodes], default))
        if len(plans) > _KEPT:
            plans.popitem(last=False)
        if wants_report():
            later.profile.report_memory(found.memory)
    plans.move_to_end(key)
    return found


def _with_programs(graph: GraphPlan, memory: MemoryPlan) -> Plan:
    kernels = [item for item in graph.items if isinstance(item, Kernel)]
    built = iter(build_all([(get_device(kernel.device), kernel) for kernel in kernels]))
    steps: list[Copy | list[tuple[Kernel, Program]]] = []
    for key, items in groupby(graph.items, lambda item: item.device if isinstance(item, Kernel) else item):
        steps.append(key if isinstance(key, Copy) else [(k, next(built)) for k in items if isinstance(k, Kernel)])
    bounds: dict[str, tuple[int, int]] = {}
    narrow(bounds, (variable for kernel in kernels for variable in kernel.variables))
    outputs = {number for kernel in kernels for number in kernel.outputs}
    written = [b.slot for number, b in enumerate(graph.buffers) if number in outputs and b.slot is not None]
    return Plan(graph, memory, steps, bounds, written)


def closed(structure: tuple[Any, ...], origins: list[str | None]) -> UOp:
    """The graph of a structure, over PARAMs. Its leaves are counted from 1, since equal graphs are equal however many
    leaves were made before. Assignments to constants, which are tensors' own nodes, are other nodes here: a plan that
    holds them would keep their memory as well, and show what it was with one call's variables to the next call."""
    nodes, own, first, counted = list[UOp](), set[UOp](), len(structure) - len(origins), itertools.count(1)
    for form, origin in zip(structure[first:], origins, strict=True):
        if isinstance(form, UOp) or isinstance(form[0], int):
            node = form if isinstance(form, UOp) else reshape(UOp(Ops.PARAM, form[1], (), form[::3]), form[2])
        else:
            op, dtype, arg, *numbers = form
            src = tuple([nodes[number] for number in numbers])
            if op is Ops.ASSIGN and src[0] in own:
                src = (UOp(Ops.DETACH, dtype, src[:1], 0), *src[1:])
            node = UOp(op, dtype, src, next(counted) if op is Ops.DETACH and arg else arg)
            node.origin = node.origin or origin
        if node.op is not Ops.PARAM and own.issuperset(node.src):
            own.add(node)
        nodes.append(node)
    return UOp(Ops.SINK, dtypes.void, tuple([nodes[number] for number in structure[:first]]))


def _text(structure: tuple[Any, ...]) -> str:
    """A structure as text, equal in every process. Equal layers share their args."""
    texts = {number: arg_text(arg) for number, arg in {id(f[2]): f[2] for f in structure if type(f) is tuple}.items()}
    return "\n".join([f"{f[:2]}{texts[id(f[2])]}{f[3:]}" if type(f) is tuple else arg_text(f) for f in structure])


# --- on disk ---------------------------------------------------------------------------------------------------------
def _scheduled(of: tuple[Any, ...], origins: list[str | None], default: str) -> _Scheduled:
    structure, devices, in_place = of
    graph = cache(lambda: closed(structure, origins))
    planned = cache(lambda: later.planning.planned(graph().src, devices, in_place, default))
    key = cache_key("plan", _text(structure), json.dumps([devices, sorted(in_place), default]), stamp())
    stored = default_cache("plans").get(key)
    if stored is not None:
        with contextlib.suppress(ValueError, TypeError, LookupError, KernmillError):  # of another form: made anew
            return _read(stored.payload, planned)
    expect(graph(), set(devices) or {default})
    default_cache("plans").put(key, _written(*planned()), {"name": "plan"})
    return planned()


def _written(graph: GraphPlan, memory: MemoryPlan) -> bytes:
    items = [(i.buffers, i.outputs, i.device, i.key.hex(), i.name, i.variables) if isinstance(i, Kernel)
             else (i.source, i.target) for i in graph.items]  # fmt: skip
    buffers = [(b.dtype.name, b.numel, b.device, b.slot, b.is_output, b.part) for b in graph.buffers]
    checks = [(check.buffer, check.message) for check in graph.checks]
    sizes = memory.arena_bytes, memory.lower_bound_bytes, memory.unplanned_bytes
    return json.dumps([items, buffers, graph.results, checks, [*memory.offsets.items()], *sizes]).encode()


def _read(payload: bytes, planned: Callable[[], Any]) -> _Scheduled:
    items, buffers, results, checks, offsets, *sizes = json.loads(payload)

    def kernel(place: int, buffers: list[int], outputs: list[int], device: str, *facts: Any) -> Kernel:
        key, name, variables = facts
        known = device, bytes.fromhex(key), name, tuple(tuple(variable) for variable in variables)
        return Kernel(lambda: planned()[0].items[place].made(), tuple(buffers), tuple(outputs), *known)

    graph = GraphPlan(
        [kernel(place, *row) if len(row) > 2 else Copy(*row) for place, row in enumerate(items)],
        [BufferPlan(as_dtype(name), *rest) for name, *rest in buffers],
        results,
        [CheckItem(*check) for check in checks],
    )
    return graph, MemoryPlan(dict(offsets), *sizes)
