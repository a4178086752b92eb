"""All block types by name: the families of this folder, one after the other."""

from __future__ import annotations

from kernmill.ir import FormatError

from . import grids, k_types, legacy_types, nonlinear, ternary
from .block import BlockType

__all__ = ["BLOCKS", "block_type"]

FAMILIES = (legacy_types, k_types, nonlinear, ternary, grids)
BLOCKS: dict[str, BlockType] = {block.name: block for family in FAMILIES for block in family.BLOCKS}
assert all(block.size_bytes == block.type.size_bytes for block in BLOCKS.values()), (
    "a block type differs from its GGUF layout"
)


def block_type(name: str) -> BlockType:
    """Return the block type of that name, in upper or lower case.

    Raises:
        FormatError: unknown type.
    """
    found = BLOCKS.get(name.upper())
    if found is None:
        raise FormatError(f"quantized type {name!r}: must be one of {', '.join(BLOCKS)}.")
    return found
