"""Chat templates: messages to the text that a model was trained on, by the Jinja template in its file.

A template comes from a file that may be hostile. It runs in Jinja's sandbox for immutable data: no attribute that leads
out of it, no change of what it is given. What the sandbox does not limit is limited here: the length of a value that an
operator makes, the passes of all loops of one rendering, and the length of the result. A filter such as `center` can
still make one long value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from kernmill.ir import FormatError, SettingError

from .packages import package
from .tokenizer import Tokenizer

__all__ = ["CHATML", "ChatTemplate"]

MAX_TEMPLATE_CHARACTERS = 1_000_000
MAX_CHARACTERS = 20_000_000  # of a value, and of the result
MAX_PASSES = 1_000_000  # of all loops together

CHATML = (  # when a file brings no template
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class _TemplateRefusal(Exception):
    """What a template itself says, by raise_exception."""


class ChatTemplate:
    """A template, ready to render.

    Raises:
        FormatError: the template is no Jinja.
    """

    def __init__(self, source: str = CHATML, *, bos: str = "", eos: str = "") -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise FormatError(f"chat template: {len(source)} characters. At most {MAX_TEMPLATE_CHARACTERS} are read.")
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._errors = package("jinja2.exceptions", "a chat template")
        try:
            self._template = _environment().from_string(source)
        except self._errors.TemplateSyntaxError as error:
            raise FormatError(f"chat template: line {error.lineno} is no Jinja: {error.message}") from error
        except RecursionError as error:
            raise FormatError("chat template: it is nested too deeply.") from error

    @classmethod
    def of(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, name: str = "") -> ChatTemplate:
        """The template of a GGUF file, or ChatML where it has none; `name` asks for another one, such as "tool_use".

        Raises:
            FormatError: there is none of this name, or it is no Jinja.
        """
        key = "tokenizer.chat_template" + (f".{name}" if name else "")
        if name and key not in metadata:
            raise FormatError(f"chat template: the file has no {key}. It has {', '.join(_names(metadata)) or 'none'}.")
        bos, eos = (
            "" if token_id is None else tokenizer.tokens[token_id] for token_id in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return cls(str(metadata.get(key, CHATML)), bos=bos, eos=eos)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """The text of a conversation: `messages` are {"role": .., "content": ..}; `values` are the template's own.

        Raises:
            SettingError: a message without a role, or what the template itself objects to.
            FormatError: the template fails, or makes too much.
        """
        for place, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise SettingError(f"chat: message {place} has no role. Give {{'role': 'user', 'content': 'text'}}.")
        given = {"messages": list(messages), "add_generation_prompt": add_generation_prompt, "tools": tools}
        token = _passes.set([MAX_PASSES])
        try:
            return _joined(self._template.generate(**self._tokens, **given, **values))
        except _TemplateRefusal as refusal:
            raise SettingError(f"chat: the model's template objects: {refusal}") from None
        except FormatError:
            raise
        except RecursionError as error:
            raise FormatError("chat template: it calls itself without end.") from error
        except self._errors.SecurityError as error:
            raise FormatError(f"chat template: it asks for what a template may not have: {error}") from error
        except Exception as error:  # a template can fail in any way that Python can
            raise FormatError(f"chat template: it fails on these messages: {error}") from error
        finally:
            _passes.reset(token)

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **values: Any) -> list[int]:
        """The token ids of a conversation, with one begin token where the model expects one."""
        ids = tokenizer.encode(self.render(messages, **values), parse_special=True)
        is_doubled = len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_id and tokenizer.add_bos
        return ids[1:] if is_doubled else ids


def _names(metadata: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in metadata if key.startswith("tokenizer.chat_template"))


def _joined(parts: Iterable[str]) -> str:
    kept: list[str] = []
    length = 0
    for part in parts:
        kept.append(part)
        length += len(part)
        if length > MAX_CHARACTERS:
            raise FormatError(f"chat template: it writes more than {MAX_CHARACTERS} characters.")
    return "".join(kept)


_passes: ContextVar[list[int]] = ContextVar("passes")  # one number: those that the loops of a rendering have left


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """What every loop goes over."""
    left = _passes.get()
    for value in values:
        left[0] -= 1
        if left[0] < 0:
            raise FormatError(f"chat template: its loops take more than {MAX_PASSES} passes.")
        yield value


def _environment() -> Any:
    """Jinja as the authors of templates know it (trimmed blocks, loop controls), with the limits of this file."""
    sandbox = package("jinja2.sandbox", "a chat template")
    nodes = package("jinja2.nodes", "a chat template")
    extensions = package("jinja2.ext", "a chat template")

    class Environment(sandbox.ImmutableSandboxedEnvironment):  # type: ignore[name-defined,misc]
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if _length_of(operator, left, right) > MAX_CHARACTERS:
                raise FormatError(f"chat template: {operator} makes a value of more than {MAX_CHARACTERS} characters.")
            return super().call_binop(context, operator, left, right)

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            counted = nodes.ExtensionAttribute(Generation.identifier, "counted")  # no name that a template can set
            for loop in list(tree.find_all(nodes.For)):
                loop.iter = nodes.Call(counted, [loop.iter], [], None, None)
            return tree.set_environment(self)

    class Generation(extensions.Extension):  # type: ignore[name-defined,misc]
        """{% generation %}: marks what the assistant says, for training; here it is what stands inside."""

        tags = frozenset(("generation",))
        counted = staticmethod(_counted)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[extensions.loopcontrols, Generation])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment


def _length_of(operator: str, left: Any, right: Any) -> float:
    """An upper bound on the length of a result, where it can be long."""
    if operator == "+":
        return _length(left) + _length(right)
    if operator == "*":
        counts = [side for side in (left, right) if isinstance(side, int)]
        return max(_length(left), _length(right)) * max(counts, default=0)
    if operator == "**":
        small = isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(right) < 1000
        return 0 if small and abs(left) < 1e9 else float("inf")
    return float("inf") if isinstance(left, str) and "*" in left else _widths(left)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _widths(text: Any) -> float:
    """The widths that a format asks for, at most."""
    if not isinstance(text, str):
        return 0
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    return sum(float(word) for word in digits) + len(text)


def _refuse(message: str) -> None:
    raise _TemplateRefusal(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, where Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
