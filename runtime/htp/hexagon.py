"""Hexagon's versions: what LLVM must know of them, and what generated code may use.

No emulator runs vectors of floats, so code for v67 has floats as scalars. From v68 on they are vectors; that Target
is compiled and read, never claimed to be right.
"""

from __future__ import annotations

from typing import Final

from kernmill.ir import DeviceError, Ops, Target, dtypes
from kernmill.renderers import LLVM_OPS

from ..cpu.host import Host

__all__ = ["HEXAGON_VERSIONS", "hexagon_host", "hexagon_target"]

HEXAGON_VERSIONS: Final = (67, 68, 69, 73, 75, 79, 81)
_FLOAT_VECTORS_FROM: Final = 68
_TRIPLE: Final = "hexagon-unknown-linux-musl"
_BYTES = (dtypes.uint8, dtypes.int8)
_DOTS = frozenset({(dtypes.uint8, dtypes.int8), (dtypes.int8, dtypes.int8), (dtypes.uint8, dtypes.uint8)})
# functions of a C library, and float16 by bits: what the resident program does not have
_CALLS = {Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.ROUND}


def hexagon_host(version: int) -> Host:
    """LLVM's name and features. Without `-small-data` constants would be addressed by a register that nobody sets.

    Raises:
        DeviceError: the version is unknown.
    """
    if version not in HEXAGON_VERSIONS:
        known = ", ".join(f"v{number}" for number in HEXAGON_VERSIONS)
        raise DeviceError(f"Hexagon v{version} is not known. Versions: {known}.")
    features = [f"+hvxv{version}", "+hvx-length128b", "-small-data"]
    if version >= _FLOAT_VECTORS_FROM:
        features.append("+hvx-ieee-fp")
    return Host("hexagon", f"hexagonv{version}", tuple(features), 32 << 10, 1 << 20, 0, _TRIPLE)


def hexagon_target(version: int) -> Target:
    """Vectors of 128 bytes for ints of up to 32 bits, and for float32 where the version has them."""
    has_floats = version >= _FLOAT_VECTORS_FROM
    wide = {dtypes.float64, dtypes.int64, dtypes.uint64, dtypes.bool}
    floats = set() if has_floats else {dtypes.float32, dtypes.float16, dtypes.bfloat16}
    return Target(
        name=f"hexagon-v{version}",
        vector_bytes=128,
        most_lanes=128,
        vector_registers=32,
        instructions="hexagon",
        # LLVM splits a vector FMA into scalars in memory: multiply and add instead
        ops=LLVM_OPS - _CALLS - ({Ops.FMA} if has_floats else set()),
        storage_dtypes=frozenset(dtypes.data) - {dtypes.float16},
        compute_dtypes=frozenset(dtypes.data) - {dtypes.float16, dtypes.bfloat16},
        scalar_dtypes=frozenset(wide | floats),
        dots=_DOTS,
        table_lanes=128,
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
    )
