"""What a user of llama.cpp types: taken, or refused with what to do instead; never taken for another option."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from kernmill.commands import options
from kernmill.commands.cli import main


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Nothing is computed."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `kernmill run` hands over, each time: the model, Options, a Sampler."""
    found: list[Any] = []

    def kept(*given: Any) -> int:
        found.append(given)
        return 0

    monkeypatch.setattr("kernmill.llm.run.run", kept)
    return found


TAKEN: list[tuple[list[str], dict[str, Any]]] = [
    (["-ctk", "q8_0", "-ctv", "Q8_0"], {"cache_type": "q8_0"}),
    (["-ctv", "f16"], {"cache_type": "f16"}),
    (["--cache-type-k", "f16"], {"cache_type": "f16"}),
    (["-cnv", "-sys", "x"], {"chat": True, "system": "x"}),
    (["--conversation", "--system-prompt", r"a\nb"], {"chat": True, "system": "a\nb"}),
    (["-cnv", "-st"], {"is_single_turn": True}),
    (["-n", "-1"], {"tokens": None}),
    (["-n", "-2"], {"tokens": None}),
    (["--predict", "5"], {"tokens": 5}),
    (["-n=5"], {"tokens": 5}),
    (["-c", "0"], {"capacity": 0}),
    (["--ignore-eos"], {"ignores_end": True}),
    (["-ub", "32"], {"block": 32}),
]


@pytest.mark.parametrize(("words", "wanted"), TAKEN, ids=lambda value: " ".join(value))
def test_words_of_llama_cpp_are_taken(words: list[str], wanted: dict[str, Any], asked: list[Any]) -> None:
    assert main(["run", "-m", "x.gguf", "-p", "a", *words]) == 0
    path, given, _ = asked[0]
    assert path == "x.gguf"
    assert {name: getattr(given, name) for name in wanted} == wanted


def test_numbers_that_say_all_or_any(asked: list[Any]) -> None:
    main(["run", "x.gguf", "-p", "a", "--seed", "-1", "--top-k", "-1"])
    assert (asked[0][2].seed, asked[0][2].top_k) == (None, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-ngl", "99"], "there is no option -ngl. Leave it out: a model runs as a whole on one device. --device NAME "
         "chooses another; kernmill info lists them."),
        (["--no-mmap"], "there is no option --no-mmap. Leave it out: weights are copied once, and the pages of the "
         "file behind them are given back."),
        (["-fa", "on"], "there is no option -fa. Leave it out: the kernels are made for the model."),
        (["--grammar-file", "x"], "there is no option --grammar-file. Nothing here holds a text to a form. Ask for the "
         "form in the prompt, or choose tokens by Model.next_logits in Python."),
        (["--rope-scale=2"], "there is no option --rope-scale. Leave it out: the file says how the model computes."),
        (["-n5"], "there is no option -n5. Write -n 5."),
        (["--promt", "x"], "there is no option --promt. Is it --prompt? kernmill run --help lists all."),
        (["--zzz"], "there is no option --zzz. kernmill run --help lists all."),
        (["--temper", "1"], "there is no option --temper. Is it --temp? kernmill run --help lists all."),
        (["-m", "y"], "two models, x.gguf and -m y. Give one."),
        (["-f", "y", "-p", "a"], "-p and -f are both a prompt. Give one of them."),
    ],
    ids=lambda value: value[0],
)  # fmt: skip
def test_other_words_are_refused_with_what_to_do(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """-ngl 99 was -n gl, -ctk q8_0 was -c tk, and --temper was --temperature."""
    assert main(["run", "x.gguf", *words]) == 2
    assert capsys.readouterr().err == f"kernmill: run: {message}\n"


def test_two_types_of_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "x.gguf", "-p", "a", "-ctk", "q8_0", "-ctv", "f16"]) == 2
    assert capsys.readouterr().err == (
        "kernmill: -ctk q8_0 and -ctv f16: keys and values are kept in one type. Give it to both.\n"
    )


def test_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-p", "a"]) == 2
    assert capsys.readouterr().err == "kernmill: run: no model. Give a GGUF file: kernmill run model.gguf.\n"


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        (["-p", r"a\nb\tc\\n\x41\xc3\xa9\q\""], 'a\nb\tc\\nAé\\q"'),
        (["-p", r"a\nb", "--no-escape"], r"a\nb"),
        (["-p", "--chat"], "--chat"),
        (["-p", "- a=b"], "- a=b"),
        (["--prompt=-x"], "-x"),
    ],
    ids=lambda value: repr(value),
)
def test_a_prompt_of_the_command_line(words: list[str], prompt: str, asked: list[Any]) -> None:
    assert main(["run", *words, "x.gguf"]) == 0
    assert asked[0][1].prompt == prompt


def test_a_prompt_from_a_file_or_a_pipe(tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    raw = "é\\n b\n\n".encode()
    (tmp_path / "prompt").write_bytes(raw)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert main(["run", "x.gguf", "-f", str(tmp_path / "prompt")]) == main(["run", "x.gguf"]) == 0
    assert [given.prompt for _, given, _ in asked] == ["é\\n b\n"] * 2  # one line's end is the file's own
    assert main(["run", "x.gguf"]) == 2  # nothing is left in the pipe
    assert main(["run", "x.gguf", "-f", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "kernmill: run: no prompt. Give one with -p TEXT, or talk with the model: --chat.",
        f"kernmill: {tmp_path / 'no'}: cannot be read: No such file or directory. Give the path of a text.",
    ]


def test_no_name_is_in_two_rows_or_told_to_be_another() -> None:
    for table in (options.RUN, options.BENCH):
        names = [name for row in table for name in row.names.split()]
        assert len(set(names)) == len(names)
        others = [name for row, _ in options._OTHERS for name in row.split()]
        assert len(set(others)) == len(others)
    assert not {name for row in options.RUN for name in row.names.split()} & set(others)
