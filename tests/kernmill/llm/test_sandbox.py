"""Hostile templates end, soon and without much memory; what honest ones do still works."""

from __future__ import annotations

import time

import pytest

from kernmill import FormatError
from kernmill.llm.chat import ChatTemplate

pytest.importorskip("jinja2")

HELLO = [{"role": "user", "content": "Hello"}]
FEW = 300_000  # steps: what takes more would take longer
STEPS = f"it runs for more than {FEW} steps"
BIG = "{% set big = 'b' * 10000000 %}"
LONG = "{% set a = 'x' * 100000 %}{% set b = 'x' * 100000 %}"
LIST = "{% set a = range(100000) | list %}{% set b = range(100000) | list %}"
TUPLE = "{% set a = (1,) * 10000 %}"
DEEP = "{% set ns = namespace(x=()) %}{% for i in range(90000) %}{% set ns.x = (ns.x,) %}{% endfor %}"
NEEDLE = "{% set a = 'x' * 29000 %}{% set b = 'x' * 96 + 'yx' %}"  # where Python's search compares all with all


def again(what: str, before: str = "") -> str:
    return before + "{% for i in range(99999) %}{% for j in range(99) %}" + what + "{% endfor %}{% endfor %}"


def makes(what: str) -> str:
    return f"{what} builds a value of more than 20000000 characters"


HOSTILE = [
    ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", STEPS),
    ("{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 30 + "{% endcall %}" * 30, STEPS),
    ("{% set x = 'a' * 1000000 %}" + "{% set x = x ~ x %}" * 40, makes("~")),
    ("{% set x = ['a'] %}" + "{% set x = [x, x] %}" * 45 + "{{ x }}", STEPS),
    ("{% set x = {} %}" + "{% set x = {'a': x, 'b': x} %}" * 45 + "{{ x | tojson }}", STEPS),
    ("{% set x = 1 %}" + "{% set x = (x, x) %}" * 45 + "{{ x }}", STEPS),
    ("{% set x %}aaaaaaaaaa{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40, STEPS),
    ("{% set x = 10 %}" + "{% set x = x * x %}" * 40, "* builds an integer of more than 64 bits"),
    ("{{ [['a'] * 100000] * 1000 }}", STEPS),
    ("{{ range(9999) | select('in', range(99999) | list) | list }}", STEPS),
    ("{{ range(9999) | map('string') | map('center', 1000000) | list }}", STEPS),
    ("{% for i in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 4 }}{% endfor %}", STEPS),
    ("{% set x %}{% for i in range(90000) %}" + "abc" * 20000 + "{% endfor %}{% endset %}", STEPS),
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
    (BIG + "{{ '%2000000000d' is odd }}{{ big }}", makes("is odd")),
    ("{{ '%2000000000d' is divisibleby(3) }}", makes("is divisibleby")),
    ("{{ 'xxxxx' | round(9, 'ceil') }}", makes("round")),
    ("{{ ('{' + ':' * 10000000).format() }}", STEPS),
    ("{{ range(99999) | list | tojson(separators=('x' * 1000000, ':')) }}", makes("tojson")),
    ("{{ strftime_now('%Y' * 1000000) }}", makes("strftime_now")),
    ("{{ ('f' * 100000) | int(base=16) }}", "a call builds an integer of more than 64 bits"),
    (DEEP + "{{ {ns.x: 1} }}", "it builds lists nested more than 256 levels deep"),  # it ended the process
    (DEEP + "{{ [ns.x] | unique | list }}", "it builds lists nested more than 256 levels deep"),
    ("{% for i in range(99999) %}" + "{% if x %}{% endif %}" * 2000 + "{% endfor %}", STEPS),
    ("{% macro f() %}" + "{% if x %}{% endif %}" * 2000 + "{% endmacro %}" + again("{{ f() }}"), STEPS),
    (
        "{% for i in [0] recursive %}"
        + "{% if x %}{% endif %}" * 2000
        + "{{ loop(range(99)) if loop.depth < 4 }}{% endfor %}",
        STEPS,
    ),
    ("{% for i in range(99999) %}{% set x %}{{ '" + "x" * 50000 + "' }}{% endset %}{% endfor %}", STEPS),
    *(
        (again(f"{{% if {what} %}}{{% endif %}}", before), STEPS)
        for before, what in (
            (LONG, "a[1:]"),
            (LONG, "a[1:] == a"),
            (LONG, "a == b"),
            (LONG, "a < b"),
            (LONG, "'a' < 'b' < a < b"),
            (LONG, "a is eq b"),
            (LONG, "'y' in a"),
            (LONG, "'y' not in a"),
            (LONG, "'y' is in a"),
            (LONG, "[a] == [b]"),
            (LONG, "{'k': a} == {'k': b}"),
            (LONG, "{'k': a}.items() == {'k': b}.items()"),
            (LONG, "a ~ b"),
            (LONG, "a + b"),
            (LONG, "a.count('xyx')"),
            (LONG, "a.rfind('xy' + 'x' * 1000)"),
            (LONG, "a.strip(b)"),
            (LONG, "a.startswith((b + 'y',) * 10)"),
            (LONG, "a | upper"),
            (LONG, "a | title"),
            (LONG, "a | sort"),
            (LONG, "a | replace('y', '')"),
            (LONG, "a | wordwrap(3)"),
            (LONG, "a.translate({120: 'y'})"),
            (LONG, "a | list"),
            (LONG, "[a] | join"),
            (LONG, "'%s' % a"),
            (LONG, "'{}'.format(a)"),
            (LONG, "a * 2"),
            (LONG, "loop.changed(a[1:])"),
            (LONG, "{}[a]"),
            (LONG, "{}.get(a)"),
            (NEEDLE, "b in a"),
            (NEEDLE, "a.find(b)"),
            (NEEDLE, "a.split(b)"),
            (NEEDLE, "a | replace(b, '')"),
            (LIST, "-1 in a"),
            (LIST, "-1 not in a"),
            (LIST, "a == b"),
            (LIST, "a[1:]"),
            (LIST, "a + b"),
            (LIST, "a.index(99999)"),
            (LIST, "a.count(-1)"),
            (LIST, "a | sort"),
            (LIST, "a | unique | list"),
            (LIST, "a | sum"),
            (LIST, "a | min"),
            (LIST, "a | join"),
            (LIST, "a | tojson"),
            (LIST, "a | string"),
            (LIST, "{}.fromkeys(a)"),
            (LIST, "loop.cycle(*a)"),
            (LIST, "'a' in range(99999)"),
            (LIST, "1.5 in {'k': 1}.values()"),
            (TUPLE, "{a: 1}"),
            (TUPLE, "a in {}"),
            (TUPLE, "{}[a]"),
            (TUPLE, "{}.get(a)"),
            (TUPLE, "[a] | unique | list"),
            ("", "[1] | batch(20000000, 1) | first"),
            ("", "range(99) | map(attribute='0') | list"),
            ("", "x is none"),
        )
    ),
]


@pytest.mark.parametrize(("source", "message"), HOSTILE, ids=[source[:50] for source, _ in HOSTILE])
def test_a_hostile_template_ends(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernmill.llm.budget.MAX_STEPS", FEW)
    start = time.monotonic()
    with pytest.raises(FormatError) as caught:
        ChatTemplate(source).render(HELLO)
    assert str(caught.value) == f"chat template: {message}."
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    "source", ["{{ 'a'.encode() }}", "{{ (1).to_bytes(9, 'big') }}", "{{ ('a' | safe).striptags() }}"]
)
def test_methods_that_no_template_needs(source: str) -> None:
    """They lead to bytes and to numbers of any length, or take the square of a length."""
    with pytest.raises(FormatError, match="it uses something that templates may not access: access to attribute"):
        ChatTemplate(source).render(HELLO)


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


TURNS = """
{%- set ns = namespace(last=-1, kept=[], text='') %}
{%- for m in messages[::-1] %}
    {%- if m.role == 'user' and m.content is string and not m.content.startswith('<tool_response>') %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
    {%- set ns.kept = ns.kept + [m] %}
{%- endfor %}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}
    {%- if m['role'] not in ['user', 'assistant'] or (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- elif m == users[-1] and tools %}
        {%- for tool in tools %}{{ tool.function | tojson(indent=4) }}{% endfor %}
    {%- endif %}
    {%- set text = m.content %}
    {%- if '</think>' in text %}
        {%- set text = text.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|' ~ m.role ~ '|>' + text | trim | replace('<s>', '') + (eos_token if loop.last else '') }}
    {%- for call in m.tool_calls or [] %}{{ call.name ~ (call.arguments | tojson)[:-1] }}{% endfor %}
{%- endfor %}
"""


def test_a_thousand_turns_with_a_megabyte_fit() -> None:
    """As the templates of Qwen 3, Mistral and others go through them; they take an eighth of the steps."""
    tools = [{"function": {"name": f"f{n}", "parameters": {f"p{k}": {"type": "string"} for k in range(9)}}}
             for n in range(40)]  # fmt: skip
    calls = [{"name": "f1", "arguments": {"p1": [1, 2, 3]}}]
    messages = [
        {"role": "user", "content": f"{n} " + "word " * 200} if n % 2 == 0 else
        {"role": "assistant", "content": "<think>\nhm</think>\n\n" + "word " * 200, "tool_calls": calls}
        for n in range(1000)
    ]  # fmt: skip
    assert len(ChatTemplate(TURNS).render(messages, tools=tools)) > 1_000_000
