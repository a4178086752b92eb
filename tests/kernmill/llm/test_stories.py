"""Stories and their vocabulary: the same each time, nothing lost, and the ids that other readers of the file find."""

from __future__ import annotations

import pytest

from kernmill.llm import Tokenizer, Vocabulary, stories

STRANGE = ("", " ", "a  b ", "Zw\u00f6lf Boxk\u00e4mpfer\njagen Eva.", "\u2581", "worry, worry")


def test_a_seed_repeats() -> None:
    assert stories(5, 3) == stories(5, 3) != stories(5, 4)
    assert all(text.startswith("Once upon a time there was a ") for text in stories(5, 3))


def test_what_is_encoded_comes_back() -> None:
    texts = stories(60)
    vocabulary = Vocabulary(texts, 400)
    assert len(vocabulary) == len(set(vocabulary.tokens)) == 400
    for text in texts:
        ids = vocabulary.encode(text, is_whole=True)
        assert (ids[0], ids[-1]) == (1, 2)
        assert vocabulary.decode(ids) == text


def test_a_vocabulary_ends_when_every_word_is_a_piece() -> None:
    vocabulary = Vocabulary(["a ab", "ab"], 1000)
    assert vocabulary.tokens[vocabulary.first :] == ["a", "b", "\u2581", "\u2581a", "\u2581ab"]
    assert vocabulary.encode("ab a c") == [1, 263, 262, 261, 3 + ord("c")]


def test_ids_are_those_of_the_tokenizer() -> None:
    pytest.importorskip("tokenizers")
    texts = stories(60)
    vocabulary = Vocabulary(texts, 400)
    tokenizer = Tokenizer(vocabulary.metadata())
    for text in (*texts, *STRANGE):
        assert tokenizer.encode(text) == vocabulary.encode(text)
