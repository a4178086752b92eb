"""The report: what its data says, names that are HTML, DUMP folders in any state, and the page in a real browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, jit, profile
from kernmill.ir import SettingError
from kernmill.profiling import Profile, report
from kernmill.runtime import begin_page, device_rates, get_device

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one: tests of devices take the fixture `device`."""


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring them on a busy machine would take a second."""
    ceilings = device_rates.Ceilings(50.0, 10.0, 20.0, 1000.0, 1 << 20)
    monkeypatch.setattr(device_rates, "measured_ceilings", lambda device: ceilings)


def some_profile(device: str = "LLVM") -> Profile:
    f = jit(lambda x: (x @ x).softmax(1).sum())
    x = Tensor(np.ones((24, 24), np.float32), device=device).realize()
    with profile() as found:
        for _ in range(3):
            f(x).item()
    return found


def data_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    rest: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(found["packed"])))
    return found | rest


def texts_of(data: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    """The texts of a kernel, unpacked as the page does: behind the shared text as a block that is not compressed."""
    shared = base64.b64decode(data["shared"])
    head = bytes([0]) + len(shared).to_bytes(2, "little") + (len(shared) ^ 0xFFFF).to_bytes(2, "little")
    raw = zlib.decompress(head + shared + base64.b64decode(kernel["packed"]), -15)
    found: dict[str, Any] = json.loads(raw[len(shared) :])
    return found


def test_the_data_is_that_of_the_profile(device: str) -> None:
    found = some_profile(device)
    data = data_of(report.html(report.report_data(found)))
    assert [row["name"] for row in data["rows"]] == [row.name for row in found.rows]
    assert sum(data["totals"].values()) == pytest.approx(data["wall"], rel=0.03)
    events = data["events"]
    assert len(events["lane"]) == len(events["start"]) == len(events["dur"]) == len(events["row"])
    assert sum(row >= 0 for row in events["row"]) == sum(row.calls for row in found.rows)
    assert all(kernel["packed"] for kernel in data["kernels"])
    (source,) = [data["sources"][number] for number in data["rows"][0]["sources"]]
    assert "softmax" in source["text"][source["line"] - source["first"]]
    (graph, *_) = data["graphs"]
    for number, node in enumerate(graph["nodes"]):
        assert all(before < number for before in node["after"])


def test_a_kernel_is_after_the_one_that_wrote_the_whole_of_its_slice() -> None:
    """Named regression: products of the parts of a tensor had no line from the kernel that computed it."""

    @jit
    def f(x: Tensor) -> Tensor:
        upper, lower = (x @ x).split(12)
        return (upper @ x).relu() @ lower.T

    x = Tensor(np.ones((24, 24), np.float32)).realize()
    with profile() as found:
        for _ in range(3):
            f(x).realize()
    graph = max(report.report_data(found, seconds=0)["graphs"], key=lambda graph: len(graph["nodes"]))
    assert [sorted(node["after"]) for node in graph["nodes"]] == [[], [0], [0, 1]]


def test_a_kernel_that_is_left_out_has_its_uops(tmp_path: Path) -> None:
    with Context(CACHE_DIR=str(tmp_path)):
        data = data_of(report.html(report.report_data(some_profile(), seconds=0)))
    for kernel in data["kernels"]:
        assert [name for name, _ in texts_of(data, kernel)["listings"]] == ["kernel"]
        assert kernel["reason"].startswith("The texts of slower kernels took the time")


def test_a_report_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """Kernels that the time was too short for are made by the next report; what is in the cache takes none."""
    with Context(CACHE_DIR=str(tmp_path)):
        found = some_profile()
        report.report_data(found)
        later = report.report_data(found, seconds=0)
    assert not any(kernel["reason"] for kernel in later["kernels"])


def test_the_texts_of_many_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Context(CACHE_DIR=str(tmp_path)), profile() as found:
        found.recorder.texts = {}
        x = Tensor(np.ones((5, 7), np.float32)).realize()
        for name in ("exp", "sin", "sqrt", "relu", "tanh"):
            getattr(x, name)().sum().item()
    compiled = len(found.recorder.texts)
    lowered: list[str] = []
    made = begin_page

    def seen(device: Any, kernel: Any) -> Any:
        lowered.append(kernel.name)
        return made(device, kernel)

    monkeypatch.setattr(report, "begin_page", seen)
    with Context(CACHE_DIR=str(tmp_path)):
        first = data_of(report.html(report.report_data(found)))
        assert compiled
        assert len(lowered) == len(first["kernels"]) - compiled  # those that were compiled are not lowered again
        monkeypatch.setattr(report, "begin_page", lambda *args, **given: pytest.fail("it is in the cache"))
        second = data_of(report.html(report.report_data(found)))
    assert len(first["kernels"]) > 4
    for one, other in zip(first["kernels"], second["kernels"], strict=True):
        texts = texts_of(first, one)
        assert texts == texts_of(second, other)
        assert texts["code"]
        assert "ret" in texts["assembly"]


def test_assembly_that_is_not_ready_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other texts are shown, and the page is not stored: the next report has all."""

    def late(self: object, source: str) -> Callable[[float | None], tuple[str, list[int]]]:
        def wait(limit_s: float | None) -> tuple[str, list[int]]:
            assert limit_s is not None
            raise TimeoutError

        return wait

    with Context(CACHE_DIR=str(tmp_path)):
        found = some_profile()
        with monkeypatch.context() as patch:
            patch.setattr(type(get_device("LLVM")), "assembly_later", late)
            data = data_of(report.html(report.report_data(found)))
            said = report.write_report(tmp_path / "report.html", found)
        assert f"{len(data['kernels'])} of {len(data['kernels'])} kernels were not ready" in said
        for kernel in data["kernels"]:
            texts = texts_of(data, kernel)
            assert texts["code"]
            assert not texts["assembly"]
            assert kernel["reason"].startswith("The assembly was not ready")
        assert not any(kernel["reason"] for kernel in report.report_data(found)["kernels"])


def test_no_name_ends_the_script() -> None:
    page = report.html(report.report_data(some_profile(), HOSTILE))
    assert HOSTILE not in page
    assert data_of(page)["title"] == HOSTILE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Context(DUMP=str(tmp_path / "dump")):
        (Tensor.ones(6, 51).contiguous() * 2).sum(1).realize()
        (Tensor.ones(9, 9).contiguous() @ Tensor.ones(9, 9).contiguous()).realize()
    return tmp_path / "dump"


def test_a_dump_folder(folder: Path) -> None:
    data = data_of(report.report_of_folder(folder))
    assert len(data["rows"]) == len(list(folder.iterdir()))
    assert all(kernel["packed"] for kernel in data["kernels"])


def test_a_folder_of_another_version_or_half_written(folder: Path) -> None:
    first, second, *_ = sorted(folder.iterdir())
    (first / "page.json").write_text('{"passes": 3}')
    (second / "kernel.json").write_text((second / "kernel.json").read_text()[:40])
    data = data_of(report.report_of_folder(folder))
    count = len(list(folder.iterdir()))
    assert data["about"].startswith(f"{count - 1} of {count} kernels")
    reasons = [kernel["reason"] for kernel in data["kernels"] if not kernel["packed"]]
    assert reasons == ["page.json is absent or damaged: another version wrote the folder, or it is half written."]


def test_a_folder_whose_names_are_html(folder: Path) -> None:
    first = min(folder.iterdir())
    facts = json.loads((first / "kernel.json").read_text())
    (first / "kernel.json").write_text(json.dumps(facts | {"name": HOSTILE, "origin": f"{HOSTILE}.py:3"}))
    first.rename(first.with_name("<b>x<b>"))
    page = report.report_of_folder(folder)
    assert HOSTILE not in page
    assert HOSTILE in [row["name"] for row in data_of(page)["rows"]]


@pytest.mark.parametrize("kind", ["absent", "empty", "a file"])
def test_no_folder(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    if kind == "empty":
        path.mkdir()
    elif kind == "a file":
        path.write_text("")
    said = "has no folder of a kernel" if kind == "empty" else "is not a folder"
    with pytest.raises(SettingError, match=rf"report: .* {said}\. Give the folder of DUMP=folder python program\.py\."):
        report.report_of_folder(path)


# --- in a browser ----------------------------------------------------------------------------------------------------
Look = Callable[..., str]
ERRORS = "<script>addEventListener('error', (e) => document.documentElement.dataset.broken = e.message)</script>"
KEY = 'document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "%s", bubbles: true}));'
PAGES = ("time", "roofline", "graph", "kernel", "memory", "again")
VISIT = f"""(async () => {{ for (const name of {[*PAGES]}) {{
    location.hash = name; await new Promise((done) => setTimeout(done, 50));
    const copy = document.getElementById("main").cloneNode(true); copy.id = ""; document.body.append(copy); }} }})()"""


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Opens a page at an address in it, runs a script in it, and returns the document after it."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium")

    def open_page(page: str, address: str, script: str = "") -> str:
        path = tmp_path / "page.html"
        after = f"<script>setTimeout(() => {{ {script} }}, 500)</script></body>"
        path.write_text(page.replace("<body>", f"<body>{ERRORS}").replace("</body>", after))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
        done = subprocess.run(
            [browser, *options, f"--user-data-dir={tmp_path / 'browser'}", f"file://{path}#{address}"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "data-broken" not in done.stdout, done.stdout[:400]
        return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)

    return open_page


def test_every_page_is_drawn(look: Look) -> None:
    page = report.html(report.report_data(some_profile()))
    shown = look(page, "roofline", VISIT)
    for name in PAGES:
        assert f'data-page="{name}"' in shown
    for part in ('id="timeline"', "<circle", 'id="graphic"', 'class="memory"', "the first capture"):
        assert part in shown
    assert shown.count("data-row=") == len(data_of(page)["rows"])


def test_a_kernel_is_unpacked_and_its_panes_are_linked(look: Look) -> None:
    page = report.html(report.report_data(some_profile()))
    hover = """const line = [...document.querySelectorAll("pre div[data-u]")].at(-1);
        line.dispatchEvent(new MouseEvent("mouseenter")); document.body.dataset.lit =
        new Set([...document.querySelectorAll("pre div.lit[data-u]")].map((d) => d.closest(".pane"))).size;"""
    shown = look(page, "kernel/0", hover)
    for head in ("Your line", "UOps", "Schedule and cost", "LLVM IR", "Assembly"):
        assert f"<b>{head}</b>" in shown
    assert 'data-lit="3"' in shown  # UOps, LLVM IR, assembly


def test_the_slider_shows_what_a_pass_changed(look: Look) -> None:
    shown = look(report.html(report.report_data(some_profile())), "kernel/0", KEY % "ArrowLeft")
    number = re.search(r"(\d+) of (\d+): (\w+)", shown)
    assert number is not None
    assert int(number[1]) == int(number[2]) - 1
    assert number[3] == "lower_index"
    assert 'class="add"' in shown


def test_search_and_keys(look: Look) -> None:
    page = report.html(report.report_data(some_profile()))
    search = """const box = document.getElementById("search"); box.value = "no such kernel";
        box.dispatchEvent(new Event("input"));"""
    shown = look(page, "time", search + KEY % "t")
    assert "Nothing matches the search." in shown
    assert 'data-theme="dark"' in shown
    assert 'data-page="kernel"' in look(page, "time", KEY % "j" + KEY % "Enter")


def test_names_that_are_html(look: Look) -> None:
    shown = look(report.html(report.report_data(some_profile(), HOSTILE)), "time")
    assert "<title>broken" not in shown
    assert "<img" not in shown


def test_a_profile_of_nothing_is_drawn(look: Look) -> None:
    with profile() as nothing:
        pass
    shown = look(report.html(report.report_data(nothing)), "time", VISIT)
    assert shown.count("No kernel was launched.") == 2
    assert 'data-page="again"' in shown


def test_a_dump_folder_is_drawn(look: Look, folder: Path) -> None:
    assert "LLVM IR" in look(report.report_of_folder(folder), "kernel/0")
