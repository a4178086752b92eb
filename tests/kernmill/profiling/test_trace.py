"""Traces: events that a viewer accepts, arrows from launch to run, counters, one clock; and files that are whole."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kernmill import Tensor, jit, profile
from kernmill.ir import SettingError
from kernmill.profiling.trace import Event, trace_events, write_text, write_trace


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one: tests of devices take the fixture `device`."""


def events_of(device: str) -> list[Event]:
    f = jit(lambda x: (x @ x).exp().sum())
    x = Tensor(np.ones((8, 8), np.float32), device=device).realize()
    with profile() as found:
        for _ in range(3):
            f(x).item()
        thread = threading.Thread(target=lambda: (x + 1).numpy())
        thread.start()
        thread.join()
        found.recorder.tick("tokens")
    return trace_events(found.recorder)


def test_events_have_what_viewers_need(device: str, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", events_of(device))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for event in events:
        assert event["ph"] in "MXisfC"
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] > 0
        assert event["ph"] != "X" or event["dur"] >= 0
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert {"Python", f"device {device}", "Python thread 2"} <= {*rows}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert kernels
    assert {event["tid"] for event in kernels} == {
        rows[f"device {device}"],
        rows[f"device {device}, Python thread 2"],
    }
    assert {event["args"]["line"].rpartition(":")[0] for event in kernels} == {__file__}


def viewed(events: list[Event]) -> tuple[list[tuple[Event, Event]], list[Event]]:
    """What Perfetto's importer makes of them: the slices at both ends of each arrow, and the slices that it leaves out.

    Written after its rules, in whole nanoseconds; no Perfetto is at hand here.
    """
    rows: dict[tuple[int, int], list[tuple[int, Event]]] = {}  # of each thread: slices that may be open, and their ends
    begun: dict[int, Event] = {}
    arrows: list[tuple[Event, Event]] = []
    refused: list[Event] = []
    timed = [event for event in events if event["ph"] != "M"]
    for event in sorted(timed, key=lambda event: round(event["ts"] * 1000)):
        start = round(event["ts"] * 1000)
        row = rows.setdefault((event["pid"], event.get("tid", 0)), [])
        if event["ph"] == "X":
            end = start + round(event["dur"] * 1000)
            while row and row[-1][0] <= start:
                row.pop()
            if row and end > row[-1][0]:
                refused.append(event)
            else:
                row.append((end, event))
        elif event["ph"] == "s":
            assert event["id"] not in begun
            begun[event["id"]] = row[-1][1]
        elif event["ph"] == "f":
            arrows.append((begun[event["id"]], row[-1][1]))
    return arrows, refused


def test_perfetto_takes_all_slices_and_each_arrow_ends_at_its_kernel(device: str) -> None:
    """Named regression: an arrow was before its kernel in the file, and ended at the kernel before."""
    arrows, refused = viewed(events_of(device))
    assert not refused
    assert arrows
    for launch, kernel in arrows:
        assert launch["name"] == f"launch {kernel['name']}"
        assert (launch["ts"], launch["dur"]) == (kernel["ts"], kernel["dur"])


def test_arrows_of_two_processes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: in a file of several processes, arrows led from one to the other."""
    numbers: list[int] = []
    for pid in (41, 42):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        numbers += [event["id"] for event in events_of("LLVM") if event["ph"] == "s"]
    assert len(set(numbers)) == len(numbers)


def test_an_arrow_leads_from_each_launch_to_its_run(device: str) -> None:
    events = events_of(device)
    begun = {event["id"]: event for event in events if event["ph"] == "s"}
    ended = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begun.keys() == ended.keys()
    assert Counter(event["cat"] for event in events if event["ph"] == "X")["kernel"] == len(begun)
    for number, event in begun.items():
        assert event["tid"] != ended[number]["tid"]
        assert event["ts"] <= ended[number]["ts"]


def test_memory_and_tokens_are_counters() -> None:
    counters: dict[str, list[Event]] = {}
    for event in events_of("LLVM"):
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append(event)
    assert counters.keys() == {"memory of LLVM", "tokens"}
    for of_one in counters.values():
        assert [event["ts"] for event in of_one] == sorted(event["ts"] for event in of_one)
        assert all(isinstance(value, int) for event in of_one for value in event["args"].values())


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot be written \(No such file or directory\)\. Give"):
        write_text(tmp_path / "absent" / "file", "")
    write_text(tmp_path / "file", "all")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingError, match=r"folder cannot be written \(Is a directory\)"):
        write_text(tmp_path / "folder", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
