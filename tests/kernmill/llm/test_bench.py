"""`kernmill bench MODEL`: its rows, its columns; that they are numbers, not which."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernmill import Context
from kernmill.commands.cli import main
from kernmill.formats import gguf
from kernmill.llm import Model
from kernmill.llm.bench import OUTPUTS, Lengths, Wanted, measure


def test_a_table(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = made("Q8_0", metadata={"general.size_label": "1K"})
    assert main(["bench", "-p", "5,3", str(path), "-n", "4", "-r", "2", "-b", "4"]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert [row[5] for row in rows[2:]] == ["pp5", "pp3", "tg4"]
    assert all(row[:2] == ["llama 1K Q8_0", "0.02 MiB"] for row in rows[2:])
    assert all(float(row[6].split(" ± ")[0]) > 0 for row in rows[2:])


def test_words_of_llama_bench(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """-m, -ctk, lists of threads and CSV were refused."""
    arguments = ["bench", "-m", str(made()), "-p", "3", "-n", "2", "-r", "1", "-t", "1,2", "-ctk", "f16", "-ctv", "f16"]
    assert main([*arguments, "-o", "csv"]) == 0
    head, *rows = csv.reader(capsys.readouterr().out.splitlines())
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [(row["n_threads"], row["n_prompt"], row["n_gen"]) for row in found] == [
        ("1", "3", "0"), ("1", "0", "2"), ("2", "3", "0"), ("2", "0", "2"),
    ]  # fmt: skip
    assert {row["type_k"] for row in found} == {row["type_v"] for row in found} == {"f16"}
    assert main([*arguments, "-o", "jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["n_threads"] for line in lines] == [1, 1, 2, 2]
    assert head == [name for name in lines[0] if not name.startswith("samples")]


def test_a_name_without_an_end_is_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """It was said that the benchmarks are not installed."""
    assert main(["bench", "nofile", "-p", "1"]) == 2
    assert capsys.readouterr().err.startswith("kernmill: nofile: cannot be read: No such file")


def test_json(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(made()), "-p", "0", "-n", "2", "-r", "3", "-o", "json", "-t", "1"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["n_prompt"], row["n_gen"], row["n_threads"], row["model_type"]) == (0, 2, 1, "llama F32")
    assert (row["type_k"], row["type_v"]) == ("f32", "f32")  # llama-bench's names
    assert len(row["samples_ns"]) == len(row["samples_ts"]) == 3
    assert row["avg_ts"] == pytest.approx(sum(row["samples_ts"]) / 3)
    assert row["model_n_params"] == 263 * 32 + 7 * 32 * 32 + 3 * 32


def noted_resets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that a model had computed at each reset."""
    computed: list[int] = []
    reset = Model.reset

    def noted(self: Model) -> None:
        computed.append(self.computed_tokens)
        reset(self)

    monkeypatch.setattr(Model, "reset", noted)
    return computed


def test_each_sample_starts_with_an_empty_cache(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    computed = noted_resets(monkeypatch)
    measure(gguf.read(made()), Lengths(6, 0), Wanted([], [], [], repeats=2, block=4), threads=1)
    assert computed[-1] - computed[-2] == 6


def test_behind_tokens_of_a_context(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named regression: -d and -pg were refused, so that an answer behind a prompt could not be compared."""
    computed = noted_resets(monkeypatch)
    words = ["-p", "0", "-n", "2", "-pg", "3,2", "-d", "0,4", "-r", "2"]
    assert main(["bench", str(made()), *words, "-o", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows] == [
        (0, 2, 0), (3, 2, 0), (0, 2, 4), (3, 2, 4),
    ]  # fmt: skip
    assert computed[-1] - computed[-2] == 9  # of the last sample but one: 4 tokens before it, 3 and 2 in it
    assert [Lengths(*each).label for each in ((5, 0, 0), (0, 2, 4), (3, 2, 4))] == ["pp5", "tg2 @ d4", "pp3+tg2 @ d4"]


def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "no.gguf"]) == 2
    assert capsys.readouterr().err.startswith("kernmill: no.gguf: cannot be read: No such file")
    with pytest.raises(SystemExit):
        main(["bench", "no.gguf", "-p", "-3"])


def test_more_tokens_than_memory_holds(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """It advised an option of kernmill run."""
    assert main(["bench", str(made()), "-p", str(1 << 40), "-n", "0"]) == 2
    assert "kernmill bench: -p and -n" in capsys.readouterr().err


def test_nothing_to_measure(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(made()), "-p", "0", "-n", "0"]) == 2
    assert capsys.readouterr().err == (
        "kernmill: bench: -p 0 -n 0 leaves nothing to measure. Give one of them a number of tokens.\n"
    )


def test_blocks_of_a_prompt_are_those_of_run(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """-b was 64 unless it was given: with a matrix unit `run` computes 512 tokens together."""
    asked: list[object] = []
    monkeypatch.setattr("kernmill.llm.bench.run", lambda path, wanted, output: asked.append(wanted.block))
    path = str(made())
    assert [main(["bench", path, "-p", "4", *more]) for more in ([], ["-b", "3"])] == [0, 0]
    assert asked == [None, 3]


def test_no_threads_beside_a_device_that_has_none(made: Callable[..., Path], far: Callable[..., str]) -> None:
    """Named regression: it showed 2 threads of the host beside a device in another process."""
    with Context(DEVICE=far()):
        test = measure(gguf.read(made()), Lengths(4, 0), Wanted([], [], [], repeats=1, block=4), threads=1)
    assert (test.backends, test.n_threads) == ("FAR", 0)
    row = [*OUTPUTS["md"](iter([test]))][-1]
    assert [cell.strip() for cell in row.split("|")][5] == "-"
