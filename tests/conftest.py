"""What every test may use: golden files, the devices, the shared data, and a kernel cache of its own."""

from __future__ import annotations

import difflib
import gc
import importlib
import importlib.metadata
import os
import re
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DEVICES = ("LLVM", "CL", "PYTHON")  # a new device goes in here; PYTHON is the reference, so it stays the last
NAMED = ("HTP",)  # tests run on these only with --device


# --- options and the session's own cache -----------------------------------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernmill")
    group.addoption("--update-golden", action="store_true", help="write the golden files, compare nothing")
    group.addoption("--record-kernels", metavar="FOLDER", help="keep each kernel there: tests/kernel_records.py")
    group.addoption(
        "--device", action="append", default=[], metavar="NAME", help=f"only these of {', '.join(DEVICES + NAMED)}"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: a kernel cached by yesterday's compiler must not pass today's test."""
    for name in config.getoption("--device") or ():
        if name.upper() not in DEVICES + NAMED:
            known = ", ".join(DEVICES + NAMED)
            raise pytest.UsageError(f"--device {name}: the tests know no such device. Use one of {known}.")
    # A shell starts what runs in the background with SIGINT ignored, and every child of this process inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(20_000, 20, 20)  # the collector walked the objects of 20,000 tests: 7 % of the time
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:  # all workers of pytest -n share the folder: what one of them has compiled the others find
        os.environ["CACHE_DIR"] = tempfile.mkdtemp(prefix="kernmill-test-cache-")
        config.add_cleanup(partial(shutil.rmtree, os.environ["CACHE_DIR"], ignore_errors=True))
    os.environ["POCL_CACHE_DIR"] = os.path.join(os.environ["CACHE_DIR"], f"pocl{worker}")
    hypothesis = importlib.import_module("hypothesis")  # no test depends on how busy the machine is
    too_slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=too_slow)
    hypothesis.settings.load_profile("any machine")
    if config.getoption("--record-kernels"):
        importlib.import_module("tests.kernel_records").start_recording(Path(config.getoption("--record-kernels")))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker that has finished takes tests of the other: the last tests in the order are slow ones."""
    return importlib.import_module("xdist.scheduler").WorkStealingScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`--device NAME` leaves out the other devices; tests without a device stay. `-m opencl` are those that need CL."""
    chosen = {name.upper() for name in config.getoption("--device") or ()}
    items[:] = [item for item in items if _device_of(item) not in set(NAMED) - chosen]
    for item in items:
        if _device_of(item) == "CL" or "opencl" in getattr(item, "fixturenames", ()):
            item.add_marker("opencl")
    importlib.import_module("tests.daily").mark_slow(items)
    if not chosen:
        return
    out = [item for item in items if _device_of(item) not in {None, *chosen}]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Frozen objects are counted at each new plan: with all that pytest has, plans take ten times as long."""
    if gc.get_freeze_count():
        gc.unfreeze()
        pytest.fail("the test leaves objects frozen: it called kernmill.__main__.main(), which ends a process")


def _device_of(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("device")


@pytest.fixture(scope="session", autouse=True)
def cache_dir() -> Path:
    """The folder of this session's kernel cache: empty at the start, gone at the end."""
    return Path(os.environ["CACHE_DIR"])


@cache
def why_missing(device: str) -> str:
    """Why the device cannot be used here; empty where it can."""
    from kernmill.ir import DeviceError
    from kernmill.runtime import get_device

    try:
        get_device(device)
    except DeviceError as error:
        return str(error)
    return ""


@pytest.fixture(params=DEVICES + NAMED)
def device(request: pytest.FixtureRequest) -> str:
    """The test runs once on each device that is there."""
    if why_missing(request.param):
        pytest.skip(why_missing(request.param))
    return str(request.param)


@pytest.fixture(scope="session")
def opencl() -> str:
    """The name of an OpenCL device; the test is skipped where there is none."""
    if why_missing("CL"):
        pytest.skip(why_missing("CL"))
    return "CL"


class _Far:
    """Opens FAR devices, and announces others, as if a package with these entry points were installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.classes: dict[str, type] = {}
        self.patch = monkeypatch
        real: Callable[..., Any] = importlib.metadata.entry_points

        def found(**given: Any) -> Any:
            if given.get("group") != "kernmill.devices":
                return real(**given)
            return importlib.metadata.EntryPoints(
                importlib.metadata.EntryPoint(name, f"announced_{name.lower()}:{cls.__name__}", "kernmill.devices")
                for name, cls in self.classes.items()
            )

        monkeypatch.setattr(importlib.metadata, "entry_points", found)
        self.announce("FAR", importlib.import_module("tests.far_device").FarDevice)

    def announce(self, name: str, cls: type) -> str:
        """`DEVICE=name` is an instance of this class."""
        module = types.ModuleType(f"announced_{name.lower()}")
        setattr(module, cls.__name__, cls)
        self.patch.setitem(sys.modules, module.__name__, module)
        self.classes[name] = cls
        return name

    def __call__(self, index: int = 0, **options: object) -> str:
        """The name of FAR:index, which is opened with these options."""
        from kernmill.runtime import get_device

        given = "&".join(f"{key}={value}" for key, value in options.items())
        return get_device(f"FAR:{index}?{given}" if given else f"FAR:{index}").name


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Far]:
    """`far(1, mib=8)` opens a device in another process, FAR:1, and gives its name (tests/far_device.py)."""
    runtime = importlib.import_module("kernmill.runtime")
    made = _Far(monkeypatch)
    yield made
    for name in [name for name, _ in runtime.device._open if name.partition(":")[0] in made.classes]:
        runtime.close_device(name)
    for name in [name for name in runtime.device._options if name.partition(":")[0] in made.classes]:
        del runtime.device._options[name]


@pytest.fixture
def closed_devices() -> Iterator[None]:
    """OpenCL devices are opened anew in the test; whatever it opens is forgotten after it."""
    table = importlib.import_module("kernmill.runtime.device")._open
    kept = dict(table)
    for key in [key for key in table if key[0].startswith("CL")]:
        del table[key]
    yield
    table.clear()
    table.update(kept)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels for work-items, on devices that can have either, in groups that suit tensors of some hundred elements."""
    from kernmill.ir import Context

    gpu = importlib.import_module("kernmill.compiler.optimize.gpu")
    for name, value in importlib.import_module("tests.kernel_records").SMALL_GROUPS.items():
        monkeypatch.setattr(gpu, name, value)
    with Context(TARGET="gpu", CACHE="0"):  # what is made now must not be found by other tests
        yield


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("mnist")` is the folder ../shared/data/mnist; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = ROOT.parent / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"no ../shared/data/{name} beside the checkout")
        return path

    return find


# --- golden files ----------------------------------------------------------------------------------------------------
class Golden:
    """The text a test is expected to make: `assert golden == text`, or `golden(text)`. One file a test."""

    def __init__(self, path: Path, command: str, *, update: bool) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.command = command
        self.update = update

    def __call__(self, text: str) -> None:
        assert self == text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        text = other.rstrip("\n") + "\n"
        if self.update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(text, encoding="utf-8", newline="\n")
        return self.text() == text

    __hash__ = None  # type: ignore[assignment]

    def text(self) -> str:
        """What the file says; without a file the test fails with the command that makes it."""
        if not self.path.exists():
            pytest.fail(f"no golden file {self.name}. To make it: {self.command}", pytrace=False)
        return self.path.read_text(encoding="utf-8")

    def difference(self, text: str) -> list[str]:
        """The lines of a unified diff, and the way out."""
        lines = difflib.unified_diff(self.text().splitlines(), text.splitlines(), "golden", "this run", lineterm="")
        return [f"{self.name} differs", *lines, f"If the new text is right: {self.command}"]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The golden file of this test: tests/golden/<suite>/<test>.txt, the suite being the test file's own place."""
    node: pytest.Item = request.node
    suite = node.path.relative_to(TESTS).with_suffix("").as_posix().replace("test_", "")
    name = re.sub(r"[^\w.-]+", "-", node.name.removeprefix("test_")).strip("-")
    update = bool(request.config.getoption("--update-golden"))
    return Golden(TESTS / "golden" / suite / f"{name}.txt", f'pytest "{node.nodeid}" --update-golden', update=update)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """A golden file that differs is shown as a diff."""
    if op != "==":
        return None
    if isinstance(left, Golden) and isinstance(right, str):
        return left.difference(right)
    if isinstance(right, Golden) and isinstance(left, str):
        return right.difference(left)
    return None
