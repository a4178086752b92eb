"""Mixtures of experts: which experts a token takes, and the sum of what they make of it.

    scores = softmax(router(x)), or sigmoid, ..     of each expert
    y = sum of weight * expert(x) over the `used` experts with the largest scores

One token reads the weights of its own experts only. A batch of tokens is sorted by expert. Rows with the same expert
are multiplied together, in tiles of as many rows as an expert has on average. Where the matrix of an expert stays in a
cache from tile to tile, these have few rows, so that less of them is padding.
Tests: tests/kernmill/llm/arch/test_experts.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from kernmill import Tensor, where

from ...quant import rows_of_tile
from .config import Config, Experts

__all__ = ["Choice", "apart", "chosen_experts", "expert_shapes"]

Expert = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_LEAST = 6.103515625e-5  # of a sum of weights: the smallest normal float16, as in llama.cpp


def expert_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of the experts of a layer, by its name in the layer."""
    e = c.experts
    if not e.count:
        return {}
    here = e.here or e.count
    shared = {
        "ffn_gate_inp_shexp.weight": (c.width,),
        "ffn_gate_shexp.weight": (e.shared_width, c.width),
        "ffn_up_shexp.weight": (e.shared_width, c.width),
        "ffn_down_shexp.weight": (c.width, e.shared_width),
    }
    return {
        "ffn_gate_inp.weight": (e.count, c.width),
        "ffn_gate_inp.bias": (e.count,),
        "exp_probs_b.bias": (e.count,),
        "ffn_gate_exps.weight": (here, e.width, c.width),
        "ffn_up_exps.weight": (here, e.width, c.width),
        "ffn_down_exps.weight": (here, c.width, e.width),
        "ffn_gate_exps.bias": (here, e.width),
        "ffn_up_exps.bias": (here, e.width),
        "ffn_down_exps.bias": (here, c.width),
        **(shared if e.shared_width else {}),
    }


class Choice(NamedTuple):
    """The experts of each token, and how much each of them counts. Shapes: (tokens, used) each."""

    ids: Tensor
    weights: Tensor


def chosen_experts(logits: Tensor, e: Experts, bias: Tensor | None = None) -> Choice:
    """The choice by the logits of a router. The bias is added for the choice only, not to the weights.

    Shapes: logits (tokens, experts), bias (experts,).
    """
    if e.gating == "sigmoid":
        scores = logits.sigmoid()
    elif e.gating == "softmax":
        scores = logits.softmax(-1)
    else:  # "chosen": a softmax over the chosen logits
        scores = logits
    by = scores if bias is None else scores + bias
    by = _best_groups(by, e) if e.groups > 1 else by
    ids = by.topk(e.used)[1].contiguous()
    weights = scores.gather(-1, ids)
    if e.gating == "chosen":
        weights = weights.softmax(-1)
    if e.is_normed:
        weights = weights / weights.sum(-1, keepdim=True).clamp(_LEAST)
    return Choice(ids, (weights * e.scale if e.scale != 1 else weights).contiguous())


def _best_groups(scores: Tensor, e: Experts) -> Tensor:
    """The scores of experts in the best groups; -inf for the others. A group counts by the sum of its two best."""
    groups = scores.unflatten(-1, (e.groups, -1))
    best = groups.topk(min(2, groups.shape[-1]))[0].sum(-1)
    of_group = best.topk(e.groups_used)[1].contiguous()
    is_best = of_group.unsqueeze(-1).eq(Tensor.arange(e.groups)).any(-2)
    return where(is_best.unsqueeze(-1), groups, groups._filled(-math.inf)).flatten(-2)


def apart(x: Tensor, choice: Choice, count: int, expert: Expert, matrix_bytes: int) -> Tensor:
    """The sum over the experts of each token, weighted.

    `expert` computes rows of x with one expert for each tile of rows: (tiles, rows, width) and ids (tiles,) give
    (tiles, rows, width). Its third argument is the number of rows of each tile that are of a token; None: all are.
    `count` is the number of experts, and `matrix_bytes` the size of one matrix of an expert.
    Shapes: x (tokens, width) or, with rows of their own for each expert of a token, (tokens, used, width).
    """
    tokens, used = choice.ids.shape
    pairs = tokens * used
    rows = x.unsqueeze(1).expand(tokens, used, x.shape[-1]) if x.ndim == 2 else x
    rows = rows.reshape(pairs, rows.shape[-1])
    tile = 1 << max(0, (pairs // count).bit_length() - 1)
    tile = rows_of_tile(tile, matrix_bytes, x.device)
    if tile == 1:  # experts have a row or none
        made = expert(rows.unsqueeze(1), choice.ids.flatten(), None).squeeze(1)
    else:
        tiles = _Tiles.of(choice.ids.flatten(), count, tile)
        made = expert(rows[tiles.pairs].contiguous(), tiles.experts, tiles.counts).contiguous()
        made = made.flatten(0, 1)[tiles.positions]
    return (made.reshape(tokens, used, -1) * choice.weights.unsqueeze(-1)).sum(1)


class _Tiles(NamedTuple):
    """Pairs of a token and an expert, sorted by expert, each expert's pairs filled up to whole tiles.

    `experts` is the expert of each tile, and `counts` says how many of its rows have a pair. `pairs` are the numbers of
    the pairs in a tile; a row that is left over has any. `positions` is the row of each pair, counted over all tiles.
    Shapes: experts and counts (tiles,), pairs (tiles, rows), positions (pairs,).
    """

    experts: Tensor
    counts: Tensor
    pairs: Tensor
    positions: Tensor

    @classmethod
    def of(cls, ids: Tensor, count: int, rows: int) -> _Tiles:
        """By a counting sort. Shapes: ids (pairs,)."""
        pairs = ids.shape[0]
        is_of = ids.unsqueeze(-1).eq(Tensor.arange(count)).int()  # (pairs, experts)
        so_far = is_of.cumsum(0)
        sizes = so_far[-1]
        tiles = (sizes + (rows - 1)) // rows  # of each expert
        ends = tiles.cumsum().contiguous()
        most = pairs // rows + min(count, pairs)
        before = (so_far - 1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        positions = ((ends - tiles)[ids] * rows + before).contiguous()
        tile = Tensor.arange(most)
        experts = ends.unsqueeze(0).le(tile.unsqueeze(-1)).int().sum(-1).clamp(0, count - 1).contiguous()
        left = sizes[experts] - (tile - (ends - tiles)[experts]) * rows  # less than none for a tile behind the last one
        sorted_pairs = Tensor.zeros(most * rows, dtype=positions.dtype).scatter(
            0, positions, Tensor.arange(pairs).cast(positions.dtype)
        )
        return cls(
            experts, left.clamp(0, rows).int().contiguous(), sorted_pairs.contiguous().reshape(most, rows), positions
        )
