"""class Grammar: the texts that a model may write, by a JSON schema, a GBNF grammar or a regular expression.

The package `llguidance` (extra `grammar`) reads grammars and computes, token by token, what may follow. Its tokenizer,
which takes half a second to build for a large vocabulary, is kept beside ours.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernmill.ir import FormatError, SettingError

from .grammar_ends import endless_rule, schema_ends
from .packages import package
from .tokenizer import Tokenizer

__all__ = ["Grammar", "GrammarMask"]

MOST_CHARACTERS = 65_536  # of a grammar or a schema
_PURPOSE = "a grammar"
_built: weakref.WeakKeyDictionary[Tokenizer, Any] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Grammar:
    """A grammar for the tokens of one tokenizer. A request has it as `grammar`; every text begins it anew.

    Raises:
        FormatError: the grammar cannot be read, uses what is not supported, or no text ever completes it.
        SettingError: the package llguidance is not installed; a grammar of more than 64 KB.
    """

    def __init__(self, form: str, text: str, tokenizer: Tokenizer) -> None:
        library = package("llguidance", _PURPOSE, extra="grammar")
        if len(text) > MOST_CHARACTERS:
            raise SettingError(f"a grammar of {len(text)} characters. At most {MOST_CHARACTERS} are read.")
        self._library, self._tokens = library, _tokens_of(tokenizer, library)
        try:
            self._rules: str = library.grammar_from(form, text)
        except Exception as error:
            raise FormatError(f"the {_NAMES[form]} cannot be read: {_line(str(error))}.") from error
        is_wrong, messages = library.LLMatcher.validate_grammar_with_warnings(self._rules, self._tokens)
        if is_wrong or messages:  # what it does not know would not be obeyed
            raise FormatError(f"the {_NAMES[form]} cannot be read: {_line(messages[0])}.")
        _check_ends(form, text)
        if not self.start().allowed(len(tokenizer)).any():
            raise FormatError(f"the {_NAMES[form]} accepts no text: no token may come first.")

    @classmethod
    def of_schema(cls, schema: str | Mapping[str, Any], tokenizer: Tokenizer) -> Grammar:
        """JSON texts that a JSON schema accepts."""
        return cls("json_schema", schema if isinstance(schema, str) else json.dumps(schema), tokenizer)

    @classmethod
    def of_gbnf(cls, text: str, tokenizer: Tokenizer) -> Grammar:
        """Texts of a grammar in llama.cpp's notation, or Lark's."""
        return cls("gbnf", text, tokenizer)

    @classmethod
    def of_regex(cls, pattern: str, tokenizer: Tokenizer) -> Grammar:
        """Texts that a regular expression matches as a whole."""
        return cls("regex", pattern, tokenizer)

    def start(self) -> GrammarMask:
        """Return the mask of a text that begins now."""
        return GrammarMask(self._library.LLMatcher(self._tokens, self._rules, log_level=0))


class GrammarMask:
    """What may follow the tokens of one text so far."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, vocabulary: int) -> np.ndarray[Any, Any]:
        """Which tokens may come next; those that end the text where it may end. Shapes: (vocabulary,), bool.

        Raises:
            FormatError: the grammar has become too complex.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise FormatError(f"the grammar cannot go on: {_line(self._matcher.get_error())}.")
        known = np.unpackbits(bits, bitorder="little")[:vocabulary].astype(bool)
        found = np.zeros(vocabulary, bool)
        found[: known.size] = known
        return found

    def accept(self, token: int) -> None:
        """The text continues with this token.

        Raises:
            FormatError: the grammar does not allow it.
        """
        if not self._matcher.consume_token(token):
            raise FormatError(f"the grammar does not allow token {token}: {_line(self._matcher.get_error())}.")


class _Vocabulary:
    """What the package wants to know of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        count, ends = len(tokenizer), sorted(tokenizer.end_ids)
        self._tokenizer = tokenizer
        self.special_token_ids = [n for n in range(count) if tokenizer.is_control(n)]
        special = {*self.special_token_ids, *ends}
        self.tokens = [b"\xff" + f"<{n}>".encode() if n in special else tokenizer.token_bytes(n) for n in range(count)]
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = ends[0] if ends else 0

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)


def _tokens_of(tokenizer: Tokenizer, library: Any) -> Any:
    """The package's tokenizer, built once for each of ours."""
    with _lock:
        found = _built.get(tokenizer)
        if found is None:
            known = _Vocabulary(tokenizer)
            wrapper = library.TokenizerWrapper(known)
            ends = sorted(tokenizer.end_ids) or None
            found = _built[tokenizer] = library.LLTokenizer(wrapper, eos_token=ends)
        return found


def _check_ends(form: str, text: str) -> None:
    if form == "gbnf" and endless_rule(text) is not None:
        raise FormatError(
            "the grammar never ends: each text of the rule root needs another one inside. Give a rule an alternative "
            "without itself."
        )
    if form == "json_schema" and not schema_ends(json.loads(text)):
        raise FormatError(
            "the JSON schema never ends: each value needs another one of its kind inside. Make a property optional."
        )


_NAMES = {"json_schema": "JSON schema", "gbnf": "grammar", "regex": "regular expression"}


def _line(text: str) -> str:
    """The first line of the package's message, without a period."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "no reason is given")[:200].rstrip(".")
