"""The sorting network for keys.

The bitonic network sorts by n log(n)**2 / 2 minima and maxima of a key and its partner. Four stages are one kernel: 16
keys at a time, whose numbers differ in four bits, in registers. If the number of keys is symbolic, the index of a key
is the number of smaller ones. Source: Batcher, Sorting networks and their applications (1968).
"""

from __future__ import annotations

from typing import Self

from kernmill.ir import Ops, UOp, expand, iota, reshape, strided

from .creation import Creation
from .elementwise import choose
from .reduce import Reduce

__all__ = ["Sortable"]

_BITS = 4  # of the number of a key, that one kernel exchanges


class Sortable(Reduce, Creation):
    """Tensor methods that treat entries as keys; the base of indexing and of sums at computed indices."""

    def _stored(self) -> Self:
        return self._result(UOp(Ops.CONTIGUOUS, self.dtype, (self.uop,)))

    def _sorted_by_part(self, count: int | None) -> Self:
        """Return indices in the order of int64 values between -2**31 and 2**31, equal ones in the order of their
        indices."""
        size = self.node_shape[-1]
        if not isinstance(size, int):
            keys = self._numbered()._ranked()
        else:
            whole = 1 << max(0, size - 1).bit_length()
            padding = [*((0, 0) for _ in self.node_shape[:-1]), (0, whole - size)]
            keys = self.pad(padding, value=(1 << 31) - 1)._numbered()._merged(count or size)
        wanted = size if count is None else count
        kept = keys._first(wanted) if isinstance(wanted, int) else keys
        indices = kept.bitwise_and(0xFFFFFFFF)
        # known to be in range: not checked again
        return indices.minimum(size - 1) if isinstance(size, int) and size else indices

    def _numbered(self) -> Self:
        """Combine each value with its index below it: keys that are all different."""
        return self.bitwise_left_shift(32).bitwise_or(self._make(iota(self.uop.shape[-1])))

    def _first(self, count: int) -> Self:
        return self.shrink([*(None for _ in self.node_shape[:-1]), (0, count)])

    def _ranked(self) -> Self:
        """Sort distinct keys: the index of a key is the number of smaller ones."""
        index = self._make(iota(self.uop.shape[-1]))
        rank = self.unsqueeze(-2).lt(self.unsqueeze(-1)).sum(-1)
        own = self.unsqueeze(-2)
        return choose(rank.unsqueeze(-2).eq(index.unsqueeze(-1)), own, own._filled(0)).sum(-1)

    def _merged(self, count: int) -> Self:
        """Return the first of these keys in order, at least `count`; their number is a power of two.

        The shape of the keys between two merges is (.., width, blocks): entry w of sorted block b is at [.., w, b], so
        that blocks are merged together. Of two blocks as long as the requested count only the lower half is kept.
        """
        lead, size = self.shape[:-1], self.shape[-1]
        bits = min(_BITS - 1, size.bit_length() - 1)
        keys = self.reshape((*lead, *[2] * bits, size >> bits))
        axes = range(len(lead), len(lead) + bits)
        for bit in axes:
            keys = keys._exchanged(bit, list(axes[: bit - len(lead) + 1]))
            for lower in reversed(axes[: bit - len(lead)]):
                keys = keys._exchanged(lower, [lower])
        keys = keys.permute((*range(len(lead)), *reversed(axes), len(lead) + bits))._stored()
        width, blocks = 1 << bits, size >> bits
        while blocks > 1:
            blocks //= 2
            pairs = keys.reshape((*lead, width, 2, blocks)).transpose(-3, -2)
            if width >= count:
                low, high = (pairs.shrink([*[None] * len(lead), (n, n + 1), None, None]).squeeze(-3) for n in (0, 1))
                keys = low.minimum(high.flip(-2))._untangled(is_pair=False)
            else:
                width *= 2
                keys = pairs.reshape((*lead, width, blocks))._untangled(is_pair=True)
        return keys.reshape((*lead, width))

    def _untangled(self, is_pair: bool) -> Self:
        """Columns that rise and then fall, or two sorted halves of each, in order."""
        *lead, width, blocks = self.shape
        keys, done = self, 1
        while done < width:
            bits = min(_BITS, (width // done).bit_length() - 1)
            keys = keys.reshape((*lead, done, *[2] * bits, width // done >> bits, blocks))
            for bit in range(len(lead) + 1, len(lead) + 1 + bits):
                is_first = is_pair and done == 1 and bit == len(lead) + 1  # the second half is read from its end
                keys = keys._exchanged(bit, list(range(bit, len(lead) + 2 + bits)) if is_first else [bit])
            keys, done = keys._stored(), done << bits
        return keys.reshape(self.shape)

    def _exchanged(self, bit: int, mirrored: list[int]) -> Self:
        """Put the smaller of each and its partner into the first half of an axis of two, the larger one into the
        second.

        Its nodes are made directly, without a method call for each: there is one exchange for each bit of each merge.
        """
        node, axes = self.uop, range(self.ndim)
        side = expand(reshape(iota(2), [2 if axis == bit else 1 for axis in axes]), node.shape)
        other = strided(node, [-1 if axis in mirrored else 1 for axis in axes])
        return self._result((side < 1).where(node.alu(Ops.MIN, other), node.alu(Ops.MAX, other)))
