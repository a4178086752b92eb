"""Text of users in the prompt of a template: control tokens that are spelled out in it stay text.

A template is rendered with a mark inside of each such spelling. Afterwards the control tokens of the template are
tokens, and the marked spellings are encoded as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernmill.ir import cached_property

from ..tokenizer import Tokenizer

__all__ = ["PromptGuard"]

# of the private use area, removed from texts that have them: before a spelling and inside of it; after a beginning
_MARK, _END = "\ue0f1", "\ue0f2"
_MARKS = re.compile(f"[{_MARK}{_END}]")


class PromptGuard:
    """Marks the spellings of control tokens in messages, and encodes a rendered prompt."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        tokenizer = self._tokenizer
        names = (token for i, token in enumerate(tokenizer.tokens) if tokenizer.is_control(i) and token)
        found = sorted(names, key=len, reverse=True)
        return re.compile(f"(?<!{_MARK})(?:{'|'.join(map(re.escape, found)) or '(?!)'})")

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        """Beginnings of control tokens, which two texts together could complete."""
        tokenizer = self._tokenizer
        names = (token for i, token in enumerate(tokenizer.tokens) if tokenizer.is_control(i))
        return frozenset(token[:end] for token in names for end in range(1, len(token)))

    def marked(self, value: Any) -> Any:
        """Return messages or tools with a mark in each spelling of a control token."""
        if isinstance(value, str):
            text = self.text(value)
            text = self._controls.sub(lambda match: _MARK + match[0][:1] + _MARK + match[0][1:], text)
            ends = (text[-count:] for count in range(1, min(len(text), self._tokenizer.longest) + 1))
            return text + _END if any(map(self._beginnings.__contains__, ends)) else text
        if isinstance(value, Mapping):
            return {self.marked(key): self.marked(one) for key, one in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
            return [self.marked(one) for one in value]
        return value

    @staticmethod
    def text(rendered: str) -> str:
        """Return a rendered prompt without marks."""
        return _MARKS.sub("", rendered)

    def tokens(self, rendered: str) -> list[int]:
        """Encode a rendered prompt, with one begin token where the model expects one."""
        tokenizer = self._tokenizer
        if _MARKS.search(rendered) is None:
            ids = tokenizer.encode(rendered, add_special=False, parse_special=True)
        else:
            ids = self._by_parts(rendered)
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids = [tokenizer.bos_id, *ids]
        return ids

    def _by_parts(self, rendered: str) -> list[int]:
        """Encode control tokens, and the texts between them, separately, as the tokenizer does itself."""
        ids: list[int] = []
        start = 0
        for match in self._controls.finditer(rendered):
            ids += self._plain(rendered[start : match.start()])
            ids += self._tokenizer.encode(match[0], add_special=False, parse_special=True)
            start = match.end()
        return ids + self._plain(rendered[start:])

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(self.text(text), add_special=False, parse_special=False) if text else []
