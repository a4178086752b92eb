"""Random programs that keep state, called plainly and captured: every tensor that is kept is the same after each call.

A program is a function of random statements: it assigns, puts tensors at places, exchanges them, takes views, trains,
copies to another device, calls a captured function, and fails in the middle. Between calls a user keeps tensors, views
and expressions, changes the state, copies and pickles it. All values are small whole numbers or halves of them.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import KernmillError, Tensor, Variable, jit, no_grad
from kernmill.nn import optim

SEEDS = int(os.environ.get("FUZZ_SEEDS", "40"))
SHAPE = (2, 3)
COUNT = Variable("n", 1, 3)
PLACES = ("a", "b", "c")
KINDS = ("plain", "grad", "size", "inner", "device")
Names = dict[str, Any]  # of a call: its arguments and temporaries
Value = Callable[[Any, Names], Tensor]
Statement = Callable[[Any, Names], object]


class Mine(Exception):
    """What a program raises itself."""


class Refused(Exception):
    """A captured function uses a view from before it that a write changes, which jit alone refuses."""


def is_refusal(error: Exception) -> bool:
    """True for what jit refuses of views."""
    return str(error).startswith("jit:") and "a view" in str(error)


def write(t: Tensor, value: float) -> None:
    """Write into the first row. A view that overlaps another one refuses it where the base tensor is gone."""
    try:
        t[0] = value
    except KernmillError as error:
        raise Refused from error


def limited(x: Tensor) -> Tensor:
    return x.clamp(-31, 31)


def numbers(rng: random.Random, shape: tuple[int, ...] = SHAPE) -> Any:
    return np.array([rng.randint(-4, 4) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)


def tensor(rng: random.Random) -> Tensor:
    """A constant, data, not realized, or realized."""
    made, kind = Tensor(numbers(rng)), rng.randrange(5)
    return (
        Tensor.full(SHAPE, 2.0) if kind == 0 else made if kind == 1 else made + 1 if kind == 2 else (made + 0).realize()
    )


def state(rng: random.Random, kind: str) -> SimpleNamespace:
    m = SimpleNamespace(a=tensor(rng), b=tensor(rng), c=tensor(rng), fails=False)
    m.cache = Tensor.zeros(5, 3).contiguous().realize()
    m.parts, m.table = [m.a, tensor(rng)], {"k": tensor(rng), "q": m.b}
    if kind == "grad":
        m.w = Tensor(numbers(rng)).realize().requires_grad_()
        m.v = Tensor(numbers(rng, (3,))).realize().requires_grad_()
        m.optimizer = optim.SGD([m.w, m.v], lr=0.5, momentum=rng.choice([0.0, 0.5]))
    if kind == "device":
        m.far = Tensor(numbers(rng), device="PYTHON").realize()
    return m


def adds(m: Any, x: Tensor) -> Any:
    m.a.assign(limited(m.a + x))
    return m.a * 2


def writes(m: Any, x: Tensor) -> Tensor:
    m.c = limited(x - m.a)
    x.assign(limited(x + 1))
    return x


class Program:
    """Statements over the state, `x`, `y` and temporaries; then what it returns."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        self.rng, self.kind = rng, kind
        self.names = ["x", "y"]
        own = {"grad": ["train", "train", "backward", "zero", "without"], "size": ["sized"] * 3, "plain": [],
               "inner": ["inner"] * 3, "device": ["far"] * 3}[kind]  # fmt: skip
        common = ["assign", "assign", "add", "part", "cache", "put", "put", "replace", "swap", "list", "dict",
                  "temporary", "realize", "argument", "box", "fail"]  # fmt: skip
        self.statements = [getattr(self, f"_{rng.choice(common + own)}")() for _ in range(rng.randint(1, 5))]
        self.results = [self.value() for _ in range(rng.randrange(3))]

    def run(self, m: Any, names: Names) -> list[Tensor]:
        for statement in self.statements:
            statement(m, names)
        return [result(m, names) for result in self.results]

    # --- values
    def source(self) -> Value:
        name, place, row = self.rng.choice(self.names), self.rng.choice(PLACES), self.rng.randrange(4)
        sources: list[Value] = [
            *[lambda m, names: names[name]] * 4,
            *[lambda m, names: getattr(m, place)] * 5,
            lambda m, names: m.parts[row % 2],
            lambda m, names: m.table.get("kqz"[row % 3], m.b),
            lambda m, names: m.cache[row : row + 2],
        ]
        if self.kind == "grad":
            sources += [lambda m, names: m.w.detach(), lambda m, names: m.b if m.w.grad is None else m.w.grad]
        if self.kind == "device":
            sources += [lambda m, names: m.far.to("LLVM")] * 2
        if self.kind == "size":
            sources += [lambda m, names: m.cache[names["n"] : names["n"] + 2]] * 2
        return self.rng.choice(sources)

    def view(self) -> Value:
        x = self.source()
        views: list[Value] = [
            *[x] * 4,
            lambda m, names: x(m, names).reshape(6).reshape(2, 3),
            lambda m, names: x(m, names).detach(),
            lambda m, names: x(m, names)[::-1],
            lambda m, names: x(m, names).T.T,
            lambda m, names: x(m, names).flip(0),
            lambda m, names: x(m, names).contiguous(),
        ]
        return self.rng.choice(views)

    def expression(self) -> Value:
        x, y, factor = self.view(), self.view(), self.rng.randint(-2, 3)
        expressions: list[Value] = [
            lambda m, names: Tensor.full(SHAPE, float(factor)),
            lambda m, names: limited(x(m, names) + y(m, names) * factor),
            lambda m, names: limited(x(m, names) - y(m, names)),
            lambda m, names: limited(x(m, names) * y(m, names)),
            lambda m, names: limited(x(m, names).sum(1, keepdim=True) + x(m, names) * 0 + factor),
        ]
        return self.rng.choice(expressions)

    def value(self) -> Value:
        return self.view() if self.rng.random() < 0.4 else self.expression()

    def target(self) -> Value:
        place = self.rng.choice(PLACES)
        targets: list[Value] = [lambda m, names: m.parts[0], lambda m, names: m.table["k"]]
        return self.rng.choice([*targets, *[lambda m, names: getattr(m, place)] * 6])

    # --- statements
    def _assign(self) -> Statement:
        target, value = self.target(), self.value()
        return lambda m, names: target(m, names).assign(value(m, names))

    def _add(self) -> Statement:
        place, value = self.rng.choice(PLACES), self.expression()

        def run(m: Any, names: Names) -> None:
            x = getattr(m, place)
            x += value(m, names)
            setattr(m, place, x.assign(limited(x)))

        return run

    def _part(self) -> Statement:
        target, value, row = self.target(), self.expression(), self.rng.randrange(2)
        return lambda m, names: target(m, names).__setitem__(row, value(m, names)[row])

    def _cache(self) -> Statement:
        value, row = self.expression(), self.rng.randrange(4)
        return lambda m, names: m.cache.__setitem__(slice(row, row + 2), value(m, names))

    def _sized(self) -> Statement:
        value = self.expression()
        return lambda m, names: m.cache.__setitem__(slice(names["n"], names["n"] + 2), value(m, names))

    def _put(self) -> Statement:
        place, value = self.rng.choice(PLACES), self.value()
        return lambda m, names: setattr(m, place, value(m, names))

    def _replace(self) -> Statement:
        target, value = self.target(), self.value()
        return lambda m, names: target(m, names).replace(value(m, names))

    def _swap(self) -> Statement:
        one, two = self.rng.sample(PLACES, 2)
        return lambda m, names: m.__dict__.update({one: getattr(m, two), two: getattr(m, one)})

    def _list(self) -> Statement:
        value, kind = self.value(), self.rng.randrange(4)

        def run(m: Any, names: Names) -> None:
            new = value(m, names)
            if kind == 0:
                m.parts = [new, m.parts[0]]
            elif kind == 1 and len(m.parts) < 4:
                m.parts.append(new)
            elif kind == 2 and len(m.parts) > 2:
                m.parts.pop()
            else:
                m.parts[1] = new

        return run

    def _dict(self) -> Statement:
        value, key, drops = self.value(), self.rng.choice("kqz"), self.rng.random() < 0.2

        def run(m: Any, names: Names) -> None:
            new = value(m, names)
            if drops and key != "k":
                m.table.pop(key, None)
            else:
                m.table[key] = new

        return run

    def _temporary(self) -> Statement:
        value, name = self.expression(), f"t{len(self.names)}"
        self.names.append(name)
        return lambda m, names: names.update({name: value(m, names)})

    def _realize(self) -> Statement:
        value = self.view()
        return lambda m, names: value(m, names).realize()

    def _argument(self) -> Statement:
        name, value = self.rng.choice("xy"), self.expression()
        return lambda m, names: names[name].assign(value(m, names))

    def _box(self) -> Statement:
        key, value = self.rng.choice("gh"), self.value()
        return lambda m, names: names["box"].update({key: value(m, names)})

    def _fail(self) -> Statement:
        def run(m: Any, names: Names) -> None:
            if m.fails:
                raise Mine

        return run

    def _inner(self) -> Statement:
        which, value = self.rng.randrange(2), self.view()
        return lambda m, names: names.update(x=names["inner"][which](m, value(m, names)))

    def _far(self) -> Statement:
        value, is_put = self.expression(), self.rng.random() < 0.5

        def run(m: Any, names: Names) -> None:
            new = limited(value(m, names).to("PYTHON") + m.far)
            if is_put:
                m.far = new
            else:
                m.far.assign(new)

        return run

    def _train(self) -> Statement:
        value = self.view()

        def run(m: Any, names: Names) -> None:
            m.optimizer.zero_grad()
            (m.w * value(m, names).detach() + m.v).relu().sum().backward()
            m.optimizer.step()
            with no_grad():
                m.w.assign(limited(m.w.detach()))
                m.v.assign(limited(m.v.detach()))

        return run

    def _backward(self) -> Statement:
        value = self.view()
        return lambda m, names: (m.w * value(m, names).detach() + m.v).sum().backward()

    def _zero(self) -> Statement:
        return lambda m, names: m.optimizer.zero_grad()

    def _without(self) -> Statement:
        value = self.expression()

        def run(m: Any, names: Names) -> None:
            with no_grad():
                m.w.assign(limited(m.w + value(m, names)))

        return run


class Life:
    """A user with a state, some programs and tensors that are kept. `found`: all there was to see."""

    def __init__(self, seed: int, kind: str, wrap: Callable[[Any], Any]) -> None:
        self.rng, self.kind = random.Random(seed), kind
        self.world = [state(self.rng, kind)]
        self.inner = [wrap(adds), wrap(writes)]
        self.calls = [self.wrapped(Program(self.rng, kind), wrap) for _ in range(self.rng.randint(1, 3))]
        self.inputs = [(Tensor(numbers(self.rng)) + 0).realize() for _ in range(3)]
        self.box: Names = {"g": self.inputs[2]}
        self.kept: list[Any] = []
        self.found: list[Any] = []

    def wrapped(self, program: Program, wrap: Callable[[Any], Any]) -> Callable[..., Any]:
        """The state is found from the function, or is an argument."""
        inner, world = self.inner, self.world

        def body(m: Any, x: Tensor, y: Tensor, box: Names, n: Any) -> Any:
            return program.run(m, {"x": x, "y": y, "box": box, "n": n, "inner": inner})

        if self.rng.random() < 0.4:
            call: Callable[..., Any] = wrap(lambda *given: body(world[0], *given))
            return call
        of_state = wrap(body)
        return lambda *given: of_state(world[0], *given)

    def go(self) -> list[Any]:
        for _ in range(self.rng.randint(8, 25)):
            if self.rng.random() < 0.65:
                self.call()
            else:
                self.change()
            if self.rng.random() < 0.3:
                self.look()
        self.look()
        return self.found

    def call(self) -> None:
        rng, m = self.rng, self.world[0]
        call, m.fails, is_kept, feeds, writes = (
            rng.choice(self.calls),
            rng.random() < 0.08,
            rng.random() < 0.3,
            rng.random() < 0.2,
            rng.random() < 0.4,
        )
        x, y = rng.choice([*self.inputs, Tensor(numbers(rng)), m.a, m.cache[1:3]]), rng.choice(self.inputs)
        y = x.reshape(6).reshape(2, 3) if rng.random() < 0.1 else y
        for _ in range(rng.choice([1, 1, 2, 4])):
            n = COUNT.bind(rng.randint(1, 3)) if self.kind == "size" else None
            try:
                results = call(x, y, self.box, n)
            except (KernmillError, Mine) as error:
                if is_refusal(error):
                    raise Refused from error
                self.found.append(type(error).__name__)
                break
            if is_kept:
                self.kept += results
            if results and writes and not results[-1].requires_grad:  # views of the state and of other results
                write(results[-1], float(rng.randint(-4, 4)))
                self.found.append([result.tolist() for result in results])
            if feeds and results and not results[0].requires_grad:
                x = results[0]
            results = None
        m.fails = False

    def change(self) -> None:
        """What a user does between two calls."""
        rng, m, place = self.rng, self.world[0], self.rng.choice(PLACES)
        t = rng.choice([m.a, m.b, m.c, m.parts[0], m.table["k"], *self.inputs])
        actions: list[Callable[[], object]] = [
            *[lambda look=look: self.kept.append(look()) for look in (
                lambda: t, t.detach, lambda: t.reshape(-1), lambda: t[0:1], lambda: t + 1, lambda: t[..., 1:2],
                lambda: t.contiguous().realize(), lambda: t.detach().numpy())],
            lambda: t.assign(limited(t + 1)).realize(), lambda: t.assign(limited(t + 1)),
            lambda: t.__setitem__(0, 3.0), lambda: setattr(m, place, t), lambda: setattr(m, place, t.detach()),
            lambda: setattr(m, place, t.reshape(6).reshape(2, 3)), lambda: setattr(m, place, tensor(rng)),
            lambda: getattr(m, place).assign(t), lambda: getattr(m, place).replace(t), self.kept.clear,
            lambda: self.inputs.__setitem__(0, t), lambda: m.parts.__setitem__(0, t),
            lambda: self.world.__setitem__(0, copy.deepcopy(m)),
            lambda: self.world.__setitem__(0, pickle.loads(pickle.dumps(m))),
        ]  # fmt: skip
        if not t.requires_grad:
            rng.choice(actions)()

    def look(self) -> None:
        """The values of all that is there."""
        m = self.world[0]
        places = [m.a, m.b, m.c, m.cache, *m.parts, *m.table.values(), *self.inputs, *self.box.values(), *self.kept]
        if self.kind == "grad":
            places += [m.w, m.v, *(t.grad for t in (m.w, m.v) if t.grad is not None)]
        if self.kind == "device":
            places.append(m.far)
        self.found.append([t.tolist() for t in places])


@pytest.mark.parametrize("kind", KINDS)
def test_random_programs_are_what_they_are_without_jit(kind: str) -> None:
    compared = 0
    for seed in range(SEEDS // 2):
        with contextlib.suppress(Refused):
            found = Life(seed, kind, jit).go()
            assert found == Life(seed, kind, lambda function: function).go(), seed
            compared += 1
    assert compared >= SEEDS // 8  # most of these programs keep views and write to their tensors
