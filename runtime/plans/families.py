"""Graphs that differ in sizes and numbers only: after the second one, one plan serves them all.

`find_plan` is called for a graph that `plans` does not know. Graphs of equal structure are a `Family`. The first one
gets exact kernels. When a second one comes, a plan is made in which the sizes that differ are variables, or expressions
of them. The constants that differ are numbers that each run gives. A later graph uses that plan if every size is what
the plan's expressions say; so a wrong guess costs a compilation, never a wrong value. Sizes of 0 and 1 belong to the
structure. A graph that keeps recurring with the same sizes eventually gets exact kernels. Tests:
tests/runtime/plans/test_families.py.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kernmill.ir import (
    CheckItem,
    CompileError,
    KernmillError,
    LazyModule,
    Ops,
    UOp,
    as_size,
    debug,
    dtypes,
    is_same_size,
    numel,
    show_size,
)

from .. import recorder
from ..device import default_device, forgetting
from ..programs.build import counters
from ..recorder import Note
from ..replay import is_to_be_recorded
from .graph_key import NUMBER_DTYPES, GraphWalk, Structure, is_form, is_number
from .plan import Plan, closed, new_plan, settings_key

__all__ = ["families", "find_plan", "wants_exact"]

_logging: Any = LazyModule("logging")  # as rare as slow to import
_EXACT_AFTER = 64  # uses of a plan with variables at the same sizes, before those get exact kernels
_WARN_AFTER = 8  # exact plans of one family
_MOST_FAMILIES = 512
_MOST_VARIABLES = 4
_LEAST_BOUND = 256  # of a variable, so that a short sequence may become a long one
_LONG = 1 << 14  # the largest bound of a variable
_LONG_SUM = 64 * 2048  # from here on exact kernels sum in parts (compiler/graph/split_reduce.py)
_SPLIT = "long sums are computed in parts, whose number depends on the size"
_ROOM = 8  # a variable may grow by this factor before a plan with larger bounds is made

families: OrderedDict[Any, Family] = OrderedDict()
_growing: OrderedDict[str, list[int]] = OrderedDict()  # by line of source: nodes of its last graphs, each longer
forgetting += [families.clear, _growing.clear]


class Sample(NamedTuple):
    """The differences between graphs of a family: sizes, constants by position of the entry, and messages of checks."""

    sizes: tuple[int, ...]
    constants: tuple[tuple[int, UOp], ...]
    messages: tuple[str, ...]


@dataclass(slots=True)
class General:
    """A plan for many graphs of a family."""

    plan: Plan
    fixed: dict[int, int]  # sizes that must be these
    variables: dict[str, int]  # names, with the index of the size that is the value
    derived: list[tuple[int, Callable[[Mapping[str, int]], int]]]  # sizes that follow from the variables
    constants: dict[int, UOp | None]  # by position; None: each run gives its own
    counts: list[Callable[[Mapping[str, int]], int]]  # values of each buffer
    reduced: list[Callable[[Mapping[str, int]], int]]  # elements of each reduction whose length varies

    def bind(self, sample: Sample, structure: Structure, first: int) -> Plan | None:
        """Return the plan with the values of this graph; None if the plan does not serve it."""
        if any(sample.sizes[index] != size for index, size in self.fixed.items()):
            return None
        if any(self.constants[at] not in (None, node) for at, node in sample.constants):
            return None
        values = {name: sample.sizes[index] for name, index in self.variables.items()}
        bounds = self.plan.bounds
        if not all(low <= values[name] <= high for name, (low, high) in bounds.items() if name in values):
            return None
        if any(sample.sizes[index] != rule(values) for index, rule in self.derived):
            return None
        if any(length(values) >= _LONG_SUM for length in self.reduced):
            return None
        counts = [count(values) for count in self.counts] if values else []
        numbers = _numbers(structure[first:], self.constants)
        cost, graph = 400 * len(structure), self.plan.graph
        if graph.checks:
            own = [CheckItem(check.buffer, sample.messages[int(check.message)]) for check in graph.checks]
            graph = replace(graph, checks=own)
        return self.plan._replace(graph=graph, values=values, numbers=numbers, counts=counts, uses=[0], cost_bytes=cost)


def _numbers(entries: Sequence[Any], constants: Mapping[int, UOp | None]) -> list[Any]:
    """The numbers of a run: the position of one that the walk has found, or dtype and value of a constant."""
    found: list[Any] = []
    walked = itertools.count()
    for at, entry in enumerate(entries):
        if is_number(entry):
            found.append(next(walked))
        elif at in constants and constants[at] is None:
            found.append((entry.dtype, entry.arg))
    return found


@dataclass(slots=True)
class Family:
    """Computed graphs of one structure."""

    samples: list[Sample] = field(default_factory=list[Sample])
    generals: list[General] = field(default_factory=list[General])
    refused: str = ""  # why the last attempt at a plan for many failed
    exact: int = 0


def find_plan(walk: GraphWalk, plain: GraphWalk | None, in_place: frozenset[int]) -> Plan:
    """Return the plan for a graph that `plans` does not have: one with variables, or a new one. `plain` is the walk
    without slices of leaves; None: no other graph can share the plan.

    Raises:
        CompileError: a kernel cannot be built.
    """
    before, start = counters.compiled, time.perf_counter()
    found, reason = None, "a captured graph" if is_to_be_recorded() else "a new graph"
    if plain is not None:
        structure = plain.structure
        form, sample = _form(structure, len(plain.roots), plain.fixed or ())
        family = _family((form, plain.devices, in_place, settings_key()))
        found, reason = _shared(family, sample, structure, plain, in_place)
    with recorder.span("plan", lambda: _source_line(walk)):
        plan = found or new_plan(walk.structure, walk.order, walk.devices, in_place)
    _report(walk, plan, counters.compiled - before, time.perf_counter() - start, reason)
    return plan


def _family(key: Any) -> Family:
    family = families.get(key)
    if family is None:
        family = families[key] = Family()
        if len(families) > _MOST_FAMILIES:
            families.popitem(last=False)
    families.move_to_end(key)
    return family


def _shared(
    family: Family, sample: Sample, structure: Structure, walk: GraphWalk, in_place: frozenset[int]
) -> tuple[Plan | None, str]:
    """Return a plan of the family for this graph, if there is one, and the reason for a compilation."""
    first = len(walk.roots)
    for general in family.generals:
        if (found := general.bind(sample, structure, first)) is not None:
            return found, ""
    reason = "a new graph"
    if family.samples:
        reason = _difference(family.samples[-1], sample)
        if sample not in family.samples:
            new = _generalized(family, [*family.samples[-2:], sample], structure, walk, in_place)
            if new is not None and (found := new.bind(sample, structure, first)) is not None:
                family.generals.append(new)
                return found, f"{reason}: one plan for all"
            family.exact += 1
            if family.exact == _WARN_AFTER:
                _warn(family, reason, walk)
    elif not is_to_be_recorded():
        _note_growth(walk, len(structure))
    family.samples = [*family.samples[-2:], sample]
    return None, reason


def wants_exact(plan: Plan) -> bool:
    """True when a plan with variables was used for the same sizes so often that exact kernels pay."""
    plan.uses[0] += 1
    return plan.uses[0] == _EXACT_AFTER


# --- the structure of a graph without sizes
def _form(structure: Structure, first: int, fixed: Container[UOp]) -> tuple[tuple[Any, ...], Sample]:
    """Return the structure without sizes and constants, and these. Constants in `fixed` belong to the structure."""
    sizes: list[int] = []
    constants: list[tuple[int, UOp]] = []
    messages: list[str] = []
    form: list[Any] = list(structure[:first])
    for at, entry in enumerate(structure[first:]):
        if type(entry) is not tuple:
            if entry.op is Ops.CONST and entry.dtype in NUMBER_DTYPES and not (entry in fixed or is_form(entry.arg)):
                constants.append((at, entry))
                entry = "constant", entry.dtype
            elif entry.op is Ops.IOTA and isinstance(entry.arg, int):
                sizes.append(entry.arg)
                entry = "iota", entry.dtype
        elif type(entry[0]) is int:
            slot, dtype, shape, _ = entry
            sizes += shape
            entry = slot, dtype, tuple([size if size < 2 else -1 for size in shape])
        elif entry[0] is Ops.CHECK:  # whose message has sizes in it
            messages.append(entry[2])
            entry = (*entry[:2], "", *entry[3:])
        elif entry[0] in _SIZED:
            fields, build = _SIZED[entry[0]](entry[2])
            sizes += fields
            most = 0 if entry[0] in _WITH_STARTS else 1
            form_of = [size if 0 <= size <= (1 if n % 2 else most) else -1 for n, size in enumerate(fields)]
            entry = (entry[0], entry[1], build(form_of), *entry[3:])
        form.append(entry)
    return tuple(form), Sample(tuple(sizes), tuple(constants), tuple(messages))


_Fields = tuple[list[Any], Callable[[Sequence[Any]], Any]]


def _flat(arg: Any) -> _Fields:
    return list(arg), tuple


def _flat_pairs(arg: Any) -> _Fields:
    return [size for pair in arg for size in pair], lambda s: tuple(zip(s[::2], s[1::2], strict=True))


def _strides(arg: Any) -> _Fields:
    return [size for _, size in arg], lambda s: tuple([(step, n) for (step, _), n in zip(arg, s, strict=True)])


def _window(arg: Any) -> _Fields:
    return [arg[4]], lambda s: (*arg[:4], s[0])


def _unwindow(arg: Any) -> _Fields:
    return [arg[1]], lambda s: (arg[0], s[0], *arg[2:])


def _region(arg: Any) -> _Fields:
    if arg is None:
        return [], lambda _: None
    return (
        [size for start, stop, _ in arg for size in (start, stop)],
        lambda s: tuple([(a, b, step) for a, b, (_, _, step) in zip(s[::2], s[1::2], arg, strict=True)]),
    )


_WITH_STARTS = (Ops.PAD, Ops.SHRINK, Ops.ASSIGN)  # whose fields are alternately a start and a size
_SIZED: dict[Any, Callable[[Any], _Fields]] = {
    Ops.RESHAPE: _flat, Ops.EXPAND: _flat, Ops.PAD: _flat_pairs, Ops.SHRINK: _flat_pairs, Ops.STRIDE: _strides,
    Ops.WINDOW: _window, Ops.UNWINDOW: _unwindow, Ops.ASSIGN: _region,
}  # fmt: skip
"""Of each op whose arg holds sizes: these, and the arg with others."""


# --- one plan for many -----------------------------------------------------------------------------------------------
def _generalized(
    family: Family, samples: Sequence[Sample], structure: Structure, walk: GraphWalk, in_place: frozenset[int]
) -> General | None:
    """A plan with variables for the sizes that differ between samples."""
    first, last = len(walk.roots), samples[-1]
    vectors = list(zip(*[sample.sizes for sample in samples], strict=True))
    changing = [vector for vector in vectors if len(set(vector)) > 1]
    found = _variables(changing)
    if found is None:
        family.refused = "more than four sizes change independently"
        return None
    variables, expressions = found
    if max(map(max, variables), default=0) > _LONG:
        family.refused = _SPLIT
        return None
    constants: dict[int, UOp | None] = dict(last.constants)
    for (at, node), *others in zip(*[sample.constants for sample in samples], strict=True):
        if any(other[1] is not node for other in others):
            constants[at] = None
    sizes = [expressions.get(vector, vector[-1]) for vector in vectors]
    try:
        general = _with_sizes(structure, first, sizes, constants)
        origins = [node.origin for node in walk.order]
        root = closed(general, origins)
        if (odd := _odd_shape(root)) is not None:
            family.refused = f"a step of it, {odd.op.name.lower()}, depends on the sizes in another way"
            return None
        reduced = _reduced(root)
        values = {str(node.arg[0]): max(vector) for vector, node in variables.items()}
        if any(length(values) >= _LONG_SUM for length in reduced):
            family.refused = _SPLIT
            return None
        lifted = sum(node is None for node in constants.values())
        devices = walk.devices
        home = devices[0] if devices else default_device()
        plan = new_plan(general, walk.order, devices + (home,) * lifted, in_place)
        counts = [_rule(buffer.extent or str(buffer.numel)) for buffer in plan.graph.buffers]
    except KernmillError as error:  # InternalError as well: the graph has exact kernels instead
        family.refused = "the shapes in it cannot be written for sizes that are variables"
        if debug() >= 2:
            print(f"no plan for many sizes: {error}", file=sys.stderr)
        return None
    by_name = {str(node.arg[0]): vectors.index(vector) for vector, node in variables.items()}
    derived = [(i, _rule(show_size(s))) for i, s in enumerate(sizes) if isinstance(s, UOp)]
    fixed = {i: int(s) for i, s in enumerate(sizes) if isinstance(s, int)}
    return General(plan, fixed, by_name, derived, constants, counts, reduced)


def _variables(
    vectors: Sequence[tuple[int, ...]],
) -> tuple[dict[tuple[int, ...], UOp], dict[tuple[int, ...], UOp]] | None:
    """Variables for sizes that differ, and an expression for each of these. The smallest sizes are variables."""
    variables: dict[tuple[int, ...], UOp] = {}
    found: dict[tuple[int, ...], UOp] = {}
    for vector in sorted(set(vectors)):
        node = next(_fits(vector, variables, found), None)
        if node is None:
            if len(variables) == _MOST_VARIABLES:
                return None
            most = min(_LONG, max(_LEAST_BOUND, 1 << (_ROOM * max(vector) - 1).bit_length()))
            node = UOp(Ops.VARIABLE, dtypes.index, (), (f"size{len(variables)}", 2, most))
            variables[vector] = node
        size = as_size(node)
        if not isinstance(size, UOp):
            return None
        found[vector] = size
    return variables, found


def _fits(
    vector: tuple[int, ...], variables: Mapping[tuple[int, ...], UOp], found: Mapping[tuple[int, ...], UOp]
) -> Iterator[UOp]:
    """Expressions with these values: a multiple of a variable, of a product of two sizes, or a line."""
    for values, node in variables.items():
        if ratio := _ratio(vector, values):
            yield node * ratio
    for (a, one), (b, other) in itertools.combinations_with_replacement(found.items(), 2):
        if ratio := _ratio(vector, [m * n for m, n in zip(a, b, strict=True)]):
            yield one * other * ratio
    for values, node in variables.items():
        steps = {(vector[0] - v, values[0] - n) for v, n in zip(vector, values, strict=True) if n != values[0]}
        slopes = {rise // run for rise, run in steps if rise % run == 0} if steps else set[int]()
        if len(slopes) == 1 and all(rise % run == 0 for rise, run in steps):
            slope = slopes.pop()
            rest = {v - slope * n for v, n in zip(vector, values, strict=True)}
            if slope > 0 and len(rest) == 1:
                yield node * slope + rest.pop()


def _ratio(vector: Sequence[int], values: Sequence[int]) -> int:
    """Return the factor between two lists of sizes; 0 if there is none."""
    found = {v // n if v % n == 0 else 0 for v, n in zip(vector, values, strict=True)}
    return found.pop() if len(found) == 1 else 0


def _with_sizes(
    structure: Structure, first: int, sizes: Sequence[Any], constants: Mapping[int, UOp | None]
) -> Structure:
    """The structure with these sizes; constants that are None are numbers of a run, and checks say which they are."""
    given, checks = iter(sizes), itertools.count()
    found: list[Any] = list(structure[:first])
    for at, entry in enumerate(structure[first:]):
        if type(entry) is not tuple:
            if at in constants and constants[at] is None:
                entry = Ops.CONST, entry.dtype, None
            elif entry.op is Ops.IOTA and isinstance(entry.arg, int):
                entry = entry.replace(arg=next(given))
        elif type(entry[0]) is int:
            shape = tuple(itertools.islice(given, len(entry[2])))
            entry = entry[0], entry[1], shape, as_size(numel(shape))
        elif entry[0] is Ops.CHECK:
            entry = (*entry[:2], str(next(checks)), *entry[3:])
        elif entry[0] in _SIZED:
            fields, build = _SIZED[entry[0]](entry[2])
            entry = (entry[0], entry[1], build(list(itertools.islice(given, len(fields)))), *entry[3:])
        found.append(entry)
    return tuple(found)


def _odd_shape(root: UOp) -> UOp | None:
    """A node whose sources have shapes that are equal in all samples, and not as expressions."""
    for node in root.toposort():
        shapes = {s.shape for s in node.src if s.shape}
        if node.op.is_elementwise and len(shapes) > 1:
            return node
        if node.op is Ops.RESHAPE and not is_same_size(numel(node.src[0].shape), numel(node.arg)):
            return node
        if node.op is Ops.EXPAND and any(a not in (b, 1) for a, b in zip(node.src[0].shape, node.arg, strict=True)):
            return node
    return None


def _reduced(root: UOp) -> list[Callable[[Mapping[str, int]], int]]:
    """The number of elements of each reduction that has variables in it."""
    nodes = [node for node in root.toposort() if node.op is Ops.REDUCE]
    lengths = [as_size(numel(tuple([node.src[0].shape[axis] for axis in node.arg[1]]))) for node in nodes]
    return [_rule(show_size(length)) for length in dict.fromkeys(lengths) if isinstance(length, UOp)]


_RULE = r"[\w\s()+*/%-]+"


def _rule(text: str) -> Callable[[Mapping[str, int]], int]:
    """A size, written in the names of variables, as a function of their values."""
    if not re.fullmatch(_RULE, text):
        raise CompileError(f"size {text!r}: it is not a sum of products of sizes.")
    code = compile(text, "<size>", "eval")
    return lambda values: int(eval(code, {"__builtins__": {}}, values))


# --- messages
def _difference(before: Sample, now: Sample) -> str:
    changed = [(a, b) for a, b in zip(before.sizes, now.sizes, strict=True) if a != b]
    if changed:
        return f"a size changed from {changed[0][0]} to {changed[0][1]}"
    numbers = [(a.arg, b.arg) for (_, a), (_, b) in zip(before.constants, now.constants, strict=True) if a is not b]
    return f"a number changed from {numbers[0][0]} to {numbers[0][1]}" if numbers else "other kernels were dropped"


def _source_line(walk: GraphWalk) -> str:
    return next((root.origin for root in walk.roots if root.origin), None) or "an unknown line"


def _warn(family: Family, reason: str, walk: GraphWalk) -> None:
    because = f" One plan for all sizes was not possible ({family.refused})." if family.refused else ""
    _logging.getLogger("kernmill").warning(
        f"{_source_line(walk)}: kernels were compiled {_WARN_AFTER} times for one expression, the last time because "
        f"{reason}.{because} Pad the sizes to a few fixed ones, or give changing numbers as Tensor(number)."
    )


def _note_growth(walk: GraphWalk, nodes: int) -> None:
    """Warn once of a line whose graph is longer each time, such as one that joins a list that grows."""
    line = _source_line(walk)
    known = _growing.pop(line, [])
    is_said = len(known) == _WARN_AFTER
    grown = known if is_said else [*known, nodes] if known and nodes > known[-1] else [nodes]
    _growing[line] = grown
    if len(_growing) > _MOST_FAMILIES:
        _growing.popitem(last=False)
    if len(grown) == _WARN_AFTER and not is_said:
        _logging.getLogger("kernmill").warning(
            f"{line}: kernels were compiled {_WARN_AFTER} times for one line, each time for a longer graph, the last "
            f"time of {nodes} nodes. Does it join a list that grows? Write values into one tensor with room for all, "
            "as in out[i] = x, or join them once at the end."
        )


def _report(walk: GraphWalk, plan: Plan, compiled: int, seconds: float, reason: str) -> None:
    if reason and (now := recorder.active) is not None:
        now.plans.append((_source_line(walk), plan.graph, plan.memory))
        now.notes.append(Note("plan", _source_line(walk), time.perf_counter_ns(), int(1e9 * seconds), compiled, reason))
    if reason and debug() >= 1:
        print(f"compiled {compiled} kernels in {1e3 * seconds:.0f} ms, {reason}: {_source_line(walk)}", file=sys.stderr)
