from __future__ import annotations

import logging
import mmap
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernmill import FormatError, IndexRangeError, SettingError
from kernmill.llm import tokenizer as tokenizers
from kernmill.llm.tokenizer import Tokenizer, TokenKind

pytest.importorskip("tokenizers")

VOCABULARIES = ("bert-bge", "falcon", "gpt-2", "llama-spm", "phi-3", "qwen2")
SPACE = "\u2581"


@pytest.fixture(params=["whole", "by need"])
def vocabulary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library gets all tokens at once, or for each text those that it takes."""
    by_need = request.param == "by need"
    monkeypatch.setattr(tokenizers, "_SMALL", 0 if by_need else 1 << 30)
    monkeypatch.setattr(tokenizers, "_SHORT_TEXTS", 1 << 30)


both = pytest.mark.usefixtures("vocabulary")
MISSING = "^a tokenizer needs the package tokenizers, which is not installed"


def bytes_as_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def pieces(*words: str, specials: tuple[str, ...] = ("<unk>", "<s>", "</s>"), **keys: Any) -> dict[str, Any]:
    """A small SentencePiece vocabulary: special tokens, bytes, then words with falling scores."""
    tokens = [*specials, *bytes_as_tokens(), *words]
    kinds = [2, *(3 for _ in specials[1:]), *(6 for _ in range(256)), *(1 for _ in words)]
    scores = [0.0] * (len(specials) + 256) + [-float(n) for n in range(len(words))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in keys.items()}


# --- the vocabularies of llama.cpp with the ids they expect --------------------------------------------------------
def cases(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    file = f"ggml-vocab-{name}.gguf"
    texts = (folder / f"{file}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = (folder / f"{file}.out").read_text(encoding="utf-8").split("\n")
    assert len(texts) == len(lines) == 47
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines, strict=True)]


@both
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_are_the_expected_ones(name: str, shared_data: Callable[[str], Path], gguf: Callable[[str], Any]) -> None:
    tokenizer = Tokenizer(gguf(f"llama_vocab/ggml-vocab-{name}.gguf").metadata)
    for text, ids in cases(shared_data("llama_vocab"), name):
        assert tokenizer.encode(text, add_special=False) == ids, repr(text)
        if name != "bert-bge":  # which drops capitals and spaces
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", [name for name in VOCABULARIES if name != "bert-bge"])
def test_tokens_one_by_one_give_the_same_text(
    name: str, shared_data: Callable[[str], Path], gguf: Callable[[str], Any]
) -> None:
    tokenizer = Tokenizer(gguf(f"llama_vocab/ggml-vocab-{name}.gguf").metadata)
    for text, ids in cases(shared_data("llama_vocab"), name):
        stream = tokenizer.stream()
        parts = [stream.push(i) for i in ids]
        assert not any("\ufffd" in part for part in parts)
        assert stream.finish() == ""
        assert "".join(parts) == (" " + text if tokenizer.add_space_prefix and text else text)


def by_hand(ids: dict[str, int], scores: list[float], text: str) -> list[int]:
    """SentencePiece's BPE as it is defined: merge the best pair, the leftmost of equals, until none is a token."""
    symbols = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        unions = [(symbols[n] + symbols[n + 1], n) for n in range(len(symbols) - 1)]
        found = [(-scores[ids[union]], n) for union, n in unions if union in ids]
        if not found:
            break
        n = min(found)[1]
        symbols[n : n + 2] = [symbols[n] + symbols[n + 1]]
    return [
        i for s in symbols for i in ([ids[s]] if s in ids else [ids[f"<0x{byte:02X}>"] for byte in s.encode("utf-8")])
    ]


ALPHABETS = ("ab ", "aeioulnst -=*_.\n", ["\u00e9", "\u65e5", "\U0001f600", "=", "--", " ", "  ", "\t", "#", "the"])


@both
@pytest.mark.parametrize("file", ["llama_vocab/ggml-vocab-llama-spm.gguf", "stories260K/stories260Ktok512.gguf"])
@pytest.mark.parametrize("alphabet", ALPHABETS, ids=("runs", "letters", "rare"))
def test_merges_by_score_are_sentencepieces(file: str, alphabet: Any, gguf: Callable[[str], Any]) -> None:
    metadata = gguf(file).metadata
    tokenizer, chance = Tokenizer(metadata), random.Random(1)
    ids, scores = {token: i for i, token in enumerate(tokenizer.tokens)}, metadata["tokenizer.ggml.scores"]
    for _ in range(300):
        text = "".join(chance.choice(alphabet) for _ in range(chance.randrange(24)))
        assert tokenizer.encode(text, add_special=False) == by_hand(ids, scores, text), repr(text)


# --- special tokens ------------------------------------------------------------------------------------------------
@both
def test_begin_and_end_tokens_follow_the_flags() -> None:
    words = ("a", SPACE, SPACE + "a")
    plain = Tokenizer(pieces(*words))
    a = plain.tokens.index(SPACE + "a")
    assert plain.encode("a") == [1, a]
    assert Tokenizer(pieces(*words, add_eos_token=True)).encode("a") == [1, a, 2]
    assert Tokenizer(pieces(*words, add_bos_token=False)).encode("a") == [a]
    assert plain.encode("a", add_special=False) == [a]
    assert plain.encode("") == [1]


@both
def test_control_tokens_in_a_text_are_text_unless_asked_for() -> None:
    tokenizer = Tokenizer(pieces("a", SPACE, SPACE + "a", "<", "s", ">", "/"))
    a = tokenizer.tokens.index(SPACE + "a")
    assert tokenizer.encode("a</s>a", add_special=False, parse_special=True) == [a, 2, a]
    spelled = tokenizer.encode("a</s>a", add_special=False)
    assert 2 not in spelled
    assert tokenizer.decode(spelled) == "a</s>a"


@both
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="a system that does not tell used memory")
def test_texts_are_not_kept() -> None:
    """A server grew by 1.2 MiB for each thousand of prompts: the library kept each as one word, with its tokens."""

    def used_mb() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE / (1 << 20)

    tokenizer = Tokenizer(pieces("a", "b", SPACE, SPACE + "a"))
    texts = [f"{number:013b}".replace("1", "a").replace("0", "b") * 16 for number in range(8000)]
    for part in (texts[:4000], texts[4000:]):
        before = used_mb()
        assert all(len(tokenizer.encode(text)) > 100 for text in part)
    assert used_mb() < before + 5  # with a cache more than four times as much


def test_user_defined_tokens_are_always_found() -> None:
    metadata = pieces("a", SPACE, SPACE + "a", "<tool>")
    metadata["tokenizer.ggml.token_type"][-1] = int(TokenKind.USER_DEFINED)
    tokenizer = Tokenizer(metadata)
    a = tokenizer.tokens.index(SPACE + "a")
    assert tokenizer.encode("a<tool>a", add_special=False) == [a, len(tokenizer) - 1, a]
    assert tokenizer.decode([a, len(tokenizer) - 1, a]) == "a<tool> a"


@both
def test_phi_3_takes_the_space_behind_a_control_token_with_it(gguf: Callable[[str], Any]) -> None:
    tokenizer = Tokenizer(gguf("llama_vocab/ggml-vocab-phi-3.gguf").metadata)
    user, hello = tokenizer.tokens.index("<|user|>"), tokenizer.tokens.index(SPACE + "Hello")
    assert tokenizer.encode("<|user|>\nHello", add_special=False, parse_special=True) == [user, hello]


def test_which_tokens_end_a_text(gguf: Callable[[str], Any]) -> None:
    qwen = Tokenizer(gguf("llama_vocab/ggml-vocab-qwen2.gguf").metadata)
    assert {qwen.tokens[i] for i in qwen.end_ids} == {"<|endoftext|>", "<|im_end|>"}
    assert Tokenizer(pieces("a")).end_ids == {2}


def test_a_message_of_gpt_oss_does_not_end_the_text() -> None:
    """Its <|end|> ends the reasoning, after which the answer follows; that of phi ends the text."""
    names = ["a", "<|end|>", "<|return|>", "<|call|>"]
    keys: dict[str, Any] = {"model": "gpt2", "pre": "gpt-4o", "merges": ["a a"], "eos_token_id": 2}

    def ends(names: list[str]) -> set[str]:
        given = {**keys, "tokens": [*names, "aa"], "token_type": [1, *[3] * (len(names) - 1), 1]}
        tokenizer = Tokenizer({f"tokenizer.ggml.{key}": value for key, value in given.items()})
        return {tokenizer.tokens[i] for i in tokenizer.end_ids}

    assert ends(names) == {"<|return|>", "<|call|>"}
    assert ends(names[:3]) == {"<|end|>", "<|return|>"}


def test_decoding_leaves_control_tokens_out_unless_they_are_shown() -> None:
    tokenizer = Tokenizer(pieces("a", SPACE, SPACE + "a"))
    ids = tokenizer.encode("a")
    assert tokenizer.decode([*ids, 2]) == "a"
    assert tokenizer.decode([*ids, 2], show_special=True) == "<s> a</s>"


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    tokenizer = Tokenizer(pieces("a", SPACE))
    first, second = (tokenizer.tokens.index(name) for name in ("<0xE2>", "<0x82>"))
    assert tokenizer.decode([first]) == "\ufffd"
    stream = tokenizer.stream()
    assert [stream.push(first), stream.push(second), stream.finish()] == ["", "", "\ufffd"]


# --- the other kinds -----------------------------------------------------------------------------------------------
def test_word_pieces_put_begin_and_end_around(gguf: Callable[[str], Any]) -> None:
    tokenizer = Tokenizer(gguf("llama_vocab/ggml-vocab-bert-bge.gguf").metadata)
    ids = tokenizer.encode("Hello world")
    assert [tokenizer.tokens[i] for i in (ids[0], ids[-1])] == ["[CLS]", "[SEP]"]
    assert tokenizer.decode(ids) == "hello world"


def test_unigrams_take_the_best_sum() -> None:
    words = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, SPACE: -3.0, "a": -3.0, "b": -3.0, SPACE + "a": -2.0, "ab": -4.0}
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": list(words),
        "tokenizer.ggml.token_type": [3, 3, 2, 1, 1, 1, 1, 1],
        "tokenizer.ggml.scores": list(words.values()),
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
    }
    tokenizer = Tokenizer(metadata)
    assert [tokenizer.tokens[i] for i in tokenizer.encode("ab")] == [SPACE + "a", "b", "</s>"]  # -5 beats -7
    assert tokenizer.decode(tokenizer.encode("ab ab")) == "ab ab"
    assert 1 not in tokenizer.encode("</s>", add_special=False)


@both
def test_raw_byte_pairs_keep_runs_of_lines_whole() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.tokens": ["<bos>", *bytes_as_tokens(), "a", "b", SPACE, SPACE + "a", "\n", "\n\n"],
        "tokenizer.ggml.token_type": [3, *(6 for _ in range(256)), 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": [f"{SPACE} a"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    tokenizer = Tokenizer(metadata)
    ids = tokenizer.encode("b a\n\n\u00e9")
    assert [tokenizer.tokens[i] for i in ids] == ["<bos>", "b", SPACE + "a", "\n\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "b a\n\n\u00e9"


def test_more_texts_than_a_few_get_the_whole_vocabulary(gguf: Callable[[str], Any]) -> None:
    tokenizer = Tokenizer(gguf("llama_vocab/ggml-vocab-gpt-2.gguf").metadata)
    first = tokenizer.encode("Hello world")
    assert tokenizer._built.get_vocab_size() < 1000
    for _ in range(5):
        assert tokenizer.encode("Hello world") == first
    assert tokenizer._built.get_vocab_size() == len(tokenizer)
    other = Tokenizer(gguf("llama_vocab/ggml-vocab-gpt-2.gguf").metadata)
    assert other.encode("Hello world " * 500)[:2] == first
    assert other._built.get_vocab_size() == len(other)


LONG = "Hello world, these are transformers. " * 60


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("text", ["Hi", LONG], ids=["short", "long"])
def test_an_interrupted_handover_leaves_nothing_half_done(
    fault: type[BaseException], text: str, gguf: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = gguf("llama_vocab/ggml-vocab-gpt-2.gguf").metadata
    expected = Tokenizer(metadata).encode(LONG)
    tokenizer = Tokenizer(metadata)
    tokenizer.encode("Hello")

    def interrupted(lines: Any) -> Any:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(tokenizers, "_pairs", interrupted)
        with pytest.raises((fault, FormatError)):
            tokenizer.encode(text)
    assert tokenizer._short_texts == tokenizers._SHORT_TEXTS - 1
    assert tokenizer.encode(LONG) == expected


def test_threads_share_a_tokenizer(gguf: Callable[[str], Any]) -> None:
    """Each text takes a vocabulary of its own here, and one of them the whole: none is encoded with another one's."""
    metadata = gguf("llama_vocab/ggml-vocab-gpt-2.gguf").metadata
    texts = ["Hello world", "\u00e9t\u00e9 3.14", LONG, "transformers", "  spaces", "def f(x): return x"]
    whole = Tokenizer(metadata)
    whole.encode(LONG)
    expected = [whole.encode(text) for text in texts]
    for _ in range(3):
        tokenizer = Tokenizer(metadata)
        with ThreadPoolExecutor(len(texts)) as threads:
            assert list(threads.map(tokenizer.encode, texts)) == expected


# --- what is wrong with a file -------------------------------------------------------------------------------------
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"model": "none2"}, "tokenizer.ggml.model is 'none2': must be one of bert, gpt2, llama, plamo2, rwkv, t5."),
    (
        {"model": "no_vocab"},
        "the file has no vocabulary, so text cannot be encoded or decoded. kernmill bench works without one.",
    ),
    ({"tokens": []}, "tokenizer.ggml.tokens is empty or missing: the file has no vocabulary."),
    ({"tokens": "abc"}, "tokenizer.ggml.tokens is of type str, not an array."),
    (
        {"scores": [0.0]},
        "tokenizer.ggml.scores has 1 entries for 260 tokens. The file is damaged, or was written by a faulty "
        "converter.",
    ),
    ({"tokens": [b"a"]}, "tokenizer.ggml.tokens contains values that are not text."),
    (
        {"scores": [float("nan")] * 260},
        "tokenizer.ggml.scores contains NaN or infinity, and tokens are chosen by them.",
    ),
    ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id is 'x', not an integer."),
    ({"model": 5}, "tokenizer.ggml.model is 5, not a string."),
    ({"model": "gpt2", "pre": [1]}, "tokenizer.ggml.pre is [1], not a string."),
    ({"model": "\x1b[2J"}, "tokenizer.ggml.model is '\\x1b[2J': must be one of bert, gpt2, llama, plamo2, rwkv, t5."),
    *(
        (
            {f"{role}_token_id": number},
            f"tokenizer.ggml.{role}_token_id is {number}, and there are 260 tokens. "
            "The file is damaged, or was written by a faulty converter.",
        )
        for role, number in (("bos", 260), ("eos", 10**6), ("unknown", -2), ("eot", 2**31), ("eom", 2**32))
    ),
    ({"add_bos_token": [1]}, "tokenizer.ggml.add_bos_token is [1], not true or false."),
    ({"scores": []}, "tokenizer.ggml.scores is missing: a llama vocabulary merges by them."),
    (
        {"model": "gpt2", "merges": ["ab"]},
        "tokenizer.ggml.merges has 'ab', which is not a pair of tokens separated by a space.",
    ),
    (
        {"model": "gpt2", "merges": ["a q"]},
        "tokenizer.ggml.merges joins 'a' and 'q', and 'q' is not a token. "
        "The file is damaged, or was written by a faulty converter.",
    ),
    ({"model": "gpt2", "merges": 5}, "tokenizer.ggml.merges is of type int, not an array."),
    ({"model": "gpt2", "merges": [5]}, "tokenizer.ggml.merges contains values that are not text."),
    (
        {"model": "gpt2", "merges": ["a a"]},
        "tokenizer.ggml.merges joins 'a' and 'a', and 'aa' is not a token. "
        "The file is damaged, or was written by a faulty converter.",
    ),
    (
        {"model": "gpt2", "merges": [" a"]},
        "tokenizer.ggml.merges has ' a', which is not a pair of tokens separated by a space.",
    ),
    (
        {"model": "bert", "unknown_token_id": 2**32 - 1},
        "tokenizer.ggml.unknown_token_id is missing, and a bert vocabulary needs one.",
    ),
]


@both
@pytest.mark.parametrize(("change", "message"), FAULTS, ids=lambda value: str(value)[:40])
def test_a_damaged_vocabulary_is_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        Tokenizer(pieces("a") | {f"tokenizer.ggml.{name}": value for name, value in change.items()})
    assert str(caught.value) == message


@both
@pytest.mark.parametrize("merges", [{}, {"tokenizer.ggml.merges": []}], ids=["missing", "empty"])
def test_byte_pairs_without_merges_are_refused(merges: dict[str, Any]) -> None:
    """Text was cut into bytes without a word."""
    with pytest.raises(FormatError) as caught:
        Tokenizer(merges | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"]})
    assert str(caught.value) == (
        "tokenizer.ggml.merges is missing or empty: without merges, text would be encoded byte by byte, and "
        "tokens such as 'ab' never used. Convert the file again."
    )


@both
def test_single_characters_need_no_merges() -> None:
    """What no two tokens make is made by no merge: here all but the control token are single characters."""
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "<|end|>"], "token_type": [1, 1, 3]}
    for kinds in ([1, 1, 3], []):
        found = {f"tokenizer.ggml.{name}": value for name, value in (keys | {"token_type": kinds}).items()}
        assert Tokenizer(found).encode("abba") == [0, 1, 1, 0]


@both
def test_a_missing_pre_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """It was guessed without a word; one that is not known is refused."""
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]}
    with caplog.at_level(logging.WARNING, "kernmill"):
        tokenizer = Tokenizer(keys)
        tokenizer.encode("ab")
        Tokenizer(keys | {"tokenizer.ggml.pre": "default"})
    assert [record.getMessage() for record in caplog.records] == [
        "tokenizer.ggml.pre is missing: the file does not name its pre-tokenizer. 'default' is assumed; if the "
        "model was trained with a different one, its output is worse. Convert the file again to be sure."
    ]


@both
@pytest.mark.parametrize("ids", [["x"], [1.5], "x", [None]])
def test_what_is_no_id_is_not_decoded(ids: Any) -> None:
    """A text was a ValueError, and 1.5 was 1."""
    with pytest.raises(IndexRangeError, match=r"^decode: .* is not a token id\. Give integers from 0 to"):
        Tokenizer(pieces("a")).decode(ids)


@both
def test_a_role_without_a_token() -> None:
    for none in (2**32 - 1, -1, None):
        tokenizer = Tokenizer(pieces("a") | {"tokenizer.ggml.bos_token_id": none, "tokenizer.ggml.eos_token_id": none})
        assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.end_ids) == (None, None, frozenset())


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "t5"])
def test_a_token_as_long_as_a_book(kind: str) -> None:
    """It took a minute to cut one of a megabyte at each place, and the library a gigabyte for one of ten."""
    words, control = ("x" * 4097, "a"), TokenKind.CONTROL
    for metadata in (pieces(*words, model=kind), pieces(*words, model=kind, token_type=[int(control)] * 261)):
        with pytest.raises(FormatError) as caught:
            Tokenizer(metadata)
        assert str(caught.value) == (
            "tokenizer.ggml.tokens: token 259 has 4097 characters, more than 4096. The file is damaged, or was "
            "written by a faulty converter."
        )
    tokenizer = Tokenizer(pieces("x" * 4096, "a", *(SPACE * n for n in range(1, 129))))
    assert tokenizer.decode(tokenizer.encode("a x" + " " * 300)) == "a x" + " " * 300


@both
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("role", [TokenKind.NORMAL, TokenKind.CONTROL, TokenKind.USER_DEFINED])
def test_tokens_in_tokens_take_no_more_memory_than_they_are_worth(kind: str, role: TokenKind) -> None:
    """Each is made of two others at every place: 2000 of them, 2 MB, took 6 GB."""
    words = ["a" * n for n in range(1, 1001)]
    metadata = pieces(*words, model=kind)
    metadata["tokenizer.ggml.token_type"][-len(words) :] = [int(role)] * len(words)
    with pytest.raises(FormatError) as caught:
        Tokenizer(metadata)
    assert str(caught.value) == (
        "tokenizer.ggml.tokens: its 1259 tokens have 399 characters on average, too many to derive their merges. "
        "The file is damaged, or was written by a faulty converter."
    )
    few = Tokenizer(pieces(*words[:300], SPACE))
    assert few.encode("a" * 300)[-1] == few.tokens.index("a" * 300)


def test_no_memory_for_a_vocabulary_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a colon: what Python says of it is empty."""

    def failing(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(tokenizers._BUILDERS, "llama", failing)
    with pytest.raises(FormatError) as caught:
        Tokenizer(pieces("a"))
    assert str(caught.value) == ("tokenizer.ggml.* does not describe a valid llama tokenizer: out of memory.")


@pytest.mark.parametrize("line", ["zzz qqqqq", "Hello", "Hel lo wor", "H  ello"])
def test_damaged_merges_of_a_large_vocabulary(line: str, gguf: Callable[[str], Any]) -> None:
    """They are found when the tokenizer is made, though the library does not get them then."""
    metadata = dict(gguf("llama_vocab/ggml-vocab-gpt-2.gguf").metadata)
    lines = list(metadata["tokenizer.ggml.merges"])
    with pytest.raises(FormatError, match=r"^tokenizer\.ggml\.merges "):
        Tokenizer(metadata | {"tokenizer.ggml.merges": [*lines[:9], line, *lines[9:]]})


def test_merges_of_a_large_vocabulary_in_any_order(gguf: Callable[[str], Any]) -> None:
    metadata = dict(gguf("llama_vocab/ggml-vocab-gpt-2.gguf").metadata)
    lines = list(metadata["tokenizer.ggml.merges"])
    Tokenizer(metadata | {"tokenizer.ggml.merges": lines[::-1]})
    with pytest.raises(FormatError, match=r"and 'zzz' is not a token"):
        Tokenizer(metadata | {"tokenizer.ggml.merges": ["zzz qqqqq", *lines[::-1]]})


@pytest.mark.parametrize("file", ["gpt-2", "qwen2", "falcon"])
def test_merges_in_the_order_of_their_tokens_are_the_same_merges(file: str, gguf: Callable[[str], Any]) -> None:
    """A file's merges lie in one piece, those of other metadata are a list."""
    metadata = gguf(f"llama_vocab/ggml-vocab-{file}.gguf").metadata
    together, apart = Tokenizer(metadata), Tokenizer(dict(metadata))
    assert together.tokens == apart.tokens
    for text in ("Once upon a time", "Stra\u00dfe, \u65e5\u672c 1 2 33\n", "", LONG):
        assert together.encode(text) == apart.encode(text)


@pytest.mark.parametrize("line", ["a a b", "ab", " ab", "ab ", "a x"])
def test_merges_that_are_not_quickly_known_are_looked_at_one_by_one(line: str) -> None:
    tokens = b"\0a\0b\0c\0ab\0aab\0abc"
    assert tokenizers._Merges.of(b"\0a b\0a ab\0ab c", tokens) is not None
    assert tokenizers._Merges.of(b"\0a b\0" + line.encode() + b"\0ab c", tokens) is None
    assert tokenizers._Merges.of(b"\0a ab\0a b", tokens) is None


def test_halves_that_are_no_tokens_are_never_encoded_wrongly(gguf: Callable[[str], Any]) -> None:
    """A space at another place is found when all merges are handed over, and each time again."""
    metadata = dict(gguf("llama_vocab/ggml-vocab-gpt-2.gguf").metadata)
    lines = list(metadata["tokenizer.ggml.merges"])
    place = next(n for n, line in enumerate(lines) if line.endswith(" orld"))
    lines[place] = lines[place].replace(" orld", "o rld")
    tokenizer = Tokenizer(metadata | {"tokenizer.ggml.merges": lines})
    for _ in range(3):
        with pytest.raises(FormatError, match="out of vocabulary"):
            tokenizer.encode(LONG)


def test_a_damaged_table_of_characters(capfd: pytest.CaptureFixture[str]) -> None:
    """The library panics on it, at once or when it is used, and says so on stderr."""
    changes = {"model": "t5", "precompiled_charsmap": bytes(50)}
    with pytest.raises(FormatError, match=r"^(tokenizer\.ggml\.\* does not describe a valid|encode: the) t5 tokenizer"):
        Tokenizer(pieces("a") | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}).encode("a\u00e9")
    capfd.readouterr()


def test_an_id_outside_the_vocabulary() -> None:
    with pytest.raises(IndexRangeError, match=r"^decode: token id 260\ is out of range: there are 260\ tokens.$"):
        Tokenizer(pieces("a")).decode([260])


def test_text_with_a_lone_surrogate() -> None:
    with pytest.raises(FormatError, match=r"^encode: the text is not valid Unicode"):
        Tokenizer(pieces("a")).encode("a\ud800")


def test_what_is_no_text() -> None:
    with pytest.raises(FormatError, match=r"^encode: the text is of type NoneType: must be a string\. Convert it\.$"):
        Tokenizer(pieces("a")).encode(None)  # type: ignore[arg-type]


@both
def test_without_the_library_no_tokenizer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SettingError, match=MISSING):
        Tokenizer(pieces("a"))


def test_a_missing_library_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "_SMALL", 0)
    tokenizer = Tokenizer(pieces("a"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SettingError, match=MISSING):
        tokenizer.encode("a")


@pytest.mark.parametrize("texts", [0, 1])
def test_what_the_library_was_made_of_is_dropped(texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "_SMALL", 0)
    monkeypatch.setattr(tokenizers, "_SHORT_TEXTS", texts)
    tokenizer = Tokenizer(pieces("a", "b", "ab"))
    found = []
    for _ in range(3):
        found.append(tokenizer.encode("ab", add_special=False))
        texts -= 1
        assert bool(tokenizer._scores) == (texts >= 0)
    assert found == [found[0]] * 3
