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
    assert {event["tid"] for event in kernels} == {rows[f"device {device}"]}
    assert {event["args"]["line"].rpartition(":")[0] for event in kernels} == {__file__}


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
    counters = {event["name"] for event in events_of("LLVM") if event["ph"] == "C"}
    assert counters == {"memory of LLVM", "tokens"}


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot be written \(No such file or directory\)\. Give"):
        write_text(tmp_path / "absent" / "file", "")
    write_text(tmp_path / "file", "all")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingError, match=r"folder cannot be written \(Is a directory\)"):
        write_text(tmp_path / "folder", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
