"""The model of n machines: closed forms, counts, and the table."""

from __future__ import annotations

import math

import pytest

from bench.scale import (
    LINKS,
    SHAPES,
    Machine,
    Shape,
    counts,
    layer_ns,
    main,
    most_that_pay,
    sum_ns,
    tensor_ns,
    training_ns,
)
from kernmill.ir import Link

MACHINE = Machine(10.0, 100.0, 0.0)
FREE = Link(0.0, math.inf)


def test_weights_are_those_of_the_models() -> None:
    """Embeddings apart, which a token does not read: Llama 2 7B has 6.74 billion weights, 131 million of them there."""
    assert SHAPES["7B"].weights(active=True) == pytest.approx(6.61e9, rel=0.01)
    assert SHAPES["70B"].weights(active=True) == pytest.approx(68.7e9, rel=0.01)
    assert SHAPES["gpt-oss-20b"].weights(active=False) == pytest.approx(20.3e9, rel=0.02)
    assert SHAPES["gpt-oss-20b"].weights(active=True) == pytest.approx(3.6e9, rel=0.02)


@pytest.mark.parametrize("name", SHAPES)
def test_links_without_cost_divide_the_reads(name: str) -> None:
    shape = SHAPES[name]
    alone = tensor_ns(shape, MACHINE, FREE, 1)
    assert alone == layer_ns(shape, MACHINE, FREE, 8) == pytest.approx(shape.token_bytes / 10)
    assert tensor_ns(shape, MACHINE, FREE, 8) == pytest.approx(alone / 8)
    assert training_ns(shape, MACHINE, FREE, 8) == training_ns(shape, MACHINE, FREE, 1)


def test_sums_take_the_better_of_two_ways() -> None:
    link = Link(100.0, 1.0)
    assert sum_ns(link, 1, 1000) == 0
    assert sum_ns(link, 8, 4) == 3 * 104
    assert sum_ns(link, 8, 8e6) == 14 * (100 + 1e6)


def test_gradients_are_summed_while_backward_goes_on() -> None:
    """A link as fast as backward costs the last bucket only; a slow one costs its own time."""
    shape = SHAPES["7B"]
    alone, whole = training_ns(shape, MACHINE, FREE, 1), 4.0 * shape.weights(active=False)
    fast, slow = (Link(1_000.0, factor * whole / alone) for factor in (10, 0.1))
    assert training_ns(shape, MACHINE, fast, 2) == pytest.approx(alone, rel=0.01)
    assert training_ns(shape, MACHINE, slow, 2) == pytest.approx(alone / 3 + sum_ns(slow, 2, whole), rel=0.01)


def test_ranks_pay_off_up_to_a_number() -> None:
    assert most_that_pay(lambda n: 100 / n + n) == 8
    assert most_that_pay(lambda n: 1.0) == 1
    assert most_that_pay(lambda n: 1 / n) == 1024


def test_counts_of_a_token() -> None:
    assert counts(Shape(64, 5, 172, 8, 4, 8, 512), 4) == {"all_reduce": (11, 11 * 256), "all_gather": (1, 512)}


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rates", "10", "100"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n| ") == 1 + 1 + len(SHAPES) * len(LINKS)
    with pytest.raises(SystemExit):
        main(["--check", "model.gguf"])
