"""Options of llama-server that are for requests which say nothing else."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kernmill.commands import options
from kernmill.commands.cli import main
from kernmill.serve.limits import ServerOptions

from .conftest import Running, loaded, running

GREEDY = {"prompt": "Once upon a time", "temperature": 0}


@pytest.fixture(scope="module")
def server(stories: str) -> Generator[Running]:
    given = ServerOptions(
        slots=1, stop=("girl",), max_tokens=3, form={"type": "grammar", "grammar": 'root ::= " a girl and a boy"'}
    )
    with running({"stories": stories}, given, loaded) as found:
        yield found


def text_of(server: Running, **fields: Any) -> tuple[str, str]:
    choice = server.ask("/v1/completions", {**GREEDY, **fields}).json["choices"][0]
    return choice["text"], choice["finish_reason"]


def test_a_request_has_the_servers_limits_or_its_own(server: Running) -> None:
    assert text_of(server, max_tokens=-1) == (" a ", "stop")
    assert text_of(server, stop="and", max_tokens=-1) == (" a girl ", "stop")
    assert text_of(server, stop="boy")[1] == "length"
    assert server.ask("/v1/completions", {**GREEDY, "stop": "boy"}).json["usage"]["completion_tokens"] == 3
    assert text_of(server, stop="and", grammar='root ::= "no and no"', max_tokens=-1) == ("no ", "stop")


def test_a_chat_has_the_servers_form_unless_it_has_tools(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "stop": "and", "max_tokens": -1, "temperature": 0}
    assert server.ask("/v1/chat/completions", body).json["choices"][0]["message"]["content"] == " a girl "
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    found = server.ask("/v1/chat/completions", {**body, "tools": [tool]})
    assert (found.status, found.error["param"]) == (400, "tools")  # the template of this model has none


def given_to(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[dict[str, str], ServerOptions]:
    """What `kernmill serve` hands over."""
    found: list[Any] = []

    def kept(*given: Any) -> int:
        found.append(given)
        return 0

    monkeypatch.setattr("kernmill.commands.serving.serve", kept)
    assert main(["serve", *words]) == 0
    paths, asked = found[0]
    return paths, asked


def test_words_of_llama_server(stories: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: -m ended with a traceback; the others were refused."""
    (tmp_path / "keys").write_text("# of mine\none\n\ntwo\n")
    paths, asked = given_to(
        monkeypatch, "-m", stories, "-r", r"a\nb", "--stop", "c", "-n", "7", "--ignore-eos", "-j", '{"type": "string"}',
        "--reasoning-format", "none", "-rea", "off", "--reasoning-effort", "low",
        "--api-key-file", str(tmp_path / "keys"),
    )  # fmt: skip
    assert paths == {"stories260Ktok512": stories}
    assert (asked.stop, asked.max_tokens, asked.ignores_end) == (("a\nb", "c"), 7, True)
    assert asked.form == {"type": "json_schema", "json_schema": {"schema": {"type": "string"}}}
    assert (asked.reasoning_format, asked.api_keys) == ("none", ("one", "two"))
    assert asked.template_values == {"enable_thinking": False, "reasoning_effort": "low"}
    asked = given_to(monkeypatch, stories, "-n", "-1", "--grammar", 'root ::= "a"', "--chat-template-kwargs", "{}")[1]
    assert (asked.max_tokens, asked.form, asked.template_values) == (
        None, {"type": "grammar", "grammar": 'root ::= "a"'}, {},
    )  # fmt: skip


def test_a_schema_that_is_not_json(stories: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", stories, "-j", "{"]) == 2
    assert capsys.readouterr().err == "kernmill: serve: --json-schema: must be JSON.\n"


@pytest.mark.parametrize(
    "words",
    ["-nocb", "-td 4", "-devd none", "--spec-draft-ngl 9", "--spec-ngram-simple-size-n 4", "-lcs x", "-cms 8",
     "--no-mmproj-offload", "--log-jsonl", "--tags a,b", "--models-autoload", "--no-agent", "--reasoning-budget -1"],
)  # fmt: skip
def test_what_changes_no_answer_is_noted(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    options.parse("serve", [*words.split(), "x.gguf"], {"paths": {"nargs": "*"}})
    assert capsys.readouterr().err.startswith(f"kernmill: serve: {words.split()[0]} is ignored: ")
