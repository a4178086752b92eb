"""Recurrent networks: a step for each entry of the sequence, in one or both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernmill.ir import SettingError

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator

_Function = Callable[[Tensor], Tensor]


def _activation(name: str, alpha: float | None, beta: float | None) -> _Function:
    a, b = alpha, beta
    table: dict[str, _Function] = {
        "relu": lambda x: x.relu(), "tanh": lambda x: x.tanh(), "sigmoid": lambda x: x.sigmoid(),
        "affine": lambda x: x * (1.0 if a is None else a) + (0.0 if b is None else b),
        "leakyrelu": lambda x: x.leaky_relu(0.01 if a is None else a),
        "thresholdedrelu": lambda x: where(x.ge(1.0 if a is None else a), x, x._own(0)),
        "scaledtanh": lambda x: (x * (1.0 if b is None else b)).tanh() * (1.0 if a is None else a),
        "hardsigmoid": lambda x: (x * (0.2 if a is None else a) + (0.5 if b is None else b)).clamp(0, 1),
        "elu": lambda x: x.elu(1.0 if a is None else a), "softsign": lambda x: x.softsign(),
        "softplus": lambda x: x.softplus(),
    }  # fmt: skip
    if name.lower() not in table:
        raise SettingError(f"the activation {name!r} is unknown. Change the model.")
    return table[name.lower()]


class _Steps:
    """Common parts of the three networks: directions, lengths of sequences, initial states and layouts."""

    def __init__(
        self, x: Tensor, hidden: int, direction: str, layout: int, lengths: Tensor | None,
        activations: tuple[Sequence[str], Sequence[float], Sequence[float]],
    ) -> None:  # fmt: skip
        self.x = x.transpose(0, 1) if layout else x  # (length, batch, inputs)
        self.layout, self.lengths, self.hidden = layout, lengths, hidden
        self.sides = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
        names, alphas, betas = activations
        per = len(names) // len(self.sides)
        made = [_activation(n, _at(alphas, i), _at(betas, i)) for i, n in enumerate(names)]
        self.functions = [made[i * per : (i + 1) * per] for i in range(len(self.sides))]

    def start(self, given: Tensor | None, side: int) -> Tensor:
        """The initial state of a direction."""
        if given is None:
            return Tensor.zeros(self.x.shape[1], self.hidden, dtype=self.x.dtype)
        return given[:, side] if self.layout else given[side]

    def run(
        self, side: int, states: tuple[Tensor, ...], step: Callable[..., tuple[Tensor, ...]]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All steps of a direction: the first state after each step, and the last states."""
        length, outs = self.x.shape[0], list[Tensor]()
        order = range(length)[::-1] if self.sides[side] else range(length)
        for t in order:
            new = step(self.x[t], *states)
            out = new[0]
            if self.lengths is not None:
                alive = self.lengths.gt(t).unsqueeze(-1)
                out = where(alive, out, out._own(0))
                new = tuple(where(alive, a, b) for a, b in zip(new, states, strict=True))
            states = new
            outs.append(out)
        outs = outs[::-1] if self.sides[side] else outs
        return outs[0].stack(*outs[1:]), states

    def results(self, runs: Sequence[tuple[Tensor, tuple[Tensor, ...]]]) -> tuple[Tensor, ...]:
        """The outputs in the standard's order of axes."""
        outs = [r[0] for r in runs]
        y = outs[0].stack(*outs[1:], axis=1)  # (length, directions, batch, hidden)
        lasts = [column[0].stack(*column[1:]) for column in zip(*[r[1] for r in runs], strict=True)]
        if self.layout:
            return (y.permute(2, 0, 1, 3), *[t.transpose(0, 1) for t in lasts])
        return (y, *lasts)


def _at(values: Sequence[float], i: int) -> float | None:
    return values[i] if i < len(values) else None


def _bias(b: Tensor | None, side: int, rows: int) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if b is None else (b[side, :rows], b[side, rows:])


def _limited(clip: float | None) -> _Function:
    return (lambda x: x) if not clip else (lambda x: x.clamp(-clip, clip))


@operator("RNN")
def rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    start: Tensor | None = None,
    *, hidden_size: int, direction: str = "forward", layout: int = 0, activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] = (), activation_beta: Sequence[float] = (), clip: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    names = activations or ["Tanh"] * (2 if direction == "bidirectional" else 1)
    steps = _Steps(x, hidden_size, direction, layout, lengths, (names, activation_alpha, activation_beta))
    limit, runs = _limited(clip), []
    for side in range(len(steps.sides)):
        wb, rb = _bias(b, side, hidden_size)

        def step(
            now: Tensor, h: Tensor, side: int = side, wb: Tensor | None = wb, rb: Tensor | None = rb
        ) -> tuple[Tensor, ...]:
            return (steps.functions[side][0](limit(now.linear(w[side], wb) + h.linear(r[side], rb))),)

        runs.append(steps.run(side, (steps.start(start, side),), step))
    return steps.results(runs)


@operator("GRU")
def gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    start: Tensor | None = None,
    *, hidden_size: int, direction: str = "forward", layout: int = 0, activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] = (), activation_beta: Sequence[float] = (), clip: float | None = None,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    names = activations or ["Sigmoid", "Tanh"] * (2 if direction == "bidirectional" else 1)
    steps = _Steps(x, hidden_size, direction, layout, lengths, (names, activation_alpha, activation_beta))
    limit, size, runs = _limited(clip), hidden_size, []
    for side in range(len(steps.sides)):
        wb, rb = _bias(b, side, 3 * size)

        def step(
            now: Tensor, h: Tensor, side: int = side, wb: Tensor | None = wb, rb: Tensor | None = rb
        ) -> tuple[Tensor, ...]:
            f, g = steps.functions[side]
            own = now.linear(w[side], wb)
            gates = own[:, : 2 * size] + h.linear(r[side, : 2 * size], None if rb is None else rb[: 2 * size])
            z, reset = f(limit(gates[:, :size])), f(limit(gates[:, size:]))
            last, last_b = r[side, 2 * size :], None if rb is None else rb[2 * size :]
            inner = reset * h.linear(last, last_b) if linear_before_reset else (reset * h).linear(last, last_b)
            new = g(limit(own[:, 2 * size :] + inner))
            return ((1 - z) * new + z * h,)

        runs.append(steps.run(side, (steps.start(start, side),), step))
    return steps.results(runs)


@operator("LSTM")
def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    start: Tensor | None = None,
    cell: Tensor | None = None, peep: Tensor | None = None, *, hidden_size: int, direction: str = "forward",
    layout: int = 0, activations: Sequence[str] | None = None, activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (), clip: float | None = None, input_forget: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * (2 if direction == "bidirectional" else 1)
    steps = _Steps(x, hidden_size, direction, layout, lengths, (names, activation_alpha, activation_beta))
    limit, runs = _limited(clip), []
    for side in range(len(steps.sides)):
        wb, rb = _bias(b, side, 4 * hidden_size)
        p = peep[side].chunk(3) if peep is not None else None

        def step(
            now: Tensor, h: Tensor, c: Tensor, side: int = side, wb: Tensor | None = wb, rb: Tensor | None = rb,
            p: tuple[Tensor, ...] | None = p,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            f, g, last = steps.functions[side]
            i, o, forget, new = (now.linear(w[side], wb) + h.linear(r[side], rb)).chunk(4, 1)
            i = f(limit(i if p is None else i + p[0] * c))
            forget = 1 - i if input_forget else f(limit(forget if p is None else forget + p[2] * c))
            c = forget * c + i * g(limit(new))
            o = f(limit(o if p is None else o + p[1] * c))
            return o * last(c), c

        runs.append(steps.run(side, (steps.start(start, side), steps.start(cell, side)), step))
    return steps.results(runs)
