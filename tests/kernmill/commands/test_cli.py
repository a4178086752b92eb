"""Each command, its exit status, and what it says of mistakes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernmill.commands.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent.parent


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Once is enough: the commands choose their device themselves."""


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kernmill", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  LLVM  .*\(default\)$", text, re.MULTILINE)
    assert re.search(r"^  PYTHON .*the reference", text, re.MULTILINE)
    for part in ("features used:", " thread", "MiB", "CACHE_DIR="):
        assert part in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert re.fullmatch(r"kernmill \d.*\n", capsys.readouterr().out)


def test_running_a_model_does_not_import_what_others_need() -> None:
    names = "importlib.metadata", "subprocess", "kernmill.llm.train", "kernmill.nn"
    code = "import sys, numpy; known = set(sys.modules); import kernmill.commands.cli, kernmill.llm.run"
    code += f"; print([name for name in {names} if name in sys.modules and name not in known])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_ends_without_a_search_for_garbage() -> None:
    code = "import gc, sys; sys.argv[1:] = ['cache', 'info']; from kernmill.__main__ import main; main()"
    code += "; print('frozen', gc.get_freeze_count() > 10_000)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("frozen True\n")


@pytest.mark.skipif(os.name == "nt", reason="a process cannot be sent Ctrl-C there")
def test_ctrl_c_while_a_command_ends_says_nothing() -> None:
    """It was a traceback of the thread pool's stop."""
    code = "import atexit, os, signal, sys; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    code += "; sys.argv[1:] = ['cache', 'info']; from kernmill.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "info"]) == 0
    assert main(["cache", "verify"]) == 0
    assert "0 are damaged" in capsys.readouterr().out


def test_cache_clear_empties_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    code = "from kernmill import Tensor; (Tensor([1.0, 2.0]) * 3).realize()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "CACHE_DIR": str(folder)}, check=True)
    status, out, _ = run("cache", "clear", CACHE_DIR=str(folder))
    assert status == 0
    assert re.fullmatch(rf"[1-9] entries deleted from {re.escape(str(folder))}\n", out)
    assert run("cache", "clear", CACHE_DIR=str(folder))[1].startswith("0 entries deleted")


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (("info",), {"DEBUG": "seven"}, "kernmill: environment: 'seven' is not a value of DEBUG. Valid: 0 to 6."),
        (("info",), {"DEVICE": "NO"}, "kernmill: device 'NO': not found. Available: "),
        (("demo", "--device", "NO"), {}, "kernmill: device 'NO': not found. Available: "),
        (
            ("quantize", "no.gguf", "out", "Q4_0"),
            {},
            "kernmill: no.gguf: cannot be read: No such file or directory. Give the",
        ),
        (
            ("run", "no.gguf", "hello"),
            {},
            "kernmill: run: 'hello': one word too many. Give a text with -p: ",
        ),
        (
            ("quantize", "no.gguf", "out", "Q4"),
            {},
            "kernmill: quantize: 'Q4': must be one of ",
        ),
        (
            ("conformance", "--device", "a:b"),
            {},
            "kernmill: device 'a:b': expected a device name such as LLVM or LLVM:1.",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], environment: dict[str, str], text: str) -> None:
    status, _, error = run(*arguments, **environment)
    assert status == 2
    assert error.startswith(text)
    assert "Traceback" not in error


def test_debug_shows_where_a_mistake_was_made() -> None:
    status, _, error = run("info", DEVICE="NO", DEBUG="1")
    assert status == 1
    assert "Traceback" in error


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["demo", "--steps", "0"], ["no"], []):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert "usage: kernmill" in capsys.readouterr().err


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernmill.commands.cli.check_environment", interrupted)
    assert main(["info"]) == 130
    assert capsys.readouterr().err == "\nkernmill: stopped.\n"


@pytest.mark.parametrize("module", ["kernmill.ir", "kernmill.lazy", "kernmill.commands.cli", "argparse"])
@pytest.mark.parametrize("program", ["kernmill", "other"])
def test_ctrl_c_while_modules_are_imported(tmp_path: Path, module: str, program: str) -> None:
    """It ended in a traceback. Another program that imports kernmill gets its KeyboardInterrupt."""
    code = f"""
import sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
{"from kernmill.__main__ import main" if program == "kernmill" else f"import {module}"}
"""
    (tmp_path / program).write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, tmp_path / program], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if program == "kernmill":
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    else:
        assert done.stderr.endswith("KeyboardInterrupt\n")


def test_ctrl_c_while_arguments_are_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernmill.commands.cli._given", interrupted)
    assert main(["info"]) == 130
    assert capsys.readouterr().err == "\nkernmill: stopped.\n"


def test_a_limit_of_tokens_below_minus_two_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It was taken for no limit without a word."""
    with pytest.raises(SystemExit):
        main(["run", "m.gguf", "-p", "a", "-n", "-3"])
    assert "-3 is neither a number of tokens nor -1" in capsys.readouterr().err


STREAMS = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}


@pytest.mark.skipif(os.name == "nt", reason="written for a POSIX shell")
@pytest.mark.parametrize("closed", [*STREAMS.values(), " ".join(STREAMS.values())])
def test_closed_streams_are_empty_ones(closed: str) -> None:
    command = f"{sys.executable} -m kernmill cache info {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no file that is always full")
def test_output_to_a_full_disk_is_one_sentence() -> None:
    command = [sys.executable, "-m", "kernmill", "cache", "info"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "kernmill: the output cannot be written: No space left on device. Redirect it.\n"


@pytest.mark.skipif(os.name == "nt", reason="written for a POSIX shell")
def test_output_to_what_is_open_for_reading_is_one_sentence() -> None:
    """It was a traceback."""
    command = f"{sys.executable} -m kernmill cache info 1</dev/null"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "kernmill: the output cannot be written: Bad file descriptor. Redirect it.\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no file that is always full")
def test_a_mistake_that_nobody_can_be_told_of_keeps_its_status() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-m", "kernmill", "run", "no"], cwd=ROOT, stderr=full, check=False,
                              stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 2


def test_a_word_where_a_number_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["run", "x.gguf", "-n", "all"], "argument -n/--n-predict/--predict: invalid number of tokens value: 'all'"),
        (["bench", "x.gguf", "-p", "all"], "argument -p/--n-prompt: invalid list of numbers value: 'all'"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert text in capsys.readouterr().err


def test_bench_tells_how_a_model_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0
    assert "--n-prompt" in out
    assert "python -m bench --help" in out
