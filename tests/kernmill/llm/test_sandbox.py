"""Hostile templates end, soon and without much memory; what honest ones do still works."""

from __future__ import annotations

import time

import pytest

from kernmill import FormatError
from kernmill.llm.chat import ChatTemplate

pytest.importorskip("jinja2")

HELLO = [{"role": "user", "content": "Hello"}]
FEW = 300_000  # steps: what takes more would take longer
STEPS = f"what it calls and makes takes more than {FEW} steps"
PASSES = f"its loops take more than {FEW} passes"
BIG = "{% set big = 'b' * 10000000 %}"


def makes(what: str) -> str:
    return f"{what} makes a value of more than 20000000 characters"


HOSTILE = [
    ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", STEPS),
    ("{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 30 + "{% endcall %}" * 30, STEPS),
    ("{% set x = 'a' * 1000000 %}" + "{% set x = x ~ x %}" * 40, makes("~")),
    ("{% set x = ['a'] %}" + "{% set x = [x, x] %}" * 45 + "{{ x }}", STEPS),
    ("{% set x = {} %}" + "{% set x = {'a': x, 'b': x} %}" * 45 + "{{ x | tojson }}", STEPS),
    ("{% set x = 1 %}" + "{% set x = (x, x) %}" * 45 + "{{ x }}", STEPS),
    ("{% set x %}aaaaaaaaaa{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40, STEPS),
    ("{% set x = 10 %}" + "{% set x = x * x %}" * 40, makes("*")),
    ("{{ [['a'] * 100000] * 1000 }}", STEPS),
    ("{{ range(9999) | select('in', range(99999) | list) | list }}", STEPS),
    ("{{ range(9999) | map('string') | map('center', 1000000) | list }}", STEPS),
    ("{% for i in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 4 }}{% endfor %}", PASSES),
    ("{% set x %}{% for i in range(90000) %}" + "abc" * 300000 + "{% endfor %}{% endset %}", PASSES),
    ("{{ 'a' | center(8000000000) }}", makes("center")),
    ("{{ 'a'.ljust(8000000000) }}", makes("ljust")),
    ("{{ 'a' | indent(8000000000) }}", makes("indent")),
    ("{{ '\t'.expandtabs(30000000) }}", makes("expandtabs")),
    ("{{ [1] | slice(8000000000) | list }}", makes("slice")),
    ("{{ [1] | batch(8000000000, 1) | list }}", makes("batch")),
    ("{{ [1] | tojson(indent=8000000000) }}", makes("tojson")),
    ("{{ 1.5 | round(1000000000, 'ceil') }}", makes("round")),
    ("{{ [[1]] | sum(start=[]) }}", makes("sum")),
    (BIG + "{{ big | replace('b', big) }}", makes("replace")),
    (BIG + "{{ big.replace('b', big) }}", makes("replace")),
    (BIG + "{{ ['a', 'b', 'c'] | join(big) }}", makes("join")),
    (BIG + "{{ big.join('abcd') }}", makes("join")),
    (BIG + "{{ big.join(range(9) | map('string')) }}", makes("join")),
    (BIG + "{{ big | wordwrap(1, wrapstring='abc') }}", makes("wordwrap")),
    (BIG + "{{ 'aaa'.translate({97: big}) }}", makes("translate")),
    (BIG + "{{ '%(a)s%(a)s%(a)s' % {'a': big} }}", makes("%")),
    (BIG + "{{ '%s%s%s' | format(big, big, big) }}", makes("format")),
    (BIG + "{{ '{0}{0}{0}'.format(big) }}", makes("format")),
    (BIG + "{{ '{a}{a}{a}'.format_map({'a': big}) }}", makes("format_map")),
    ("{{ '{:>8000000000}'.format(1) }}", makes("format")),
    ("{{ '{:{w}}'.format(1, w=8000000000) }}", makes("format")),
    ("{{ '%*d' | format(8000000000, 1) }}", makes("format")),
]


@pytest.mark.parametrize(("source", "message"), HOSTILE, ids=[source[:50] for source, _ in HOSTILE])
def test_a_hostile_template_ends(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernmill.llm.sandbox.MAX_PASSES", FEW)
    start = time.monotonic()
    with pytest.raises(FormatError) as caught:
        ChatTemplate(source).render(HELLO)
    assert str(caught.value) == f"chat template: {message}."
    assert time.monotonic() - start < 30


HONEST = [
    ("{{ '<|' ~ messages[0].role ~ '|>' ~ 1 }}", "<|user|>1"),
    ("{{ '**%s**, %d' % ('a', 3) }}{{ '{:>3}{a}'.format('b', a='c') }}", "**a**, 3  bc"),
    ("{% set x %}hi {{ messages[0].role }}{% endset %}{{ x }}", "hi user"),
    ("{% set a, b = 1, [2, 3] %}{{ a }}{{ b[-1] }}{{ (4, 5)[0] }}{{ {'k': 6}.k }}", "1346"),
    ("{% for k, v in {'b': 2, 'a': 1} | dictsort %}{{ k }}{{ v }}{% endfor %}", "a1b2"),
    ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
    ("{{ messages | map(attribute='role') | list | tojson }}", '["user"]'),
    ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
    ("{{ ['a', 'b'] | join(', ') }}{{ '-'.join(['c', 'd']) }}{{ ' x ' | trim }}", "a, bc-dx"),
    ("{{ 'a b'.split(' ') | first }}{{ 'abc'[::-1] }}{{ 'x'.startswith('x') }}", "acbaTrue"),
    ("{{ namespace(x=10 ** 8).x }}{{ none | default(10 ** 11) }}", "100000000None"),
    ("{{ '\n'.join(messages | map(attribute='content')) }}{{ 'a' in ['a'] }}", "HelloTrue"),
    ("{{ 'a\nb' | indent(2) }}{{ 'y' | replace('y', 'z') }}{{ [1, 2] | sum }}", "a\n  bz3"),
]


@pytest.mark.parametrize(("source", "expected"), HONEST)
def test_what_honest_templates_do(source: str, expected: str) -> None:
    assert ChatTemplate(source).render(HELLO) == expected


def test_a_long_conversation_fits() -> None:
    source = (
        "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + '<|' ~ m.role ~ '|>' ~ "
        "m.content | trim %}{% if 'x' not in m.content %}{{ '.' }}{% endif %}{% endfor %}{{ ns.s }}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 400
    assert len(ChatTemplate(source).render(messages)) == 400 * (1 + 8 + 999)
