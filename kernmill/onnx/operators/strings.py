"""Strings: on the host, as NumPy arrays of objects."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kernmill.ir import SettingError, ShapeError

from ..table import operator
from ..values import Host

_MOST_TEXT = 1 << 16  # characters of one string that a pattern of the file is run on


@operator("StringConcat")
def string_concat(a: Host, b: Host) -> Any:
    return np.asarray(np.add(a, b), dtype=object)


@operator("StringSplit")
def string_split(x: Host, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Any, Any]:
    most = -1 if maxsplit is None else maxsplit
    parts = [text.split(delimiter or None, most) if text else [] for text in x.ravel()]
    longest = max((len(p) for p in parts), default=0)
    rows = [p + [""] * (longest - len(p)) for p in parts]
    table = np.array(rows, dtype=object).reshape(*x.shape, longest)
    return table, np.array([len(p) for p in parts], np.int64).reshape(x.shape)


@operator("RegexFullMatch")
def regex_full_match(x: Host, *, pattern: str) -> Any:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SettingError(f"the pattern {pattern!r} is not valid: {error}. Change the model.") from None
    if any(len(text) > _MOST_TEXT for text in x.ravel()):
        raise ShapeError(f"a string has more than {_MOST_TEXT} characters. Split it before.")
    return np.array([compiled.fullmatch(text) is not None for text in x.ravel()], bool).reshape(x.shape)


@operator("StringNormalizer")
def string_normalizer(
    x: Host, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str = "en_US",
    stopwords: Sequence[str] = (),
) -> Any:  # fmt: skip
    if x.ndim > 2 or (x.ndim == 2 and x.shape[0] != 1):
        raise ShapeError(f"strings of shape {x.shape} instead of (n,) or (1, n). Change the model.")
    changes: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    change, fold = changes[case_change_action], changes["NONE" if is_case_sensitive else "LOWER"]
    unwanted = {fold(word) for word in stopwords}
    kept = [change(text) for text in x.ravel() if fold(text) not in unwanted] or [""]
    return np.array(kept, dtype=object).reshape((1, -1) if x.ndim == 2 else (-1,))


def _groups(row: list[Any], least: int, most: int, skips: int) -> Iterator[tuple[Any, ...]]:
    """Every group of `least` to `most` entries, with equal gaps of up to `skips` entries between them."""
    for size in range(least, most + 1):
        for gap in range(1, (skips + 1 if size > 1 else 1) + 1):
            for i in range(len(row) - (size - 1) * gap):
                yield tuple(row[i : i + (size - 1) * gap + 1 : gap])


@operator("TfIdfVectorizer")
def tf_idf_vectorizer(
    x: Host, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
    ngram_counts: Sequence[int], ngram_indexes: Sequence[int], pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None, weights: Sequence[float] | None = None,
) -> Any:  # fmt: skip
    """Count the groups of entries that are in the pool, with gaps of up to `max_skip_count` between them."""
    pool = list(pool_int64s if pool_int64s is not None else pool_strings or ())
    table = dict[tuple[Any, ...], int]()
    ends = [*ngram_counts, len(pool)]
    number = 0
    for size, (start, stop) in enumerate(itertools.pairwise(ends), 1):
        for i in range(start, stop, size):
            if min_gram_length <= size <= max_gram_length:
                table[tuple(pool[i : i + size])] = number
            number += 1
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    counts = np.zeros((len(rows), max(ngram_indexes) + 1), np.float32)
    for row, out in zip(rows.tolist(), counts, strict=True):
        for group in _groups(row, min_gram_length, max_gram_length, max_skip_count):
            if (found := table.get(group)) is not None:
                out[ngram_indexes[found]] += 1
    scale = np.ones(counts.shape[1], np.float32)
    if weights is not None:
        scale[list(ngram_indexes)] = weights
    values = {"TF": counts, "IDF": (counts > 0) * scale, "TFIDF": counts * scale}[mode]
    return values.astype(np.float32).reshape(-1) if x.ndim < 2 else values.astype(np.float32)
