"""Names of other libraries for arguments and methods: the same result as under our names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernmill
from kernmill import Tensor
from kernmill.synonyms import ARGUMENTS, METHODS, renamed

from .against import only_on

on_device = only_on("PYTHON")
TENSOR: Any = Tensor
PLAIN: Any = kernmill


def x() -> Any:
    return Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {  # theirs, ours
    "dim": (lambda: x().sum(dim=1), lambda: x().sum(axis=1)),
    "dim_and_keepdims": (lambda: x().max(dim=-1, keepdims=True), lambda: x().max(axis=-1, keepdim=True)),
    "start_dim": (lambda: x().flatten(start_dim=0, end_dim=1), lambda: x().flatten(0, 1)),
    "dims_of_flip": (lambda: x().flip(dims=(0,)), lambda: x().flip(0)),
    "axis_of_flip": (lambda: x().flip(axis=1), lambda: x().flip(1)),
    "dims_of_permute": (lambda: x().permute(dims=(1, 0)), lambda: x().permute(1, 0)),
    "dims_of_tile": (lambda: x().tile(dims=(1, 2)), lambda: x().tile(1, 2)),
    "dim0": (lambda: x().transpose(dim0=0, dim1=1), lambda: x().transpose(0, 1)),
    "dim1_of_a_diagonal": (lambda: x().diagonal(dim1=1, dim2=0), lambda: x().diagonal(axis1=1, axis2=0)),
    "joined_dim": (lambda: PLAIN.cat([x(), x()], dim=1), lambda: PLAIN.cat([x(), x()], 1)),
    "stacked_dim": (lambda: PLAIN.stack([x(), x()], dim=1), lambda: PLAIN.stack([x(), x()], 1)),
    "unbiased": (lambda: x().var(unbiased=False), lambda: x().var(correction=0)),
    "ddof": (lambda: x().std(axis=0, ddof=1), lambda: x().std(0, correction=1)),
    "size": (lambda: TENSOR.zeros(size=(2, 3)), lambda: TENSOR.zeros(2, 3)),
    "shape": (lambda: TENSOR.ones(shape=(2,)), lambda: TENSOR.ones(2)),
    "full": (lambda: TENSOR.full(size=(2,), fill_value=3), lambda: TENSOR.full((2,), 3)),
    "end": (lambda: TENSOR.arange(start=1, end=4), lambda: TENSOR.arange(1, 4)),
    "num": (lambda: TENSOR.linspace(0, 1, num=3), lambda: TENSOR.linspace(0, 1, 3)),
    "input": (lambda: TENSOR.softmax(input=x(), dim=1), lambda: x().softmax(1)),
    "k": (lambda: x().tril(k=1), lambda: x().tril(1)),
    "ord": (lambda: x().norm(ord=1), lambda: x().norm(1)),
    "a_min": (lambda: x().clip(a_min=1, a_max=2), lambda: x().clip(1, 2)),
    "pad_width": (lambda: x().pad(pad_width=((1, 1), (0, 0)), constant_values=2.0),
                  lambda: x().pad(((1, 1), (0, 0)), value=2.0)),
    "split_size": (lambda: x().split(split_size_or_sections=2, dim=1)[1], lambda: x().split(2, 1)[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_an_argument_has_its_other_name(name: str) -> None:
    theirs, ours = (call() for call in PAIRS[name])
    assert theirs.dtype is ours.dtype
    np.testing.assert_array_equal(theirs.numpy(), ours.numpy())


def functions() -> list[tuple[str, Any]]:
    found = []
    for name in dir(Tensor):
        member = inspect.getattr_static(Tensor, name)
        function = getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function):
            found.append((name, function))
    return found


@pytest.mark.parametrize("theirs", ARGUMENTS)
def test_an_other_name_is_known_to_every_method(theirs: str) -> None:
    """Each method that has one of our names, and not theirs, takes theirs as the first of ours that it has."""
    used = 0
    for name, function in functions():
        parameters = inspect.signature(function).parameters
        ours = next((word for word in ARGUMENTS[theirs] if word in parameters), None)
        has_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if ours is None or theirs in parameters or has_any:
            continue
        others = [word for word, p in parameters.items() if word != ours and p.default is p.empty]
        if any(parameters[word].kind is inspect.Parameter.VAR_POSITIONAL for word in others):
            continue
        first = (0,) if others[:1] in (["self"], ["cls"]) else ()
        value, used = object(), used + 1
        found = renamed(function, first, {**dict.fromkeys(others[len(first) :], 0), theirs: value})
        assert found is not None, name
        assert value in found[0] or found[1].get(ours) is value, name
    assert used


def test_what_is_no_other_name_is_refused_as_before() -> None:
    calls: list[Callable[[], Any]] = [
        lambda: x().sum(nonsense=1), lambda: x().sum(axis=1, dim=1), lambda: x().sum(1, dim=1)
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            call()
    with pytest.raises(kernmill.IndexRangeError, match=r"^sum: axis 5 of a tensor of shape \(3, 4\)"):
        x().sum(dim=5)


def test_a_call_with_our_names_looks_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []
    monkeypatch.setattr("kernmill.lazy.renamed", lambda *call: looked_up.append(call))
    x().sum(axis=1, keepdim=True)
    assert looked_up == []


@pytest.mark.parametrize("theirs", METHODS)
def test_a_method_has_its_other_name(theirs: str) -> None:
    own = inspect.getattr_static(Tensor, METHODS[theirs])
    other = inspect.getattr_static(Tensor, theirs)
    assert inspect.signature(getattr(other, "__func__", other)) == inspect.signature(getattr(own, "__func__", own))
    assert other.__qualname__ == f"Tensor.{theirs}"


def test_a_seed_is_set_by_a_method() -> None:
    Tensor.manual_seed(3)
    first = Tensor.rand(4).tolist()
    kernmill.manual_seed(3)
    assert Tensor.rand(4).tolist() == first


def test_torch_agrees_with_the_other_names_of_methods() -> None:
    torch = pytest.importorskip("torch")
    values = np.array([[-1.5, 0.5], [2.0, 0.25]], np.float32)
    ours, theirs = Tensor(values), torch.tensor(values)
    for name in METHODS:
        if not hasattr(theirs, name) or name in ("type", "copy", "concat", "nelement", "mv", "expand_dims"):
            continue
        for given in ((0, 1),) if name in ("swapdims", "moveaxis") else ((), (values + 0.5,)):
            try:
                want = getattr(theirs, name)(*(torch.tensor(v) if isinstance(v, np.ndarray) else v for v in given))
            except (TypeError, RuntimeError):
                continue
            got = getattr(ours, name)(*(Tensor(v) if isinstance(v, np.ndarray) else v for v in given))
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-6, err_msg=name)


def test_errors_are_caught_as_torch_programs_catch_them() -> None:
    calls: list[Callable[[], Any]] = [
        lambda: x() + Tensor.ones(5), lambda: x().sum(7), lambda: x()[9], lambda: x() @ x(),
        lambda: x().gather(0, x()), lambda: x().mse_loss(x(), reduction="most"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(RuntimeError):
            call()
