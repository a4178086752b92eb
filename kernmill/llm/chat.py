"""Chat templates: messages to the text format of a model, by the Jinja template in its file.

A template comes from a file that may be hostile. `sandbox.py` limits what it may access, `budget.py` how much it
computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernmill.ir import FormatError, KernmillError, SettingError

from ..arguments import with_sentences
from ..formats.quoting import escaped, quoted
from .budget import MAX_VALUE_CHARACTERS, steps
from .packages import package
from .sandbox import TemplateRefusal, environment
from .tokenizer import Tokenizer

__all__ = ["CHATML", "ChatTemplate"]

MAX_TEMPLATE_CHARACTERS = 1 << 16  # known models have less than half; compiling takes seconds then

CHATML = (  # when a file brings no template
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate:
    """A template, ready to render.

    Raises:
        FormatError: the template is not valid Jinja.
    """

    @with_sentences
    def __init__(self, source: str = CHATML, *, bos: str = "", eos: str = "") -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise FormatError(f"chat template: it has {len(source)} characters, more than {MAX_TEMPLATE_CHARACTERS}.")
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._errors = package("jinja2.exceptions", "a chat template")
        try:
            self._template = environment().from_string(source)
        except self._errors.TemplateSyntaxError as error:
            raise FormatError(
                f"chat template: line {error.lineno} is not valid Jinja: {escaped(str(error.message))}"
            ) from error
        except KernmillError:
            raise
        except (RecursionError, MemoryError) as error:  # the second from Python's parser
            raise FormatError("chat template: it is nested too deeply.") from error
        # errors that Jinja misses and Python reports: `break` outside of a loop, a duplicate name
        except Exception as error:
            why = error.msg if isinstance(error, SyntaxError) else str(error)
            raise FormatError(f"chat template: it is not valid Jinja: {escaped(why)}.") from error

    @classmethod
    def of(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, name: str = "") -> ChatTemplate:
        """Return the template of a GGUF file, or ChatML if it has none; `name` selects a different one, such as
        "tool_use".

        Raises:
            FormatError: the file has no template of this name, or it is not a string, or not valid Jinja.
        """
        key = "tokenizer.chat_template" + (f".{name}" if name else "")
        if name and key not in metadata:
            raise FormatError(
                f"chat template: the file has no {key}. It has {escaped(', '.join(_names(metadata))) or 'none'}."
            )
        bos, eos = (
            "" if token_id is None else tokenizer.tokens[token_id] for token_id in (tokenizer.bos_id, tokenizer.eos_id)
        )
        source = metadata.get(key, CHATML)
        if not isinstance(source, str):
            raise FormatError(f"{key} is {quoted(source)}, not a string. Convert the file again.")
        return cls(source, bos=bos, eos=eos)

    def with_source(self, source: str) -> ChatTemplate:
        """Return another template for the same tokens."""
        return ChatTemplate(source, bos=self._tokens["bos_token"], eos=self._tokens["eos_token"])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """Return the text of a conversation: `messages` are {"role": .., "content": ..}; `values` are variables of the
        template.

        Raises:
            SettingError: no messages, one without a role, or an error that the template raises.
            FormatError: the template fails, or its output is too long.
        """
        if not isinstance(messages, Iterable):
            raise SettingError(
                f"chat: messages is {quoted(messages)}, not a list. Give [{{'role': 'user', 'content': 'text'}}]."
            )
        messages = list(messages)
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise SettingError(f"chat: message {index} has no role. Give {{'role': 'user', 'content': 'text'}}.")
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": tools}
        try:
            with steps():
                return _joined_text(self._template.generate(**self._tokens, **given, **values))
        except TemplateRefusal as refusal:
            raise SettingError(f"chat: the model's template objects: {escaped(str(refusal))}") from None
        except FormatError:
            raise
        except RecursionError as error:
            raise FormatError("chat template: it recurses without end.") from error
        except self._errors.SecurityError as error:
            why = escaped(str(error))
            raise FormatError(f"chat template: it uses something that templates may not access: {why}") from error
        except MemoryError as error:
            raise FormatError("chat template: it runs out of memory.") from error
        except Exception as error:  # a template can fail in any way that Python can
            raise FormatError(f"chat template: it fails on these messages: {escaped(str(error))}") from error

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **values: Any) -> list[int]:
        """The token ids of a conversation, with one begin token where the model expects one."""
        return self.tokens(tokenizer, self.render(messages, **values))

    @staticmethod
    def tokens(tokenizer: Tokenizer, text: str) -> list[int]:
        """Encode the result of `render`."""
        ids = tokenizer.encode(text, parse_special=True)
        is_doubled = len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_id and tokenizer.add_bos
        return ids[1:] if is_doubled else ids


def _names(metadata: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in metadata if key.startswith("tokenizer.chat_template"))


def _joined_text(parts: Iterable[str]) -> str:
    kept: list[str] = []
    length = 0
    for part in parts:
        kept.append(part)
        length += len(part)
        if length > MAX_VALUE_CHARACTERS:
            raise FormatError(f"chat template: it outputs more than {MAX_VALUE_CHARACTERS} characters.")
    return "".join(kept)
