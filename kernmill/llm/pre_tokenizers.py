"""Pre-tokenizers: how BPE vocabularies split text into words before merging, one row for each name of
`tokenizer.ggml.pre`.

A row has regular expressions (Oniguruma's syntax); each splits the pieces of the previous one, and text between matches
is a piece as well. They are published by the authors of the vocabularies (tokenizer.json). Of these rows tests have a
vocabulary for falcon, gpt-2 and qwen2; the others are tested by the pieces they give.
"""

from __future__ import annotations

from typing import NamedTuple

from kernmill.ir import FormatError

from ..formats.quoting import quoted

__all__ = ["PreTokenizer", "pre_tokenizer"]


class PreTokenizer(NamedTuple):
    """The rules of one name."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is a token is taken whole, whatever the merges say
    adds_bos: bool = False  # unless tokenizer.ggml.add_bos_token says otherwise
    # bytes are represented by GPT-2's printable characters; False: UTF-8 with U+2581 for a space
    is_byte_level: bool = True


_S = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATED = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _cl100k(numbers: str, letters: str = r"\p{L}+", rest: str = _PUNCTUATED, lines: str = _LINES) -> str:
    """Return the pattern that GPT-4 made common: contractions, words with a preceding character, numbers, the rest."""
    return rf"{_S}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{numbers}|{rest}|{lines}"


def _cased(numbers: str, suffix: str, rest: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*", but: str = "") -> str:
    """Return GPT-4o's pattern: a word ends where a capital begins."""
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return rf"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}|{numbers}|{rest}|{_LINES}"


def _any_of(spans: str) -> str:
    """Return a run of characters from spans of code points; literal text would depend on Unicode normalization."""
    ends = [span.split("-") for span in spans.split()]
    return "[" + "".join("-".join(rf"\x{{{end}}}" for end in span) for span in ends) + "]+"


_THREE = r"\p{N}{1,3}"
_FROM_THE_RIGHT = r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))"
_HAN_KANA = _any_of("4e00-9fa5 3040-309f 30a0-30ff")
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _LINES
)
_CASED_LETTERS = (  # DeepSeek's list, as spans of code points
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c "
    "38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b "
    "1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 "
    "1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 "
    "2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b "
    "2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 "
    "fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df "
    "1e900-1e943 "
)
_CJK = _any_of("4e00-9fa5 0800-4e00 ac00-d7ff")
_YOUTU = "|".join(
    (
        _any_of("ac00-d7a3 3131-318e"),
        _any_of("ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f"),
        _any_of("3105-312f"),
        _HAN_KANA,
    )
)
_ASIAN = (
    "4e00-9fff 3400-4dbf f900-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)
_DIGITS_ALONE = (r"\p{N}", _GPT2)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+"
_RUNS = "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))

_ROWS: dict[str, PreTokenizer] = {
    "default falcon-default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v1-en jina-v2-es jina-v2-de jina-v2-code a.x-4.0 mellum modern-bert "
    "roberta-bpe mpt olmo jais trillion granite-docling exaone4": PreTokenizer((_GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer(_DIGITS_ALONE),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        (_cl100k(_THREE),), whole_words=True, adds_bos=True
    ),
    "dbrx smaug-bpe glm4 chatglm-bpe": PreTokenizer((_cl100k(_THREE),)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer(
        (_cl100k(r"\p{N}"),)
    ),
    "qwen35": PreTokenizer((_cl100k(r"\p{N}", r"[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _cl100k(r"\p{N}"))),
    "minicpm5": PreTokenizer((_THREE, _cl100k(r"\p{N}+")), whole_words=True),
    "seed-coder": PreTokenizer((_cl100k(r"\p{N}", rest=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "jais-2": PreTokenizer((_cl100k(_THREE, lines=r"\s*[\r\n]+" + _RUNS + r"|\s"),)),
    "exaone-moe": PreTokenizer(
        (
            _cl100k(
                r"\p{N}",
                r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]|\s+(?!\S)|\s+",
            ),
        )
    ),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "tekken": PreTokenizer((_cased(r"\p{N}", ""),), whole_words=True, adds_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_cased(_THREE, _S + "?"),)),
    "granite-embed-multi-97m": PreTokenizer((_cased(_THREE, _S + "?"),), whole_words=True),
    "tiny_aya cohere2moe": PreTokenizer((_FROM_THE_RIGHT, _cased(_THREE, _S + "?"))),
    "kimi-k2": PreTokenizer((r"\p{Han}+|" + _cased(_THREE, _S + "?", _PUNCTUATED, r"&&[^\p{Han}]"),)),
    "youtu": PreTokenizer(
        (
            _YOUTU,
            _cased(r"\p{N}", _S + "?"),
        ),
        whole_words=True,
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            r"\s?" + _any_of(_CASED_LETTERS),
            r"\s?" + _any_of("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002"),
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm": PreTokenizer((_THREE, _HAN_KANA, _DEEPSEEK3)),
    "afmoe": PreTokenizer(
        (
            _FROM_THE_RIGHT,
            _any_of(_ASIAN),
            _DEEPSEEK3,
        )
    ),
    "superbpe": PreTokenizer((r"\p{N}+", _FROM_THE_RIGHT)),
    "poro-chat bloom gpt3-finnish": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    "gemma4 granite-embed-multi-311m": PreTokenizer((r"[^\n]+|\n+",), adds_bos=True, is_byte_level=False),
    "sarvam-moe": PreTokenizer((r"[^\n]+|\n+",), is_byte_level=False),
}
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: row for names, row in _ROWS.items() for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the row of a name.

    Raises:
        FormatError: unknown name: a guess would give other tokens than the model was trained on.
    """
    if name not in PRE_TOKENIZERS:
        raise FormatError(
            f"tokenizer.ggml.pre is {quoted(name)}, which is unknown, and a wrong pre-tokenizer silently degrades "
            f"the output. Known: {', '.join(sorted(PRE_TOKENIZERS))}."
        )
    return PRE_TOKENIZERS[name]
