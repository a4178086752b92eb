"""What a walk sees of a function, and what its check notices."""

from __future__ import annotations

import functools
import importlib
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.captures.guards import Guard, Walk


def guard(value: Any) -> Guard:
    walk = Walk()
    walk.visit([(walk.name(value), value, "it")])
    return Guard(walk)


def space(**attributes: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, 2), (1, 1.0), (1, True), (0.0, -0.0), ("a", "b"), (None, 0), ((1, 2), (1, 3)), ([1], [1, 1]),
     ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ((1,), [1]), (float("nan"), 1.0), (1 + 2j, 1j), (b"x", b"y")],
)  # fmt: skip
def test_a_change_is_noticed_and_named(before: Any, after: Any) -> None:
    thing = space(inner=space(value=before))
    found = guard(thing)
    assert found.check() == ()
    assert found.explain() == ""
    thing.inner.value = after
    assert found.check() is None
    assert found.explain().startswith("it.inner.value")
    del thing.inner.value
    assert found.check() is None


@pytest.mark.parametrize("value", [0.5, float("nan"), -0.0, "text", (1, [2, {"k": None}]), 10**30])
def test_an_equal_value_is_no_change(value: Any) -> None:
    thing = space(value=value)
    found = guard(thing)
    thing.value = eval(repr(value), {"nan": float("nan")})
    assert found.check() == ()


def test_tensors_are_given_back_by_place() -> None:
    a, b = Tensor([1.0]), Tensor([2.0], requires_grad=True)
    thing = space(a=a, many=[b, {"x": a}])
    found = guard(thing)
    assert [id(t) for t in found.check() or ()] == [id(a), id(b), id(a)]
    flags = [label for label in found.walk.checks.values() if label.endswith(".requires_grad")]
    assert flags == [f"{name}.requires_grad" for name in ("it.a", "it.many[0]", "it.many[1]['x']")]
    b.requires_grad_(False)
    assert found.check() is None
    again = guard(thing)
    b.grad = a  # named regression: of a frozen tensor that was not seen, and a replay of `b.grad = None` left it there
    assert (again.check(), again.explain()) == (None, "it.many[0].grad")


def test_functions_partials_methods_and_arrays() -> None:
    array = np.zeros(3)
    factor = 2

    def inner(x: Any, y: int = 3) -> Any:
        return x * factor * y * array[0]

    class Thing:
        rate = 1

        def method(self) -> Any:
            return inner(self.rate)

    thing = Thing()
    for change in ("factor = 3", "array", "thing", "class", "default"):
        found = guard(functools.partial(thing.method))
        assert found.check() == ()
        if change == "factor = 3":
            factor = 3
        elif change == "array":
            array[1] += 1
        elif change == "thing":
            thing.rate = 5
        elif change == "class":
            Thing.method = lambda self: 1  # type: ignore[method-assign]
            continue  # the bound method is the old one, as it is for plain calls
        else:
            inner.__defaults__ = (4,)
            continue
        assert found.check() is None, change


def test_values_of_modules_in_packages_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: `import package.settings` and then `package.settings.rate` stayed as it was in the capture."""
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "deep" / "settings.py").write_text("import mine\nrate = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "mine.deep", "mine.deep.settings"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    settings = importlib.import_module("mine.deep.settings")
    mine = importlib.import_module("mine")  # without a file of its own
    found = guard(lambda: mine.deep.settings.rate)
    assert found.check() == ()
    settings.rate = 2.0  # type: ignore[attr-defined]
    assert found.explain() == "mine.deep.settings.rate"


def test_parts_of_deep_models_are_watched() -> None:
    """Named regression: from ten steps on changes were not seen, weights not replaced, and gradients got lost."""
    weight = Tensor([1.0])
    thing = inner = space(value=1, weight=weight)
    for _ in range(8):  # as many blocks in each other, each in a list
        thing = space(blocks=[thing])
    found = guard(thing)
    assert [id(t) for t in found.check() or ()] == [id(weight)]
    inner.value = 2
    assert found.explain() == f"it{'.blocks[0]' * 8}.value"


def test_what_is_too_deep_is_listed() -> None:
    """It was passed over without a word."""
    thing = lowest = space(blocks=[space(value=1)])
    for _ in range(14):
        thing = space(blocks=[thing])
    assert guard(thing).walk.unwatched == {}
    thing = space(blocks=[thing])
    reason = "it is nested more than 32 levels deep, and other values may be too"
    assert guard(thing).walk.unwatched == {f"it{'.blocks[0]' * 16}.value": reason}
    assert guard(space(thing=thing)).walk.unwatched == {f"it.thing{'.blocks[0]' * 16}": reason}
    assert guard(space(thing=thing, short=lowest)).walk.unwatched == {}


def test_the_shortest_way_says_how_deep_something_lies() -> None:
    """Named regression: what was first met at the end of a long way was not looked into, though a short one led there,
    and changes of it were not noticed."""
    weight = Tensor([1.0])
    first = before = space(before=None, value=1, weight=weight)
    for _ in range(40):
        before = space(before=before)
    found = guard(space(a_long_way=before, short=[first]))
    assert [id(t) for t in found.check() or ()] == [id(weight)]
    first.value = 2
    assert found.explain() == "it.short[0].value"
    (label,) = found.walk.unwatched
    assert label.startswith("it.a_long_way.before.before")


def test_circles_end() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    thing = space(ring=ring)
    thing.me = thing
    assert guard(thing).check() == ()


# --- large values
@pytest.mark.parametrize("entries", [257, 4096])
@pytest.mark.parametrize("kind", [list, tuple, lambda n: dict.fromkeys(n, 0.0), lambda n: [[k] for k in n]])
def test_wide_containers_are_watched(kind: Any, entries: int) -> None:
    thing = space(many=kind(range(entries)))
    found = guard(thing)
    assert found.check() == ()
    assert found.walk.unwatched == {}
    key = entries - 1
    if isinstance(thing.many, tuple):
        thing.many = (*thing.many[:-1], float(key))
    elif isinstance(thing.many, dict):
        thing.many[key] = -0.0
    elif isinstance(thing.many[key], list):
        thing.many[key][0] = 0
    else:
        thing.many[key] = float(key)
    assert found.check() is None
    assert found.explain().startswith("it.many")


def test_wide_containers_of_equal_values_are_no_change() -> None:
    values = [float("nan"), -0.0, "text", None, 10**30, *map(float, range(300))]
    thing = space(many=list(values), named={str(i): v for i, v in enumerate(values)})
    found = guard(thing)
    thing.many = [eval(repr(v), {"nan": float("nan")}) for v in values]
    assert found.check() == ()
    thing.named["0"] = thing.named.pop("0")  # at another place in the order
    assert found.check() is None


def test_tensors_in_wide_containers_are_found() -> None:
    many = [Tensor([1.0])] * 4096
    found = guard(space(many=many))
    assert found.walk.unwatched == {}
    assert len(found.check() or ()) == 4096


@pytest.mark.parametrize("numel", [1, 512, 513, 1 << 17])
def test_arrays_are_watched_up_to_their_limit(numel: int) -> None:
    array = np.zeros((2, numel))[:, ::2] if numel == 512 else np.zeros(numel)
    found = guard(space(array=array))
    assert found.check() == ()
    assert found.walk.unwatched == {}
    array[-1] = 1
    assert found.check() is None
    assert found.explain() == "it.array"


def test_what_is_too_large_is_listed() -> None:
    thing = space(array=np.zeros((1 << 17) + 1), objects=np.array([[]], object), many=[0] * 4097, few=[0] * 9)
    found = guard(thing)
    assert found.walk.unwatched == {
        "it.array": "a NumPy array of float64, 1,048,584 bytes",
        "it.many": "a list of 4,097 entries",
        "it.objects": "a NumPy array of object, 0 bytes",
    }
    assert found.check() == ()
    thing.many.append(1)
    assert found.check() is None
    deep = guard(space(many=[list(range(200))] * 4096))
    assert list(deep.walk.unwatched.values()) == ["it comes after 20,000 other values, and further ones may too"]


def test_random_generators_are_listed() -> None:
    own, numpys = random.Random(1), np.random.default_rng(1)
    assert guard(space(own=own, numpys=numpys)).walk.generators == {"it.own": own, "it.numpys": numpys}
