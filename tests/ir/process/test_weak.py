"""Tables and leases whose entries go with objects: no Python code runs when one dies."""

from __future__ import annotations

import sys
from collections import deque
from types import FrameType
from typing import Any

import pytest

from kernmill import Tensor
from kernmill.ir import WeakTable, keep_until_death, sweep, taken, weak


class Thing:
    """Something that can die."""


def test_a_table_forgets_its_keys() -> None:
    table = WeakTable[Thing, str]()
    one, two = Thing(), Thing()
    table[one], table[two] = "one", "two"
    table[one] = "uno"
    assert (table.get(one), table.get(Thing()), two in table) == ("uno", None, True)
    del one
    assert [value for _, value in table.items()] == ["two"]
    sweep()
    assert len(table._refs) == 1


def test_an_entry_at_a_used_address_stays() -> None:
    table = WeakTable[Thing, int]()
    for number in range(200):  # most of them are where the one before was
        thing = Thing()
        table[thing] = number
        assert table.get(thing) == number
    sweep()
    assert len(table._refs) == 1


def test_what_comes_after_a_death() -> None:
    queue, thing = deque[Any](), Thing()
    keep_until_death(thing, "value", queue)
    assert [*taken(queue)] == []
    del thing
    assert [*taken(queue)] == ["value"]
    assert [*taken(queue)] == []


def test_a_dead_node_holds_no_memory() -> None:
    class Memory:
        """Stands for what a realized node holds."""

    node = (Tensor([1.0, 2.0]) + 1.0).uop
    node.storage = memory = Memory()
    refs = sys.getrefcount(memory)
    above = Tensor._make(node) * 2.0 + 3.0
    del node, above
    assert sys.getrefcount(memory) == refs - 1


def test_ctrl_c_while_objects_die_is_raised() -> None:
    """A profiler that raises in any Python function that a death calls would see its exception swallowed."""
    seen: list[str] = []

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            seen.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    x = Tensor.rand(64, 64).realize()
    leaf = Tensor.rand(8, requires_grad=True)
    (leaf * leaf).sum().backward()
    held: list[Any] = [x, leaf, (x @ x).relu() + x.sum(), (x + 1).realize().T.contiguous().realize(), x.numpy()]
    del x, leaf
    sys.setprofile(profile)
    held.clear()
    sys.setprofile(None)
    assert [name for name in seen if "setprofile" not in name] == []


def test_the_table_of_nodes_is_swept_while_nodes_are_made() -> None:
    for number in range(1000):
        Tensor([1.0]) + float(number)
    assert len(weak.dead) < 500


@pytest.mark.parametrize("round", range(3))
def test_a_sweep_that_is_cut_short_is_done_again(round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = WeakTable[Thing, int]()
    things = [Thing() for _ in range(5)]
    for number, thing in enumerate(things):
        table[thing] = number

    class Refusing(dict[Any, Any]):
        """Interrupts the sweep once."""

        left = round

        def get(self, key: Any, default: Any = None) -> Any:
            Refusing.left -= 1
            if Refusing.left == -1:
                raise KeyboardInterrupt
            return super().get(key, default)

    table._refs = Refusing(table._refs)
    for ref in table._refs.values():
        ref.table = table._refs
    things.clear()
    del thing
    with pytest.raises(KeyboardInterrupt):
        sweep()
    sweep()
    assert not table._refs
