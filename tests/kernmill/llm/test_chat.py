from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from kernmill import DTypeError, FormatError, SettingError
from kernmill.llm.budget import MAX_STEPS
from kernmill.llm.chat import CHATML, MAX_TEMPLATE_CHARACTERS, ChatTemplate
from kernmill.llm.tokenizer import Tokenizer

pytest.importorskip("jinja2")

HELLO = [{"role": "user", "content": "Hello"}]
TALK = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Bye"}]


def test_the_default_is_chatml() -> None:
    assert ChatTemplate().render(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate(CHATML).render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_blocks_are_trimmed_and_loops_can_be_left() -> None:
    source = """
    {% for message in messages %}
        {% if loop.index == 3 %}{% break %}{% endif %}
[{{ loop.index }}/{{ loop.length }}{{ loop.last }} {{ message.content }}]
    {% endfor %}
"""
    assert ChatTemplate(source).render(TALK) == "\n[1/3False Hello]\n[2/3False Hi.]\n"


def test_what_templates_expect_to_find() -> None:
    source = "{{ bos_token }}{{ tools | tojson }}{{ strftime_now('%%') }}{{ eos_token }}{{ thinking }}"
    template = ChatTemplate(source, bos="<s>", eos="</s>")
    assert template.render(HELLO, tools=[{"name": "<f\u00e9>"}], thinking=1) == '<s>[{"name": "<f\u00e9>"}]%</s>1'
    assert ChatTemplate("{{ messages | tojson(indent=1) }}").render([{"role": "a"}]) == '[\n {\n  "role": "a"\n }\n]'
    assert ChatTemplate("a{% generation %}b{% endgeneration %}c").render(HELLO) == "abc"


def test_a_namespace_can_count() -> None:
    source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    assert ChatTemplate(source).render(TALK) == "3"


def test_the_template_of_a_file(gguf: Callable[[str], Any]) -> None:
    metadata = gguf("llama_vocab/ggml-vocab-phi-3.gguf").metadata
    pytest.importorskip("tokenizers")
    tokenizer = Tokenizer(metadata)
    template = ChatTemplate.of(metadata, tokenizer)
    assert template.render(HELLO) == "<s><|user|>\nHello<|end|>\n<|assistant|>\n"
    ids = template.encode(tokenizer, HELLO)
    assert [tokenizer.tokens[i] for i in ids] == ["<s>", "<|user|>", "\u2581Hello", "<|end|>", "<|assistant|>"]


class Words:
    """What a template asks of a tokenizer."""

    tokens = ("<s>", "</s>")
    bos_id, eos_id = 0, 1


def test_named_templates() -> None:
    keys = {"tokenizer.chat_template.tool_use": "tools: {{ bos_token }}"}
    tokenizer: Any = Words()
    assert ChatTemplate.of(keys, tokenizer, "tool_use").render(HELLO) == "tools: <s>"
    assert ChatTemplate.of(keys, tokenizer).source == CHATML
    with pytest.raises(FormatError) as caught:
        ChatTemplate.of(keys, tokenizer, "rag")
    assert str(caught.value) == (
        "chat template: the file has no tokenizer.chat_template.rag. It has tokenizer.chat_template.tool_use."
    )


def test_a_template_that_is_no_text_is_refused() -> None:
    """It was the template "5"."""
    tokenizer: Any = Words()
    for value, shown in ((5, "5"), (array("B", bytes(10**6)), r"array('B', [0, 0, 0, 0, 0, ..])")):
        with pytest.raises(FormatError) as caught:
            ChatTemplate.of({"tokenizer.chat_template": value}, tokenizer)
        assert str(caught.value) == f"tokenizer.chat_template is {shown}, not a string. Convert the file again."


# --- what is wrong with messages and templates ---------------------------------------------------------------------
FAULTS: list[tuple[str, type[Exception], str]] = [
    (
        "a\n{% if %}",
        FormatError,
        "chat template: line 2 is not valid Jinja: Expected an expression, got 'end of statement block'",
    ),
    ("x" * (MAX_TEMPLATE_CHARACTERS + 1), FormatError, "chat template: it has 65537 characters, more than 65536."),
    (
        "{{ raise_exception('roles must alternate') }}",
        SettingError,
        "chat: the model's template objects: roles must alternate",
    ),
    (  # what a template says may be meant for the terminal
        "{{ raise_exception('\x1b[31m\n' + 'x' * 1000) }}",
        SettingError,
        f"chat: the model's template objects: \\x1b[31m\\n{'x' * 32}..{'x' * 43}",
    ),
    (
        "{{ messages[0].nothing.more }}",
        FormatError,
        "chat template: it fails on these messages: 'dict object' has no attribute 'nothing'",
    ),
    (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        FormatError,
        "chat template: it uses something that templates may not access: access to attribute '__class__' of 'str' "
        "object is "
        "unsafe.",
    ),
    (
        "{{ messages.append(1) }}",
        FormatError,
        "chat template: it uses something that templates may not access: access to attribute 'append' of 'list' "
        "object is "
        "unsafe.",
    ),
    (
        "{{ 'x' * 999999999 }}",
        FormatError,
        "chat template: * builds a value of more than 20000000 characters.",
    ),
    (
        "{{ '%999999999d' % 1 }}",
        FormatError,
        "chat template: % builds a value of more than 20000000 characters.",
    ),
    ("{{ 9 ** 99999999 }}", FormatError, "chat template: ** builds an integer of more than 64 bits."),
    (
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        FormatError,
        f"chat template: it runs for more than {MAX_STEPS} steps.",
    ),
    (
        "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        FormatError,
        "chat template: it outputs more than 20000000 characters.",
    ),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", FormatError, "chat template: it recurses without end."),
]


# What Jinja lets pass and Python does not compile.
NO_JINJA = [
    ("{% break %}", "it is not valid Jinja: 'break' outside loop."),
    ("{% with a = 1 %}{% break %}{% endwith %}", "it is not valid Jinja: 'break' outside loop."),
    ("{% for a in b %}{% else %}{% break %}{% endfor %}", "it is not valid Jinja: 'break' outside loop."),
    ("{% macro f() %}{% continue %}{% endmacro %}", "it is not valid Jinja: 'continue' not properly in loop."),
    ("{% call f() %}{% continue %}{% endcall %}", "it is not valid Jinja: 'continue' not properly in loop."),
    ("{% for a in b %}" * 25 + "{% endfor %}" * 25, "it is not valid Jinja: too many statically nested blocks."),
    ("{% for a in b %}" * 150 + "{% endfor %}" * 150, "it is not valid Jinja: too many levels of indentation."),
    ("{{ f(a=1, a=2) }}", "it is not valid Jinja: keyword argument repeated: a."),
    ("{% macro f(a, a) %}{% endmacro %}", "it is not valid Jinja: duplicate argument 'l_1_a' in function definition."),
    ("{% if a %}" + "{% elif a %}" * 5000 + "{% endif %}", "it is nested too deeply."),
    ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "it is nested too deeply."),
    ("{{ " + "9" * 30 + " }}", "line 1 builds an integer of more than 64 bits."),
]


@pytest.mark.parametrize(("source", "message"), NO_JINJA, ids=[source[:40] for source, _ in NO_JINJA])
def test_what_does_not_compile_is_a_sentence(source: str, message: str) -> None:
    """They were tracebacks: SyntaxError, IndentationError, ValueError, MemoryError."""
    with pytest.raises(FormatError) as caught:
        ChatTemplate(source)
    assert str(caught.value) == f"chat template: {message}"


def test_a_number_that_python_does_not_read() -> None:
    with pytest.raises(FormatError, match=r"^chat template: it is not valid Jinja: Exceeds the limit"):
        ChatTemplate("{{ " + "9" * 5000 + " }}")


@pytest.mark.parametrize(("source", "error", "message"), FAULTS, ids=lambda value: str(value)[:30])
def test_a_template_that_fails_is_a_sentence(source: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        ChatTemplate(source).render(HELLO)
    assert str(caught.value) == message


def test_doubling_a_text_ends() -> None:
    source = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"
    with pytest.raises(FormatError, match=r"^chat template: \+ builds a value"):
        ChatTemplate(source).render(HELLO)


def test_a_message_without_a_role() -> None:
    with pytest.raises(SettingError) as caught:
        ChatTemplate().render([*HELLO, {"content": "x"}])
    assert str(caught.value) == "chat: message 1 has no role. Give {'role': 'user', 'content': 'text'}."


def test_what_is_no_list_of_messages() -> None:
    """It was a TypeError; a generator's messages were checked and then not rendered."""
    nothing: Any = None
    with pytest.raises(SettingError) as caught:
        ChatTemplate().render(nothing)
    assert str(caught.value) == "chat: messages is None, not a list. Give [{'role': 'user', 'content': 'text'}]."
    one_by_one: Any = iter(HELLO)
    assert ChatTemplate().render(one_by_one) == ChatTemplate().render(HELLO)
    with pytest.raises(DTypeError) as other:
        ChatTemplate(nothing)
    assert str(other.value) == "ChatTemplate: source is None, of type NoneType. Give a string."
