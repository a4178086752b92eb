"""What is shipped: wheel contents, mirrored tests, versions, and nothing of one machine in a file."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INNER = ("compiler", "ir", "renderers", "runtime")
FOLDERS = ("kernmill", *INNER)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Sources without a tests/<folder>/test_<file>.py of their own, and what tests them instead.
TESTED_ELSEWHERE: dict[str, str] = {
    "ir/algebra/": "a rule is tested by tests/laws/, which finds it by itself",
    "runtime/ops_": "a device is tested by tests/devices/, which finds it by itself",
    "kernmill/__main__.py": "one line that calls the command line",
    "kernmill/llm/arch/": "every architecture is compared with NumPy by tests/kernmill/llm/arch/test_dense.py",
    "kernmill/torch_backend/": "tests/kernmill/torch_backend/test_dynamo.py compares models with eager PyTorch",
    "kernmill/commands/onnx_model.py": "tests/kernmill/onnx/test_bench.py runs the command",
    "kernmill/onnx/": "tests/kernmill/onnx/test_table.py runs the node tests of the package onnx, test_model.py files",
    "kernmill/array_api/": "tests/kernmill/array_api/test_namespace.py compares expressions with array_api_strict",
    "kernmill/views.py": "tests/fuzz/test_views.py compares random programs with NumPy and PyTorch",
    "kernmill/commands/device_parts.py": "tests/runtime/test_device_parts.py breaks a device for each of them",
    "kernmill/profiling/profiled.py": "tests/kernmill/profiling/test_rows.py makes profiles",
    "kernmill/profiling/table.py": "tests/kernmill/profiling/test_rows.py shows them in terminals",
    "kernmill/commands/explain.py": "tests/runtime/test_placement_report.py runs the command",
    "kernmill/commands/program.py": "tests/kernmill/commands/test_tuning.py and the command explain run programs",
    "compiler/graph/choose_devices.py": "tests/compiler/graph/test_place.py compares with all placements",
    "compiler/graph/cut_pairs.py": "tests/compiler/graph/test_place.py compares with all placements",
    "compiler/graph/open_units.py": "tests/compiler/graph/test_place.py compares with all placements",
    "compiler/graph/placement_units.py": "tests/compiler/graph/test_place.py looks at the units through what is placed",
    "ir/device_spec.py": "data; tests/compiler/graph/test_place.py and tests/runtime/test_device_rates.py use it",
    "runtime/memory/holders.py": "tests/runtime/test_far_device.py reads what an error names",
    "runtime/tape.py": "tests/runtime/test_recorder.py reads what replays write",
    "runtime/opening.py": "tests/runtime/test_far_device.py and test_device_list.py open devices",
    "runtime/cpu/pool_system.py": "tests/runtime/cpu/test_pool.py and test_interrupts.py run the pool's code",
}

TESTED_ELSEWHERE |= dict.fromkeys(
    (f"kernmill/serve/{name}.py" for name in ("errors", "metrics", "requests", "shapes")),
    "tests/kernmill/serve/test_app.py asks for every path",
)
TESTED_ELSEWHERE |= {
    "kernmill/dist/ending.py": "tests/kernmill/dist/test_mpi.py ends ranks early, before MPI and with errors",
    "kernmill/llm/talk/call_streams.py": "tests/kernmill/llm/talk/test_replies.py streams the calls of all families",
    "kernmill/commands/generation.py": "tests/kernmill/commands/test_options.py hands over every option",
    "kernmill/llm/memory_needs.py": "tests/kernmill/llm/test_run.py runs out of memory",
    "kernmill/commands/quantizing.py": "tests/kernmill/commands/test_options.py hands over every option",
    "kernmill/quant/codebooks.py": "tests/kernmill/quant/test_grid_writing.py searches them",
    "kernmill/llm/opening.py": "tests/kernmill/llm/test_generate.py and test_devices.py open models",
    "kernmill/llm/model_memory.py": "tests/kernmill/llm/test_devices.py compares devices with the whole",
    "kernmill/llm/masks.py": "tests/kernmill/llm/test_grammar.py generates under masks",
    "kernmill/llm/sampling_steps.py": "tests/kernmill/llm/test_sampling.py has a test for each step",
    "kernmill/commands/serving.py": "tests/kernmill/serve/test_running.py runs the command",
    "kernmill/llm/talk/call_formats.py": "tests/kernmill/llm/talk/test_replies.py has a row for each format",
    "kernmill/llm/talk/pieces.py": "tests/kernmill/llm/talk/test_llm.py reads streams in threads and coroutines",
    "kernmill/llm/folders/": "tests/kernmill/llm/test_folders.py opens folders",
    "kernmill/formats/gguf_made.py": "tests/kernmill/llm/test_folders.py and test_merging.py make files in memory",
    "kernmill/llm/loading.py": "tests/kernmill/llm/test_generate.py and test_folders.py load models",
    "kernmill/numpy_calls.py": "tests/kernmill/test_tensor.py calls NumPy with tensors",
    "runtime/cpu/located.py": "tests/runtime/test_pages.py reads the assembly that it makes",
    "runtime/known.py": "tests/kernmill/test_deferred.py repeats calls",
    "kernmill/llm/talk/reply.py": "tests/kernmill/llm/talk/test_llm.py and tests/kernmill/serve/test_responses.py",
}

TOPICS: dict[str, str] = {  # tests of more than one source
    "compiler/optimize/test_corpus.py": "schedules of many kernels on several machines",
    "kernmill/dist/test_kills.py": "a rank is killed at any moment of training",
    "kernmill/profiling/test_origins.py": "layers, gradients and optimizers name what they compute",
    "kernmill/array_api/test_namespace.py": "a row for each function of the standard",
    "kernmill/test_programs_against_torch.py": "programs as a new user writes them",
    "kernmill/test_gradients.py": "a row for each public method",
    "kernmill/test_gradient_faults.py": "named regressions of autograd, tensors and captures",
    "kernmill/nn/test_cells.py": "layers of nn/layers.py and nn/recurrent.py that PyTorch has, too",
    "kernmill/serve/test_fuzz.py": "any request to a running server",
    "kernmill/serve/test_soak.py": "many clients of a running server",
    "kernmill/llm/test_threads.py": "a model that several threads call",
    "kernmill/llm/arch/test_compared.py": "every architecture has a comparison with llama.cpp",
    "kernmill/llm/arch/test_dense.py": "a row for each architecture",
    "kernmill/methods/test_zeros.py": "the sign of zero of every elementwise function",
    "kernmill/methods/test_options.py": "options of other libraries' functions",
    "compiler/test_passes.py": "the text before and after each pass of both lists",
    "compiler/test_linear_time.py": "work in proportion to the length of a graph, through all passes",
    "kernmill/test_user_programs.py": "programs as a new user writes them",
    "kernmill/llm/test_devices.py": "models over several devices",
    "kernmill/quant/test_stacks.py": "matrices of experts",
    "kernmill/captures/test_float_arguments.py": "floats as arguments of a replay",
    "runtime/test_device_parts.py": "each part of the conformance, with a device that only it catches",
    "runtime/test_device_list.py": "DEVICE as a list",
    "runtime/test_far_device.py": "faults that authors of devices met",
    "runtime/test_interrupts.py": "Ctrl-C in every way to run kernels",
}


# --- the wheel -------------------------------------------------------------------------------------------------------
def shipped() -> set[str]:
    """What a wheel must hold, from the sources: kernmill/ as it stands, the four others inside it, no signposts."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    files = {path.relative_to(ROOT).as_posix() for path in paths}
    files = {file for file in files if "__pycache__" not in file and not re.fullmatch(r"kernmill/\w+\.pyi", file)}
    return {file if file.startswith("kernmill/") else f"kernmill/{file}" for file in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed (it comes with the extra `dev`)")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_exactly_the_sources(wheel: Path) -> None:
    about = f"kernmill-{PROJECT['version']}.dist-info"
    metadata = {f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == shipped() | metadata


def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(wheel)!r}); import kernmill, kernmill.ir; print(kernmill.ir.__file__)"
    code += "; print(kernmill.__version__)"
    run = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.startswith(str(wheel)), run.stdout + run.stderr
    assert run.stdout.split()[-1] == PROJECT["version"]


def test_a_checkout_knows_its_version_and_reads_it_only_when_it_is_asked_for() -> None:
    code = "import sys, kernmill; print('importlib.metadata' in sys.modules or 'tomllib' in sys.modules); "
    command = [sys.executable, "-c", f"{code} print(kernmill.__version__)"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["False", PROJECT["version"]], run.stdout + run.stderr


# --- the checkout ----------------------------------------------------------------------------------------------------
def test_there_are_five_folders() -> None:
    assert [folder for folder in FOLDERS if not (ROOT / folder / "__init__.py").is_file()] == []
    assert sorted(path.stem for path in (ROOT / "kernmill").glob("*.pyi")) == sorted(INNER)


@pytest.mark.parametrize("folder", INNER)
def test_the_bare_name_is_refused(folder: str) -> None:
    command = [sys.executable, "-c", f"import {folder}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"ImportError: import kernmill.{folder}, not {folder}: the bare name would load a second copy" in run.stderr


def test_every_source_has_its_test() -> None:
    sources = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    alone = [
        source.as_posix()
        for source in sources
        if source.name != "__init__.py"
        and not source.as_posix().startswith(tuple(TESTED_ELSEWHERE))
        and not (ROOT / "tests" / source.parent / f"test_{source.name}").exists()
    ]
    assert alone == []


def test_every_unit_test_has_its_source() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    tests = [path.relative_to(ROOT / "tests") for path in paths]
    names = [test for test in tests if test.as_posix() not in TOPICS]
    units = {test.as_posix(): ROOT / test.parent / test.name.removeprefix("test_") for test in names}
    assert [test for test, unit in units.items() if not unit.exists() and not unit.with_suffix("").is_dir()] == []


def test_the_changelog_starts_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[?(\d+\.\d+\.\d+)", text, re.MULTILINE)
    assert versions[:1] == [PROJECT["version"]]


# --- nothing that belongs to one machine -----------------------------------------------------------------------------
HOMES = "|".join(("work", "root", r"home/\w+", r"Users/\w+"))
MACHINE_PATH = re.compile(rf"(?<![\w.~/-])/(?:{HOMES})(?![\w-])|\b[A-Z]:\\+Users\b")
REGISTRY_HOSTS = [f"{name}.org" for name in ("pypi", "pythonhosted", "npmjs", "anaconda")]


def tracked() -> list[Path]:
    """Files that git knows or would take; without git, everything that is no hidden folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        names = run.stdout.splitlines() if run.returncode == 0 else []
    except FileNotFoundError:
        names = []
    everything = [path for folder in (*FOLDERS, "tests", "docs") for path in (ROOT / folder).rglob("*")]
    paths = [ROOT / name for name in names] or everything
    return [path for path in paths if path.is_file() and "__pycache__" not in path.parts]


def private_parts(text: str) -> list[str]:
    """Machine paths and registry hosts in a text."""
    return [match.group() for match in MACHINE_PATH.finditer(text)] + [host for host in REGISTRY_HOSTS if host in text]


def test_no_file_names_a_machine_path_or_a_registry_host() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8", errors="ignore") for path in tracked()}
    assert {name: found for name, text in texts.items() if (found := private_parts(text))} == {}


def test_private_parts_are_found() -> None:
    private = [*("/".join(("", *parts)) for parts in (("work", "x"), ("root",), ("home", "ann"))), *REGISTRY_HOSTS]
    assert [text for text in private if not private_parts(f"see {text}.")] == []
    assert private_parts("docs/work/x, a/root/b, ./home/ann, ../work, ~/work, /worker") == []
