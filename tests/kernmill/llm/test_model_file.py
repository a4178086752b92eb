"""What a file says of its model; tests/kernmill/llm/test_generate.py has whole files."""

from __future__ import annotations

import pytest

from kernmill import FormatError
from kernmill.llm.model_file import check_known, config_of, kept_metadata
from tests.tiny_models import CASES, metadata_of


def test_sizes_are_those_of_the_metadata() -> None:
    config = config_of(metadata_of(CASES["qwen3"]))
    assert (config.name, config.layers, config.heads, config.kv_heads) == ("qwen3", 3, 4, 2)


def test_an_unknown_name() -> None:
    with pytest.raises(FormatError, match=r"^general.architecture is 'qwen33', .* The nearest name is qwen3\."):
        check_known("qwen33")


def test_lists_of_the_vocabulary_are_not_kept() -> None:
    kept = kept_metadata(metadata_of(CASES["qwen3"]))
    assert "tokenizer.ggml.tokens" not in kept
    assert kept["tokenizer.ggml.bos_token_id"] == 1
