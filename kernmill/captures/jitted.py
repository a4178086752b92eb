"""jit: capture what a function launches, then replay it in one native call.

The first call runs the function normally, so that lazily created state exists afterwards. Then each new combination of
argument structure, shapes, dtypes, devices, plain argument values and settings is captured once and replayed from then
on. Python code does not run in a replay; its dependencies are checked (`guards.py`), and a change causes a new capture.

How a replay preserves the meaning of plain execution:

- A buffer of the recording that existed before is a *source*, found each time through the tensor that owned it.
- Results, gradients and other new tensors are *fresh*: memory without other references, each time.
- A tensor that was assigned gets its new values again: in place if the recording wrote in place, otherwise by replacing
  its memory with a fresh buffer. Before a write in place it moves to a copy if another tensor or a NumPy view refers to
  its memory.
"""

from __future__ import annotations

import inspect
import reprlib
import sys
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, update_wrapper
from time import perf_counter_ns
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from kernmill.ir import (
    DTypeError,
    GradientError,
    KernmillError,
    OutOfMemoryError,
    ShapeError,
    UOp,
    debug,
    process_lock,
    show_shape,
)
from kernmill.runtime import Buffer, counters, current_recording, recorder, recording, rehearsal

from ..autocasting import autocast_state
from ..lazy import Lazy, is_grad_enabled, is_training, tracing_state, tracked_tensors
from ..methods.random import _generators
from ..size import SymbolicSize
from ..tensor import Tensor
from ..variable import given_values, values_of, variables_below, with_values
from ..views import anchor, cut_history, made_before, stale
from .capture import Capture, OvertakenError, Views
from .entry import CapturedCall
from .fast_path import write_fast_path
from .guards import Guard, Walk
from .ownership import (
    Holders,
    Tensors,
    alive_tensors,
    assigned_tensors,
    is_free,
    make_ready,
    make_real,
    refresh,
    stored,
)
from .pytree import Parts, opened, rebuild, tree_flatten
from .reader import MISS, settings_now
from .reasons import key_difference
from .rollback import Rollback

__all__ = ["CacheInfo", "CaptureMemory", "Jit", "jit"]

P = ParamSpec("P")
R = TypeVar("R")

MOST_KEYS = 16
MOST_RECENT = 4
MOST_VARIANTS = 4  # of one key: their guards differ
MAX_RECAPTURES = 3  # captures of one key before a warning
_CONSTANT_CAPTURES = 2  # captures for the same shapes before Python floats become arguments of the kernels
_capturing = process_lock()
_under_way: list[None] = []  # as many as are captured or run with values of variables now, by all threads


class CacheInfo(NamedTuple):
    """Statistics of a captured function. `kernels`: of the last capture; `entries`: current number."""

    captures: int
    replays: int
    kernels: int
    entries: int


class CaptureMemory(NamedTuple):
    """Bytes that captures keep for intermediates and constants, and the least that their longest-lived moment needs."""

    kept_bytes: int
    least_bytes: int
    by_device: Mapping[str, int]  # of `kept_bytes`


class _Call(NamedTuple):
    """The arguments of one call. `tensors`: theirs, then the gradients of these."""

    tensors: list[Lazy]
    parts: Parts
    key: Any
    values: dict[str, int]  # of variables


class Jit(Generic[P, R]):
    """A function that is captured and replayed. Calls from several threads run one at a time.

    `runs_first`: True if the first call runs normally, for state that is created lazily. Without such state the first
    call can be captured too. `replays`: number of replays so far.
    """

    def __init__(self, function: Callable[P, R], *, runs_first: bool = True) -> None:
        self.__kernmill_captured__ = function
        self._runs_first = runs_first
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._owner: weakref.ref[Any] | None = None
        self._lock = process_lock()
        self.reset()
        update_wrapper(self, function, updated=())

    def reset(self) -> None:
        """Forget all captures, and that there was a first call."""
        with self._lock:
            self._ran = not self._runs_first
            self._entries: OrderedDict[Any, list[CapturedCall]] = OrderedDict()
            self._recent: list[CapturedCall] = []  # tried before the arguments are flattened
            self._captured: dict[Any, int] = {}  # captures by key, the last one at the end; 0: dropped
            self._same_shapes: dict[Any, int] = {}  # captures by shapes, whatever the plain values were
            self._captures = self.replays = self._kernels = 0
            self._warned: set[str] = set()
            self._given: dict[Any, set[Any]] = {}  # the numbers that were arguments of captures, by name and shapes

    def cache_info(self) -> CacheInfo:
        """Return the number of captures and replays so far, kernels of the last capture, and entries."""
        return CacheInfo(self._captures, self.replays, self._kernels, sum(map(len, self._entries.values())))

    def memory(self) -> CaptureMemory:
        """Bytes that the captures keep. Units: bytes."""
        kept = [entry.replay for entries in self._entries.values() for entry in entries]
        by_device = sum((Counter(r.kept_by_device) for r in kept), Counter[str]())
        return CaptureMemory(by_device.total(), sum(r.least_bytes for r in kept), by_device)

    # --- as a method: one captured function for each object
    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = f"_jit_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        attribute = getattr(self, "_attribute", f"_jit_{self._name}")
        bound = vars(instance).get(attribute)
        if not isinstance(bound, Jit) or bound._owner is None or bound._owner() is not instance:  # a copied object
            bound = Jit(self.__kernmill_captured__.__get__(instance, owner), runs_first=self._runs_first)
            bound._owner = weakref.ref(instance)
            vars(instance)[attribute] = bound
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Jit, runs_first=self._runs_first), (self.__kernmill_captured__,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Jit[P, R]:
        return Jit(self.__kernmill_captured__, runs_first=self._runs_first)

    # --- calls
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's result. No gradient flows from it to tensors outside.

        Raises:
            KernmillError: an argument is a NumPy array; in a capture: the function reads values.
            GradientError: an argument has a history that backward() would have to go through.
            IndexRangeError: an index in a tensor is out of range, also in a replay.
        """
        if tracing_state() or (_under_way and (current_recording() is not None or given_values())):
            # inside of another captured function, or of one that is traced
            return self.__kernmill_captured__(*args, **kwargs)
        with self._lock:
            if not _generators or not _has_pending():
                for entry in self._recent:
                    found = MISS if entry.call is None else entry.call(args, kwargs)
                    if found is not MISS:
                        self.replays += 1
                        return found  # type: ignore[no-any-return]
            call = _flatten_call(args, kwargs)
            for entry in self._entries.get(call.key, ()) if self._ran else ():
                now = entry.matches(call.tensors)
                if now is not None:
                    self.replays += 1
                    result = entry.run(call.parts.holders, now, call.values)
                    self._remember(entry, args, kwargs)
                    return result  # type: ignore[no-any-return]
            if not call.values:
                return self._run_or_capture(args, kwargs, call)
            named: Any = {name: opened(value) for name, value in kwargs.items()}
            args, kwargs = opened(args), named
            with _turn(), with_values(call.values):  # equal nodes of two threads would have two values
                before = {ref: tensor.uop for ref, tensor in tracked_tensors() if "uop" in tensor.__dict__}
                try:
                    result = self._run_or_capture(args, kwargs, call)
                    self._refuse_what_depends(before)
                except BaseException:  # also roll back assignments of a failed call
                    _put_back(before)
                    raise
            return result

    def _refuse_what_depends(self, before: dict[weakref.ref[Lazy], UOp]) -> None:
        """Nothing that outlives a call may depend on the values that its variables had in it.

        Raises:
            ShapeError: a tensor that this call made or assigned is not computed yet and names a variable.
        """
        for names, tensor, _ in _dependent(before):
            self.reset()
            raise ShapeError(
                f"jit: {self._name} leaves a tensor of shape {show_shape(tensor.uop.shape)} that is not computed "
                f"and depends on {', '.join(names)}, which has a value in this call only. Realize or return it."
            )

    def _walk(self, objects: Iterable[Any], earlier: Walk | None = None) -> Walk:
        walk = Walk(None if earlier is None else earlier.scope)
        roots = [(walk.name(value), value, getattr(value, "__name__", type(value).__name__))
                 for value in (self.__kernmill_captured__, *objects)]  # fmt: skip
        roots += [(f"{walk.name(g)}.state", g.state, "the random numbers") for g in _generators.values()]
        walk.visit([*roots, (walk.name(_generators), _generators, "the random numbers")])
        return walk

    def _run_or_capture(self, args: Any, kwargs: Any, call: _Call) -> R:
        """Run the first call or a capture; if it runs out of memory, its changes are rolled back, or the error says
        which are not."""
        with _turn() if self._ran else nullcontext():
            rollback = Rollback(self._name, self._walk(call.parts.objects), call.parts)
            try:
                return (
                    self._capture(args, kwargs, call, rollback)
                    if self._ran
                    else self._first(args, kwargs, call, rollback)
                )
            except OutOfMemoryError as error:
                error.add_note(rollback.put_back())
                raise

    def _first(self, args: Any, kwargs: Any, call: _Call, rollback: Rollback) -> R:
        """Run plainly; afterwards nothing that the function made is lazy."""
        plain: Callable[..., R] = self.__kernmill_captured__
        with rehearsal():
            result = plain(*args, **kwargs)
            found, held = _parts(result), self._container_tensors(call)
            guarded, before = self._walk(call.parts.objects).tensors.values(), rollback.walk.tensors.values()
            given = [t for tensor in (*call.tensors, *held) for t in (tensor, tensor.grad) if t is not None]
            _views_in([*found.tensors, *held, *guarded], (*before, *call.tensors), call.values)
            make_real([*found.tensors, *(t for t in guarded if not is_free(t)), *given])
        for tensor in found.tensors:
            _without_history(tensor)
        self._ran = True
        return _with_numbers(result, found, call.values)  # type: ignore[no-any-return]

    def _capture(self, args: Any, kwargs: Any, call: _Call, rollback: Rollback) -> R:
        reason = "" if recorder.active is None and not debug() else self._reason(call)
        with recorder.span("capture", self._name):
            start, compiled = perf_counter_ns(), counters.compiled
            result = self._captured_now(args, kwargs, call, rollback)
            end, new = perf_counter_ns(), counters.compiled - compiled
            if (now := recorder.active) is not None:
                now.notes.append(recorder.Note("capture", self._name, end, end - start, new, reason))
        if debug():
            print(f"captured {self._name} in {(end - start) / 1e6:.0f} ms, {reason}", file=sys.stderr)
        return result

    def _reason(self, call: _Call) -> str:
        """Return why a call is captured: what differs from the last capture, or from those of the same key."""
        if call.key in self._captured:
            variants = self._entries.get(call.key, ())
            if not variants:
                return f"its capture had been dropped ({MOST_KEYS} combinations of arguments are kept)"
            label = next((label for old in variants if (label := old.guard.explain())), "")
            return f"{label} changed" if label else "a tensor that it works on is another one"
        if not self._captured:
            return "the first capture"
        try:
            parameters = [*inspect.signature(self.__kernmill_captured__).parameters.values()]
        except (TypeError, ValueError):
            parameters = []  # their names are unknown
        return key_difference(next(reversed(self._captured)), call.key, parameters)

    def _captured_now(self, args: Any, kwargs: Any, call: _Call, rollback: Rollback) -> R:
        before = rollback.walk
        make_ready([t for t in (*before.tensors.values(), *assigned_tensors()) if not is_free(t)])
        everything = alive_tensors()
        known = Tensors(call.tensors, before.tensors.values(), everything)
        holders = Holders(call.parts)
        known.renew()

        def release_dropped(reads: Iterable[Buffer]) -> None:
            if gradients := rollback.dropped():
                held = (everything, call.tensors, call.parts.tensors, before.tensors.values(), rollback.tensors())
                known.release(gradients, held, (*recorded.buffers(), *reads))

        alike = self._same_shapes[call.key[1:]] = self._same_shapes.get(call.key[1:], 0) + 1
        with recording(shares_numbers=alike > _CONSTANT_CAPTURES) as recorded, made_before(everything):
            plain: Callable[..., R] = self.__kernmill_captured__
            states = _random_states(before)
            recorded.on_realize = release_dropped
            result = plain(*args, **kwargs)
            self._warn_of_constants(before, states)
            found = _parts(result)
            after = self._walk(call.parts.objects, before)
            made = [*found.tensors, *self._container_tensors(call), *known.gradients()]
            made += [t for location, t in after.tensors.items() if t is not before.tensors.get(location)]
            views = _views_in(made, everything, call.values)
            made += [owner for owner, _ in views.values()]
            make_real([*(t for t in made if id(t) not in views), *known.changed(recorded)], always=True)
        for tensor in made:
            if id(tensor) in views:
                tensor._requires_grad = False
                stale(tensor)
        ids = {id(tensor) for tensor in (*everything, *made, *after.tensors.values())}
        new = [tensor for tensor in alive_tensors() if id(tensor) not in ids]
        self._warn_of_escapes(known.coming_from(new, recorded))
        for tensor in made:
            if id(tensor) not in views:
                _without_history(tensor)
        self._warn_of_numbers(args, kwargs, call)
        with suppress(OutOfMemoryError, OvertakenError):  # no entry is kept; this call is done
            entry = Capture(recorded, known, (Guard(before), after), holders, views).entry(result)
            before.forget_tensors()
            self._keep(call.key, entry, after)
        return _with_numbers(result, found, call.values)  # type: ignore[no-any-return]

    def _container_tensors(self, call: _Call) -> list[Lazy]:
        """The tensors in containers of the arguments.

        Raises:
            ShapeError: a size that only this call has was put there.
        """
        found = _parts(call.parts.holders)
        if found.sizes:
            raise ShapeError(
                f"jit: {self._name} stores the symbolic size {found.sizes[0]!r} in an argument. It differs per "
                "call: return it."
            )
        return found.tensors

    def _remember(self, entry: CapturedCall, args: Any, kwargs: Any) -> None:
        """Try this entry first from now on, if it has straight-line code."""
        if entry.call is None:
            entry.call = write_fast_path(entry, args, kwargs)
        if entry.call is not None:
            self._recent = [entry, *(e for e in self._recent if e is not entry)][:MOST_RECENT]

    def _keep(self, key: Any, entry: CapturedCall, after: Walk) -> None:
        self._captures += 1
        self._kernels = entry.replay.kernel_count
        times = self._captured.pop(key, 0) + 1
        self._captured[key] = times  # the last one of all
        variants = self._entries.setdefault(key, [])
        if times > MAX_RECAPTURES:
            changed = next((label for old in variants if (label := old.guard.explain())), "a tensor it works on")
            self._warn(
                "values",
                f"was captured {times} times for the same arguments, since {changed!r} changes. Make it a Tensor; "
                "each capture costs as much as many replays.",
            )
        variants.insert(0, entry)
        self._forget_entries(variants[MOST_VARIANTS:])
        del variants[MOST_VARIANTS:]
        self._entries.move_to_end(key)
        if len(self._entries) > MOST_KEYS:
            oldest, dropped = self._entries.popitem(last=False)
            self._forget_entries(dropped)
            self._captured[oldest] = 0  # captures before it do not count for the warning
            self._warn(
                "keys",
                f"was called with more than {MOST_KEYS} combinations of shapes and plain values. "
                "Use fewer: pad the shapes, or make the values tensors; each capture costs as much as many replays.",
            )

    def _forget_entries(self, entries: list[CapturedCall]) -> None:
        self._recent = [entry for entry in self._recent if entry not in entries]

    def _warn_of_constants(self, walk: Walk, states: dict[str, bytes]) -> None:
        """Warn of values that replays keep from this capture, although they may change."""
        for label, reason in walk.unwatched.items():
            self._warn(
                f"unwatched {label}",
                f"reads {label!r} ({reason}): changes of it are not noticed. Make it a Tensor argument.",
            )
        now = _random_states(walk)
        drawn = [label for label, state in states.items() if now.get(label) != state]
        if drawn:
            self._warn(
                "random",
                f"drew random numbers from {', '.join(drawn)} while it was captured: replays repeat these numbers. "
                "Use Tensor.rand and its like, or draw them outside and make them a Tensor argument.",
            )

    def _warn_of_numbers(self, args: Any, kwargs: Any, call: _Call) -> None:
        """Warn of number arguments that cause a capture for each value."""
        try:
            given = inspect.signature(self.__kernmill_captured__).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # their names are unknown
            return
        for name, value in given.items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            values = self._given.setdefault((name, call.key[1:]), set())
            if len(values) <= MAX_RECAPTURES:
                values.add(value)
            if len(values) > MAX_RECAPTURES:
                size = ", or as Variable(..).bind(..) where it is a size" if isinstance(value, int) else ""
                self._warn(
                    f"number {name}",
                    f"was captured for {len(values)} values of the argument {name!r}, now {value!r}. Give it as a "
                    f"tensor, Tensor({name}){size}; each capture costs as much as many replays.",
                )

    def _warn_of_escapes(self, new: Sequence[Lazy]) -> None:
        """Warn of tensors from the capture that are alive, at no location that a replay fills."""
        if new:
            self._warn(
                "escape",
                f"stores a tensor of shape {show_shape(new[0].uop.shape)} in an object that jit does not inspect: "
                "replays leave it unchanged. Return it, or keep it in a list, a dict, or an attribute of your own "
                "class.",
            )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            import logging  # takes a few milliseconds, and most programs are not warned

            self._warned.add(kind)
            logging.getLogger("kernmill").warning(f"jit: {self._name} {text}")


@overload
def jit(function: Callable[P, R]) -> Jit[P, R]: ...
@overload
def jit() -> Callable[[Callable[P, R]], Jit[P, R]]: ...
def jit(function: Callable[..., Any] | None = None) -> Any:
    """Capture what a function of tensors launches, and replay it: `@jit`, or `fast = jit(function)`; also for methods.

    The first call runs normally, the next captures, later ones replay without running any Python of the function. Other
    shapes, dtypes, devices or plain arguments cause a new capture. So does a change of a Python value that it reads
    from its closure, its globals, or the attributes of objects it reaches from there. Side effects other than computing
    tensors, such as printing, happen in captures only.

    Changes in place are noticed in NumPy arrays of up to 1 MB and in lists, tuples and dicts of up to 4096 entries. A
    larger one keeps its value from the capture, and so does a value more than 32 levels deep. The logger "kernmill"
    warns of it, once for each value: make it a Tensor argument. Numbers from `random` or `numpy.random` are constants
    of the replay, with a warning as well; those of `Tensor.rand` and related functions are new each time.
    """
    if function is not None and not callable(function):
        raise DTypeError(f"jit: {reprlib.repr(function)} is not a function. Write @jit above one, or jit(function).")
    return jit if function is None else Jit(function)


@contextmanager
def _turn() -> Generator[None]:
    """Let one thread capture at a time. Replays in other threads do not check for a recording while there is none."""
    with _capturing:
        _under_way.append(None)
        try:
            yield
        finally:
            _under_way.pop()


def _random_states(walk: Walk) -> dict[str, bytes]:
    """Return the states of Python's and NumPy's random generators: the global ones, and those that the walk met."""
    import pickle

    found: dict[str, bytes] = {}
    python, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if python is not None:
        found["random"] = pickle.dumps(python.getstate())
    if numpy is not None:
        found["numpy.random"] = pickle.dumps(numpy.get_state(legacy=False))
    for label, generator in walk.generators.items():
        try:
            found[repr(label)] = pickle.dumps(generator)
        except Exception:  # it has no state, such as random.SystemRandom
            continue
    return found


def _without_history(tensor: Lazy) -> None:
    if tensor.requires_grad and isinstance(tensor, Tensor) and not tensor._is_leaf():
        tensor._requires_grad = False
        refresh([tensor])


def _views_in(tensors: Sequence[Lazy], before: Iterable[Lazy], values: Mapping[str, int]) -> Views:
    """The views among tensors that a function made, by id: their tensor, and the changes to them (`anchor`). No
    gradient flows from them. `before`: tensors that existed before; `values`: of variables in this call."""
    known = {id(tensor): tensor for tensor in before}
    made = {id(t): t for t in tensors if id(t) not in known and t._link is not None}  # each once
    new = [t for t in made.values() if _has_fixed_shape(t)]
    for tensor in new:
        if tensor._requires_grad:
            cut_history(tensor)
    named = [(one._link, one) for one in (*known.values(), *new) if type(one._link) is tuple]
    links = {id(link): one for link, one in named}  # `named` keeps them: no other link takes such an id
    return {id(tensor): found for tensor in new if (found := anchor(tensor, links, values)) is not None}


def _has_fixed_shape(tensor: Lazy) -> bool:
    return all(isinstance(size, int) for size in tensor.node_shape)


def _dependent(before: Mapping[weakref.ref[Lazy], UOp]) -> Iterator[tuple[list[str], Lazy, UOp | None]]:
    """Tensors with another node than before, or new ones, that name variables: which, and the node they had."""
    for ref, tensor in tracked_tensors():
        if "uop" not in tensor.__dict__:
            continue
        old = before.get(ref)
        if tensor.uop is not old and (names := variables_below(tensor.uop)):
            yield names, tensor, old


def _put_back(before: Mapping[weakref.ref[Lazy], UOp]) -> None:
    for _, tensor, old in _dependent(before):
        if old is not None:
            tensor._put(old)


def _has_pending() -> bool:
    """True if the state of some random numbers is not up to date."""
    return any(generator.pending for generator in _generators.values())


def _parts(value: Any) -> Parts:
    found = Parts()
    tree_flatten(value, found)
    return found


def _with_numbers(result: Any, found: Parts, values: Mapping[str, int]) -> Any:
    """Replace the symbolic sizes of a result by the numbers of this call."""
    if not found.sizes:
        return result
    made: list[Any] = []

    def number_of(part: Any) -> int | None:
        if not isinstance(part, (Lazy, SymbolicSize)):
            return None
        made.append(part.number(values) if isinstance(part, SymbolicSize) else part)
        return len(made) - 1

    return rebuild(result, number_of)(made)


def _flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Flatten the arguments, realize their tensors, and compute the cache key."""
    parts = Parts()
    named = [(name, kwargs[name]) for name in sorted(kwargs)]
    structure = tree_flatten((args, tuple(named)), parts)
    tensors = parts.tensors[:]
    for tensor in parts.tensors:
        if tensor.requires_grad:
            _check_history(tensor)
            if tensor.grad is not None:
                tensors.append(tensor.grad)
    lazy = [tensor for tensor in tensors if stored(tensor.uop) is None]
    if lazy or _has_pending():
        try:
            make_real(lazy, always=True)
        except KernmillError:  # gradients that a failed step left are as good as unknown: the next one drops them
            make_ready(lazy)
            if any(stored(tensor.uop) is None for tensor in parts.tensors):
                raise
            tensors = [tensor for tensor in tensors if stored(tensor.uop) is not None]
    tokens: list[Any] = []
    buffers = []
    for tensor in tensors:
        node = stored(tensor.uop)
        assert node is not None
        buffers.append(id(node.storage))
        uop = tensor.uop
        tokens.append((uop.shape, uop.dtype, node.storage.device, tensor.requires_grad, tensor.grad is None))
    if len(set(buffers)) < len(buffers):  # which share memory, and which are the same tensor
        identities = [id(tensor) for tensor in tensors]
        tokens.append((*map(buffers.index, buffers), *map(identities.index, identities)))
    mode = (is_grad_enabled(), is_training(), autocast_state(), *settings_now())
    key = (structure, *tokens, mode)
    return _Call(tensors, parts, key, values_of(parts.bounds))


def _check_history(tensor: Lazy) -> None:
    if is_grad_enabled() and isinstance(tensor, Tensor) and not tensor._is_leaf():
        raise GradientError(
            f"jit: an argument of shape {tensor.shape} was computed from tensors with requires_grad, and a replay "
            "cannot propagate gradients to computations outside. Pass it as .detach(), or compute it inside the "
            "function."
        )
