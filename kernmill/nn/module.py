"""class Module: the base of layers: finding their tensors by name, training or not, state in and out."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from kernmill.ir import FormatError, current_origin, show_shape

from ..arguments import refuse, with_sentences, with_sentences_at_init
from ..lazy import is_training
from ..methods.other_names import MODULE, no_attribute
from ..tensor import Tensor

__all__ = ["Module", "give_values", "pending_updates"]

_owners: weakref.WeakKeyDictionary[Module, tuple[weakref.ref[Any], str]] = weakref.WeakKeyDictionary()
_updated: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


class Module:
    """A layer, or a model made of layers.

    Subclasses set tensors, modules, and lists or dicts of them as attributes and write `forward`. Tensors with
    `requires_grad` are parameters; the others are state, such as running statistics. Attributes that start with `_` are
    neither.
    """

    _mode: bool | None = None  # None: it trains, but in `with train(False):`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        with_sentences_at_init(cls)

    if not TYPE_CHECKING:  # to a checker it would be every name that there could be

        def __getattr__(self, name: str) -> Any:
            """Raise the error for an unknown attribute, with the replacement of another library's name."""
            raise no_attribute(self, name, MODULE)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer's result; calling the layer calls this."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(). Write one in the class.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The same as forward."""
        outer, suffix = current_origin.layer, current_origin.suffix
        current_origin.layer, current_origin.suffix = self, _layer_suffix(self, outer, suffix)
        try:
            return self.forward(*args, **kwargs)
        except Exception as error:
            if type(self).__module__.startswith(f"{__name__.partition('.')[0]}.nn."):
                refuse(error, self.forward, args, kwargs)
            raise
        finally:
            current_origin.layer, current_origin.suffix = outer, suffix

    # --- content
    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every tensor below, with its dotted name; a tensor that is used twice appears under its first name."""
        seen: set[int] = set()
        for name, found in _walk(self, prefix, set()):
            if isinstance(found, Tensor) and id(found) not in seen:
                seen.add(id(found))
                yield name, found

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter with its dotted name."""
        return ((name, tensor) for name, tensor in self.named_tensors() if tensor.requires_grad)

    def parameters(self) -> list[Tensor]:
        """Return every parameter, for an optimizer."""
        found = list(self.named_parameters())
        for name, tensor in found:
            tensor._path = name
        return [tensor for _, tensor in found]

    def modules(self) -> list[Module]:
        """This module and every module below."""
        return [self, *(found for _, found in _walk(self, "", set()) if isinstance(found, Module))]

    # --- training
    @property
    def training(self) -> bool:
        """True in training mode: the last of train() or eval(); initially True, as PyTorch's, but False in a block
        `with train(False):`."""
        return is_training() if self._mode is None else self._mode

    @training.setter
    def training(self, mode: bool) -> None:
        self._mode = mode

    def train(self, mode: bool = True) -> Self:
        """From now on behave as in training: dropout drops, batch norm measures its batch."""
        for module in self.modules():
            module._mode = mode
        return self

    def eval(self) -> Self:
        """From now on behave as when the model is used."""
        return self.train(False)

    # --- state
    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name: parameters and running statistics."""
        return dict(self.named_tensors())

    @with_sentences
    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Self:
        """Give the tensors of this module the values of `state` (tensors or arrays), cast to their dtypes.

        Nothing changes when anything does not fit. With `strict=False` names that are only on one side are passed over.
        A tensor with several names, as that of two layers that share it, is found by each: PyTorch's state has them
        all, a file of safetensors any one.

        Raises:
            FormatError: names that are missing or unknown, shapes that differ.
        """
        remedy = "Build the module with the sizes of the file, or load with strict=False to ignore names that differ."
        own = self.state_dict()
        first = {id(tensor): name for name, tensor in own.items()}
        known = {
            name if name in own else first.get(id(_at(self, name)), name): value
            for name, value in state.items()
            if not _is_counter(name, own)
        }
        give_values(self, own, known, remedy, strict=strict)
        return self

    # --- showing
    def __repr__(self) -> str:
        children = [(name, value) for name, value in vars(self).items() if isinstance(value, Module)]
        if not children:
            return f"{type(self).__name__}({self._shown()})"
        lines = [f"  {name}: {value!r}".replace("\n", "\n  ") for name, value in children]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def _shown(self) -> str:
        return ", ".join(f"{name}{tuple(t.shape)}" for name, t in vars(self).items() if isinstance(t, Tensor))

    def _update(self, state: Tensor, value: Tensor) -> None:
        """Give a running statistic its new value; the next optimizer step computes it together with the parameters."""
        state.assign(value)
        _updated[id(state)] = state


def _layer_suffix(layer: Module, outer: Any, suffix: str) -> str:
    """Return the end of the origins of what a layer computes: its path in the outermost module that is called."""
    if outer is None:
        return f" in {type(layer).__name__}"
    try:
        known = _owners.get(layer)
    except TypeError:  # its class has equality and no hash
        return suffix
    if known is None or known[0]() is not outer:
        name = next((name for name, found in _walk(outer, "", set()) if found is layer), "")
        known = _owners[layer] = weakref.ref(outer), name
    return f"{suffix}.{known[1]}" if known[1] else suffix


def give_values(
    holder: object, own: Mapping[str, Tensor], state: Mapping[str, Any], remedy: str, *, strict: bool = True
) -> None:
    """Give the tensors of a module or an optimizer the values under their names, all or none.

    Raises:
        FormatError: names that are missing or unknown, shapes that differ.
    """
    given = {name: value if isinstance(value, Tensor) else Tensor(value) for name, value in state.items()}
    faults = [] if not strict else [
        *_listed("missing", [name for name in own if name not in given]),
        *_listed("unexpected", [name for name in given if name not in own]),
    ]  # fmt: skip
    both = [name for name in own if name in given]
    kind = "module" if isinstance(holder, Module) else "optimizer"
    faults += [
        f"{name} has shape {show_shape(given[name].uop.shape)}, the {kind} {show_shape(own[name].uop.shape)}"
        for name in both
        if given[name].uop.shape != own[name].uop.shape
    ]
    if faults:
        raise FormatError(f"load_state_dict: {type(holder).__name__}: {'; '.join(faults)}. {remedy}")
    for name in both:
        tensor = own[name]
        tensor.assign(given[name].detach().cast(tensor.dtype).to(tensor.device))
    if both:
        own[both[0]].realize(*(own[name] for name in both[1:]))


def _is_counter(name: str, own: Mapping[str, Tensor]) -> bool:
    """PyTorch's batch norms count batches, which only one without a momentum needs."""
    layer = name.removesuffix("num_batches_tracked")
    return layer != name and name not in own and f"{layer}running_mean" in own


def pending_updates() -> list[Tensor]:
    """Running statistics that were given new values but are not computed yet."""
    found = [tensor for tensor in list(_updated.values()) if not tensor.is_realized]
    _updated.clear()
    return found


def _walk(holder: object, prefix: str, seen: set[int]) -> Iterator[tuple[str, Module | Tensor]]:
    """Modules and tensors below a module, list or dict, by dotted name."""
    if id(holder) in seen:
        return
    seen.add(id(holder))
    for name, value in _items(holder):
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Tensor):
            yield path, value
        elif isinstance(value, (Module, list, tuple, dict)):
            if isinstance(value, Module) and id(value) not in seen:
                yield path, value
            yield from _walk(value, path, seen)


def _items(holder: object) -> Iterator[tuple[str, object]]:
    if isinstance(holder, Module):
        yield from ((name, value) for name, value in vars(holder).items() if not name.startswith("_"))
    elif isinstance(holder, dict):
        yield from ((str(key), value) for key, value in holder.items())
    elif isinstance(holder, (list, tuple)):
        yield from ((str(i), value) for i, value in enumerate(holder))


def _at(holder: object, path: str) -> object:
    """Return the value at a dotted name below a module, None if there is none."""
    for name in path.split("."):
        holder = dict(_items(holder)).get(name)
    return holder


def _listed(word: str, names: list[str]) -> list[str]:
    """`missing a, b, c and 4 more`, or nothing."""
    if not names:
        return []
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return [f"{word} {', '.join(names[:8])}{more}"]
