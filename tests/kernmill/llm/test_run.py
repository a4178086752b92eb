"""`kernmill run`: what it writes, what it says it cost, and how it ends."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kernmill import SettingError, Tensor
from kernmill.commands.cli import main
from kernmill.ir import OutOfMemoryError
from kernmill.llm import ChatTemplate, Model, Sampler
from kernmill.llm.run import Options, run
from kernmill.llm.tokenizer import Tokenizer

GREEDY = Sampler(temperature=0)
LINES = ("load", "build", "sampling", "prompt eval", "eval", "total")


def test_text_is_that_of_the_model_and_costs_are_told(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = made("Q8_0")
    assert main(["run", str(path), "-p", "ab", "-n", "6", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert out == "ab" + "".join(Model.from_gguf(path).complete("ab", max_tokens=6)) + "\n"
    names = [line.split(" time")[0].strip() for line in err.splitlines() if " time = " in line]
    assert names == list(LINES)
    assert re.search(r"prompt eval time = +[\d.]+ ms / +3 tokens +\( +[\d.]+ ms per token, +[\d.]+ tokens per sec", err)
    assert re.search(r"^ +eval time = +[\d.]+ ms / +5 runs ", err, re.MULTILINE)
    assert re.search(r"^memory \[MiB\] +total +free +self +model +context +compute +unaccounted$", err, re.MULTILINE)


def test_a_seed_repeats_and_the_prompt_can_be_left_out(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(made()), "-p", "ab", "-n", "8", "--no-display-prompt", "--temperature", "3", "--min-p", "0"]
    texts = []
    for seed in ("1", "1", "2"):
        assert main([*arguments, "--seed", seed, "--top-k", "0", "--top-p", "1"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_without_a_limit_the_context_is_filled(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made(), Options("ab", capacity=12), GREEDY) == 0
    assert re.search(r"total time = .* / +12 tokens", capsys.readouterr().err)


@pytest.mark.parametrize(("tokens", "is_told"), [(9, False), (10, False), (11, True), (None, True)])
def test_a_text_that_the_context_cuts_off_is_told(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], tokens: int | None, is_told: bool
) -> None:
    assert run(made(), Options("ab", tokens=tokens, capacity=12), GREEDY) == 0
    out, err = capsys.readouterr()
    assert ("The context of 12 tokens is full: the text is truncated here.\n" in err) is is_told
    assert "context" not in out


def test_a_conversation(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    path = made("Q8_0", metadata={"tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n\nb\n"))
    assert run(path, Options(None, chat=True, system="ab", tokens=4), GREEDY) == 0
    model = Model.from_gguf(path)
    assert model.tokenizer is not None
    template, messages, expected = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"), [], ""
    messages = [{"role": "system", "content": "ab"}]
    for said in "ab":
        messages.append({"role": "user", "content": said})
        stream = model.tokenizer.stream()
        ids = template.encode(model.tokenizer, messages)
        text = "".join([*map(stream.push, model.generate(ids, max_tokens=4)), stream.finish()])
        messages.append({"role": "assistant", "content": text})
        expected += text + "\n"
    assert capsys.readouterr().out == expected


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is said in the messages that a template renders, each time."""
    found: list[list[str]] = []
    render = ChatTemplate.render

    def seen(self: ChatTemplate, messages: Any) -> str:
        found.append([message["content"] for message in messages])
        return render(self, messages)

    monkeypatch.setattr(ChatTemplate, "render", seen)
    return found


def test_a_conversation_that_outgrows_its_context_forgets_its_oldest_exchanges(
    made: Callable[..., Path],
    asked: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended with the sentence of a prompt that is too long."""
    pytest.importorskip("jinja2")
    path = made(metadata={"tokenizer.chat_template": "{% for m in messages %}{{ m.content[:9] }}{% endfor %}"})
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{n}aaaaaaaa\n" for n in range(5))))
    assert run(path, Options(None, chat=True, system="s" * 9, tokens=1, capacity=40), GREEDY) == 0
    err = capsys.readouterr().err
    assert "exceeds its context of 40 tokens. It continues without the oldest: 1 exchange.\n" in err
    assert all(messages[0] == "s" * 9 for messages in asked)
    assert asked[-1][1][0] not in "01"
    assert asked[-1][-1] == "4aaaaaaaa"
    assert len(asked[-1]) % 2 == 0  # the system's message, whole exchanges, and what was said last

    monkeypatch.setattr("sys.stdin", io.StringIO("a\n" + "a" * 9 + "\n"))
    with pytest.raises(SettingError, match=r"the prompt has \d+ tokens, and the context 4\."):
        run(path, Options(None, chat=True, tokens=1, capacity=4), GREEDY)


class Terminal(io.BytesIO):
    """Where lines are typed, each of them in the given time."""

    encoding, errors = "utf-8", "strict"

    def __init__(self, typed: bytes, errors: str = "strict", seconds: float = 0) -> None:
        super().__init__(typed)
        self.errors, self.seconds = errors, seconds

    def isatty(self) -> bool:
        return True

    def readline(self, *_: Any) -> Any:
        time.sleep(self.seconds)
        return super().readline().decode("utf-8", self.errors)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_message_that_cannot_be_answered_leaves_the_conversation(
    errors: str,
    made: Callable[..., Path],
    asked: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was too long or no UTF-8 ended the program, also where somebody could type another."""
    pytest.importorskip("jinja2")
    path = made(metadata={"tokenizer.chat_template": "{% for m in messages %}{{ m.content[:90] }}{% endfor %}"})
    monkeypatch.setattr("sys.stdin", Terminal(b"a\n" + b"b" * 90 + b"\n" + b"\xff\nab\n", errors))
    assert run(path, Options("bb", chat=True, tokens=1, capacity=40), GREEDY) == 0
    out, err = capsys.readouterr()
    assert out.count("\n> ") == 5  # four lines, and the end
    told = [line for line in err.splitlines() if line.startswith("kernmill: ")]
    assert told == [
        "kernmill: run: the prompt has 92 tokens, and the context 40. Shorten it, or pass a larger context with -c "
        "(the model was trained on 64).",
        "kernmill: run: a line of stdin is not in UTF-8. Convert it, for example with: iconv -f LATIN1 -t UTF-8.",
    ]
    assert "outgrew" not in err
    assert asked[-1][::2] == ["bb", "a", "ab"]


def test_a_text_that_no_context_holds_is_not_cut_into_tokens(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template of 30 bytes took 4 GB and half a minute, and then the sentence of a prompt that is too long."""
    pytest.importorskip("jinja2")
    encode, lengths = Tokenizer.encode, list[int]()

    def seen(self: Tokenizer, text: str, **options: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", seen)
    path = made(metadata={"tokenizer.chat_template": "{{ ' ' * 19000000 }}"})
    larger = ", or pass a larger context with -c"
    for options, count, size, most, more in (
        (Options("a", chat=True), 19_000_000, 64, 64 * 6, ""),
        (Options("a" * 50_000_000), 50_000_000, 64, 64 * 6, ""),
        (Options("a" * 300, tokens=2, capacity=40), 300, 40, 40 * 6, larger),
        (Options("a" * 50_000_000, capacity=10**9), 50_000_000, 10**9, 8_000_000, ""),
    ):
        with pytest.raises(SettingError) as caught:
            run(path, options, GREEDY)
        assert str(caught.value) == (
            f"run: the prompt has {count} characters, and a context of {size} tokens takes at most {most}. "
            f"Shorten it{more} (the model was trained on 64)."
        )
    assert lengths == []


def test_time_that_the_user_takes_to_type_is_no_part_of_any(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All until the first message was load time."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr("sys.stdin", Terminal(b"a\nb\n", seconds=20))
    clock = iter(range(0, 1 << 60, 10**6))
    monkeypatch.setattr(time, "sleep", lambda seconds: [next(clock) for _ in range(int(seconds * 1000))])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))
    assert run(made(), Options(None, chat=True, tokens=1, capacity=60), GREEDY) == 0
    times = dict(re.findall(r"(\w+) time = +([\d.]+) ms", capsys.readouterr().err))
    assert 0 < float(times["load"]) < float(times["total"]) < 20_000


def test_a_prompt_is_the_only_message_where_nobody_types(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr("sys.stdin", io.StringIO("never read\n"))
    assert run(made(), Options("a", chat=True, tokens=2), GREEDY) == 0
    assert "The file has no chat template; ChatML is used." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "lines", "answers"),
    [
        (Options(None, chat=True, tokens=1), "a\n /exit\nb\n", 1),
        (Options(None, chat=True, tokens=1), "/quit\n", 0),
        (Options(None, chat=True, tokens=1, is_single_turn=True), "\na\nb\n", 1),
    ],
    ids=["exit", "quit", "one turn"],
)
def test_how_a_conversation_ends(
    options: Options,
    lines: str,
    answers: int,
    made: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("jinja2")
    reply = Mock(return_value="x")
    monkeypatch.setattr("kernmill.llm.run._Chat.reply", reply)
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert run(made(), options, GREEDY) == 0
    assert reply.call_count == answers


def test_the_end_of_a_text_is_not_chosen_where_it_is_ignored(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Model.from_gguf(made()).tokenizer
    assert tokenizer is not None
    first = next(Model.from_gguf(made()).generate(tokenizer.encode("a", parse_special=True)))
    path, texts = made(metadata={"tokenizer.ggml.eos_token_id": first}), []
    for ignores in (False, True):
        assert run(path, Options("a", tokens=3, ignores_end=ignores, shows_prompt=False), GREEDY) == 0
        texts.append(re.findall(r"sampling time = .* / +(\d+) runs", capsys.readouterr().err))
    assert texts == [["1"], ["3"]]


@pytest.mark.parametrize(
    ("name", "fault", "context"),
    [
        ("kernmill.formats.disk.mmap.mmap", OSError(errno.ENOMEM, "Cannot allocate memory"), "takes additional memory"),
        ("kernmill.llm.run.arena_for", OutOfMemoryError("no room"), "of 64 tokens 0 MiB"),
    ],
)
def test_too_little_memory_is_told_with_what_the_model_needs(
    name: str, fault: Exception, context: str, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a path that cannot be read, or the advice to drop tensors."""
    path = made()
    monkeypatch.setattr(name, Mock(side_effect=fault))
    with pytest.raises(OutOfMemoryError) as caught:
        run(path, Options("a"), GREEDY)
    assert str(caught.value) == (
        f"{path}: out of memory: this model does not fit. Its weights take about as much as the file, 0 MiB, and "
        f"its context {context}. Choose a file of fewer bits, or a smaller context: -c N, --cache-type q8_0."
    )


def test_a_context_of_none_is_the_trained_one(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    run(made(), Options("a", tokens=1, capacity=0), GREEDY)
    assert float(capsys.readouterr().err.split()[-3]) == 0.02  # 64 tokens; without -c as many, since no more are known


def test_ctrl_c_leaves_what_was_written_and_the_timings(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made()
    generate = Model.generate

    def interrupted(self: Model, *arguments: Any, **options: Any) -> Iterator[int]:
        for n, token in enumerate(generate(self, *arguments, **options)):
            if n == 3:
                raise KeyboardInterrupt
            yield token

    expected = "ab" + "".join(Model.from_gguf(path).complete("ab", max_tokens=3)).rstrip("\ufffd") + "\n"
    monkeypatch.setattr(Model, "generate", interrupted)
    assert main(["run", str(path), "-p", "ab", "--temp", "0"]) == 130
    out, err = capsys.readouterr()
    assert out == expected
    assert "eval time" in err
    assert "Traceback" not in err


def test_ctrl_c_while_a_model_is_loaded_is_told(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty line was all."""
    monkeypatch.setattr(Model, "of", Mock(side_effect=KeyboardInterrupt))
    assert main(["run", str(made()), "-p", "ab"]) == 130
    assert tuple(capsys.readouterr()) == ("", "\nkernmill: stopped.\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no file that is always full")
def test_costs_that_nobody_can_be_told_do_not_end_a_text(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stderr on a full disk the status was 1 after a whole text."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stderr", full)
        assert main(["run", str(made()), "-p", "ab", "-n", "2", "-c", "70"]) == 0
    assert capsys.readouterr().out.startswith("ab")


def test_a_prompt_beyond_the_context(made: Callable[..., Path]) -> None:
    path = made()
    larger = ", or pass a larger context with -c"
    for options, size, more in (
        (Options("ab" * 100), 64, ""),
        (Options("ab" * 100, tokens=2), 64, ""),
        (Options("ababab", capacity=3), 3, larger),
    ):
        with pytest.raises(SettingError) as caught:
            run(path, options)
        assert re.fullmatch(
            rf"run: the prompt has \d+ tokens, and the context {size}\. Shorten it{more} "
            r"\(the model was trained on 64\)\.",
            str(caught.value),
        )


def test_a_context_beyond_the_trained_one_is_told(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(made(), Options("ab" * 40, tokens=2, capacity=100), GREEDY) == 0
    assert capsys.readouterr().err.startswith(
        "The context of 100 tokens is longer than the 64 that the model was trained on: the output may be incoherent.\n"
    )


def test_a_file_that_is_no_model_is_named_before_anything_is_written(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(metadata={"general.architecture": "clip"})
    assert main(["run", str(path), "-p", "a"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kernmill: {path}: general.architecture is 'clip', which kernmill cannot run yet.")
    assert main(["bench", str(path)]) == 2
    assert capsys.readouterr().out == ""
    assert main(["run", str(made(drop="output_norm.weight")), "-p", "a"]) == 2
    assert capsys.readouterr().out == ""


def test_what_is_wrong_with_a_file_begins_with_its_path_while_it_runs(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It did only until the model was there."""
    path = made(tensors={"output_norm.weight": Tensor.full((32,), math.nan)})
    assert main(["run", str(path), "-p", "a", "-n", "2"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"kernmill: {path}: sampling: the logits are NaN or inf")
    for template in ("{% if %}", "{{ messages.append(1) }}", 5):
        path = made(metadata={"tokenizer.chat_template": template})
        assert main(["run", str(path), "--chat", "-p", "a", "-n", "2"]) == 2
        err = capsys.readouterr().err.splitlines()[-1]
        assert err.startswith(
            (f"kernmill: {path}: chat template: ", f"kernmill: {path}: tokenizer.chat_template is 5,")
        )


def test_a_cache_of_halves_takes_half(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for kind in ("f32", "f16"):
        run(made(), Options("a", tokens=1, cache_type=kind), GREEDY)
        sizes.append(float(capsys.readouterr().err.split()[-3]))
    assert sizes == [0.02, 0.01]


def test_a_stop_string_ends_the_text(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    run(made(), Options("a", tokens=12), GREEDY)
    whole = capsys.readouterr().out.rstrip("\n")
    stop = whole[3:6]
    run(made(), Options("a", tokens=12, stop=(stop,)), GREEDY)
    assert capsys.readouterr().out.rstrip("\n") == whole[: whole.index(stop, 1)]


def test_the_type_of_the_cache_in_capitals(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """As files and quantize spell types."""
    assert main(["run", str(made()), "-p", "a", "-n", "1", "--cache-type", "F16"]) == 0
    assert capsys.readouterr().err.split()[-3] == "0.01"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--min-p", "2"], "run: --min-p 2.0: must be from -1e+06 to 1."),
        (["--repeat-last-n", "-2"], "run: --repeat-last-n -2: must be from -1 to 2.14748e+09."),
        (["--top-p", "nan"], "run: --top-p nan: must be from -1e+06 to 1e+06."),
        (["--repeat-penalty", "0"], "run: --repeat-penalty 0 would divide by 0. 1 disables it."),
        (["--seed", "-2"], "run: --seed -2: must be an integer >= 0, or -1 or None for a random one."),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_option_is_named_as_it_was_written(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was the name that Python code would write: `Sampler: repeat_last=-2`."""
    assert main(["run", "model.gguf", "-p", "a", *arguments]) == 2
    assert capsys.readouterr().err == f"kernmill: {message}\n"


def test_words_for_a_conversation_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """They were left out without a word."""
    assert main(["run", "model.gguf", "-p", "a", "--system", "b"]) == 2
    expected = "kernmill: run: --system is for a conversation: its first message. Add --chat.\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("options", "stdin", "what"),
    [
        (Options("a\udcff"), b"", "the prompt"),
        (Options("a\udcff", chat=True), b"", "the prompt"),
        (Options(None, chat=True, system="\udcff"), b"a\n", "the message of --system"),
        (Options(None, chat=True, tokens=1), b"a\n\xff\n", "a line of stdin"),
    ],
    ids=["prompt", "message", "system", "stdin"],
)
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text(
    options: Options, stdin: bytes, what: str, errors: str, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback where Python is strict, and elsewhere the advice to call a method of Python's."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8", errors))
    with pytest.raises(SettingError) as caught:
        run(made(), options, GREEDY)
    assert str(caught.value) == (
        f"run: {what} is not in UTF-8. Convert it, for example with: iconv -f LATIN1 -t UTF-8."
    )


def test_a_conversation_with_another_template_long_lines_and_a_new_beginning(
    made: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    prompts: list[str] = []
    encode = ChatTemplate.tokens

    def tokens(tokenizer: Any, text: str) -> list[int]:
        prompts.append(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(ChatTemplate, "tokens", staticmethod(tokens))
    monkeypatch.setattr("sys.stdin", io.StringIO("a\\\nb\n/clear\nab\n"))
    template = "{{ x }}{% for m in messages %}<{{ m.content }}>{% endfor %}"
    options = Options(None, chat=True, tokens=2, template=template, template_values={"x": "b"})
    assert run(made(), options, GREEDY) == 0
    assert prompts == ["b<a\nb>", "b<ab>"]


def test_text_under_a_grammar(made: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    words = ["run", str(made()), "-p", "ab", "-n", "60", "--no-display-prompt", "--temperature", "1.5"]
    assert main([*words, "--grammar", 'root ::= ("x" | "yz") [0-9]']) == 0
    assert re.fullmatch(r"(x|yz)\d\n", capsys.readouterr().out)
    assert main([*words, "-j", '{"enum": ["aa", 12]}']) == 0
    assert capsys.readouterr().out in ('"aa"\n', "12\n")
    assert main([*words, "--grammar", "root ::= ("]) == 2
    assert ": the grammar cannot be read: " in capsys.readouterr().err


def test_a_prompt_cache(made: Callable[[], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "run",
        str(made()),
        "-p",
        "abab",
        "-n",
        "6",
        "--temp",
        "0",
        "-c",
        "64",
        "--prompt-cache",
        str(tmp_path / "state"),
    ]
    assert main([*words, "--prompt-cache-ro"]) == 0
    assert not (tmp_path / "state").exists()
    texts = []
    for more in ([], [], ["--prompt-cache-all"]):
        capsys.readouterr()
        assert main([*words, *more]) == 0
        texts.append(capsys.readouterr())
    assert len({text.out for text in texts}) == 1
    assert "are read from" not in texts[0].err
    assert [re.findall(r"(\d+) tokens are read from", text.err) for text in texts[1:]] == [
        ["4"],
        ["4"],
    ]  # the begin token, and three of the text
