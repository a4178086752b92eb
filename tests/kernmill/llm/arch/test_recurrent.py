"""Recurrent layers: chunks against single tokens and against plain NumPy in float64; several sequences; wrong sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, FormatError, Tensor
from kernmill.llm import Model
from kernmill.llm.arch import ARCHITECTURES, delta, mamba, mamba2, rwkv6, rwkv7
from kernmill.llm.engine import Engine, GenerationRequest, SamplingOptions
from kernmill.llm.split import SplitOptions
from kernmill.quant import save
from tests.tiny_models import CASES, metadata_of, weights_of, write

Array = np.ndarray[Any, Any]
RECURRENT = [name for name, case in CASES.items() if ARCHITECTURES[case.arch].has_states]
SOME = ["lfm2", "jamba 2", "granitehybrid", "qwen35", "rwkv7"]  # one of each kind of state
IDS = [1, *np.random.default_rng(3).integers(3, 279, 22).tolist()]


def softly(x: Array) -> Array:
    return np.asarray(np.log1p(np.exp(x)))


def of_mamba(x: Array, dt: Array, a: Array, b: Array, c: Array, state: Array) -> Array:
    found = []
    for t in range(x.shape[0]):
        state = state * np.exp(dt[t, :, None] * a) + (dt[t] * x[t])[:, None] * b[t]
        found.append(state @ c[t])
    return np.array([*found])


def of_mamba2(x: Array, dt: Array, a: Array, b: Array, c: Array, state: Array) -> Array:
    found, group = [], x.shape[1] // b.shape[1]
    for t in range(x.shape[0]):
        for h in range(x.shape[1]):
            state[h] = state[h] * np.exp(dt[t, h] * a[h]) + np.outer(dt[t, h] * x[t, h], b[t, h // group])
        found.append([state[h] @ c[t, h // group] for h in range(x.shape[1])])
    return np.array(found)


def of_delta(q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array) -> Array:
    found = []
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            state[h] = state[h] * np.exp(decay[t, h])
            state[h] = state[h] + beta[t, h] * np.outer(v[t, h] - state[h] @ k[t, h], k[t, h])
        found.append([state[h] @ q[t, h] for h in range(q.shape[1])])
    return np.array(found)


def of_wkv6(r: Array, k: Array, v: Array, decay: Array, bonus: Array, state: Array) -> Array:
    found = np.zeros_like(r)
    for h in range(r.shape[0]):
        for t in range(r.shape[1]):
            now = np.outer(k[h, t], v[h, t])
            found[h, t] = r[h, t] @ (state[h] + bonus[h][:, None] * now)
            state[h] = np.exp(decay[h, t])[:, None] * state[h] + now
    return found


def of_wkv7(r: Array, k: Array, v: Array, a: Array, b: Array, decay: Array, state: Array) -> Array:
    found = np.zeros_like(r)
    for h in range(r.shape[0]):
        for t in range(r.shape[1]):
            state[h] = (
                state[h] * np.exp(decay[h, t]) + np.outer(state[h] @ a[h, t], b[h, t]) + np.outer(v[h, t], k[h, t])
            )
            found[h, t] = state[h] @ r[h, t]
    return found


def inputs(kind: str, count: int) -> list[Array]:
    """Random inputs of one sequence; decays are logarithms below 0, keys of delta rules have length 1."""
    chance = np.random.default_rng(count)

    def some(*shape: int) -> Array:
        return chance.standard_normal(shape)

    def of_length_one(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True)))

    if kind == "mamba":
        return [some(count, 6), softly(some(count, 6)), -np.exp(some(6, 5)), some(count, 5), some(count, 5), some(6, 5)]
    if kind == "mamba2":
        return [some(count, 4, 3), softly(some(count, 4)), -np.exp(some(4)), some(count, 2, 5), some(count, 2, 5),
                some(4, 3, 5)]  # fmt: skip
    if kind == "delta":
        return [some(count, 3, 4), of_length_one(some(count, 3, 4)), some(count, 3, 4), -softly(some(count, 3)),
                1 / (1 + np.exp(some(count, 3))), some(3, 4, 4)]  # fmt: skip
    if kind == "rwkv6":
        return [some(2, count, 4), some(2, count, 4), some(2, count, 4), -np.exp(2 * some(2, count, 4)), some(2, 4),
                some(2, 4, 4)]  # fmt: skip
    key = of_length_one(some(2, count, 4))
    return [some(2, count, 4), some(2, count, 4), some(2, count, 4), -key, key / (1 + np.exp(some(2, count, 4))),
            -0.606531 / (1 + np.exp(some(2, count, 4))), some(2, 4, 4)]  # fmt: skip


Expected = Callable[..., Array]
KINDS: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], Expected, int | None]] = {
    "mamba": (mamba.scan, of_mamba, 2),
    "mamba2": (mamba2.scan, of_mamba2, 2),
    "delta": (delta.delta, of_delta, None),
    "rwkv6": (rwkv6._wkv, of_wkv6, 4),
    "rwkv7": (lambda *parts: rwkv7._wkv(parts[:-1], parts[-1]), of_wkv7, None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 5, 90])
def test_states_are_those_of_numpy(kind: str, count: int) -> None:
    function, expected, of_model = KINDS[kind]  # the number of the input that is a weight: it has no sequences
    arrays = inputs(kind, count)
    given = [Tensor(one.astype(np.float32) if n == of_model else one[None].astype(np.float32))
             for n, one in enumerate(arrays)]  # fmt: skip
    y, state = function(*given)
    arrays[-1] = arrays[-1].copy()
    wanted = expected(*arrays)
    scale = float(np.abs(wanted).max())
    np.testing.assert_allclose(y.numpy()[0], wanted, atol=2e-5 * scale)
    if kind != "mamba":  # it makes new states, the others change theirs
        np.testing.assert_allclose(state.numpy()[0], arrays[-1], atol=2e-5 * float(np.abs(arrays[-1]).max()))


def test_keys_that_repeat_lose_no_digits() -> None:
    """The inverse of the chunk's system by its powers would: they grow by binomials."""
    arrays = inputs("delta", 64)
    arrays[1][:], arrays[3][:], arrays[4][:] = arrays[1][0], 0.0, 1.0
    y, _ = delta.delta(*(Tensor(one[None].astype(np.float32)) for one in arrays))
    np.testing.assert_allclose(y.numpy()[0], of_delta(*[one.copy() for one in arrays]), atol=2e-4)


def opened(name: str, folder: Path, **options: Any) -> Model:
    path = write(CASES[name], folder / "model.gguf")
    return Model.from_gguf(path, tokenizer=None, capacity=64, block=8, **options)


@pytest.mark.parametrize("name", RECURRENT)
def test_chunks_are_single_tokens(name: str, tmp_path: Path) -> None:
    model = opened(name, tmp_path)
    whole = model.logits(IDS).numpy()
    model.reset()
    single = np.array([model.next_logits(IDS[: n + 1]) for n in range(len(IDS))])
    np.testing.assert_allclose(single, whole, atol=1e-4 * float(whole.std()))
    np.testing.assert_allclose(model.next_logits(IDS), whole[-1], atol=1e-4 * float(whole.std()))


@pytest.mark.parametrize("name", SOME)
def test_sequences_are_as_alone(name: str, tmp_path: Path) -> None:
    """Padding of the shorter text, and steps after its end, leave its state as it is."""
    prompts = [IDS[:19], IDS[5:8], IDS[:2]]
    alone, together = opened(name, tmp_path), opened(name, tmp_path, sequences=3)
    expected = [list(alone.generate(prompt, max_tokens=6)) for prompt in prompts]
    for order in ([0, 1, 2], [2, 0, 1]):
        steps = [*together.generate_all([prompts[n] for n in order], max_tokens=6)]
        assert [[step[place] for step in steps] for place in range(3)] == [expected[n] for n in order]
    more = [[*prompt, *text, 7] for prompt, text in zip(prompts, expected, strict=True)]
    steps = [*together.generate_all([more[0], more[2]], max_tokens=3)]
    assert [[step[n] for step in steps] for n in range(2)] == [
        list(alone.generate(more[n], max_tokens=3)) for n in (0, 2)
    ]


@pytest.mark.parametrize("name", SOME)
def test_an_engine_writes_the_same(name: str, tmp_path: Path) -> None:
    alone, shared = opened(name, tmp_path), opened(name, tmp_path)
    prompts = [IDS[:21], IDS[3:6], IDS[:9], IDS[:21], [*IDS[:9], 4]]
    expected = [list(alone.generate(prompt, max_tokens=5)) for prompt in prompts]
    with Engine(shared, slots=2, chunk=16) as engine:
        asked = [engine.submit(GenerationRequest(prompt, SamplingOptions(temperature=0), max_tokens=5))
                 for prompt in prompts]  # fmt: skip
        found = [[token for piece in one for token in piece.tokens] for one in asked]
    assert found == expected


def test_the_end_of_the_cache(tmp_path: Path) -> None:
    """A block that would go past it is not begun earlier: a state takes each token once."""
    model = opened("jamba", tmp_path)
    ids = [1, *np.random.default_rng(4).integers(3, 279, 63).tolist()]
    whole = model.logits(ids).numpy()
    model.reset()
    np.testing.assert_allclose(model.next_logits(ids[:61]), whole[60], atol=1e-4 * float(whole.std()))
    np.testing.assert_allclose(model.next_logits(ids), whole[-1], atol=1e-4 * float(whole.std()))


@pytest.mark.parametrize("name", ["qwen35", "mamba2", "rwkv6"])
def test_some_on_opencl(name: str, tmp_path: Path, opencl: str) -> None:
    expected = opened(name, tmp_path).logits(IDS).numpy()
    with Context(DEVICE=opencl):
        model = opened(name, tmp_path)
        np.testing.assert_allclose(model.logits(IDS).numpy(), expected, atol=1e-4 * float(expected.std()))
        np.testing.assert_allclose(model.next_logits(IDS[:9]), expected[8], atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize("name", ["jamba", "rwkv7"])
def test_layers_on_two_devices(name: str, tmp_path: Path, opencl: str) -> None:
    """States are on the device of their layer."""
    expected = opened(name, tmp_path).logits(IDS).numpy()
    model = opened(name, tmp_path, device=f"{opencl},LLVM", wanted=SplitOptions(gpu_layers=2))
    np.testing.assert_allclose(model.logits(IDS).numpy(), expected, atol=1e-4 * float(expected.std()))
    np.testing.assert_allclose(model.next_logits(IDS[:9]), expected[8], atol=1e-4 * float(expected.std()))


FAULTS = [
    ("mamba2", {"ssm.group_count": 3}, "mamba2: ssm.inner_size 128 must be a multiple of ssm.time_step_rank 8, and that"
     " of ssm.group_count 3. Convert the file again."),
    ("qwen35", {"ssm.group_count": 3}, "qwen35: ssm.time_step_rank 4 must be a multiple of ssm.group_count 3, and "
     "ssm.inner_size 64 4 heads of ssm.state_size 16. Convert the file again."),
    ("rwkv7", {"wkv.head_size": 48}, "rwkv7.wkv.head_size is 48: must divide embedding_length 128. Convert the file "
     "again."),
    ("lfm2", {"shortconv.l_cache": 0}, "lfm2.shortconv.l_cache is 0: must be at least 2. Convert the file again."),
    ("mamba", {"ssm.conv_kernel": 1}, "mamba.ssm.conv_kernel is 1: must be at least 2. Convert the file again."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "message"), FAULTS)
def test_sizes_that_do_not_fit(name: str, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "a.gguf"
    tensors = {key: Tensor(array) for key, array in weights_of(case).items()}
    save(path, tensors, metadata_of(replace(case, keys={**case.keys, **keys})))
    with pytest.raises(FormatError) as caught:
        Model.from_gguf(path, tokenizer=None)
    assert str(caught.value) == f"{path}: {message}"
