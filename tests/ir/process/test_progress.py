"""Bars: drawn on a terminal and in a notebook, by what takes long; quiet when piped, without tqdm, or when told so."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernmill import Context, Progress
from kernmill.ir import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Bar:
    """Stands in for tqdm's."""

    made: list[Bar]

    def __init__(self, **given: Any) -> None:
        self.given, self.start_t, self.events = given, 0.0, list[Any]()
        Bar.made.append(self)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **given: self.events.append((name, *args))


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal, tqdm, and no delay."""
    Bar.made = []
    module: Any = ModuleType("tqdm")
    module.tqdm, module.__spec__ = Bar, SimpleNamespace()
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(progress, "_DELAY_S", -1.0)
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))  # pytest has its own
    return stream


def test_a_bar_on_a_terminal() -> None:
    lines: list[str] = []
    with Progress("epoch 1", 3) as bar:
        for n in range(3):
            bar.advance(text=f"loss {n}")
        bar.above(lines.append, "a line")
    (drawn,) = Bar.made
    assert drawn.given["desc"] == "epoch 1"
    assert drawn.given["total"] == 3
    assert [event[0] for event in drawn.events] == ["set_postfix_str", "update"] * 3 + ["clear", "refresh", "close"]
    assert lines == ["a line"]


def test_what_is_short_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY_S", 60.0)
    with Progress("short", 3) as bar:
        bar.advance()
    assert Bar.made == []


def test_steps_before_the_bar_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY_S", 60.0)
    with Progress("late", 3) as bar:
        bar.advance(2)
        monkeypatch.setattr(progress, "_DELAY_S", -1.0)
        bar.advance()
    assert ("update", 3) in Bar.made[0].events


@pytest.mark.parametrize("why", ["piped", "no tqdm", "PROGRESS=0", "closed"])
def test_quiet(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "piped":
        monkeypatch.setattr("kernmill.ir.process.progress.sys.stderr", io.StringIO())
    if why == "closed":
        monkeypatch.setattr("kernmill.ir.process.progress.sys.stderr", None)
    if why == "no tqdm":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with Context(PROGRESS=int(why != "PROGRESS=0")), Progress("quiet", 3) as bar:
        bar.advance()
    assert Bar.made == []


def test_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setattr("kernmill.ir.process.progress.sys.stderr", io.StringIO())
    with Progress("notebook", 3) as bar:
        bar.advance()
    assert len(Bar.made) == 1
