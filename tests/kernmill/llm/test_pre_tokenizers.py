from __future__ import annotations

import pytest

from kernmill import FormatError
from kernmill.llm.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer

tokenizers = pytest.importorskip("tokenizers")


def cut(name: str, text: str) -> list[str]:
    """The words of a text, as characters."""
    splits = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in pre_tokenizer(name).patterns]
    sequence = tokenizers.pre_tokenizers.Sequence(splits)
    return [word for word, _ in sequence.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_row_cuts_without_losing_anything(name: str) -> None:
    text = (
        "It's 12345 Ελληνικά, \u65e5\u672c\u8a9e\u30c6\u30b9\u30c8!\n\n  \u0928\u092e\u0938\u094d\u0924\u0947\t\r\n x  "
    )
    assert "".join(cut(name, text)) == text


CUTS = [
    ("gpt-2", "It's 12345  x", ["It", "'s", " 12345", " ", " x"]),
    ("gpt-2", "IT'S", ["IT", "'", "S"]),
    ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
    ("starcoder", "a 123", ["a", " ", "1", "2", "3"]),
    ("llama-bpe", "IT'S 12345", ["IT", "'S", " ", "123", "45"]),
    ("llama-bpe", "x\n\n y", ["x", "\n\n", " y"]),
    ("qwen2", "x 123", ["x", " ", "1", "2", "3"]),
    ("qwen2", "e\u0301a", ["e", "\u0301a"]),
    ("qwen35", "e\u0301a", ["e\u0301a"]),
    ("gpt-4o", "helloWorld's", ["hello", "World's"]),
    ("tekken", "helloWorld 12", ["hello", "World", " ", "1", "2"]),
    ("kimi-k2", "abc\u4e2d\u6587d", ["abc", "\u4e2d\u6587", "d"]),
    ("deepseek-v3", "1234 \u65e5\u672cab", ["123", "4", " ", "\u65e5\u672c", "ab"]),
    ("deepseek-llm", "a\n\u4e2d\u6587 1234", ["a", "\n", "\u4e2d\u6587", " ", "1234"]),
    ("deepseek-coder", "a 12", ["a", " ", "1", "2"]),
    ("superbpe", "a b 1234567", ["a b ", "1", "234", "567"]),
    ("tiny_aya", "1234567", ["1", "234", "567"]),
    ("gemma4", "a b\n\n\nc", ["a b", "\n\n\n", "c"]),
    ("bloom", "a b, c", ["a", " b", ",", " c"]),
    ("seed-coder", "a!\n", ["a", "!", "\n"]),
]


@pytest.mark.parametrize(("name", "text", "words"), CUTS)
def test_what_a_row_cuts(name: str, text: str, words: list[str]) -> None:
    assert cut(name, text) == words


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"^tokenizer\.ggml\.pre is 'mystery', which is unknown"):
        pre_tokenizer("mystery")
