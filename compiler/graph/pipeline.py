"""THE LIST of the graph half: every step from a closed tensor graph to kernels in order and a memory plan.

A pass reads fields of a Draft and sets one. The order of the list is the order of work; `after` and `why` are the
knowledge behind it and are checked by tests/compiler/graph/test_pipeline.py. It runs once for each new graph structure;
the caller caches the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dis import get_instructions
from itertools import pairwise
from typing import Any

from kernmill.ir import DeviceTable, GraphPlan, MemoryPlan, UOp

from .build_kernels import BuiltKernels, build_kernels
from .choose_in_place import choose_in_place
from .choose_stored import StoredNodes, choose_stored
from .find_devices import find_devices
from .find_hazards import find_hazards
from .fuse import Fusion, fuse
from .keep_copies import keep_copies
from .merge_kernels import merge_kernels
from .order_kernels import OrderedKernels, order_kernels
from .pass_slices import pass_slices
from .place import Placed, place
from .plan_memory import plan_memory
from .separate_constants import separate_constants
from .split_reduce import split_reduce

__all__ = ["GRAPH_PIPELINE", "Draft", "GraphPass", "plan_graph"]


@dataclass(slots=True)
class Draft:
    """A graph on its way to a plan: what the caller gives, then what each step makes."""

    roots: Sequence[UOp]
    """A closed graph: its data are PARAM(slot, numel) nodes."""
    devices: Sequence[str]
    """The device of each slot."""
    in_place: frozenset[int]
    """The slots that an ASSIGN may overwrite: nothing outside this graph will read their old values."""
    default_device: str
    device_table: DeviceTable | None = None
    """Several devices, among which the graph is placed."""
    memory_price: Mapping[str, float] = field(default_factory=dict[str, float])
    """Nanoseconds for each byte on a device whose memory is short."""
    alignments: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes, of an intermediate, by device."""
    slice_alignments: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes, of a slice of a buffer that a kernel gets as a buffer, by device; 1 where it is absent."""
    packers: frozenset[str] = frozenset()
    """Devices with a matrix unit: their products pack both operands, and round them meanwhile."""

    placed: Placed = field(init=False)
    """The graph with copies, and the devices of nodes without data of their own."""
    device_of: dict[UOp, str] = field(init=False)
    """The device of each node."""
    stored: StoredNodes = field(init=False)
    """The nodes that get memory in any case, results and checks."""
    refused: frozenset[UOp] = frozenset()
    """ASSIGNs that need a separate buffer."""
    targets: dict[UOp, UOp] = field(init=False)
    """ASSIGNs in place, each with the PARAM that it overwrites."""
    fusion: Fusion = field(init=False)
    """Kernel borders, row buffers, and every use of a node with its index."""
    built: BuiltKernels = field(init=False)
    """Buffers, and a SINK of STOREs for each stored node."""
    ordered: OrderedKernels = field(init=False)
    """Kernels and copies in an order in which they can run."""
    plan: GraphPlan = field(init=False)
    """The result: items, buffers, results and checks."""
    memory: MemoryPlan = field(init=False)
    """Offsets of intermediates in one arena for each device."""


@dataclass(frozen=True, slots=True)
class GraphPass:
    """One pass, called like its function and its file: `run(draft)` returns the new value of the field `makes`.

    If that value differs from the one before, the list restarts at the pass `again`.
    """

    name: str
    run: Callable[[Draft], Any]
    makes: str
    after: tuple[str, ...]
    why: str
    again: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of the Draft that `run` reads, each once, in the order of its code."""
        code = pairwise(get_instructions(self.run))
        reads = [b.argval for a, b in code if a.opname.startswith("LOAD_FAST") and b.opname == "LOAD_ATTR"]
        return tuple(dict.fromkeys(reads))


GRAPH_PIPELINE: tuple[GraphPass, ...] = (
    GraphPass("split_reduce", lambda d: split_reduce(d.roots), "roots", (),
              "both halves of a long reduction are ordinary nodes for all that follows"),
    GraphPass("place", lambda d: place(d.roots, d.devices, d.device_table, d.memory_price), "placed", ("split_reduce",),
              "before kernels are cut, so that none crosses from one device to another; copies become nodes"),
    GraphPass("separate_constants", lambda d: separate_constants(d.placed, d.devices, d.default_device), "placed",
              ("place",),
              "a node has one buffer, on one device: what is computed from constants needs a node for each reader's"),
    GraphPass("find_devices",
              lambda d: find_devices(d.placed.roots, d.devices, d.placed.devices, d.default_device),
              "device_of", ("separate_constants",),
              "copies are there: what has no data of its own takes the device of its readers"),
    GraphPass("choose_stored", lambda d: choose_stored(d.placed.roots, d.device_of), "stored", ("find_devices",),
              "fusion starts from the nodes that get memory in any case; copies and their sources are among them"),
    GraphPass("choose_in_place", lambda d: choose_in_place(d.placed.roots, d.in_place, d.refused), "targets",
              ("place",),
              "an assignment that may not overwrite its old value needs a separate buffer, which fusion decides"),
    GraphPass("fuse",
              lambda d: fuse(d.stored.sink, d.stored.nodes, frozenset(d.targets), d.device_of, d.packers), "fusion",
              ("find_devices", "choose_stored", "choose_in_place"),
              "kernel borders must exist before loops do; every use of a node gets its index here (rangeify)"),
    GraphPass("build_kernels", lambda d: build_kernels(d.fusion, d.stored, d.targets, d.device_of), "built",
              ("find_devices", "fuse"),
              "all uses and their indices are known: building a body is one fold over the nodes"),
    GraphPass("order_kernels", lambda d: order_kernels(d.fusion, d.built, d.targets, d.device_of, d.stored.results),
              "ordered", ("build_kernels",),
              "readers of an old value run before the kernel that overwrites it; bodies show what each reads"),
    GraphPass("find_hazards",
              lambda d: d.refused | find_hazards({*d.stored.results}, d.built, d.ordered, d.targets),
              "refused", ("order_kernels",),
              "the order shows who reads an old value too late: those assignments get separate buffers",
              again="choose_in_place"),
    GraphPass("merge_kernels",
              lambda d: merge_kernels(replace(d.built.unordered, items=d.ordered.items, placement=d.placed.placement)),
              "plan", ("find_hazards",),
              "only in the final order is it known which kernels can move past those between them"),
    GraphPass("keep_copies", lambda d: keep_copies(d.plan), "plan", ("merge_kernels",),
              "it is final which kernel writes what: a copy of what nothing writes serves later calls"),
    GraphPass("pass_slices", lambda d: pass_slices(d.plan, d.slice_alignments), "plan", ("keep_copies",),
              "the reads of each kernel are final: one that reads a slice gets the slice as its buffer"),
    GraphPass("plan_memory", lambda d: plan_memory(d.plan, d.alignments), "memory", ("pass_slices",),
              "lives of intermediates are positions in the final order"),
)  # fmt: skip


def plan_graph(draft: Draft) -> Draft:
    """Run GRAPH_PIPELINE; `plan` and `memory` of the draft are the result.

    Raises:
        CompileError: no device of the table can compute a node.
    """
    at, names = 0, [step.name for step in GRAPH_PIPELINE]
    while at < len(names):
        step = GRAPH_PIPELINE[at]
        made = step.run(draft)
        at = names.index(step.again) if step.again and made != getattr(draft, step.makes) else at + 1
        setattr(draft, step.makes, made)
    return draft
