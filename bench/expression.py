"""Rows that are one expression on tensors: how such a row is checked and prepared.

Each peer gets the best ordinary form that its users write. Where there are several good ones (weights as they come or
transposed, channels first or last) it gets all of them, and the fastest here is the one that is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .ceilings import ceiling_sampler
from .peers import PEERS, peer
from .row import Prepared, Sampler, Setup, WrongResult
from .timing import call_sampler, timed

__all__ = ["Expression", "Form", "check", "contiguous_bf16", "moved", "normal", "prepare_expression"]

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]
Run = Callable[..., Any]
_BLOCK = 1 << 16
_ONCE_S = 1.0
_TRIES = 5  # of each form


@dataclass(frozen=True)
class Form:
    """One way to say it: `run(library, *tensors)`, on tensors that `arrange(library, *tensors)` made beforehand.

    `seen`: the result, as an array, with the axes of the reference; nobody's time.
    """

    run: Run
    arrange: Callable[..., Sequence[Any]]
    seen: Callable[[Array], Array] = lambda array: array


@dataclass(frozen=True)
class Expression:
    """The work of a row: `inputs` from a size, `reference` in float64, `run[peer](library, *tensors)`, or its forms.

    torch.compile runs what eager torch runs (the first form) unless it has an entry of its own; None leaves a peer out.
    """

    size: Size
    tiny: Size
    inputs: Callable[[np.random.Generator, Size], tuple[Array, ...]]
    reference: Callable[..., Array]
    run: Mapping[str, Run | tuple[Run | Form, ...] | None]
    work: Callable[[Size], float]
    tolerance: float = 1e-5
    ceiling: str = ""  # what the machine can do at most: a name of ceilings.py, in the unit of `work`
    constants: int = 0  # so many of the last inputs are the same in every call
    dtype: str = ""  # float inputs are converted to it


def check(name: str, result: Array, reference: Array, tolerance: float) -> None:
    """Compare with the reference: relative to each value, plus a share of the largest (what a float32 sum loses).

    Raises:
        WrongResult: another shape, a nan where the reference has none, or an error above the tolerance.
    """
    result, reference = np.asarray(result), np.asarray(reference, np.float64)
    if result.shape != reference.shape:
        raise WrongResult(f"{name}: shape {result.shape}, the reference has {reference.shape}")
    if not reference.size:
        return
    got, right = result.reshape(-1), reference.reshape(-1)
    largest = max(abs(float(right.max())), abs(float(right.min())))
    wrong, worst, excess = 0, 0, 0.0
    for start in range(0, right.size, _BLOCK):  # blocks stay in a cache
        there = right[start : start + _BLOCK]
        error = np.abs(got[start : start + _BLOCK] - there) - (np.abs(there) + largest) * (tolerance / 2)
        bad = ~(error <= 0)
        if bad.any():
            error[np.isnan(error)] = np.inf
            first = int(error.argmax())
            wrong += int(bad.sum())
            worst, excess = (start + first, error[first]) if error[first] > excess else (worst, excess)
    if wrong:
        place = tuple(int(i) for i in np.unravel_index(worst, reference.shape))
        raise WrongResult(
            f"{name}: {wrong} of {right.size} values wrong, at {place} {got[worst]} instead of {right[worst]}"
        )


def prepare_expression(work: Expression, setup: Setup) -> Prepared:
    """Inputs, a call for each peer; the third result (kernmill: every one, so that a replay is among them) is compared.

    Raises:
        WrongResult: kernmill's result is wrong. Another peer that fails is left out, with a note.
    """
    from kernmill.runtime import collecting_kernels

    size = work.tiny if setup.tiny else work.size
    with collecting_kernels():  # these are no kernels of the row
        arrays = work.inputs(np.random.default_rng(7), size)
        reference = work.reference(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays))
    samplers: dict[str, Sampler] = {}
    notes: list[str] = []
    for name in setup.peers:
        if not forms_of(work, name):
            continue
        try:
            call, spent = best_call(work, name, arrays, reference, setup)
        except Exception as error:
            if name == "kernmill" or setup.tiny:
                raise
            notes.append(f"{name} left out: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
            continue
        if name != "kernmill" and spent > _ONCE_S:  # so slow that this one call says enough
            samplers[name] = partial(float, spent)
            notes.append(f"{name}: one call only, before the rounds")
            del call
        else:
            samplers[name] = call_sampler(call, setup.sample_s, setup.threads)
        if name == "kernmill":
            notes.append(kernels_note(work, arrays))
    if work.ceiling and not setup.tiny:
        sampler, note = ceiling_sampler(work.ceiling, work.work(size), setup.sample_s, setup.threads)
        samplers |= {"ceiling": sampler} if sampler else {}
        notes += [note] if note else []
    return Prepared(samplers, work.work(size), lambda: notes)


def forms_of(work: Expression, name: str) -> list[Form]:
    """The forms of a peer."""
    found = work.run.get(PEERS[name].column or name)
    if name == "torch.compile" and name not in work.run:
        first = work.run.get("torch")
        found = (first[0],) if isinstance(first, tuple) else first
    if found is None:
        return []
    return [one if isinstance(one, Form) else Form(one, lambda _, *given: given)
            for one in (found if isinstance(found, tuple) else (found,))]  # fmt: skip


def bound(work: Expression, name: str, form: Form, arrays: Sequence[Array]) -> Callable[[], Any]:
    """A call of one form, on tensors of its own."""
    library = peer(name)
    made = [library.tensor(a, work.dtype if a.dtype.kind == "f" else "") for a in arrays]
    tensors = list(form.arrange(library.lib, *made))
    cut = len(tensors) - work.constants
    return library.bind(form.run, tensors[:cut], tensors[cut:])


def best_call(
    work: Expression, name: str, arrays: Sequence[Array], reference: Array, setup: Setup
) -> tuple[Callable[[], Any], float]:
    """The fastest of a peer's forms, each of them checked, and the seconds of a call. jit: run, capture, replay."""
    calls: list[tuple[Callable[[], Any], float]] = []
    for form in forms_of(work, name):
        call, spent = bound(work, name, form, arrays), 0.0
        for turn in range(3):
            start = time.perf_counter()
            result = call()
            spent = time.perf_counter() - start
            if turn == 2 or name == "kernmill":
                check(name, form.seen(peer(name).array(result)), reference, work.tolerance)
            del result
        calls.append((call, spent))
    if len(calls) > 1 and not setup.tiny:  # in turn: what slows the machine slows them all
        quick = [n for n, (_, spent) in enumerate(calls) if spent < _ONCE_S]
        rounds = [[timed(calls[n][0], 1) for n in quick] for _ in range(_TRIES)]
        for n, *times in zip(quick, *rounds, strict=True):
            calls[n] = calls[n][0], min(times)
    return min(calls, key=lambda pair: pair[1])


def kernels_note(work: Expression, arrays: Sequence[Array]) -> str:
    """Kernels that realizing a new graph launches."""
    from kernmill.runtime import recording

    library = peer("kernmill")
    form = forms_of(work, "kernmill")[0]
    made = [library.tensor(a, work.dtype if a.dtype.kind == "f" else "") for a in arrays]
    tensors = form.arrange(library.lib, *made)
    with recording() as recorded:
        form.run(library.lib, *tensors).realize()
    count = recorded.kernel_count
    return f"{count} kernel{'s' if count != 1 else ''}"


# --- inputs and work -------------------------------------------------------------------------------------------------
def contiguous_bf16(array: Array) -> Array:
    """float32 values that bfloat16 has: rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def normal(count: int, rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """`count` arrays of normal numbers."""
    return tuple(rng.standard_normal(size, np.float32) for _ in range(count))


def moved(passes: int) -> Callable[[Size], float]:
    """Bytes of a float32 tensor read or written `passes` times."""
    return partial(_moved, passes)


def _moved(passes: int, size: Size) -> float:
    return 4.0 * passes * math.prod(size)
