"""class LayerTemplates: layers with the same structure are built once; the first one's graph is reused with the data of
the others.

Building a layer takes hundreds of calls, and all layers of a model make the same ones. The differences are known by
name: the result of the layer before, weights, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from kernmill import Tensor
from kernmill.ir import Ops, UOp, dtypes, substitute

from ..captures.ownership import stored
from ..quant import FloatMatrix, QuantizedTensor
from .adapters import AdaptedMatrix
from .arch import Weight

__all__ = ["LayerTemplates"]


@dataclass(frozen=True, slots=True)
class _First:
    """A layer that was built: its inputs, and a SINK of its result and its assignments."""

    given: list[UOp]
    made: UOp


class LayerTemplates:
    """The layers of one pass."""

    def __init__(self) -> None:
        self._first: dict[Hashable, _First] = {}

    def layer(
        self,
        kind: Hashable,
        x: Tensor,
        weights: Sequence[Weight],
        changed: Sequence[Tensor],
        build: Callable[[], Tensor],
    ) -> Tensor:
        """Return the result of `build` for x. Its only other inputs are `weights` and `changed`, tensors that it
        assigns.

        Layers of one `kind` call the same functions; this function checks that their tensors are alike.
        """
        key, memory = _look([*weights, *changed])
        counts = tuple(len(weight.parts) for weight in weights if isinstance(weight, AdaptedMatrix))
        key = None if x.requires_grad else key and (kind, counts, x.uop.shape, x.dtype, key)
        given = [x.uop, *memory]
        first = self._first.get(key)
        if key is None or first is None:
            result = build()
            if key is not None and _is_apart(given, made := _sink([result, *changed])):
                self._first[key] = _First(given, made)
            return result
        node, *after = substitute(first.made, dict(zip(first.given, given, strict=True))).src
        for tensor, assigned in zip(changed, after, strict=True):
            tensor.replace(Tensor._make(assigned, tensor.device))
        return Tensor._make(node, x.device)


def _sink(tensors: Sequence[Tensor]) -> UOp:
    return UOp(Ops.SINK, dtypes.void, tuple(tensor.uop for tensor in tensors))


def _parts_of(weights: Sequence[Weight]) -> list[Weight]:
    """Return weights, of adapted ones all matrices in them."""
    found: list[Weight] = []
    for weight in weights:
        found += weight.parts if isinstance(weight, AdaptedMatrix) else [weight]
    return found


def _look(weights: Sequence[Weight]) -> tuple[Hashable, list[UOp]]:
    """Return the properties that tensors must share, and the memory of each; None if one has no row-major memory."""
    looks: list[Hashable] = []
    memory: list[UOp] = []
    for weight in _parts_of(weights):
        form: Hashable = None
        tensor = weight
        if isinstance(weight, QuantizedTensor):
            form, tensor = (weight.form, weight.shape, weight.interleave), weight.data
        elif isinstance(weight, FloatMatrix):
            form, tensor = weight.shape, weight.data
        if not isinstance(tensor, Tensor) or tensor.requires_grad or (node := stored(tensor.uop)) is None:
            return None, []
        if not (tensor.uop is node or (tensor.uop.op is Ops.RESHAPE and tensor.uop.src[0] is node)):
            return None, []
        looks.append((form, tensor.uop.shape, node.shape, tensor.dtype, tensor.device))
        memory.append(node)
    return tuple(looks), memory


def _is_apart(given: Sequence[UOp], made: UOp) -> bool:
    """True if the differences between layers are reached only through their inputs, which are all distinct."""
    x = given[0]
    if len(set(given)) < len(given) or not x.op.is_elementwise:  # movement of a movement is one, and forgets the first
        return False
    seen = set(made.toposort(stop=lambda node: node in given))
    return seen.isdisjoint(x.src)
