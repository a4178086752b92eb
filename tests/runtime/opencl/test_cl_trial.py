"""What a driver's functions cost: measured where it is right, told where it is much."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.quant import QuantizedTensor, block_type
from kernmill.renderers import OpenCLRenderer
from kernmill.runtime import cl_trial, get_device, host, ops_cl

OLD = cl_trial.ClCosts(("fma", "load"), (0.8, 0.1), (0.6, 0.1), 0.1)


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was measured when the device was opened, on a busy machine perhaps, is no part of these tests."""
    with Context(CACHE_DIR=str(tmp_path_factory.mktemp("measured"))):
        yield


def measured(device: str, monkeypatch: pytest.MonkeyPatch, **forms: tuple[str, str]) -> cl_trial.ClCosts:
    """With other texts of a form; few rounds, since no time is looked at."""
    opened: Any = get_device(device)
    monkeypatch.setattr(cl_trial, "_FORMS", {**cl_trial._FORMS, **forms})
    monkeypatch.setattr(cl_trial, "_ROUNDS", 1)
    monkeypatch.setattr(cl_trial, "_NOT_SLOWER", float("inf"))
    return cl_trial.measured_costs(opened.cl, opened.queue, opened.facts, host.this_host())


def test_forms_without_functions_are_found_once(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = measured(opencl, monkeypatch)
    assert {"fma", "load"} <= set(costs.plain)
    assert all(ns > 0 for ns in (*costs.fma_ns, *costs.load_ns, costs.cpu_fma_ns))
    monkeypatch.setattr(cl_trial, "_compare_forms", lambda *given: pytest.fail("measured again"))
    opened: Any = get_device(opencl)
    assert cl_trial.measured_costs(opened.cl, opened.queue, opened.facts, host.this_host()) == costs


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("fma", "(a) * (b)"),  # forgets the sum
        ("fma", "product_of(a, b) + c"),  # not in the language
        ("load", "vload{lanes}(0, p - 1)"),
        ("hints", "(void)(x)"),
        ("dots", "(vector)(25.0f)"),
    ],
)
def test_a_form_that_is_refused_or_wrong_is_not_used(
    opencl: str, monkeypatch: pytest.MonkeyPatch, form: str, text: str
) -> None:
    before = measured(opencl, monkeypatch)
    costs = measured(opencl, monkeypatch, **{form: (cl_trial._FORMS[form][0], text)})
    assert set(costs.plain) == {*before.plain} - {form}


def test_a_slower_form_is_not_used(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cl_trial, "_best_ns", lambda form, *trials: (1.0, 2.0) if form == "fma" else (2.0, 1.0))
    opened: Any = get_device(opencl)
    assert cl_trial._compare_forms(opened.cl, opened.queue, 4, host.this_host(), ("fma", "load")).plain == ("load",)


def test_forms_of_a_cpu_are_not_tried_on_other_drivers(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: Mesa's compiler ends the process for a builtin that SPIR-V does not have."""
    opened: Any = get_device(opencl)
    tried: list[Any] = []

    def compare(*given: Any) -> Any:
        tried.append(given[-1])
        return cl_trial.ClCosts()

    monkeypatch.setattr(cl_trial, "_compare_forms", compare)
    for platform in ("rusticl", "Portable Computing Language"):
        facts = replace(opened.facts, platform=platform, name=f"of {platform}")
        cl_trial.measured_costs(opened.cl, opened.queue, facts, host.this_host())
    assert tried == [["fma", "load"], ["fma", "load", "hints", "dots"]]


def test_what_is_said_of_a_driver() -> None:
    assert (
        OLD.line()
        == "functions: fma() 8.0 times an operator, vload() 6.0 times a pointer; kernels do without: fma, load"
    )
    assert "a function of the language costs 8 times an operator. Install a newer one" in OLD.warning()
    slow = OLD._replace(fma_ns=(1.0, 0.9), load_ns=(1.0, 1.0))
    assert "a sum of products takes 9 times as long as this CPU needs" in slow.warning()
    good = slow._replace(cpu_fma_ns=0.8)
    assert (good.warning(), cl_trial.ClCosts().warning(), cl_trial.ClCosts().line()) == ("", "", "")


def test_a_slow_driver_is_told_of_once(
    opencl: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cl_trial, "_compare_forms", lambda *given: OLD)
    monkeypatch.setattr(cl_trial, "_SOURCE", "another program: another key")
    opened: Any = get_device(opencl)
    with caplog.at_level(logging.WARNING, "kernmill"):
        for _ in range(2):
            assert cl_trial.measured_costs(opened.cl, opened.queue, opened.facts, host.this_host()) == OLD
    assert [record.message.partition(": ")[0] for record in caplog.records] == ["CL"]


@pytest.mark.parametrize("plain", [(), ("dots", "load")], ids=["vectors of 16 lanes", "wider ones"])
@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_S"])
def test_codebook_weights_by_several_rows_with_vectors_of_16_bytes(
    opencl: str, name: str, plain: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Named regression: a SHUFFLE of more lanes than the language has was an IndexError on such a driver."""
    opened: Any = get_device(opencl)
    texts: list[str] = []
    kind = block_type(name)

    def compiled(name: str, source: str) -> bytes:
        texts.append(source)
        return source.encode()

    with Context(DEVICE="NULL", CACHE_DIR=str(tmp_path)):
        device = get_device("NULL")
        target = ops_cl.cl_target(replace(opened.facts, float_lanes=4), plain=plain)
        assert target.vector_bytes == 16
        monkeypatch.setattr(device, "renderer", OpenCLRenderer(target), raising=False)
        monkeypatch.setattr(device, "compile", compiled)
        blocks = Tensor(np.zeros((32, 1, kind.size_bytes), np.uint8))
        QuantizedTensor(blocks, name, (32, kind.values)).interleaved().linear(Tensor.zeros(9, kind.values)).realize()
    assert texts


def test_times_of_a_busy_machine_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: one form met only slow rounds, and kernels never used it."""
    monkeypatch.setattr(cl_trial, "_ROUNDS", 1)
    pairs = [(1.0, 9.0), (1.0, 2.0), (1.0, 1.0), (1.0, 1.0), (5.0, 5.0)]
    columns = [iter(column) for column in zip(*pairs, strict=True)]
    nanoseconds = cl_trial._COUNT * cl_trial._CHAINS
    trials: Any = [SimpleNamespace(run=lambda *given, c=column: ([], next(c) * nanoseconds)) for column in columns]
    assert cl_trial._best_ns("fma", *trials) == (1.0, 1.0)
    assert [next(column) for column in columns] == [5.0, 5.0]


def test_a_driver_that_ends_long_loops_is_named() -> None:
    """Mesa's llvmpipe ends all loops of a work-item after 65,535 iterations: rows of a large softmax were wrong."""
    said = OLD._replace(iterations=65_535).warning()
    assert said.startswith("this driver ends loops after 65,535 iterations without an error, so results of large")
    assert said.endswith("or DEVICE=LLVM.")
    assert "ends loops" not in OLD.warning()


def test_loops_of_this_driver_run_to_their_end(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(opencl, monkeypatch).iterations == cl_trial.ClCosts().iterations
