"""Text to token ids and back, from the metadata of a GGUF file, on the library `tokenizers`.

    tokenizer.ggml.model    what it is                                            built on
    gpt2                    byte-level BPE; words are split as `pre` says           models.BPE with the file's merges
    llama                   SentencePiece BPE: scores, bytes for unknown text     models.BPE with merges from the scores
    bert                    WordPiece; U+2581 starts a word, no ## inside one  models.WordPiece
    t5                      SentencePiece unigram: the best sum of scores         models.Unigram
    rwkv, plamo2            the longest token, the best sum of scores             direct_tokenizers.py

The library finds special tokens and merges. Names, flags and ids are read and checked here, and decoding is done here:
a token is bytes, and text is the UTF-8 of a sequence of them.

Passing a vocabulary of 150,000 tokens with its merges to the library takes half a second. The first short texts need
less: merges only give pieces of the text, so that the library gets the tokens that are pieces, and their merges.

Source: the key names of the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import codecs
import contextlib
import math
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import compress
from typing import Any, Self

import numpy as np

from kernmill.ir import FormatError, IndexRangeError, KernmillError, cached_property

from ..arguments import with_sentences
from ..formats.gguf import Metadata
from ..formats.quoting import quoted
from .direct_tokenizers import DirectTokenizer, best_split, bytes_of_rwkv, longest_first
from .packages import check_package, package
from .pre_tokenizers import PreTokenizer, pre_tokenizer

__all__ = ["TextStream", "TokenKind", "Tokenizer"]

WITHOUT = ("none", "no_vocab")  # values of tokenizer.ggml.model in files without a vocabulary
SPACE = "\u2581"  # represents a space in SentencePiece's vocabularies
_ENDS_BY_NAME = (  # older files do not name the token that ends a turn
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<turn|>", "<|endoftext|>",
    "<|eom_id|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>",
    f"<\uff5cend{SPACE}of{SPACE}sentence\uff5c>",
)  # fmt: skip


class TokenKind(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_PRE = "default"  # for files that do not name their pre-tokenizer
_SEPARATED = ("jina-v1-en", "jina-v2-code", "roberta-bpe")  # pairs of texts have a token of its own between them
_NO_ID = (-1, 2**32 - 1)
_MAX_LENGTH = 1 << 12  # characters of a token; the longest of known vocabularies have 256
# limits of the total characters of all splits of all tokens: absolute, and per character of a token
_CUTS = 1 << 24, 1 << 6
_SMALL = 1 << 12  # tokens: such a vocabulary is passed unchanged
_TOGETHER = 1 << 12  # merges that are looked through together: texts of megabytes take new memory each time
_SHORT_TEXTS = 4  # that get a reduced vocabulary; after these the whole one is passed
_FOUND_FIRST = frozenset((TokenKind.UNKNOWN.value, TokenKind.CONTROL.value, TokenKind.USER_DEFINED.value))


class Tokenizer:
    """Encodes text to token ids and decodes them, as the model was trained.

    `metadata` has the keys of a GGUF file with Python values; those that start with `tokenizer.` are read.

    Raises:
        FormatError: a key is missing, the length of a list differs from the number of tokens, or an id or the kind is
        unknown. SettingError: the package `tokenizers` is not installed.
    """

    @with_sentences
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._keys = metadata
        self.kind = self._text("model", "llama")
        if self.kind in WITHOUT:
            raise FormatError(
                "the file has no vocabulary, so text cannot be encoded or decoded. kernmill bench works without one."
            )
        if self.kind not in _BUILDERS:
            raise FormatError(
                f"tokenizer.ggml.model is {quoted(self.kind)}: must be one of {', '.join(sorted(_BUILDERS))}."
            )
        together = self._joined("tokens")
        self.tokens: list[str] = _lines(together) if together else self._list("tokens", str, "text")
        if not self.tokens:
            raise FormatError("tokenizer.ggml.tokens is empty or missing: the file has no vocabulary.")
        self.longest = self._checked_lengths()
        self.kinds: list[int] = self._parallel("token_type", int, "integers") or [1] * len(self.tokens)
        self.row = self._checked_row() if self.kind == "gpt2" else PreTokenizer(())
        self.bos_id, self.eos_id = self._id("bos"), self._id("eos")
        self.separator_id = self._id("seperator")  # the key is spelled so
        if self.kind == "bert":  # [CLS] and [SEP]
            self.bos_id = self.bos_id if (cls := self._id("cls")) is None else cls
            self.eos_id = self.eos_id if self.separator_id is None else self.separator_id
        self.unknown_id = self._id("unknown")
        self.add_bos = self._flag("add_bos_token", self.kind in ("llama", "bert") or self.row.adds_bos)
        self.add_eos = self._flag("add_eos_token", self.kind in ("bert", "t5"))
        self.add_separator = self._flag("add_sep_token", self._text("pre", "") in _SEPARATED)
        self.add_space_prefix = self._flag("add_space_prefix", self.kind in ("llama", "t5"))
        self.end_ids = self._ends()
        self._merges: _Merges | list[str] = self._checked_merges(together) if self.kind == "gpt2" else []
        self._scores: list[float] = self._checked_scores() if self.kind in ("llama", "t5", "plamo2") else []
        check_package(_LIBRARY, _PURPOSE)
        self._lock = threading.Lock()  # texts exchange the library's object, and `encode_special_tokens` is its state
        self._short_texts = _SHORT_TEXTS if self.kind in _BY_NEED and len(self.tokens) > _SMALL else 0
        self._is_whole = False
        self._renumbered: dict[int, int] = {}
        self._containing: dict[tuple[str, ...], frozenset[int]] = {}
        self._built: Any = None
        if not self._short_texts:
            self._provide("")

    # --- reading the metadata
    def _key(self, name: str, default: Any = None) -> Any:
        return self._keys.get(f"tokenizer.ggml.{name}", default)

    def _text(self, name: str, default: str) -> str:
        value = self._key(name, default)
        if not isinstance(value, str):
            raise FormatError(f"tokenizer.ggml.{name} is {quoted(value)}, not a string.")
        return value

    def _list(self, name: str, kind: type, words: str) -> list[Any]:
        """A list with entries of one type; `words` says which to the user."""
        value = self._key(name, ())
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, (list, tuple)):
            raise FormatError(f"tokenizer.ggml.{name} is of type {type(value).__name__}, not an array.")
        if set(map(type, value)) - {kind}:
            raise FormatError(f"tokenizer.ggml.{name} contains values that are not {words}.")
        return list(value)

    def _joined(self, name: str) -> bytes:
        """Return a list of strings as one, a zero before each; empty if it is not stored so, or is not a list of
        strings."""
        key = f"tokenizer.ggml.{name}"
        together = self._keys.joined(key) if isinstance(self._keys, Metadata) else None
        try:
            str(together or b"", "utf-8")
        except UnicodeDecodeError:
            return b""
        return together or b""

    def _parallel(self, name: str, kind: type, words: str) -> list[Any]:
        """A list with an entry for each token, or an empty one."""
        values = self._list(name, kind, words)
        if len(values) not in (0, len(self.tokens)):
            raise FormatError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {len(self.tokens)} tokens. "
                "The file is damaged, or was written by a faulty converter."
            )
        return values

    def _checked_lengths(self) -> int:
        """Return the characters of the longest token. Splitting a token at each position takes the square of its
        length, and the library needs hundreds of times its bytes. A small file could need more memory than a machine
        has."""
        lengths = np.fromiter(map(len, self.tokens), np.int64, len(self.tokens))
        longest = int(lengths.argmax())
        if lengths[longest] > _MAX_LENGTH:
            raise FormatError(
                f"tokenizer.ggml.tokens: token {longest} has {lengths[longest]} characters, more than "
                f"{_MAX_LENGTH}. The file is damaged, or was written by a faulty converter."
            )
        if lengths @ lengths > _CUTS[0] + _CUTS[1] * lengths.sum():
            raise FormatError(
                f"tokenizer.ggml.tokens: its {len(lengths)} tokens have {lengths.mean():.0f} characters on "
                "average, too many to derive their merges. The file is damaged, or was written by a faulty "
                "converter."
            )
        return int(lengths[longest])

    def _checked_scores(self) -> list[float]:
        scores: list[float] = self._parallel("scores", float, "numbers")
        if not scores:
            use = "cuts" if self.kind == "t5" else "merges"
            raise FormatError(f"tokenizer.ggml.scores is missing: a {self.kind} vocabulary {use} by them.")
        if not all(map(math.isfinite, scores)):
            raise FormatError("tokenizer.ggml.scores contains NaN or infinity, and tokens are chosen by them.")
        return scores

    def _checked_row(self) -> PreTokenizer:
        """Return the pre-tokenizer; old files do not name it, which causes one warning."""
        if self._key("pre") is None:
            import logging  # takes a few milliseconds, and most files say it

            logging.getLogger("kernmill").warning(
                f"tokenizer.ggml.pre is missing: the file does not name its pre-tokenizer. {_PRE!r} is assumed; if "
                "the model was trained with a different one, its output is worse. Convert the file again to be "
                "sure."
            )
        return pre_tokenizer(self._text("pre", _PRE))

    def _checked_merges(self, tokens: bytes) -> _Merges | list[str]:
        """Return the merges that form tokens. The library checks that each split is right when it gets all of them."""
        if tokens and (merges := _Merges.of(self._joined("merges"), tokens)) is not None:
            return merges
        lines: list[str] = self._list("merges", str, "text")
        if not lines and (joined := self._made_of_two()) is not None:
            raise FormatError(
                "tokenizer.ggml.merges is missing or empty: without merges, text would be encoded byte by byte, "
                f"and tokens such as {quoted(self.tokens[joined])} never used. Convert the file again."
            )
        if lines and not _make_tokens(lines, self.tokens):
            known = frozenset(self.tokens)
            for left, right in map(_pair, lines):
                for token in (left, right, left + right):
                    if token not in known:
                        raise FormatError(
                            f"tokenizer.ggml.merges joins {quoted(left)} and {quoted(right)}, and {quoted(token)} "
                            "is not a token. "
                            "The file is damaged, or was written by a faulty converter."
                        )
        return lines

    def _made_of_two(self) -> int | None:
        """The first token that two others make: vocabularies of single characters have none, and need no merges."""
        known = frozenset(self.tokens)
        made = (
            i for i, token in enumerate(self.tokens)
            if self.kinds[i] not in _FOUND_FIRST
            and any(token[:cut] in known and token[cut:] in known for cut in range(1, len(token)))
        )  # fmt: skip
        return next(made, None)

    def _flag(self, name: str, default: bool) -> bool:
        value = self._key(name, default)
        if not hasattr(value, "__index__") or hasattr(value, "__len__"):
            raise FormatError(f"tokenizer.ggml.{name} is {quoted(value)}, not true or false.")
        return bool(value)

    def _id(self, name: str) -> int | None:
        """The id of a role; writers without one put in the largest number, or -1."""
        value = self._key(f"{name}_token_id")
        if value is None:
            return None
        if not hasattr(value, "__index__") or hasattr(value, "__len__"):
            raise FormatError(f"tokenizer.ggml.{name}_token_id is {quoted(value)}, not an integer.")
        if int(value) in _NO_ID:
            return None
        if not 0 <= int(value) < len(self.tokens):
            raise FormatError(
                f"tokenizer.ggml.{name}_token_id is {int(value)}, and there are {len(self.tokens)} tokens. "
                "The file is damaged, or was written by a faulty converter."
            )
        return int(value)

    def _ends(self) -> frozenset[int]:
        """Return the ids that end a generation: those of the file, and known control tokens."""
        said: list[int | None] = [self.eos_id, self._id("eot"), self._id("eom")]
        named = {
            self.tokens[i]: i for i in self._found_first if self._is_special(i) and self.tokens[i] in _ENDS_BY_NAME
        }
        if "<|return|>" in named and "<|call|>" in named:  # of gpt-oss: then <|end|> ends a message of several
            inner = named.pop("<|end|>", None)
            said = [i for i in said if i != inner]
        return frozenset((*(i for i in said if i is not None), *named.values()))

    def _ids(self, among: Iterable[int] | None = None) -> dict[str, int]:
        """The vocabulary, or some of it."""
        if among is None:
            return {token: i for i, token in enumerate(self.tokens)}
        return {self.tokens[i]: i for i in among}

    @cached_property
    def _found_first(self) -> list[int]:
        """Return the ids of tokens that are matched in a text before anything else."""
        if not self.row.is_byte_level:
            return [i for i, kind in enumerate(self.kinds) if kind in _FOUND_FIRST or self._is_lines(i)]
        return list(compress(range(len(self.kinds)), map(_FOUND_FIRST.__contains__, self.kinds)))

    def _is_lines(self, token_id: int) -> bool:
        """Line ends only: raw byte pairs keep them whole."""
        token = self.tokens[token_id]
        return not self.row.is_byte_level and token.strip("\n") == "" != token

    def _is_special(self, token_id: int) -> bool:
        return self.kinds[token_id] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    # --- building
    def _build(self, text: str | None) -> Any:
        """Build the library's tokenizer with the vocabulary that it needs for this text, or the whole one without a
        text."""
        library = package(_LIBRARY, _PURPOSE)
        with self._faults():
            built = _BUILDERS[self.kind](self, library, text)
            if self.kind not in _DIRECT:
                self._add_special(built, library)
        return built

    def _faults(self) -> contextlib.AbstractContextManager[None]:
        return _faults(f"tokenizer.ggml.* does not describe a valid {self.kind} tokenizer")

    def _add_special(self, built: Any, library: Any) -> None:
        """Add tokens that are matched in the text before anything else: the user's always, control tokens on
        request."""
        strips = any(name in str(self._keys.get("general.name", "")).lower() for name in ("phi-3", "phi3"))
        special: list[Any] = []
        always: list[Any] = []
        for i in self._found_first:
            token, is_always = self.tokens[i], self.kinds[i] == TokenKind.USER_DEFINED or self._is_lines(i)
            if token:
                strip = strips and token not in ("<unk>", "<s>", "<|endoftext|>")
                added = library.AddedToken(token, normalized=False, special=not is_always, rstrip=strip)
                (always if is_always else special).append(added)
        built.add_special_tokens(special)
        built.add_tokens(always)
        if self.kind == "t5":  # its control tokens have other names in the model, so that the library gives new numbers
            found = {built.token_to_id(self.tokens[i]): i for i in self._found_first if self.tokens[i]}
            self._renumbered = {number: i for number, i in found.items() if number != i}

    def _spaces(self, library: Any) -> Any:
        """Spaces as U+2581, with one in front where the model was trained so."""
        steps = [library.normalizers.Prepend(SPACE)] if self.add_space_prefix else []
        return library.normalizers.Sequence([*steps, library.normalizers.Replace(" ", SPACE)])

    def _byte_pairs(self, library: Any, text: str | None) -> Any:
        """gpt2: BPE with merges in the order of the file."""
        raw = not self.row.is_byte_level
        built = library.Tokenizer(self._pair_model(library, text))
        splits = [
            library.pre_tokenizers.Split(library.Regex(pattern), behavior="isolated") for pattern in self.row.patterns
        ]
        if raw:
            built.normalizer = self._spaces(library)
        else:
            splits.append(library.pre_tokenizers.ByteLevel(add_prefix_space=self.add_space_prefix, use_regex=False))
        built.pre_tokenizer = library.pre_tokenizers.Sequence(splits)
        return built

    def _sentence_pieces(self, library: Any, text: str | None) -> Any:
        """llama: the pair whose union has the best score is merged first."""
        built = library.Tokenizer(self._pair_model(library, text))
        built.normalizer = self._spaces(library)
        return built

    def _pair_model(self, library: Any, text: str | None) -> Any:
        """The library's model of byte pairs."""
        among = None if text is None else self._within(text)
        ids, raw = self._ids(among), not self.row.is_byte_level
        if self.kind == "gpt2":
            merges = _pairs(self._merge_lines(among, ids))
            return library.models.BPE(
                vocab=ids, merges=merges, ignore_merges=self.row.whole_words, byte_fallback=raw, fuse_unk=False
            )
        return library.models.BPE(  # a text is one word here: with a cache, each thread would keep 10,000 texts
            vocab=ids, merges=self._merges_of(ids), cache_capacity=0, byte_fallback="<0x00>" in ids, fuse_unk=True,
            unk_token=None if self.unknown_id is None else self.tokens[self.unknown_id],
        )  # fmt: skip

    def _merge_lines(self, among: Iterable[int] | None, ids: Mapping[str, int]) -> list[str]:
        """Return all merges, or those of two of some tokens to a third one."""
        if not isinstance(self._merges, _Merges):
            return self._merges if among is None else _lines_of(self._merges, ids)
        return self._merges.lines() if among is None else _lines_of(self._merges.making(among), ids)

    def _within(self, text: str) -> list[int]:
        """Return the ids of all possible tokens of a text: its pieces, bytes, and special tokens."""
        if self.kind == "gpt2" and self.row.is_byte_level:
            space, letters = _CHARACTERS[ord(" ")], "".join([_CHARACTERS[byte] for byte in text.encode()])
        else:
            space, letters = SPACE, text.replace(" ", SPACE)
        ends = [range(start + 1, min(start + self.longest, len(letters)) + 1) for start in range(len(letters))]
        found = {letters[start:end] for start, stops in enumerate(ends) for end in stops}
        if self.add_space_prefix:
            found |= {space, *(space + piece for piece in found)}
        others = (*self._found_first, *([] if self.unknown_id is None else [self.unknown_id]))
        found.update((*(self.tokens[i] for i in others), *(f"<0x{byte:02X}>" for byte in range(256))))
        return [*compress(range(len(self.tokens)), map(found.__contains__, self.tokens))]

    def _provide(self, text: str) -> None:
        """Make sure that the library has the vocabulary for a text. Call with the lock held."""
        if self._is_whole:
            return
        is_whole = not self._short_texts or len(text.encode()) * self.longest > len(self.tokens)
        self._built = self._build(None if is_whole else text)
        self._is_whole = is_whole  # only now: after an error or interrupt above, the next text does it
        self._short_texts -= 1
        if is_whole:
            self._merges, self._scores = [], []

    def _merges_of(self, ids: Mapping[str, int]) -> list[tuple[str, str]]:
        """Every way to make a token of two others, best score first; control tokens are never made from text."""
        usable = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)
        pieces = {token: i for token, i in ids.items() if self.kinds[i] in usable}
        found = [
            (-self._scores[i], i, token[:cut], token[cut:])
            for token, i in pieces.items()
            for cut in range(1, len(token))
            if token[:cut] in pieces and token[cut:] in pieces
        ]
        return [(left, right) for _, _, left, right in sorted(found)]

    def _word_pieces(self, library: Any, _: str | None) -> Any:
        """bert: the file marks the start of words, the library marks their insides."""
        words = {self._word_piece(i): i for i in range(len(self.tokens))}
        if self.unknown_id is None:
            raise FormatError("tokenizer.ggml.unknown_token_id is missing, and a bert vocabulary needs one.")
        unknown = self.tokens[self.unknown_id]
        words[unknown] = self.unknown_id
        built = library.Tokenizer(library.models.WordPiece(words, unk_token=unknown))
        lower = self._flag("normalizer.lowercase", True)
        accents = self._flag("normalizer.strip_accents", lower)
        built.normalizer = library.normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
        built.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        return built

    def _word_piece(self, token_id: int) -> str:
        token = self.tokens[token_id]
        if self._is_special(token_id) or token.startswith(SPACE):
            return token.removeprefix(SPACE)
        return "##" + token

    def _unigrams(self, library: Any, _: str | None) -> Any:
        """Build t5: the split with the best sum of scores. After a user-defined token text starts again, with a
        space."""
        if self.unknown_id is None:
            raise FormatError("tokenizer.ggml.unknown_token_id is missing, and a t5 vocabulary needs one.")
        vocabulary = [  # a name that no text has, so that control tokens are never made from text
            (f"\x00{i}" if self._is_special(i) else token, self._scores[i]) for i, token in enumerate(self.tokens)
        ]
        model = library.models.Unigram(vocabulary, unk_id=self.unknown_id, byte_fallback="<0x00>" in self.tokens)
        built = library.Tokenizer(model)
        steps = []
        charsmap = self._key("precompiled_charsmap")
        if charsmap is not None and len(charsmap):
            steps.append(library.normalizers.Precompiled(bytes(value & 255 for value in charsmap)))
        if self._flag("remove_extra_whitespaces", False):
            steps += [library.normalizers.Strip(), library.normalizers.Replace(library.Regex(" {2,}"), " ")]
        built.normalizer = library.normalizers.Sequence([*steps, self._spaces(library)])
        return built

    def _direct(self, _: Any, __: str | None) -> DirectTokenizer:
        """Build rwkv or plamo2. Text never becomes a control token, which differs from llama.cpp."""
        always = {self.tokens[i]: i for i in self._found_first if self.kinds[i] == TokenKind.USER_DEFINED}
        special = {self.tokens[i]: i for i in self._found_first if self.tokens[i] not in always}
        texts = {token: i for i, token in enumerate(self.tokens) if not self._is_special(i)}
        if self.kind == "rwkv":
            encode = longest_first({bytes_of_rwkv(token): i for token, i in texts.items()}, self.unknown_id)
            return DirectTokenizer(encode, special, always)
        found = [texts.get(f"<0x{byte:02X}>") for byte in range(256)]
        of_bytes = [i for i in found if i is not None and self.kinds[i] == TokenKind.BYTE]
        if len(of_bytes) < len(found):
            raise FormatError("tokenizer.ggml.tokens has no token for each of the 256 bytes. Convert the file again.")
        scored = {token: (i, self._scores[i]) for token, i in texts.items() if self.kinds[i] != TokenKind.BYTE}
        return DirectTokenizer(best_split(scored, of_bytes), special, always)

    # --- encoding
    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Encode a text to token ids.

        `add_special` puts the begin and end tokens around it that the model expects. `parse_special` reads control
        tokens that are spelled out in the text, as chat templates need; untrusted text must not be read that way.

        Raises:
            FormatError: the text is not a str, or has a lone surrogate, which is not a character.
        """
        _check_unicode(text)
        with self._lock, _faults(f"encode: the {self.kind} tokenizer of this file fails on this text"):
            self._provide(text)
            self._built.encode_special_tokens = not parse_special
            ids: list[int] = self._built.encode(text, add_special_tokens=False).ids
        if self._renumbered:
            ids = [self._renumbered.get(i, i) for i in ids]
        if not add_special:
            return ids
        begin = [self.bos_id] if self.add_bos and self.bos_id is not None else []
        end = [self.eos_id] if self.add_eos and self.eos_id is not None else []
        return [*begin, *ids, *end]

    # --- decoding
    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text, for control tokens their names.

        Raises:
            IndexRangeError: unknown id.
        """
        if not 0 <= token_id < len(self.tokens):
            raise IndexRangeError(f"decode: token id {token_id} is out of range: there are {len(self.tokens)} tokens.")
        token, kind = self.tokens[token_id], self.kinds[token_id]
        if kind == TokenKind.BYTE or (kind == TokenKind.NORMAL and self.kind == "llama" and _is_byte(token)):
            return bytes((int(token[3:5], 16),)) if _is_byte(token) else token.encode()
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED):
            return token.encode()
        if self.kind in _DIRECT:
            return bytes_of_rwkv(token) if self.kind == "rwkv" else token.encode()
        if self.kind == "gpt2" and self.row.is_byte_level:
            return b"".join(_BYTES.get(c, c.encode()) for c in token)
        return token.replace(SPACE, " ").encode()

    def tokens_with(self, texts: Sequence[str]) -> frozenset[int]:
        """The tokens whose text contains one of these."""
        found = self._containing.get(key := tuple(texts))
        if found is None:
            parts = [text.encode() for text in texts]
            found = self._containing[key] = frozenset(
                n for n in range(len(self)) if any(part in self.token_bytes(n) for part in parts)
            )
        return found

    def is_control(self, token_id: int) -> bool:
        """True if a token controls the model and is not part of the text."""
        return 0 <= token_id < len(self.tokens) and self._is_special(token_id)

    @with_sentences
    def decode(self, ids: Iterable[int], *, show_special: bool = False) -> str:
        """Decode token ids to text; invalid UTF-8 becomes U+FFFD. Control tokens are left out unless shown."""
        stream = TextStream(self, is_start=True, show_special=show_special)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, *, show_special: bool = False) -> TextStream:
        """Return a decoder for tokens that come one by one, after a prompt."""
        return TextStream(self, is_start=False, show_special=show_special)

    def __len__(self) -> int:
        return len(self.tokens)


class TextStream:
    """A decoder of tokens one by one: an incomplete character waits for the next token."""

    def __init__(self, tokenizer: Tokenizer, *, is_start: bool, show_special: bool) -> None:
        self._tokenizer, self._show_special = tokenizer, show_special
        self._drops_space = is_start and (tokenizer.add_space_prefix or tokenizer.kind == "bert")
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes.

        Raises:
            IndexRangeError: unknown id, or not an integer.
        """
        if not hasattr(token_id, "__index__") or hasattr(token_id, "__len__"):
            last = len(self._tokenizer) - 1
            raise IndexRangeError(f"decode: {quoted(token_id)} is not a token id. Give integers from 0 to {last}.")
        if self._tokenizer.is_control(token_id) and not self._show_special:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._drops_space:
            data = data.removeprefix(b" ")
            self._drops_space = False
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return the remaining text: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


_BUILDERS = {
    "gpt2": Tokenizer._byte_pairs,
    "llama": Tokenizer._sentence_pieces,
    "bert": Tokenizer._word_pieces,
    "t5": Tokenizer._unigrams,
    "rwkv": Tokenizer._direct,
    "plamo2": Tokenizer._direct,
}
_DIRECT = ("rwkv", "plamo2")  # not built on the library
_BY_NEED = ("gpt2", "llama")
_LIBRARY, _PURPOSE = "tokenizers", "a tokenizer"


@contextlib.contextmanager
def _faults(what: str) -> Generator[None]:
    """Convert errors of the library to messages: plain Exception, or a panic, which is not even that."""
    try:
        yield
    except KernmillError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = "out of memory." if isinstance(error, MemoryError) else error
        raise FormatError(f"{what}: {why}") from error


@dataclass(frozen=True, slots=True)
class _Merges:
    """Merges in the order of the tokens that they form, as most files have them. The merge of a token is found by its
    id, and only requested ones become strings."""

    together: bytes  # a zero in front of each
    first: int  # the id of the token that the first one makes

    @classmethod
    def of(cls, together: bytes, tokens: bytes) -> Self | None:
        """None where they are in another order, or a line is not two tokens with a space between them."""
        count = together.count(0)
        if not count or together.count(b" ") != count or b" \0" in together + b"\0" or b"\0 " in together:
            return None
        made = together.replace(b" ", b"") + b"\0"
        begin = (tokens + b"\0").find(made[: made.index(0, 1) + 1])
        is_so = begin >= 0 and (tokens[begin:] + b"\0").startswith(made)
        return cls(together, tokens.count(0, 0, begin)) if is_so else None

    def lines(self) -> list[str]:
        """All of them."""
        return _lines(self.together)

    def making(self, ids: Iterable[int]) -> list[str]:
        """Return the merges that form these tokens, in order."""
        starts = np.append(np.flatnonzero(np.frombuffer(self.together, np.uint8) == 0), len(self.together))
        indices = (i - self.first for i in ids if 0 <= i - self.first < len(starts) - 1)
        return [str(self.together[starts[index] + 1 : starts[index + 1]], "utf-8") for index in indices]


def _lines(together: bytes) -> list[str]:
    return str(together, "utf-8").split("\0")[1:]


def _pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Merges: two tokens with a space between them; the first has at least one character."""
    pairs: list[Any] = [tuple(line.split(" ")) for line in lines]
    if not set(map(len, pairs)) - {2} and all(map(all, pairs)):
        return pairs
    return [_pair(line) for line in lines]  # tokens that hold spaces, or a fault


def _make_tokens(lines: Sequence[str], tokens: list[str]) -> bool:
    """True if the lines, split once each, are tokens; most files have both lists in the same order, which is quick
    to check."""
    known, first = frozenset[str](), lines[0].replace(" ", "")
    at = tokens.index(first) if first in tokens else len(tokens)
    for start in range(0, len(lines), _TOGETHER):
        some = lines[start : start + _TOGETHER]
        text = "\n".join(("", *some, ""))
        if text.count(" ") != len(some) or "\n " in text or " \n" in text:
            return False
        made = text.replace(" ", "")[1:-1]
        if made != "\n".join(tokens[at + start : at + start + len(some)]):
            known = known or frozenset(tokens)
            if not known.issuperset(made.split("\n")):
                return False
    return True


def _lines_of(lines: Sequence[str], ids: Mapping[str, int]) -> list[str]:
    """The merges of two of these tokens to a third one, in their order."""
    cuts = ((token[:cut], token[cut:]) for token in ids for cut in range(1, len(token)))
    wanted = {f"{left} {right}" for left, right in cuts if left in ids and right in ids}
    return list(compress(lines, map(wanted.__contains__, lines)))


def _pair(line: str) -> tuple[str, str]:
    cut = line.find(" ", 1)
    if cut < 0 or cut + 1 == len(line):
        raise FormatError(
            f"tokenizer.ggml.merges has {quoted(line)}, which is not a pair of tokens separated by a space."
        )
    return line[:cut], line[cut + 1 :]


def _check_unicode(text: str) -> None:
    if not isinstance(text, str):
        raise FormatError(f"encode: the text is of type {type(text).__name__}: must be a string. Convert it.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"encode: the text is not valid Unicode: {error.reason} at position {error.start}. "
            "Replace it, for example with text.encode('utf-8', 'replace').decode()."
        ) from error


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">") and _is_hex(token[3:5])


def _is_hex(digits: str) -> bool:
    return all(d in "0123456789ABCDEFabcdef" for d in digits)


def _byte_characters() -> dict[str, bytes]:
    """GPT-2's printable character of each byte: itself where it is printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    pairs = [(chr(byte), byte) for byte in printable] + [(chr(256 + n), byte) for n, byte in enumerate(others)]
    return {character: bytes((byte,)) for character, byte in pairs}


_BYTES = _byte_characters()
_CHARACTERS = {ord(byte): character for character, byte in _BYTES.items()}
