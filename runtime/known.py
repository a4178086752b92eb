"""Plans found without a graph: by a key of the program's own calls.

The first run of a tree of calls makes its graph and finds its plan as every run does. It is remembered where the plan
needs nothing but the memory of its leaves; then an equal tree is one native call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kernmill.ir import OutOfMemoryError, UOp, active_overrides, setting

from . import recorder
from .device import device_list
from .execute import Run, count_launch, prepared_launches, realizing
from .lanes import open_lanes
from .memory.buffer import Buffer
from .plans.plan import Plan, plans, runs_unseen, settings_key
from .replay import is_to_be_recorded

__all__ = ["remember_run", "run_again"]

_MOST = 2048  # keys: a program has fewer different trees of calls
_known: dict[Any, tuple[Plan, Any, tuple[int, ...], int]] = {}  # the plan, its settings, the leaf of each slot, result
_lately: list[Any] = [object(), False, 0]  # overrides of settings; True if one device and no pins; plans dropped so far


def _is_simple() -> bool:
    overrides = active_overrides()
    if _lately[0] is not overrides:
        _lately[:2] = overrides, len(device_list()) == 1 and not setting("PIN")
    if _lately[2] != plans.dropped:
        _lately[2] = plans.dropped
        _known.clear()
    return _lately[1]  # type: ignore[no-any-return]


def run_again(key: tuple[Any, ...], storages: Sequence[Buffer]) -> Buffer | None:
    """The memory of a result, computed by the plan of an equal tree of calls; None if there was none, or if something
    watches runs. `storages` is the memory of the leaves, in the order of the key."""
    if is_to_be_recorded() or recorder.active is not None or not _is_simple() or (known := _known.get(key)) is None:
        return None
    plan, settings, slots, result = known
    with realizing:
        if open_lanes or settings != settings_key():
            return None
        prepared = prepared_launches(plan)
        if prepared is None:
            return None
        start = time.perf_counter_ns()
        try:
            found = prepared.run([storages[slot] for slot in slots], (), {})
        except OutOfMemoryError:  # the usual way says what the memory was for
            return None
        count_launch(time.perf_counter_ns() - start)
        return found[result]


def remember_run(key: tuple[Any, ...], leaves: Sequence[UOp], run: Run | None) -> None:
    """Remember the plan of a run for trees of calls with this key. `leaves`: as `storages` of `run_again`."""
    if run is None or not _is_simple() or not run.needs_memory_alone():
        return
    position = {leaf: number for number, leaf in enumerate(leaves)}
    slots = [position.get(leaf, -1) for leaf in run.walk.leaves]
    settings = settings_key()
    if -1 in slots or not runs_unseen() or prepared_launches(run.plan) is None:
        return
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = run.plan, settings, tuple(slots), run.plan.graph.results[0]
