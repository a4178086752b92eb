"""A model from an ONNX file: called with arrays or tensors, captured for each combination of shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy import ndarray

from kernmill.ir import DType, DTypeError, ShapeError, show_shape
from kernmill.runtime import current_recording, default_device

from ..arguments import with_sentences
from ..captures import Staging, jit
from ..lazy import no_grad
from ..tensor import Tensor
from . import operators as operators  # fills the table
from .reading import Graph, Input, graph_of, model_of
from .values import Known, Value, from_array
from .walk import NodeWalk, ReadsValues

__all__ = ["OnnxModel", "load"]


class OnnxModel:
    """A graph of ONNX operators that is called like a function."""

    def __init__(self, graph: Graph, where: str) -> None:
        self._graph, self._where = graph, where
        self._plans: dict[tuple[Any, ...], Callable[..., list[Any]] | None] = {}
        self._ready: dict[tuple[Any, ...], _CheckedPlan] = {}  # calls with inputs of these kinds need no check
        self._names = tuple(one.name for one in graph.inputs)

    @property
    def inputs(self) -> dict[str, tuple[Any, ...] | None]:
        """The shape of each input by name: a number, a name or None for each axis."""
        return {one.name: one.shape for one in self._graph.inputs}

    @property
    def dtypes(self) -> dict[str, DType | None]:
        """The dtype of each input by name; None where the model does not say."""
        return {one.name: one.dtype for one in self._graph.inputs}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self._graph.outputs

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Compute the outputs: one value, or a tuple if there are several.

        Inputs are given in order or by name, as tensors or as anything that Tensor takes. Strings are NumPy arrays,
        sequences are lists. Results are tensors, arrays of strings, lists or None.

        Raises:
            ShapeError: an input is missing or does not fit the model.
            DTypeError: an input has another element type than the model says.
        """
        given = self._in_order(inputs, named)
        kinds = _kinds(given)
        ready = None if kinds is None else self._ready.get(kinds)
        if ready is not None:
            results = ready(given)
        else:
            values = [_input_value(one, value) for one, value in zip(self._graph.inputs, given, strict=True)]
            results = self._computed(values, kinds)
        return results[0] if len(results) == 1 else tuple(results)

    def _computed(self, values: list[Value], kinds: Any) -> list[Any]:
        """Compute what was called for the first time with these kinds of inputs, or what cannot be captured."""
        if all(isinstance(v, Tensor) for v in values):
            tensors = [v for v in values if isinstance(v, Tensor)]
            key = tuple((t.shape, t.dtype, t.device) for t in tensors)
            if key not in self._plans:
                with no_grad():
                    self._plans[key] = self._plan(tensors)
            if (plan := self._plans[key]) is not None:
                if kinds is not None:
                    self._ready[kinds] = _CheckedPlan(plan, kinds, tensors)
                return plan(*[t.detach() if t.requires_grad else t for t in tensors])
        with no_grad():
            return [_result(r) for r in NodeWalk(may_read=True).run(self._graph, {}, values)]

    def _plan(self, tensors: Sequence[Tensor]) -> Callable[..., list[Any]] | None:
        """A captured function for these shapes, or None where values decide what is computed."""
        first = NodeWalk(may_read=False)
        try:
            results = first.run(self._graph, {}, list(tensors))
        except ReadsValues:
            return None
        if not all(isinstance(r, Tensor) for r in results):
            return None
        journal, graph = first.journal, self._graph

        def run(*given: Tensor) -> list[Any]:
            with no_grad():
                return [_result(r) for r in NodeWalk(may_read=False, journal=journal).run(graph, {}, list(given))]

        return jit(run)

    def _in_order(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Sequence[Any]:
        """The inputs of a call in the order of the model; None for optional ones that are not given."""
        wanted = self._names
        if not named and len(inputs) == len(wanted):
            return inputs
        if len(inputs) > len(wanted) or (set(named) - {*wanted[len(inputs) :]}):
            raise ShapeError(f"{self._where}: it takes the inputs {', '.join(wanted)}. Give each of them once.")
        given = {**dict(zip(wanted, inputs, strict=False)), **named}
        missing = [one.name for one in self._graph.inputs if one.name not in given and one.kind != "optional"]
        if missing:
            raise ShapeError(
                f"{self._where}: the inputs {', '.join(missing)} are missing. It takes {', '.join(wanted)}."
            )
        return [given.get(name) for name in wanted]


class _CheckedPlan:
    """A plan for inputs that need no check: arrays are copied to memory that is used again."""

    def __init__(self, plan: Callable[..., list[Any]], kinds: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        self._plan = plan
        self._staged = [
            None if len(kind) == 4 else Staging(t.device, t.dtype, t.shape, t.numel())
            for kind, t in zip(kinds, tensors, strict=True)
        ]

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        return self._plan(
            *[
                value if staged is None else staged.tensor(value)
                for staged, value in zip(self._staged, given, strict=True)
            ]
        )


def _kinds(given: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the kinds of the inputs, or None where each call must be checked."""
    kinds: list[Any] = []
    for value in given:
        if isinstance(value, Tensor) and not value.requires_grad:
            kinds.append((value.shape, value.dtype, value.device, True))
        elif type(value) is ndarray and value.dtype.kind in "biuf" and value.dtype.isnative:
            kinds.append((value.shape, value.dtype, default_device()))
        else:
            return None
    return None if current_recording() is not None else tuple(kinds)


def _input_value(one: Input, given: Any) -> Value:
    if given is None or (isinstance(given, list) and one.kind in ("sequence", "optional")):
        return None if given is None else [_input_value(Input(one.name, None, "tensor", None), item) for item in given]
    if isinstance(given, Tensor):
        value: Value = given
    else:
        import numpy as np

        value = from_array(np.asarray(given))
        if isinstance(value, Known) and not value.is_text:
            value = value.tensor
    if isinstance(value, Tensor):
        _check(one, value)
    return value


def _check(one: Input, value: Tensor) -> None:
    if one.dtype is not None and value.dtype is not one.dtype:
        raise DTypeError(
            f"input {one.name!r}: {value.dtype.name}, and the model takes {one.dtype.name}. Write "
            f"x.cast({one.dtype.name!r})."
        )
    shape = one.shape
    if shape is None:
        return
    sizes: dict[str, int] = {}
    fits = len(shape) == len(value.shape)
    for want, size in zip(shape, value.shape, strict=False):
        fits = fits and (not isinstance(want, int) or want == size)
        fits = fits and (not isinstance(want, str) or sizes.setdefault(want, size) == size)
    if not fits:
        wanted = ", ".join("?" if s is None else str(s) for s in shape)
        raise ShapeError(f"input {one.name!r}: shape {show_shape(value.shape)}, and the model takes ({wanted}).")


def _result(value: Value) -> Any:
    if isinstance(value, list):
        return [_result(v) for v in value]
    if isinstance(value, Known):
        return value.array if value.is_text else value.tensor
    return value


@with_sentences
def load(path: str | os.PathLike[str]) -> OnnxModel:
    """Open an ONNX file and return its graph as a function of tensors.

    All operators, constants and versions are checked here. External data are read from the model's own folder only.

    Raises:
        FormatError: the file is damaged, contradicts itself, or is of a later version.
        KernmillError: operators that are not supported; the message lists all.
        SettingError: the package onnx is not installed.
    """
    where = os.fspath(path)
    return from_proto(model_of(where), where, Path(where).resolve().parent)


def from_proto(proto: Any, where: str = "model", folder: Path | None = None) -> OnnxModel:
    """Return a model of the package onnx as a function of tensors.

    Raises:
        FormatError, KernmillError: as `load`.
    """
    return OnnxModel(graph_of(proto, where, folder), where)
