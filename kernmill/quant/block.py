"""class BlockType: how values are stored together: a layout of bytes, an expression to read it, one to write it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kernmill.ir import DTypeError, FormatError, ShapeError, dtypes, show_shape

from ..formats.gguf_types import TensorType, tensor_type
from ..methods.movement import cat
from ..tensor import Tensor

__all__ = ["BlockType", "Codes"]


@dataclass(frozen=True, slots=True)
class Codes:
    """The values of blocks: quants in groups; a value is scale * (code - zero) + offset of its group.

    Shapes: codes [.., values], scale and offset [.., groups]: equal runs of the codes, of 16 at least.
    Dtypes: codes uint8 or int8, scale and offset float32.
    """

    codes: Tensor
    scale: Tensor
    zero: int = 0
    offset: Tensor | None = None

    def values(self) -> Tensor:
        """Return the values, float32 [.., values]: one product, rounded, and one sum, rounded."""
        groups = self.scale.shape[-1]
        codes = self.codes.float() - self.zero if self.zero else self.codes.float()
        values = self.scale.unsqueeze(-1) * codes.unflatten(-1, (groups, codes.shape[-1] // groups))
        return (values if self.offset is None else values + self.offset.unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True, eq=False)
class BlockType:
    """A quantized type. Its name is a row in formats/gguf_types.py, which has the number of values of a block.

    `layout` has the parts of a block in order, each with its size in bytes. `read` takes the parts as uint8 tensors
    [.., size] by name and returns their Codes; `write` is its approximate inverse, values to parts. Leading axes are
    free. Both are ordinary Tensor calls and are compiled like anything else. `axes` are the sizes that the values of a
    block split into, such as groups with one scale: loops over them have affine strides. `single` has the parts whose
    bytes are used one at a time, such as small scales; others are read as words. `order` has axes of a run of values
    and their order in codes: quants of one word are looked up at once. `looked_up`: quants are gathered from tables in
    memory, which is so slow that they are decoded once for several rows. `laid` is for interleaved rows, if a different
    order of the bits needs fewer instructions or is read sequentially. It is a layout, as a type of the same name, and
    the function that computes its parts from ours. `held` is the same for targets whose registers can contain byte
    tables (`Target.table_bytes`). `written` is a decoded layout of more bytes and fewer instructions, without lookups
    in memory or base-3 digits: for targets with dot products of bytes (setting QUANT_FORM). `weighs`: `write` takes the
    importance of each value as well, and searches for the scales with the smallest weighted error.
    """

    name: str
    layout: Mapping[str, int]
    read: Callable[..., Codes]
    write: Callable[..., dict[str, Tensor]] | None = None
    axes: tuple[int, ...] = ()
    single: tuple[str, ...] = ()
    laid: tuple[BlockType, Callable[..., dict[str, Tensor]]] | None = None
    held: tuple[BlockType, Callable[..., dict[str, Tensor]]] | None = None
    written: tuple[BlockType, Callable[..., dict[str, Tensor]]] | None = None
    order: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    looked_up: bool = False
    weighs: bool = False
    type: TensorType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", tensor_type(self.name))
        object.__setattr__(self, "axes", self.axes or (self.type.values,))
        assert math.prod(self.axes) == self.type.values, self.name

    @property
    def values(self) -> int:
        """Values of a block."""
        return self.type.values

    @property
    def size_bytes(self) -> int:
        """The bytes of a block; of an interleaved layout, in memory."""
        return sum(self.layout.values())

    def permuted(self, x: Tensor) -> Tensor:
        """Permute values [.., n] to the order of the quants."""
        return _transposed_runs(x, *self.order)

    def values_of(self, codes: Codes) -> Tensor:
        """Return decoded values in their own order, [.., values]."""
        sizes, axes = self.order
        return _transposed_runs(
            codes.values(), tuple([sizes[n] for n in axes]), tuple([axes.index(n) for n in range(len(axes))])
        )

    def words(self) -> dict[str, int]:
        """Return for each part how many of its bytes are read together: 1, 2 or 4."""
        return {name: 1 if name in self.single else math.gcd(size, 4) for name, size in self.layout.items()}

    def decode(self, data: Tensor) -> Tensor:
        """Decode blocks: uint8 [.., size_bytes] to float32 [.., values].

        Raises:
            ShapeError, DTypeError: the tensor does not contain blocks of this type.
        """
        if data.dtype is not dtypes.uint8:
            raise DTypeError(f"decode: {self.name} blocks of {data.dtype.name}. Give their bytes as uint8.")
        if not data.ndim or data.shape[-1] != self.size_bytes:
            raise ShapeError(
                f"decode: {self.name} blocks of shape {show_shape(data.uop.shape)}: the last axis is the "
                f"{self.size_bytes} bytes of a block. Reshape the bytes to (.., {self.size_bytes})."
            )
        return self.values_of(self.codes(data))

    def codes(self, data: Tensor) -> Codes:
        """Unpack blocks to quants with their scales: uint8 [.., size_bytes] to [.., values]."""
        return self.read(**self.parts(data))

    def parts(self, data: Tensor) -> dict[str, Tensor]:
        """Split blocks into their parts by name: uint8 [.., size_bytes] to [.., size of the part] each."""
        return dict(zip(self.layout, data.split(list(self.layout.values()), axis=-1), strict=True))

    def encode(self, x: Tensor, importance: Tensor | None = None) -> Tensor:
        """Values as blocks: [.., values] to uint8 [.., size_bytes].

        `importance`: of each value, the weight of its squared error, at least 0; types without a search for scales do
        not use it. Shapes: as x. Dtypes: float32.

        Raises:
            FormatError: kernmill only reads this type.
            ShapeError, DTypeError: the tensor has no blocks of values.
        """
        if self.write is None:
            raise FormatError(f"encode: kernmill reads {self.name} and does not write it. Choose another type.")
        if not x.dtype.is_float:
            raise DTypeError(f"encode: {self.name} of a {x.dtype.name} tensor. Cast it with .float().")
        if not x.ndim or x.shape[-1] != self.values:
            raise ShapeError(
                f"encode: {self.name} of shape {show_shape(x.uop.shape)}: the last axis is the {self.values} values "
                f"of a block. Reshape the tensor to (.., {self.values})."
            )
        parts = self.write(x.float(), importance) if self.weighs else self.write(x.float())
        return cat([parts[name] for name in self.layout], axis=-1)


def _transposed_runs(x: Tensor, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
    """Transpose the axes of each run of `sizes` values: [.., n]."""
    if not axes:
        return x
    runs = x.unflatten(-1, (x.shape[-1] // math.prod(sizes), *sizes))
    first = runs.ndim - len(sizes)
    return runs.permute(*range(first), *[first + n for n in axes]).flatten(first - 1)
