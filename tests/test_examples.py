"""The examples run: on a part of the real data where it is there, and with a clear sentence where it is not."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_mnist_on_a_part(shared_data: Callable[[str], Path]) -> None:
    done = run(
        "examples/mnist.py", "--data", str(shared_data("mnist")), "--epochs", "1", "--limit", "3200", "--batch", "64"
    )
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"^accuracy (\S+) %$", done.stdout, re.MULTILINE)
    assert float(accuracy) > 75
    only_progress(done.stderr)


def only_progress(text: str) -> None:
    """Lines instead of a bar where there is no terminal."""
    assert all(re.fullmatch(r"epoch \d+/\d+: step \d+ of \d+, loss \d+\.\d+", line) for line in text.splitlines()), text


def test_mnist_without_data_makes_digits_up() -> None:
    """Named regression: somebody without the files could not run the README's line."""
    done = run("examples/mnist.py", "--epochs", "1", "--limit", "1600", "--batch", "32")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mnist: no --data, so the digits are made up (6,000 to train, 1,000 to test)\n")
    (accuracy,) = re.findall(r"^accuracy (\S+) %$", done.stdout, re.MULTILINE)
    assert float(accuracy) > 75
    only_progress(done.stderr)


def test_mnist_without_its_files(tmp_path: Path) -> None:
    done = run("examples/mnist.py", "--data", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"mnist: {tmp_path} lacks train-images-idx3-ubyte.gz, ")
    assert "Traceback" not in done.stderr


def test_mnist_with_a_damaged_file(tmp_path: Path) -> None:
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (tmp_path / f"{name}.gz").write_bytes(b"no gzip")
    done = run("examples/mnist.py", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "Fetch the file again." in done.stderr
    assert "Traceback" not in done.stderr


TINY = ("--width", "32", "--layers", "1", "--vocabulary", "320", "--stories", "40", "--steps", "3", "--batch", "2")


def test_a_story_model(tmp_path: Path) -> None:
    done = run("examples/train_story_model.py", "--out", str(tmp_path / "a.gguf"), *TINY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(re.findall(r"step +\d  loss \d\.", done.stdout)) == 3
    plain, small = (float(found) for found in re.findall(r"perplexity ([\d.]+)$", done.stdout, re.MULTILINE))
    assert abs(small / plain - 1) < 0.02
    assert (tmp_path / "a.gguf").stat().st_size > 2 * (tmp_path / "a-q8_0.gguf").stat().st_size
    assert "\nOnce upon a time" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", "-1"), "error: --seed is 0 or more"),
        (("--mix", "Q9"), "error: --mix: quantize: 'Q9': must be one of F32"),
        (("--out", "."), "error: --out: ., or the second file beside it, is a folder; give the path of"),
    ],
)
def test_a_story_model_says_mistakes_before_it_learns(arguments: tuple[str, ...], message: str) -> None:
    done = run("examples/train_story_model.py", *TINY, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not done.stdout


def test_a_story_model_without_a_place(tmp_path: Path) -> None:
    done = run("examples/train_story_model.py", "--out", str(tmp_path / "no" / "a.gguf"), *TINY)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: --out: there is no folder {tmp_path / 'no'}\n")
    assert not done.stdout, "it is said before the training, whose result would be lost"


GALLERY = {  # program: options of a tiny run, and what its last line says
    "spirals": ("--steps 20", r"accuracy \d+\.\d %"),
    "char_rnn": ("--steps 3 --width 8 --length 9", r"continued: .{20}"),
    "autoencoder": ("--steps 3", r"pixels right \d+\.\d %"),
    "factorization": ("--steps 3 --users 20 --films 10", r"films for the first user: \d+, \d+, \d+; mean error .* %"),
    "kmeans": ("--points 200 --clusters 3 --rounds 4", r"200 points, 3 clusters: mean distance .* \d\.\d{3}"),
    "heat": ("--size 16 --steps 40", r"after 40 steps: mean \d+\.\d{3}, centre \d+\.\d{3}"),
    "mandelbrot": ("--width 20 --rounds 5", r"inside: 0\.\d{3} of the points"),
    "spectrogram": ("--seconds 0.5", r"loudest: \d+ Hz at the start, \d+ Hz at the end; energy lost 0\.0\d\d %"),
    "gaussian_process": ("--points 12 --steps 3", r"length \d\.\d\d, noise \d\.\d\d"),
    "graph_attention": ("--nodes 40 --steps 2", r"40 nodes, \d+ edges: \d+\.\d% of the unseen labels, .* alone"),
    "exchange_models": ("", r"through .* bytes of ONNX: largest difference .*|for the ONNX part: pip install .*"),
    "life": ("--size 8 --steps 8", r"after 8 steps: 5 cells, the glider is where it should be"),
}


@pytest.mark.parametrize("name", GALLERY)
def test_a_program_of_the_gallery(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options, last = GALLERY[name]
    program = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert program["main"](options.split()) == 0
    assert re.fullmatch(last, capsys.readouterr().out.splitlines()[-1])


def test_the_gallery_has_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert examples == set(re.findall(r"\(\.\./examples/(\w+\.py)\)", page))
    assert {f"{name}.py" for name in GALLERY} | {"mnist.py", "train_story_model.py"} == examples
