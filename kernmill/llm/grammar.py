"""class Grammar: the texts that a model may write, by a JSON schema, a GBNF grammar or a regular expression.

The package `llguidance` (extra `grammar`) reads grammars and computes, token by token, what may follow. Its tokenizer,
which takes half a second to build for a large vocabulary, is kept with ours.
"""

from __future__ import annotations

import contextlib
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

__all__ = ["Grammar", "GrammarMask", "compact_schema"]

MOST_CHARACTERS = 65_536  # of a grammar or a schema
_PURPOSE = "a grammar"
_BEFORE = "\n"  # no token joins it and other text
_SPACES = r"( |\n{1,2}[ \t]{0,20})?"  # between the parts of a JSON text
_built: weakref.WeakKeyDictionary[Tokenizer, Any] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Grammar:
    """A grammar for the tokens of one tokenizer. A request has it as `grammar`; every text begins at its start.

    Raises:
        FormatError: the grammar cannot be read, uses what is not supported, or no text ever completes it.
        SettingError: the package llguidance is not installed; a grammar of more than 64 KB.
    """

    def __init__(self, form: str, text: str, tokenizer: Tokenizer) -> None:
        library = package("llguidance", _PURPOSE, extra="grammar")
        if not tokenizer.end_ids:
            raise SettingError("a grammar needs a token that ends texts, and the vocabulary has none.")
        if len(text) > MOST_CHARACTERS:
            raise SettingError(f"a grammar of {len(text)} characters. At most {MOST_CHARACTERS} are read.")
        self._library, self._tokens = library, _tokens_of(tokenizer, library)
        try:
            self._rules: str = library.grammar_from(form, text)
        except Exception as error:
            raise FormatError(f"the {_NAMES[form]} cannot be read: {_first_line(str(error))}.") from error
        is_wrong, messages = library.LLMatcher.validate_grammar_with_warnings(self._rules, self._tokens)
        if is_wrong or messages:  # what it does not know would not be obeyed
            raise FormatError(f"the {_NAMES[form]} cannot be read: {_first_line(messages[0])}.")
        _check_ends(form, text)
        if not self.start().allowed(len(tokenizer)).any():
            raise FormatError(f"the {_NAMES[form]} accepts no text: no token may come first.")

    @classmethod
    def of_schema(cls, schema: Any, tokenizer: Tokenizer) -> Grammar:
        """JSON texts that a JSON schema, as JSON text or as values, accepts."""
        if isinstance(schema, str):
            with contextlib.suppress(ValueError, RecursionError):  # the package says what is wrong
                schema = json.loads(schema)
        return cls("json_schema", schema if isinstance(schema, str) else compact_schema(schema), tokenizer)

    def start(self) -> GrammarMask:
        """Return the mask of a text that begins now."""
        return GrammarMask(self._library.LLMatcher(self._tokens, self._rules, log_level=0))


def compact_schema(schema: Any) -> str:
    """Return a JSON schema as text that allows little white space: weak models would fill a context with it."""
    if isinstance(schema, Mapping):
        own = schema.get("x-guidance")
        spaces = {"whitespace_pattern": _SPACES, **(own if isinstance(own, Mapping) else {})}
        schema = {**schema, "x-guidance": spaces}
    return json.dumps(schema)


class GrammarMask:
    """The mask of one text: what may follow its tokens so far."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, vocabulary: int) -> np.ndarray[Any, Any]:
        """Return which tokens may come next; those that end the text where it may end. Shapes: (vocabulary,), bool.

        Raises:
            FormatError: the grammar has become too complex.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise FormatError(f"the grammar cannot go on: {_first_line(self._matcher.get_error())}.")
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
            raise FormatError(f"the grammar does not allow token {token}: {_first_line(self._matcher.get_error())}.")


class _Vocabulary:
    """A tokenizer as the package reads it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        count, ends = len(tokenizer), sorted(tokenizer.end_ids)
        self._tokenizer = tokenizer
        self.special_token_ids = [n for n in range(count) if tokenizer.is_control(n)]
        special = {*self.special_token_ids, *ends}
        self.tokens = [b"\xff" + f"<{n}>".encode() if n in special else tokenizer.token_bytes(n) for n in range(count)]
        self._ids = {token: n for n, token in enumerate(self.tokens)}
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = ends[0] if ends else 0

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that continues another one: without the space that some vocabularies put first."""
        tokenizer = self._tokenizer
        before = _BEFORE if tokenizer.add_space_prefix else ""
        ids = tokenizer.encode(before + text, add_special=False, parse_special=True)
        raw = text.encode()
        for start in range(min(len(ids), 4)):
            if b"".join(self.tokens[i] for i in ids[start:]) == raw:
                return ids[start:]
        return [self._ids[bytes([byte])] for byte in raw if bytes([byte]) in self._ids]


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


_NAMES = {
    "json_schema": "JSON schema",
    "gbnf": "grammar",
    "lark": "grammar",
    "choice": "list of texts",
    "regex": "regular expression",
}


def _first_line(text: str) -> str:
    """The first line of the package's message, without a period."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "no reason is given")[:200].rstrip(".")
