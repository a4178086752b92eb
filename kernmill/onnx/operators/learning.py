"""Training steps of the preview domain, and the models of classical learning (ai.onnx.ml)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernmill.ir import ShapeError

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator
from ..values import Host, Known, Value, tensor_of

_TRAINING, _ML = "ai.onnx.preview.training", "ai.onnx.ml"


def _each(parts: Sequence[Tensor], kinds: int, step: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Apply a step to the i-th of each kind; results in the order of kinds."""
    count = len(parts) // kinds
    rows = [step(*parts[i::count]) for i in range(count)]
    return tuple(t for column in zip(*rows, strict=True) for t in column)


@operator("Adagrad", domain=_TRAINING)
def adagrad(
    rate: Tensor, step: Tensor, *parts: Tensor, decay_factor: float = 0.0, epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    r = rate / (1 + step.cast(rate.dtype) * decay_factor)

    def run(x: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        g = g + x * norm_coefficient
        h = h + g * g
        return x - r * g / (h.sqrt() + epsilon), h

    return _each(parts, 3, run)


@operator("Adam", domain=_TRAINING)
def adam(
    rate: Tensor, step: Tensor, *parts: Tensor, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
    norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    t = step.cast(rate.dtype)
    fixed = rate * (1 - rate._own(beta) ** t).sqrt() / (1 - rate._own(alpha) ** t)
    r = where(step.gt(0), fixed, rate)

    def run(x: Tensor, g: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        g = g + x * norm_coefficient
        v, h = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
        return (x - r * v / (h.sqrt() + epsilon)) * (1 - norm_coefficient_post), v, h

    return _each(parts, 4, run)


@operator("Momentum", domain=_TRAINING)
def momentum(
    rate: Tensor, step: Tensor, *parts: Tensor, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Tensor, ...]:
    part = where(step.gt(0), rate._own(beta), rate._own(1))

    def run(x: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        g = g + x * norm_coefficient
        v = v * alpha + g * part
        return x - rate * (g + v * alpha if mode == "nesterov" else v), v

    return _each(parts, 3, run)


@operator("ArrayFeatureExtractor", domain=_ML)
def array_feature_extractor(x: Tensor, index: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])[:, index.reshape(-1)].reshape(*x.shape[:-1], -1)


@operator("Binarizer", domain=_ML)
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    return x.gt(threshold).cast(x.dtype)


@operator("LabelEncoder", domain=_ML)
def label_encoder(
    x: Host, *, keys_tensor: Value = None, keys_int64s: Sequence[int] | None = None,
    keys_floats: Sequence[float] | None = None, keys_strings: Sequence[str] | None = None, values_tensor: Value = None,
    values_int64s: Sequence[int] | None = None, values_floats: Sequence[float] | None = None,
    values_strings: Sequence[str] | None = None, default_tensor: Value = None, default_int64: int = -1,
    default_float: float = -0.0, default_string: str = "_Unused",
) -> Any:  # fmt: skip
    kinds: Sequence[tuple[Any, Any, Any]] = (
        (values_int64s, default_int64, np.int64), (values_floats, default_float, np.float32),
        (values_strings, default_string, object),
    )  # fmt: skip
    keys = keys_tensor.array.tolist() if isinstance(keys_tensor, Known) else None
    keys = keys or keys_int64s or keys_floats or keys_strings or ()
    if isinstance(values_tensor, Known):
        values, kind = values_tensor.array.tolist(), values_tensor.array.dtype
        default = default_tensor.array.item() if isinstance(default_tensor, Known) else kind.type(-1)
    else:
        values, default, kind = next((v, d, k) for v, d, k in kinds if v is not None)
    table = {_key(k): v for k, v in zip(keys, values, strict=True)}
    found = [table.get(_key(v), default) for v in x.ravel().tolist()]
    return np.array(found, dtype=kind).reshape(x.shape)


def _key(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


_TESTS: Sequence[Callable[[Any, Any], Any]] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal,
)  # fmt: skip


@operator("TreeEnsemble", domain=_ML)
def tree_ensemble(
    x: Host, *, aggregate_function: int = 1, leaf_targetids: Sequence[int], leaf_weights: Value,
    membership_values: Value = None, n_targets: int = 1, nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int], nodes_featureids: Sequence[int], nodes_hitrates: Value = None,
    nodes_missing_value_tracks_true: Sequence[int] = (), nodes_modes: Value, nodes_splits: Value,
    nodes_trueleafs: Sequence[int], nodes_truenodeids: Sequence[int], post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Value:  # fmt: skip
    """Every example walks down each tree, on the host: one branch of every tree in each step."""
    modes, splits = tensor_of(nodes_modes).numpy(), tensor_of(nodes_splits).numpy()
    weights = tensor_of(leaf_weights).numpy()
    members = _members(modes, membership_values)
    found: list[list[list[float]]] = []
    for row in x:
        targets: list[list[float]] = [[] for _ in range(n_targets)]
        for root in tree_roots:
            node, is_leaf, steps = int(root), False, 0
            while not is_leaf:
                value = row[nodes_featureids[node]]
                mode = int(modes[node])
                yes = value in members[node] if mode == 6 else bool(_TESTS[mode](value, splits[node]))
                if np.isnan(value) and nodes_missing_value_tracks_true:
                    yes = bool(nodes_missing_value_tracks_true[node])
                is_leaf = bool((nodes_trueleafs if yes else nodes_falseleafs)[node])
                node = (nodes_truenodeids if yes else nodes_falsenodeids)[node]
                steps += 1
                if steps > len(modes):
                    raise ShapeError("TreeEnsemble: a branch leads back to a node above it. Change the model.")
            targets[leaf_targetids[node]].append(float(weights[node]))
        found.append(targets)
    kinds: dict[int, Callable[[list[float]], float]] = {
        0: lambda v: sum(v) / len(tree_roots), 1: sum, 2: min, 3: max,
    }  # fmt: skip
    gather = kinds[aggregate_function]
    scores = Tensor(np.array([[gather(v) if v else 0.0 for v in row] for row in found], x.dtype))
    return _transformed(scores, post_transform)


def _members(modes: Any, values: Value) -> dict[int, set[float]]:
    groups: list[set[float]] = [set()]
    for value in tensor_of(values).numpy().tolist() if values is not None else ():
        if math.isnan(value):
            groups.append(set())
        else:
            groups[-1].add(value)
    members = [i for i, mode in enumerate(modes) if mode == 6]
    return dict(zip(members, groups, strict=False))


def _transformed(scores: Tensor, kind: int) -> Tensor:
    if kind == 1:
        return scores.softmax(-1)
    if kind == 2:
        return scores.sigmoid()
    if kind == 3:
        e = where(scores.eq(0), scores._own(0), (scores - scores.max(-1, True)).exp())
        return e / e.sum(-1, True)
    if kind == 4:
        raise ShapeError("TreeEnsemble: the transform PROBIT is not supported. Change the model.")
    return scores
