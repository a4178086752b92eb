"""The vocabulary of a folder, as the metadata of a GGUF file: tokenizer.json, and what other files say of its roles.

    model in tokenizer.json             tokenizer.ggml.model
    BPE over bytes                      gpt2: merges; the rules for words must be those of a known name
    BPE with U+2581 for spaces          llama: scores, by the order of the merges
    Unigram                             t5
    WordPiece                           bert

Source: the documentation of the package tokenizers (its components and their JSON).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernmill import FormatError

from ...formats.gguf_types import ValueType
from ...formats.gguf_write import Typed
from ...formats.quoting import quoted
from ..packages import package
from ..pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from .config_json import ConfigJson, read_json

__all__ = ["vocabulary"]

SPACE = "\u2581"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_MOST_TOKENS = 1 << 24
_LAST_MERGE = -1e9  # the score of a token that no merge makes
_ROLES = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id", "pad_token": "padding_token_id", "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}  # fmt: skip
_NORMALIZERS = (  # those that are known; NFC is left out, as in llama.cpp
    "Sequence", "Precompiled", "Replace", "Prepend", "Strip", "BertNormalizer", "NFC",
)  # fmt: skip
# Words, numbers, lines, marks and scripts that the known rules split in different ways.
_PROBE = (
    "Hello world, it's we'LL I'M THEY'RE 1 12 123 1234 1234567  two   spaces\n\nlines\r\n \n  tabs\t\tend "
    "camelCase HTTPServer x=y+1; /path/to_file.txt $5.99 (a) [b] {c} <d> !!! ... ?!\n\u00e9t\u00e9 e\u0301te\u0301 "
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d\u4e16\u754c123\u3042\u3044\u30ab\u30bf \uc548\ub155 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0939\u093f\u0928\u094d\u0926\u0940 \u0645\u0631\u062d\u0628\u0627 "
    "\U0001f600\U0001f680 \u00b2\u2167\u0664\u0665 a1b2 Ab\u01c5c _x_ `q` ~~ ^^ \u2014\u201cquote\u201d\u3002\n\n\n"
)


def vocabulary(folder: str, config: ConfigJson, rows: int) -> dict[str, Any]:
    """The metadata `tokenizer.*` of a folder. `rows`: those of the embedding, which may be more than the tokens.

    Raises:
        FormatError: tokenizer.json is damaged, or of a kind that kernmill does not have.
    """
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(path):
        return {"tokenizer.ggml.model": "no_vocab"}
    return _TokenizerJson(path, config, rows).metadata()


class _TokenizerJson:
    """The parts of one tokenizer.json."""

    def __init__(self, path: str, config: ConfigJson, rows: int) -> None:
        self._path, self._config = path, config
        self._normal_parts = read_json(path)
        self._model = self._object(self._normal_parts.get("model"), "model")
        self._kind = self._model.get("type") or ("WordPiece" if "max_input_chars_per_word" in self._model else "BPE")
        folder = os.path.dirname(path)
        settings = os.path.join(folder, "tokenizer_config.json")
        self._settings = read_json(settings) if os.path.isfile(settings) else {}
        self._tokens, self._kinds = self._read_tokens(rows)
        self._ids = {token: n for n, token in enumerate(self._tokens) if token}

    def metadata(self) -> dict[str, Any]:
        """All of it."""
        kinds = {"BPE": self._merge_pairs, "Unigram": self._unigrams, "WordPiece": self._word_pieces}
        if self._kind not in kinds:
            raise self._broken_file(f"its model is {quoted(self._kind)}: must be one of {', '.join(kinds)}")
        for part in _normal_parts(self._normal_parts.get("normalizer"), "normalizers"):
            if part.get("type") not in _NORMALIZERS:
                raise self._broken_file(f"its normalizer {quoted(part.get('type'))} is unknown")
        found: dict[str, Any] = kinds[self._kind]()
        found = {
            "tokens": Typed(ValueType.STRING, self._tokens), "token_type": Typed(ValueType.INT32, self._kinds), **found,
            **self._roles(),
        }  # fmt: skip
        metadata = {f"tokenizer.ggml.{name}": value for name, value in found.items()}
        template = self._chat_template()
        return metadata if template is None else {**metadata, "tokenizer.chat_template": template}

    # --- reading
    def _broken_file(self, text: str) -> FormatError:
        return FormatError(f"{self._path}: {text}. Save the tokenizer again with save_pretrained, or take a GGUF file.")

    def _object(self, value: Any, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._broken_file(f"{what} is {quoted(value)}, not an object")
        return value

    def _read_tokens(self, rows: int) -> tuple[list[str], list[int]]:
        """The tokens by their ids, with names for ids that have none, and their kinds."""
        vocab: Any = self._model.get("vocab")
        if self._kind == "Unigram":
            pairs = [(one[0], n) for n, one in enumerate(vocab)] if _are_scored(vocab) else None
        else:
            pairs = [*vocab.items()] if isinstance(vocab, dict) else None
        if pairs is None:
            raise self._broken_file("model.vocab is not a vocabulary")
        added: Any = self._normal_parts.get("added_tokens") or []
        if not isinstance(added, list) or not all(isinstance(one, dict) for one in added):
            raise self._broken_file("added_tokens is not a list of objects")
        special = [(one.get("content"), one.get("id"), one.get("special") is True) for one in added]
        every = [*pairs, *((token, n) for token, n, _ in special)]
        if any(not isinstance(token, str) or type(n) is not int or not 0 <= n < _MOST_TOKENS for token, n in every):
            raise self._broken_file("a token is not a string with an id")
        count = 1 + max((n for _, n in every), default=-1)
        if count > max(rows, len(every)) and count > 2 * len(every) + 1024:
            raise self._broken_file(f"its ids reach {count - 1}, and it has {len(every)} tokens")
        tokens, kinds = [f"[PAD{n}]" for n in range(count)], [_UNUSED] * count
        for token, n in pairs:
            tokens[n], kinds[n] = token, _NORMAL
        for token, n, is_special in special:
            tokens[n], kinds[n] = token, _CONTROL if is_special else _USER
        return tokens, kinds

    def _id_of(self, token: Any) -> int | None:
        """The id of a token, which settings give as text or as an object with its content."""
        token = token.get("content") if isinstance(token, dict) else token
        return self._ids.get(token) if isinstance(token, str) else None

    def _roles(self) -> dict[str, Any]:
        """The ids of tokens with a role, and which of them surround a text."""
        found: dict[str, Any] = {}
        for name, key in _ROLES.items():
            number = self._id_of(self._settings.get(name))
            if number is None and name in ("bos_token", "eos_token", "pad_token"):
                given: Any = self._config.get(f"{name}_id")
                number = given[0] if isinstance(given, list) and given else given
            if type(number) is int and 0 <= number < len(self._tokens):
                found[key] = number
        begin, end = self._around()
        if begin is not None and self._kind != "WordPiece":
            found["bos_token_id"] = begin
        if end is not None and self._kind != "WordPiece":
            found.setdefault("eos_token_id", end)
        if self._unknown is not None:
            found["unknown_token_id"] = self._unknown
        found["add_bos_token"] = begin is not None
        found["add_eos_token"] = end is not None and end == found.get(
            "seperator_token_id" if self._kind == "WordPiece" else "eos_token_id"
        )
        others = [n for n in self._end_tokens() if n != found.get("eos_token_id")]
        found |= dict(zip(("eot_token_id", "eom_token_id"), others, strict=False))
        return found

    @property
    def _unknown(self) -> int | None:
        if self._kind == "Unigram":
            number = self._model.get("unk_id")
            return number if type(number) is int and 0 <= number < len(self._tokens) else None
        return self._id_of(self._model.get("unk_token"))

    def _end_tokens(self) -> list[int]:
        """The ids that end a text, by generation_config.json."""
        path = os.path.join(os.path.dirname(self._path), "generation_config.json")
        given: Any = read_json(path).get("eos_token_id") if os.path.isfile(path) else None
        numbers = given if isinstance(given, list) else [given]
        return [n for n in numbers if type(n) is int and 0 <= n < len(self._tokens)]

    def _around(self) -> tuple[int | None, int | None]:
        """The tokens that are put before and after a text."""
        for part in _normal_parts(self._normal_parts.get("post_processor"), "processors"):
            if part.get("type") in ("BertProcessing", "RobertaProcessing"):
                first, last = part.get("cls"), part.get("sep")
                return self._id_of(first[0] if first else None), self._id_of(last[0] if last else None)
            if part.get("type") == "TemplateProcessing":
                steps = part.get("single")
                names = [_special(step) for step in steps] if isinstance(steps, list) else []
                if None in names:
                    return (
                        self._id_of(names[0]) if names[0] else None,
                        self._id_of(names[-1]) if names[-1] else None,
                    )
        begin = self._settings.get("add_bos_token") is True
        end = self._settings.get("add_eos_token") is True
        ids = [self._id_of(self._settings.get(name)) for name in ("bos_token", "eos_token")]
        return ids[0] if begin else None, ids[1] if end else None

    def _chat_template(self) -> str | None:
        path = os.path.join(os.path.dirname(self._path), "chat_template.jinja")
        if os.path.isfile(path):
            try:
                with open(path, encoding="utf-8") as file:
                    return file.read()
            except (OSError, ValueError) as error:
                raise FormatError(f"{path}: cannot be read: {error}.") from None
        found: Any = self._settings.get("chat_template")
        if isinstance(found, list):
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            found = named.get("default")
        return found if isinstance(found, str) else None

    # --- kinds
    def _merge_pairs(self) -> dict[str, Any]:
        merges = self._merges()
        if any(part.get("type") == "ByteLevel" for part in self._all_parts()):
            return self._byte_pairs(merges)
        if not any(part.get("type") in ("Metaspace", "Prepend", "Replace") for part in self._all_parts()):
            raise self._broken_file("its BPE works neither on bytes nor with U+2581 for spaces: kernmill has no other")
        scores = [0.0 if kind != _NORMAL else _LAST_MERGE for kind in self._kinds]
        for order, (left, right) in enumerate(merges):
            number = self._ids.get(left + right)
            if number is not None and scores[number] == _LAST_MERGE:
                scores[number] = -float(order)
        self._mark_bytes()
        return {
            "model": "llama", "scores": Typed(ValueType.FLOAT32, scores), "add_space_prefix": self._has_prefix(),
        }  # fmt: skip

    def _mark_bytes(self) -> None:
        for byte in range(256):
            number = self._ids.get(f"<0x{byte:02X}>")
            if number is not None:
                self._kinds[number] = _BYTE
        if self._unknown is not None:
            self._kinds[self._unknown] = _UNKNOWN

    def _byte_pairs(self, merges: Sequence[tuple[str, str]]) -> dict[str, Any]:
        name = self._rules()
        prefix = any(part.get("type") == "ByteLevel" and part.get("add_prefix_space") is True
                     for part in _normal_parts(self._normal_parts.get("pre_tokenizer"), "pretokenizers"))  # fmt: skip
        return {
            "model": "gpt2", "pre": name, "add_space_prefix": prefix,
            "merges": Typed(ValueType.STRING, [f"{left} {right}" for left, right in merges]),
        }  # fmt: skip

    def _merges(self) -> list[tuple[str, str]]:
        found: Any = self._model.get("merges")
        pairs: list[tuple[Any, ...]] = [
            tuple(one.split(" ", 1)) if isinstance(one, str) else tuple(one) if isinstance(one, list) else ()
            for one in (found if isinstance(found, list) else [None])
        ]
        if any(len(pair) != 2 or not all(isinstance(token, str) and token for token in pair) for pair in pairs):
            raise self._broken_file("model.merges is not a list of pairs of tokens")
        return [(str(left), str(right)) for left, right in pairs]

    def _rules(self) -> str:
        """The name of the rules that split a text into words in the same way."""
        library = package("tokenizers", "a tokenizer")
        wanted = _pieces(library, self._path, self._normal_parts.get("pre_tokenizer"))
        whole = self._model.get("ignore_merges") is True
        tried = dict[PreTokenizer, str]()
        for name, row in PRE_TOKENIZERS.items():
            if row.is_byte_level and row.whole_words == whole:
                tried.setdefault(row, name)
        for row, name in tried.items():
            splits = [
                library.pre_tokenizers.Split(library.Regex(pattern), behavior="isolated") for pattern in row.patterns
            ]
            last = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            if [
                piece for piece, _ in library.pre_tokenizers.Sequence([*splits, last]).pre_tokenize_str(_PROBE)
            ] == wanted:
                return name
        raise self._broken_file("it splits text into words by rules that kernmill does not have")

    def _unigrams(self) -> dict[str, Any]:
        scores = [float(one[1]) for one in self._model["vocab"]]
        scores += [0.0] * (len(self._tokens) - len(scores))
        self._mark_bytes()
        found: dict[str, Any] = {
            "model": "t5", "scores": Typed(ValueType.FLOAT32, scores), "add_space_prefix": self._has_prefix(),
            "remove_extra_whitespaces": self._drops_spaces(),
        }  # fmt: skip
        for part in self._all_parts():
            if part.get("type") == "Precompiled" and isinstance(text := part.get("precompiled_charsmap"), str):
                try:
                    found["precompiled_charsmap"] = Typed(ValueType.UINT8, [*base64.b64decode(text, validate=True)])
                except ValueError:
                    raise self._broken_file("precompiled_charsmap is not valid base64") from None
        return found

    def _word_pieces(self) -> dict[str, Any]:
        mark = self._model.get("continuing_subword_prefix", "##")
        if mark != "##":
            raise self._broken_file(f"continuing_subword_prefix is {quoted(mark)}: must be '##'")
        for n, token in enumerate(self._tokens):
            if self._kinds[n] == _NORMAL:
                self._tokens[n] = token[2:] if token.startswith("##") else SPACE + token
        if self._unknown is not None:
            self._kinds[self._unknown] = _UNKNOWN
        rules = next((part for part in self._all_parts() if part.get("type") == "BertNormalizer"), {})
        lower = rules.get("lowercase") is not False
        accents = rules.get("strip_accents")
        return {
            "model": "bert", "normalizer.lowercase": lower,
            "normalizer.strip_accents": accents if isinstance(accents, bool) else lower,
        }  # fmt: skip

    # --- normalizers and pre-tokenizers
    def _all_parts(self) -> list[Mapping[str, Any]]:
        return [
            *_normal_parts(self._normal_parts.get("normalizer"), "normalizers"),
            *_normal_parts(self._normal_parts.get("pre_tokenizer"), "pretokenizers"),
        ]

    def _has_prefix(self) -> bool:
        """True if a space is put before a text."""
        for part in self._all_parts():
            if part.get("type") == "Prepend":
                return True
            if part.get("type") == "Metaspace":
                return part.get("prepend_scheme", "always") != "never" and part.get("add_prefix_space") is not False
        return False

    def _drops_spaces(self) -> bool:
        return any(
            part.get("type") == "WhitespaceSplit" or (part.get("type") == "Replace" and "{2,}" in json.dumps(part))
            for part in self._all_parts()
        )


def _are_scored(vocab: Any) -> bool:
    return isinstance(vocab, list) and all(
        isinstance(one, list) and len(one) == 2 and type(one[1]) in (int, float) for one in vocab
    )


def _special(step: Any) -> str | None:
    """The name of a special token in a template; None for the text."""
    if isinstance(step, dict) and isinstance(one := step.get("SpecialToken"), dict):
        return str(one.get("id"))
    return None


def _normal_parts(value: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """A component of tokenizer.json, and those inside it."""
    if isinstance(value, dict):
        yield value
        parts = value.get(inner)
        for part in parts if isinstance(parts, list) else []:
            yield from _normal_parts(part, inner)


def _pieces(library: Any, path: str, rules: Any) -> list[str]:
    """The words of the probe by a component of tokenizer.json."""
    text = json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": _without_prefix(rules), "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    })  # fmt: skip
    try:
        built = library.Tokenizer.from_str(text).pre_tokenizer
        return [piece for piece, _ in built.pre_tokenize_str(_PROBE)]
    except Exception as error:
        raise FormatError(f"{path}: pre_tokenizer is not valid: {error}. Fetch the file again.") from None


def _without_prefix(rules: Any) -> Any:
    """The same rules without a space before the text."""
    if isinstance(rules, list):
        return [_without_prefix(rule) for rule in rules]
    if not isinstance(rules, dict):
        return rules
    return {key: False if key == "add_prefix_space" else _without_prefix(value) for key, value in rules.items()}
