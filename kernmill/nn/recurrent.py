"""Recurrent layers: RNN, LSTM and GRU. Names of arguments and tensors, shapes and the order of gates are PyTorch's.

A layer is unrolled over the sequence: a different length is a different graph, and another capture. Without gradients,
and outside of `jit`, a layer captures itself when a shape comes again: the graph of a sequence has thousands of nodes.
"""

from __future__ import annotations

import math
import reprlib
import weakref
from collections.abc import Sequence
from typing import Any

from kernmill.ir import DType, SettingError, ShapeError, dtypes, show_shape

from ..arguments import is_whole
from ..captures import jit
from ..lazy import grad_state
from ..methods.movement import cat, stack
from ..tensor import Tensor
from .module import Module

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


_MOST_LAYERS = 1 << 12  # a layer has a separate attribute for each weight and is part of each graph


_MOST_CAPTURED = 8  # shapes of a layer: each capture keeps its intermediates, and jit warns above 16
_MOST_MET = 64  # shapes that are noted in order to find those that come again
_met: weakref.WeakKeyDictionary[Recurrent, dict[Any, bool]] = weakref.WeakKeyDictionary()
"""The shapes of earlier calls without gradients; True: it is captured."""


class Recurrent(Module):
    """Layers over the positions of a sequence, in one direction or both; subclasses define one step."""

    gates = 1  # blocks of rows in each weight
    states = 1  # tensors that are passed from step to step

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        name = type(self).__name__
        for word, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if not isinstance(size, int) or size < 1:
                raise ShapeError(f"{name}: {word}={size!r}: must be an integer >= 1.")
        if num_layers > _MOST_LAYERS:
            raise ShapeError(
                f"{name}: num_layers={reprlib.repr(num_layers)}: at most {_MOST_LAYERS} layers, each of which has "
                "tensors of its own and a part in every graph."
            )
        if not 0 <= dropout <= 1:
            raise SettingError(f"{name}: dropout={dropout!r}: must be a number from 0 to 1.")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        self._ends = [
            f"l{layer}{end}" for layer in range(num_layers) for end in ("", "_reverse")[: 1 + bool(bidirectional)]
        ]
        rows, bound = self.gates * hidden_size, 1 / math.sqrt(hidden_size)
        for i, end in enumerate(self._ends):
            width = input_size if i < self._directions else hidden_size * self._directions
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "weight_hh": (rows, hidden_size)}
            if bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            for kind, shape in shapes.items():
                start = Tensor.uniform(shape, low=-bound, high=bound, dtype=dtype, requires_grad=True)
                setattr(self, f"{kind}_{end}", start)

    @property
    def _directions(self) -> int:
        return 1 + bool(self.bidirectional)

    def _run(self, x: Tensor, given: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """Return the last layer's values at each position, and the states after the last one, in the order of
        layers. They are captured if gradients are off, no number is random, and the shape was met before."""
        if grad_state() or (self.dropout and self.training):
            return self._unrolled(x, given)
        met, shape = _met.setdefault(self, {}), (x.shape, given is None)
        if shape in met and (met[shape] or sum(met.values()) < _MOST_CAPTURED):
            met[shape] = True
            replayed: tuple[Tensor, list[Tensor]] = self._captured(x, given)
            return replayed
        found = self._unrolled(x, given)
        met[shape] = False
        if len(met) > _MOST_MET:
            del met[next(known for known, is_captured in met.items() if not is_captured)]
        return found

    @jit
    def _captured(self, x: Tensor, given: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        return self._unrolled(x, given)

    def _unrolled(self, x: Tensor, given: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        name, wide = type(self).__name__, self.input_size
        if x.ndim not in (2, 3) or x.uop.shape[-1] != wide or not all(isinstance(s, int) and s for s in x.uop.shape):
            raise ShapeError(
                f"{name}: x of shape {show_shape(x.uop.shape)}: give (positions, batch, {wide}), with "
                f"batch_first=True (batch, positions, {wide}), or (positions, {wide}), with no size 0 or symbolic."
            )
        has_batch = x.ndim == 3
        x = x.transpose(0, 1) if has_batch and self.batch_first else x if has_batch else x.unsqueeze(1)
        shape = (len(self._ends), x.shape[1], self.hidden_size)
        if given is not None and (isinstance(given, Tensor) or len(given) != self.states):
            raise ShapeError(f"{name}: hx must be {self.states} tensors, such as (h, c). Give them as a tuple.")
        if given is None:
            # stored: the first step is then a kernel like all others
            states = [Tensor.zeros(shape, dtype=x.dtype).contiguous()] * self.states
        else:
            states = [state if has_batch else state.unsqueeze(1) for state in given]
        for state in states:
            if state.uop.shape != shape:
                wanted = shape if has_batch else (shape[0], shape[2])
                raise ShapeError(f"{name}: a state of shape {show_shape(state.uop.shape)}. Give one of {wanted}.")
        last: list[tuple[Tensor, ...]] = []
        for i in range(0, len(self._ends), self._directions):
            seen = []
            for k in range(i, i + self._directions):
                values, after = self._layer(x, self._ends[k], tuple(state[k] for state in states))
                seen.append(values)
                last.append(after)
            x = cat(seen, 2)
            if self.dropout and i + self._directions < len(self._ends):
                x = x.dropout(self.dropout, self.training)
        x = x if has_batch else x.squeeze(1)
        after_all = [stack(parts) if has_batch else stack(parts).squeeze(1) for parts in zip(*last, strict=True)]
        return x.transpose(0, 1) if has_batch and self.batch_first else x, after_all

    def _layer(self, x: Tensor, end: str, states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction: return the values at each position, and the states after the last."""
        tensors = vars(self)
        # the inputs of all positions in one product
        given = x.linear(tensors[f"weight_ih_{end}"], tensors.get(f"bias_ih_{end}")).unbind(0)
        weight, bias = tensors[f"weight_hh_{end}"], tensors.get(f"bias_hh_{end}")
        is_reverse = end.endswith("_reverse")
        found = []
        for now in reversed(given) if is_reverse else given:
            # stored: the next step would recompute it for each of its elements
            states = tuple(s.contiguous() for s in self._next_states(now, states[0].linear(weight, bias), states))
            found.append(states[0])
        return stack(found[::-1] if is_reverse else found), states

    @staticmethod
    def _next_states(now: Tensor, before: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the states after a step: `now` is the input's part of the gates, `before` that of the last state."""
        raise NotImplementedError

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the values at each position, and the state after the last.

        Shapes: (positions, batch, input_size) -> (positions, batch, directions * hidden_size) and
        (layers * directions, batch, hidden_size); the batch is the first axis of x with `batch_first`, or left out.
        """
        values, states = self._run(x, None if hx is None else [hx])
        return values, states[0]

    def _shown(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


class RNN(Recurrent):
    """h = tanh(W x + b + V h + c)."""

    @staticmethod
    def _next_states(now: Tensor, before: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return ((now + before).tanh(),)


class LSTM(Recurrent):
    """Long short-term memory; the rows of each weight are the input gate, forget gate, cell and output gate.

    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9, 1997.
    """

    gates, states = 4, 2

    def forward(  # type: ignore[override]
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the values at each position, and the states (h, c) after the last; hx is such a pair.

        Shapes: those of RNN, h and c alike.
        """
        values, (hidden, cell) = self._run(x, hx)
        return values, (hidden, cell)

    @staticmethod
    def _next_states(now: Tensor, before: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        enter, keep, new, show = (now + before).chunk(4, -1)
        cell = keep.sigmoid() * states[1] + enter.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell


class GRU(Recurrent):
    """Gated recurrent unit; the rows of each weight are the reset gate, update gate and new value.

    Source: Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014; reset after the product,
    as PyTorch does.
    """

    gates = 3

    @staticmethod
    def _next_states(now: Tensor, before: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        reset, update, new = now.chunk(3, -1)
        old_reset, old_update, old = before.chunk(3, -1)
        keep = (update + old_update).sigmoid()
        return (((1 - keep) * (new + (reset + old_reset).sigmoid() * old).tanh() + keep * states[0]),)


class RNNCell(Module):
    """One step of RNN: x of shape (batch, input_size) or (input_size,), and the state after the step before."""

    layer: type[Recurrent] = RNN

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: DType = dtypes.default_float
    ) -> None:
        for word, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if not is_whole(size, 1):
                raise ShapeError(f"{type(self).__name__}: {word}={size!r}: must be an integer >= 1.")
        self.input_size, self.hidden_size = input_size, hidden_size
        rows, bound = self.layer.gates * hidden_size, 1 / math.sqrt(hidden_size)
        shapes = {"weight_ih": (rows, input_size), "weight_hh": (rows, hidden_size)}
        biases = {"bias_ih": (rows,), "bias_hh": (rows,)}
        for name, shape in (shapes | biases).items():
            used = bias or name in shapes
            start = Tensor.uniform(shape, low=-bound, high=bound, dtype=dtype, requires_grad=True) if used else None
            setattr(self, name, start)

    def _step(self, x: Tensor, given: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
        tensors, name = vars(self), type(self).__name__
        if x.ndim not in (1, 2) or x.uop.shape[-1] != self.input_size:
            raise ShapeError(
                f"{name}: x of shape {show_shape(x.uop.shape)}: give (batch, {self.input_size}) or "
                f"({self.input_size},)."
            )
        shape = (*x.shape[:-1], self.hidden_size)
        states = [Tensor.zeros(shape, dtype=x.dtype)] * self.layer.states if given is None else list(given)
        if len(states) != self.layer.states or any(state.uop.shape != shape for state in states):
            wanted = "a pair of tensors" if self.layer.states == 2 else "a tensor"
            raise ShapeError(f"{name}: hx must be {wanted} of shape {show_shape(shape)}.")
        now = x.linear(tensors["weight_ih"], tensors["bias_ih"])
        before = states[0].linear(tensors["weight_hh"], tensors["bias_hh"])
        return self.layer._next_states(now, before, tuple(states))

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """The state after the step, of shape (batch, hidden_size); hx is zero where it is not given."""
        return self._step(x, None if hx is None else [hx])[0]

    def _shown(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class GRUCell(RNNCell):
    """One step of GRU, as RNNCell."""

    layer = GRU


class LSTMCell(RNNCell):
    """One step of LSTM, as RNNCell; the state is a pair (h, c)."""

    layer = LSTM

    def forward(  # type: ignore[override]
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The states (h, c) after the step, each of shape (batch, hidden_size)."""
        hidden, cell = self._step(x, hx)
        return hidden, cell
