"""Tokenizers that the library `tokenizers` does not have: rwkv and plamo2. They encode text between special tokens.

    rwkv      at each byte the longest token; tokens are written with escapes, as Python does
    plamo2    the split with the best sum of scores, found from the end; other characters are bytes

They have the calls of the library's tokenizer that `Tokenizer` uses.
Tests: tests/kernmill/llm/test_direct_tokenizers.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kernmill.ir import FormatError

__all__ = ["DirectTokenizer", "best_split", "bytes_of_rwkv", "longest_first"]

_UNKNOWN = 10_000_000  # what a character costs that is in no token; scores are in 1 / 10,000
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class Encoded(NamedTuple):
    """The ids of a text."""

    ids: list[int]


class DirectTokenizer:
    """Splits a text at special tokens, and encodes what is between them.

    `special`: tokens that are matched unless `encode_special_tokens` is set; `always`: those that always are.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], special: Mapping[str, int], always: Mapping[str, int]
    ) -> None:
        self.encode_special_tokens = False
        self._encode, self._ids = encode, {**special, **always}
        self._patterns = [_pattern([*always]), _pattern([*special, *always])]

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoded:
        """Encode a text."""
        pattern, ids = self._patterns[not self.encode_special_tokens], list[int]()
        for part in [text] if pattern is None else pattern.split(text):
            found = self._ids.get(part) if pattern is not None and pattern.fullmatch(part) else None
            ids += self._encode(part) if found is None else [found]
        return Encoded(ids)


def _pattern(tokens: Sequence[str]) -> re.Pattern[str] | None:
    """The longest of these tokens at each position, as a group."""
    longest = sorted((token for token in tokens if token), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest))})") if longest else None


def bytes_of_rwkv(token: str) -> bytes:
    """The bytes of a token that is written with escapes: for tabs, ends of lines, bytes, and other characters."""
    return _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)) if found[1] else _NAMED.get(found[2], found[2]),
                       token.encode())  # fmt: skip


def longest_first(tokens: Mapping[bytes, int], unknown: int | None) -> Callable[[str], list[int]]:
    """An encoder that takes the longest token at each byte; `unknown` for a byte that begins none.

    Raises:
        FormatError: a byte has no token, and there is none for unknown ones.
    """
    missing = next((byte for byte in range(256) if bytes((byte,)) not in tokens), None)
    if missing is not None and unknown is None:
        raise FormatError(
            f"tokenizer.ggml.tokens has no token for the byte {missing}, and there is no unknown token. Convert the "
            "file again."
        )
    lengths: dict[int, list[int]] = {}  # of tokens with a first byte, the longest first
    for token in tokens:
        if token:
            lengths.setdefault(token[0], []).append(len(token))
    lengths = {first: sorted(set(sizes), reverse=True) for first, sizes in lengths.items()}

    def encode(text: str) -> list[int]:
        data, ids, position = text.encode(), list[int](), 0
        while position < len(data):
            sizes = lengths.get(data[position], [])
            size = next((size for size in sizes if data[position : position + size] in tokens), 0)
            found = tokens[data[position : position + size]] if size else unknown
            assert found is not None
            ids.append(found)
            position += max(1, size)
        return ids

    return encode


def best_split(tokens: Mapping[str, tuple[int, float]], of_bytes: Sequence[int]) -> Callable[[str], list[int]]:
    """An encoder with the best sum of scores. `tokens`: id and score of each. `of_bytes`: the ids of the 256 bytes."""
    costs = {token: -int(math.copysign(abs(score) * 1e4 + 0.5, score)) for token, (_, score) in tokens.items() if token}
    longest = max(map(len, costs), default=1)

    def encode(text: str) -> list[int]:
        text = text.removeprefix("\ufeff")
        best, sizes = [0] * (len(text) + 1), [0] * len(text)
        for first in range(len(text) - 1, -1, -1):
            lengths = range(1, min(longest, len(text) - first) + 1)
            splits = [
                (best[first + size] + costs[part], -size)
                for size in lengths
                if (part := text[first : first + size]) in costs
            ]
            best[first], size = min([*splits, (best[first + 1] + _UNKNOWN, 0)])
            sizes[first] = -size
        ids, position = list[int](), 0
        while position < len(text):
            size = sizes[position]
            part = text[position : position + max(1, size)]
            ids += [tokens[part][0]] if size else [of_bytes[byte] for byte in part.encode()]
            position += max(1, size)
        return ids

    return encode
