"""Nested checkpoints in one file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kernmill import DTypeError, FormatError, Tensor, nn
from kernmill.formats import nested


def plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ["tensor", value.tolist()]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)
    optimizer = nn.optim.AdamW(layer.parameters())
    path = tmp_path / "c.safetensors"
    state = {
        "model": layer, "optimizer": optimizer.state_dict(), "epoch": 3, "best": 0.5, "name": "x", "none": None,
        "flags": [True, (1, Tensor([2])), {}], "by number": {0: Tensor([1.0]), 1: {}},
        "a": {"b.c": Tensor([1]), "b": {"c": Tensor([2])}},
    }  # fmt: skip
    nn.state.save(path, state, {"made by": "kernmill"})
    found = nn.state.load(path)
    assert plain(found) == plain({**state, "model": layer.state_dict()})
    assert nn.state.load_metadata(path) == {"made by": "kernmill"}
    layer.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])


def test_a_flat_state_has_no_structure(tmp_path: Path) -> None:
    nn.state.save(tmp_path / "c", {"a": Tensor([1])})
    assert nn.state.load_metadata(tmp_path / "c") == {}
    assert b"structure" not in (tmp_path / "c").read_bytes()


def test_values_that_cannot_be_saved(tmp_path: Path) -> None:
    cycle: dict[str, Any] = {}
    cycle["a"] = [cycle]
    only_dicts: dict[str, Any] = {}  # named regression: Python's RecursionError
    only_dicts["a"] = only_dicts
    for state, text in (
        ({"a": [object()]}, r"save: 'a\.0' is a object\. Give tensors, numbers, strings"),
        ({"a": {1.5: 1}}, "has the key 1.5"),
        (cycle, "is nested deeper than 100, or contains itself"),
        (only_dicts, "is nested deeper than 100, or contains itself"),
    ):
        with pytest.raises(DTypeError, match=text):
            nn.state.save(tmp_path / "c", state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "structure",
    ["", "{", "[]", "3", '{"leaf": "b"}', '{"dict": [["x", {"leaf": "a"}], ["y", {"leaf": "a"}]]}', '{"dict": [["x"]]}',
     '{"dict": [[{}, 1]]}', '{"dict": 3}', '{"what": []}', '{"list": [], "tuple": []}', "[" * 5000, '{"dict": []}',
     '{"dict": [[2305843009213693951, {"leaf": "a"}]]}'],
)  # fmt: skip
def test_a_structure_that_lies(tmp_path: Path, structure: str) -> None:
    nn.state.save(tmp_path / "c", {"a": Tensor([1])}, {nested.STRUCTURE: structure})
    with pytest.raises(FormatError, match=r"kernmill\.structure is damaged"):
        nn.state.load(tmp_path / "c")


def test_random_trees(tmp_path: Path) -> None:
    draw = random.Random(5)

    def tree(depth: int) -> Any:
        kind = draw.randrange(7 if depth < 4 else 4)
        simple = (draw.random(), draw.randrange(99), "text", Tensor([draw.randrange(9)]))
        if kind < 4:
            return simple[kind]
        parts = [tree(depth + 1) for _ in range(draw.randrange(4))]
        return parts if kind == 4 else tuple(parts) if kind == 5 else {f"k{i}": part for i, part in enumerate(parts)}

    for _ in range(50):
        state = {f"k{i}": tree(0) for i in range(4)}
        nn.state.save(tmp_path / "c", state)
        assert plain(nn.state.load(tmp_path / "c")) == plain(state)
