"""What a user of llama.cpp types: taken, or refused with what to do instead; never taken for another option."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest

from kernmill import Context
from kernmill.commands import options
from kernmill.commands.cli import main
from kernmill.llm import Sampler
from kernmill.quantize import Recipe
from kernmill.runtime import default_device


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
    (["-ctk", "q8_0", "-ctv", "Q8_0"], {"cache_type": ("q8_0", "q8_0")}),
    (["-ctv", "f16"], {"cache_type": ("f16", "f16")}),
    (["--cache-type-k", "f16"], {"cache_type": ("f16", "f16")}),
    (["-ctk", "f16", "-ctv", "f32"], {"cache_type": ("f16", "f32")}),
    (["-r", "User:", "--stop", r"a\nb"], {"stop": ("User:", "a\nb")}),
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
    assert (asked[0][2].seed, asked[0][2].top_k) == (-1, -1)  # see test_sampling.py


def test_penalties_and_biases(asked: list[Any]) -> None:
    words = ["--presence-penalty", "0.5", "--frequency-penalty", "0.25", "-l", "7+1.5", "-l", "8-inf"]
    assert main(["run", "x.gguf", "-p", "a", *words]) == 0
    sampler = asked[0][2]
    assert (sampler.presence_penalty, sampler.frequency_penalty) == (0.5, 0.25)
    assert sampler.logit_bias == {7: 1.5, 8: -math.inf}


def test_every_sampler_has_an_option(asked: list[Any]) -> None:
    words = (
        "--typical 0.5 --top-nsigma 2 --xtc-probability 0.25 --xtc-threshold 0.2 --dynatemp-range 0.5 --dynatemp-exp 2 "
        "--mirostat 2 --mirostat-lr 0.2 --mirostat-ent 4 --dry-multiplier 0.5 --dry-base 2 --dry-allowed-length 3 "
        "--dry-penalty-last-n 9 --dry-sequence-breaker \\n --dry-sequence-breaker ; --samplers top_k;temperature"
    )
    assert main(["run", "x.gguf", "-p", "a", *words.split()]) == 0
    assert asked[0][2] == Sampler(
        typical_p=0.5, top_n_sigma=2, xtc_probability=0.25, xtc_threshold=0.2, dynatemp_range=0.5, dynatemp_exponent=2,
        mirostat=2, mirostat_eta=0.2, mirostat_tau=4, dry_multiplier=0.5, dry_base=2, dry_allowed_length=3,
        dry_penalty_last_n=9, dry_sequence_breakers=("\n", ";"), samplers=("top_k", "temperature"),
    )  # fmt: skip
    assert main(["run", "x.gguf", "-p", "a", "--sampler-seq", "kt", "--dry-sequence-breaker", "none"]) == 0
    assert (asked[1][2].samplers, asked[1][2].dry_sequence_breakers) == (("top_k", "temperature"), ())


@pytest.mark.parametrize(
    ("words", "but"), [("-ts 3,1 -ngl 2 -nkvo", ""), ("-ts 3,1 -ngl 2 -ot a=CPU", "-ts")], ids=["tensor", "layer"]
)
def test_options_of_devices_over_ranks_are_named(words: str, but: str, capsys: pytest.CaptureFixture[str]) -> None:
    options.ignored_splits("run", options.read("run", ["x.gguf", *words.split()], description=""), "why", but=but)
    names = [name for name in words.split() if name[0] == "-" and name != but]
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(f"kernmill: run: {n} is ignored: why." for n in names)


@pytest.mark.parametrize("shares", ["1,-1", "0,0", "nan,1", "inf,1", ","])
def test_shares_that_divide_nothing(shares: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "x.gguf", "-p", "a", f"-ts={shares}"])
    assert "-ts/--tensor-split" in capsys.readouterr().err


def test_each_rank_would_measure_the_whole_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    assert main(["bench", "-m", "x.gguf", "-p", "1"]) == 2
    assert "Start it without mpirun" in capsys.readouterr().err


def test_help_shows_no_empty_default() -> None:
    assert [row.names for row in (*options.RUN, *options.BENCH) if "(default ())" in row.help] == []


def test_grammars_of_the_command_line(asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g").write_text("{}")
    assert main(["run", "x.gguf", "-p", "a", "--grammar", 'root ::= "a"']) == 0
    assert main(["run", "x.gguf", "-p", "a", "-jf", str(tmp_path / "g")]) == 0
    assert [one[1].grammar for one in asked] == [("gbnf", 'root ::= "a"'), ("json_schema", "{}")]
    assert main(["run", "x.gguf", "-p", "a", "-j", "{}", "--grammar", "a"]) == 2
    assert main(["run", "x.gguf", "-p", "a", "--grammar-file", "/no"]) == 2
    assert main(["run", "x.gguf", "-p", "a", "--sampler-seq", "kz"]) == 2
    assert main(["run", "x.gguf", "-p", "a", "--mirostat", "3"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "kernmill: run: --grammar and --json-schema are both a grammar. Give one.",
        "kernmill: run: --grammar-file /no: cannot be read: No such file or directory.",
        "kernmill: run: --sampler-seq kz: z must be one of edskypmxt.",
        "kernmill: run: --mirostat 3: must be from 0 to 2.",
    ]


HARMLESS = [
    ("-ngl 99", "a model runs as a whole on one device"),
    ("--fit off", "a split fits the free memory of its devices"),
    ("-fa", "the kernels are made for the model"),
    ("-fa on", "the kernels are made for the model"),
    ("--no-mmap", "weights are copied once"),
    ("--numa distribute", "weights are copied once"),
    ("-tb 4", "-t N is for prompts and for tokens"),
    ("--color", "text goes to stdout, everything else to stderr"),
    ("-no-cnv", "this is the default"),
    ("-gan 1.0", "this value disables it"),
]


@pytest.mark.parametrize(("words", "why"), HARMLESS)
def test_options_without_effect_are_named_and_ignored(
    words: str, why: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """M3: -ngl 99 ended with 2."""
    assert main(["run", *words.split(), "x.gguf", "-p", "a"]) == 0
    assert (asked[0][0], asked[0][1].prompt) == ("x.gguf", "a")
    name = words.split()[0].partition("=")[0]
    assert capsys.readouterr().err == f"kernmill: run: {name} is ignored: {why}.\n"


def test_layers_on_devices_in_words_of_llama_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    """Named regression: `-ngl auto` and `-ngl all` were no integers."""
    option = next(one for one in options.RUN if "-ngl" in one.names.split())
    assert [option.reads(text) for text in ("auto", "all", "-1", "7")] == [None, -1, -1, 7]  # type: ignore[misc]
    with pytest.raises(SystemExit):
        main(["run", "x.gguf", "-p", "a", "-ngl", "some"])
    assert "-ngl/--gpu-layers/--n-gpu-layers: invalid integer, auto or all value: 'some'" in capsys.readouterr().err


def test_device_none_of_llama_cpp_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def run(*_: Any) -> int:
        found.append(default_device())
        return 0

    monkeypatch.setattr("kernmill.llm.run.run", run)
    with Context(DEVICE="PYTHON"):
        assert main(["run", "-dev", "none", "x.gguf", "-p", "a"]) == 0
    assert found == ["LLVM"]


@pytest.mark.parametrize("words", ["-gan 2", "-d 512", "-md x", "-d"])
def test_options_that_are_on_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "x.gguf", "-p", "a", *words.split()]) == 2
    assert "is ignored" not in capsys.readouterr().err


def test_every_harmless_option_is_taken(asked: list[Any]) -> None:
    """With a value that changes nothing; no name is in two rows, and none is an option of both commands."""
    own = {name for row in options.RUN for name in row.names.split()}
    both = own & {name for row in options.BENCH for name in row.names.split()}
    seen = set[str]()
    for names, values, _ in options._HARMLESS:
        value = {options._ANY: ["x"], None: [], options._0: ["0"], options._1: ["1"]}.get(values, ["-1"])
        for name in names.split():
            assert name not in seen | both
            seen.add(name)
            assert name in own or main(["run", "x.gguf", name, *value, "-p", "a"]) == 0
    assert len(asked) == len(seen - own)


QUANTIZE = {
    "--include-weights": "An importance matrix is used for all matrices that it has.",
    "--tensor-type-file": "Give each type with --tensor-type PATTERN=TYPE.",
    "--prune-layers": "kernmill quantize writes all layers.",
    "-ngl": "kernmill quantize --help lists all.",
    "--requantise": "Is it --requantize? kernmill quantize --help lists all.",
}


@pytest.mark.parametrize("name", QUANTIZE)
def test_options_of_quantize_that_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """M4: `unrecognized arguments`."""
    assert main(["quantize", name, "x", "in.gguf", "out.gguf", "Q8_0"]) == 2
    assert capsys.readouterr().err == f"kernmill: quantize: there is no option {name}. {QUANTIZE[name]}\n"


def test_options_of_quantize_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("kernmill.llm.folders.read_any", lambda path: path)  # "in" stands for the opened file
    monkeypatch.setattr("kernmill.commands.quantizing.run", lambda *words, **named: given.append((*words, named)))
    assert main(["quantize", "--allow-requantize", "in", "out", "Q8_0", "1"]) == 0
    assert main(["quantize", "in", "out", "Q8_0"]) == 0
    assert given == [("in", "out", Recipe("Q8_0", requantize=value), {}) for value in (True, False)]


def test_bench_ignores_what_llama_bench_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernmill.llm.bench.run", lambda *_: None)
    assert main(["bench", "-m", "x.gguf", "-ngl", "0,99", "-fa", "0,1", "-mmp", "1", "--progress"]) == 0
    assert capsys.readouterr().err.count(" is ignored: ") == 4


EMPTY = {
    ("run", "", "-p", "x"): "run: the path is empty: is a variable of the shell unset? Give a GGUF file.",
    ("run", "-m", "", "-p", "x"): "run: the path is empty: is a variable of the shell unset? Give a GGUF file.",
    ("run", "x", "-f", ""): "run: the path is empty: is a variable of the shell unset? Give the path of a text with "
    "-f.",
    ("bench", ""): "bench: the path is empty: is a variable of the shell unset? Give a GGUF file: kernmill bench "
    "model.gguf.",
    ("quantize", "", "out", "Q8_0"): "quantize: the path is empty: is a variable of the shell unset? Give IN: "
    "kernmill quantize IN OUT MIX.",
    ("quantize", "in", "", "Q8_0"): "quantize: the path is empty: is a variable of the shell unset? Give OUT: "
    "kernmill quantize IN OUT MIX.",
    ("tune", ""): "tune: the path is empty: is a variable of the shell unset? Give a script, or the name of a module.",
}


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_an_empty_path(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """M5: `path is None, of type NoneType`."""
    assert main(list(words)) == 2
    assert capsys.readouterr().err == f"kernmill: {EMPTY[words]}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rope-scale=2"], "there is no option --rope-scale. The file says how the model computes. Change "
         "the file."),
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
        "kernmill: run: no prompt. Give one with -p TEXT, or start a conversation with --chat.",
        f"kernmill: {tmp_path / 'no'}: cannot be read: No such file or directory. Give the path of a text.",
    ]


def test_no_name_is_in_two_rows_or_told_to_be_another() -> None:
    for table in (options.RUN, options.BENCH):
        names = [name for row in table for name in row.names.split()]
        assert len(set(names)) == len(names)
        others = [name for row, _ in options._OTHERS for name in row.split()]
        assert len(set(others)) == len(others)
    assert not {name for row in options.RUN for name in row.names.split()} & set(others)


@pytest.mark.parametrize("command", ["run", "serve", "bench"])
def test_devices_are_listed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--list-devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("LLVM ") and "(default)" in line for line in lines)
    assert any(line.startswith("PYTHON ") for line in lines)


def test_adapters_of_the_command_line(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--lora", "a", "--lora-scaled", "b:0.5", "--lora-scaled", "c:d:-2"]
    assert main(["run", "x.gguf", "-p", "a", *words]) == 0
    assert asked[0][1].adapters == {"a": 1.0, "b": 0.5, "c:d": -2.0}
    for words in (["--control-vector-layer-range", "8", "20"], ["--control-vector-layer-range=8,20"]):
        assert main(["run", "x.gguf", "--control-vector", "v", *words, "-p", "a"]) == 0
        assert asked[-1][1].adapters.layers == (8, 20)
    assert main(["run", "x.gguf", *words, "-p", "a"]) == 2
    assert "--control-vector-layer-range needs a control vector: --control-vector FILE." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "x.gguf", "-p", "a", "--lora-scaled", "b"])
    assert "'b': must be a path, : and a number, such as lora.gguf:0.5" in capsys.readouterr().err


def test_templates_of_the_command_line(asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_text("{{ x }}")
    (tmp_path / "s").write_text("Be brief.\n")
    words = ["-i", "--chat-template-file", str(tmp_path / "t"), "--chat-template-kwargs", '{"x": 1}']
    assert main(["run", "x.gguf", *words, "-sysf", str(tmp_path / "s")]) == 0
    given = asked[0][1]
    assert (given.chat, given.template, given.template_values, given.system) == (
        True,
        "{{ x }}",
        {"x": 1},
        "Be brief.\n",
    )
    assert main(["run", "x.gguf", "-cnv", "-sys", "a", "-sysf", str(tmp_path / "s")]) == 2
    assert "--system and --system-prompt-file are both a system message" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "x.gguf", "-cnv", "--chat-template-kwargs", "[]"])
    assert "'[]': must be a JSON object" in capsys.readouterr().err
