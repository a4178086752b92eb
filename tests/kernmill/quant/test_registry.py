"""The registry: every block type of a file has a reader, and each name stands once."""

from __future__ import annotations

import pytest

from kernmill import FormatError
from kernmill.formats.gguf_types import TYPES
from kernmill.quant import BLOCKS, block_type
from kernmill.quant.registry import FAMILIES


def test_every_type_of_files() -> None:
    kept = {row.name for row in TYPES.values() if row.dtype is None}
    assert kept - set(BLOCKS) == {"Q8_1", "Q8_K"}  # values while they are computed with, never in files
    assert sum(len(family.BLOCKS) for family in FAMILIES) == len(BLOCKS)
    assert block_type("q4_k") is BLOCKS["Q4_K"]
    writable = {name for name, block in BLOCKS.items() if block.write is not None}
    assert writable >= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4"}


def test_no_such_type() -> None:
    with pytest.raises(FormatError, match=r"quantized type 'Q9_K': must be one of Q4_0,"):
        block_type("Q9_K")
