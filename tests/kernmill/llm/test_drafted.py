"""Texts with a draft are those without; what a draft must not be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kernmill import SettingError
from kernmill.commands.cli import main
from kernmill.llm import Model, Sampler
from kernmill.llm.drafted import GuessCounts, drafted, open_draft
from kernmill.llm.engine import DraftOptions, DraftSource, ModelDraft, NgramDraft
from tests.tiny_models import CASES, write

GREEDY = Sampler(temperature=0)
IDS = [1, 260, 261, 262, 260, 261, 262, 260]


class HalfRight:
    """Guesses that are right for the first `right` tokens of each step."""

    most, least = 7, 2

    def __init__(self, text: list[int], right: int) -> None:
        self.text, self.right = text, right

    def open(self, model: Model, slots: int, context: int) -> None:
        pass

    def begin(self, number: int) -> None:
        pass

    def guess(self, number: int, ids: Sequence[int], most: int) -> Sequence[int]:
        following = self.text[len(ids) : len(ids) + most]
        return [token if n < self.right else (token + 1) % 263 for n, token in enumerate(following)]


def texts(model: Model, draft: DraftSource, sampler: Sampler = GREEDY) -> tuple[list[int], GuessCounts]:
    counts = GuessCounts()
    open_draft(model, draft)
    return [*drafted(model, draft, counts, IDS, sampler, 24)], counts


def test_tokens_are_those_without_a_draft(made: Callable[..., Path]) -> None:
    with Model.from_gguf(made(), capacity=40) as model:
        for sampler in (GREEDY, Sampler(temperature=2, seed=3)):
            expected = [*model.generate(IDS, Sampler(sampler.temperature, seed=3), 24)]
            for right in (0, 3, 9):
                draft = HalfRight([*IDS, *expected], right)
                found, counts = texts(model, draft, Sampler(sampler.temperature, seed=3))
                assert found == expected
                assert (counts.accepted > 0) == (right > 0)
                assert (counts.accepted == counts.guessed) == (right == 9)
            assert texts(model, NgramDraft(2, 1, most=3), Sampler(sampler.temperature, seed=3))[0] == expected
        with Model.from_gguf(made(), capacity=40) as same:
            found, counts = texts(model, ModelDraft(same, most=12))
        assert found == [*model.generate(IDS, GREEDY, 24)]
        assert len(found) < 24  # its last guesses came after the end
        assert counts.accepted > 0.8 * counts.guessed > 0


def test_the_context_ends_as_without_a_draft(made: Callable[..., Path]) -> None:
    with Model.from_gguf(made(), capacity=14) as model:
        expected = [*model.generate(IDS, GREEDY)]
        draft = HalfRight([*IDS, *expected], 9)
        generation = drafted(model, draft, GuessCounts(), IDS, GREEDY, None)
        assert [*generation] == expected
        assert generation.finish_reason == "context"


def test_another_call_between_two_steps_changes_nothing(made: Callable[..., Path]) -> None:
    with Model.from_gguf(made(), capacity=40) as model:
        expected = [*model.generate(IDS, GREEDY, 12)]
        found: list[int] = []
        for token in drafted(model, HalfRight([*IDS, *expected], 1), GuessCounts(), IDS, GREEDY, 12):
            found.append(token)
            model.next_logits([1, 5, 6, 7])
        assert found == expected


def test_the_command(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(made())
    plain = ["run", path, "-p", "ab ab ab ab", "-n", "12", "--temp", "0"]
    assert main(plain) == 0
    expected = capsys.readouterr().out
    for options in (["-md", path, "--draft-max", "4", "--draft-p-min", "0"], ["--spec-type", "ngram-simple"]):
        assert main([*plain, *options]) == 0
        out, err = capsys.readouterr()
        assert out == expected
        assert re.search(r"^ +draft guesses = +\d+ right of \d+ \(", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--draft-max", "4"], "--draft-max and its like are for a draft. Add -md FILE or --spec-type."),
        (["--spec-type", "ngram-simple", "--draft-max", "64"], "--draft-max 64 with --draft-min 0: the first must be"),
        (["--spec-type", "ngram-simple", "--draft-min", "8"], "--draft-max 7 with --draft-min 8: the first must be"),
        (["--spec-type", "ngram-simple", "--draft-p-min", "2"], "--draft-p-min 2.0: must be from 0 to 1."),
        (["-md", "FILE", "--spec-type", "ngram-simple"], "-md and --spec-type are both a draft. Give one."),
        (["-md", "OTHER"], "draft: llama has another vocabulary than llama: "),
        (["-md", ""], "the path is empty: is a variable of the shell unset? Give a GGUF file with -md."),
    ],
)
def test_mistakes_of_the_command(
    given: list[str], message: str, made: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(made())
    other = str(write(CASES["llama"], tmp_path / "other.gguf")) if "OTHER" in given else ""
    words = [{"FILE": path, "OTHER": other}.get(word, word) for word in given]
    assert main(["run", path, "-p", "a", "-n", "1", *words]) == 2
    assert message in capsys.readouterr().err


def test_models_that_take_no_draft(made: Callable[..., Path], tmp_path: Path) -> None:
    with Model.from_gguf(made(), capacity=16, sequences=2) as model, pytest.raises(SettingError, match="for 2 texts"):
        open_draft(model, NgramDraft())
    with (
        Model.from_gguf(write(CASES["mamba"], tmp_path / "mamba.gguf"), capacity=16) as model,
        pytest.raises(SettingError, match=r"^draft: mamba has a state for each text, which cannot go back"),
    ):
        open_draft(model, NgramDraft())
    with pytest.raises(SettingError, match=r"^DraftOptions: most=0, least=0: must be integers with"):
        DraftOptions("ngram", most=0)
