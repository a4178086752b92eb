"""Stories from a small grammar, and a vocabulary of pieces of words: something to train on where no data is at hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from kernmill.ir import cached_property

__all__ = ["Vocabulary", "stories"]

SPACE = "\u2581"  # represents a space, as in SentencePiece
CONTROL = ("<unk>", "<s>", "</s>")
BEGIN, END = 1, 2

_HEROES = (
    ("Mia", "she", "her"), ("Lena", "she", "her"), ("Ada", "she", "her"), ("Ruth", "she", "her"),
    ("Tom", "he", "him"), ("Ben", "he", "him"), ("Oskar", "he", "him"), ("Paul", "he", "him"),
)  # fmt: skip
_ANIMALS = ("fox", "rabbit", "bear", "duck", "hedgehog", "mouse", "goat", "frog")
_HOMES = ("by the river", "under the hill", "at the edge of the forest", "behind the old mill", "near the sea")
_HOBBIES = ("to sing", "to swim", "to climb trees", "to read", "to look at the stars", "to bake bread")
_THINGS = {  # the trouble with each, and the remedy
    "kite": ("flew up into a tree", "climbed up and brought it down"),
    "boat": ("had a hole in it", "closed the hole with wax"),
    "drum": ("had lost its skin", "made a new skin for it"),
    "lamp": ("was dark", "filled it with oil"),
    "bell": ("did not ring", "found its clapper in the grass"),
    "cart": ("had only three wheels", "carved a new wheel"),
    "clock": ("stood still", "turned the little key"),
}
_COLORS = ("red", "blue", "green", "yellow", "golden", "silver")
_SIZES = ("little", "young", "small", "brave", "quiet", "curious")
_TIMES = ("One morning", "One day", "One evening", "After the rain", "On a windy day")
_ENDS = (
    "They played until the sun went down.",
    "From that day on they were the best of friends.",
    "And {hero} never forgot how good it is to have a friend.",
    "Then they shared a cake and laughed.",
)


def stories(count: int, seed: int = 1) -> list[str]:
    """Return `count` stories, one line each; the same ones for the same seed."""
    chance = random.Random(seed)
    return [_story(chance) for _ in range(count)]


def _story(chance: random.Random) -> str:
    (hero, she, her), (friend, _, _) = chance.sample(_HEROES, 2)
    one, other = chance.sample(_ANIMALS, 2)
    thing, color = chance.choice(list(_THINGS)), chance.choice(_COLORS)
    trouble, help = _THINGS[thing]
    return (
        f"Once upon a time there was a {chance.choice(_SIZES)} {one} named {hero}. "
        f"{she.capitalize()} lived {chance.choice(_HOMES)} and loved {chance.choice(_HOBBIES)}. "
        f"{chance.choice(_TIMES)} {hero} found a {color} {thing}. "
        f"But the {color} {thing} {trouble}, and {hero} was sad. "
        f"Then {friend} the {other} came along and saw {her}. "
        f'"Do not worry, {hero}," said {friend}. "I will help you." '
        f"{friend} {help}. {chance.choice(_ENDS).format(hero=hero)}"
    )


class Vocabulary:
    """Control tokens, a token for each byte, and pieces of the words of some texts: a `llama` vocabulary of GGUF files.

    Pieces grow by byte-pair encoding: the most frequent pair of neighbors becomes a new piece, until there are `size`
    tokens or every word is one. Earlier pieces have higher scores, and merge first.

    Source: Sennrich et al., Neural Machine Translation of Rare Words with Subword Units (2016).
    """

    def __init__(self, texts: Iterable[str], size: int = 640) -> None:
        words = Counter(word for text in texts for word in _words(text))
        letters = sorted({c for word in words for c in word})
        self.tokens = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
        self.first = len(self.tokens) - len(letters)  # of the pieces
        cut: dict[str, list[str]] = {word: list(word) for word in words}
        while len(self.tokens) < size:
            pairs = Counter[tuple[str, str]]()
            for word, parts in cut.items():
                for pair in pairwise(parts):
                    pairs[pair] += words[word]
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.tokens.append("".join(best))
            cut = {word: _merge_pair(parts, "".join(best)) for word, parts in cut.items()}
        self.encode_word = cache(self._encode_word)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Of the pieces; an earlier one has the lower id."""
        return {token: i for i, token in enumerate(self.tokens) if i >= self.first}

    def encode(self, text: str, *, is_whole: bool = False) -> list[int]:
        """Return the ids of a text after the begin token; with the end token if `is_whole`."""
        return [BEGIN, *(i for word in _words(text) for i in self.encode_word(word)), *([END] if is_whole else [])]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        parts = list(word)
        while made := [p for pair in pairwise(parts) if (p := "".join(pair)) in self.ids]:
            parts = _merge_pair(parts, min(made, key=self.ids.__getitem__))
        return tuple(i for part in parts for i in self._ids_of(part))

    def _ids_of(self, part: str) -> list[int]:
        """A piece, or the bytes of a character that no word had."""
        return [self.ids[part]] if part in self.ids else [len(CONTROL) + byte for byte in part.encode()]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode token ids to text, without byte tokens and control tokens."""
        return "".join(self.tokens[i] for i in ids if i >= self.first).replace(SPACE, " ").strip()

    def __len__(self) -> int:
        return len(self.tokens)

    def metadata(self) -> dict[str, Any]:
        """Return the vocabulary as keys of a GGUF file. Token types: 1 a piece, 2 unknown, 3 control, 6 a byte."""
        pieces = len(self.tokens) - self.first
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.scores": [0.0] * self.first + [-float(n) for n in range(pieces)],
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * pieces,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": BEGIN,
            "tokenizer.ggml.eos_token_id": END,
            "tokenizer.ggml.add_bos_token": True,
        }


def _words(text: str) -> list[str]:
    return [SPACE + word for word in text.split(" ")] if text else []


def _merge_pair(parts: Sequence[str], piece: str) -> list[str]:
    """Merge neighbors that form the piece, from left to right."""
    result: list[str] = []
    is_joined = False
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        if is_joined:
            is_joined = False
        elif part + after == piece and after:
            result.append(piece)
            is_joined = True
        else:
            result.append(part)
    return result
