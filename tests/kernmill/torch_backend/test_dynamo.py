"""`torch.compile(model, backend="kernmill")`: values and gradients against eager PyTorch, and what is refused."""

from __future__ import annotations

import copy
import importlib
import logging
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernmill import Context, DeviceError, Tensor
from kernmill.runtime import counters

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from bench.torch_families import TINY
from kernmill.torch_backend import backend


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    """A new Dynamo for each test, on the default device."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    with Context(DEVICE="LLVM"):
        yield


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend, **options)


def close(a: Any, b: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, name = project["project"]["entry-points"]["torch_dynamo_backends"]["kernmill"].partition(":")
    assert getattr(importlib.import_module(module), name) is backend


@pytest.mark.parametrize("name", TINY)
def test_training_is_that_of_eager(name: str) -> None:
    make, batch = TINY[name]
    model = make().double() if name == "resnet" else make()  # of float32 one relu may be 0 in one of the two
    other = copy.deepcopy(model)
    fast = compiled(model)
    for n in (2, 3, 5):
        given = tuple(x.to(next(model.parameters()).dtype) if x.is_floating_point() else x for x in batch(n))
        mine, theirs = fast(*given), other(*given)
        close(mine, theirs)
        weight = torch.randn_like(theirs)
        (mine * weight).sum().backward()
        (theirs * weight).sum().backward()
        for (path, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(
                p.grad, q.grad, rtol=1e-3, atol=2e-4, msg=lambda text, path=path: f"{path} {text}"
            )
        for p, q in zip(model.buffers(), other.buffers(), strict=True):
            close(p, q)


@pytest.mark.parametrize("name", TINY)
def test_eval_is_that_of_eager(name: str) -> None:
    make, batch = TINY[name]
    model = make().eval()
    fast = compiled(model)
    with torch.no_grad():
        for n in (3, 1, 4):
            given = batch(n)
            close(fast(*given), model(*given))


def test_later_sizes_compile_no_kernels() -> None:
    """Regression: batches of more than 16,384 values compiled kernels for each size."""
    model = torch.nn.Sequential(torch.nn.Linear(2000, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    fast = compiled(model)
    before = 0
    for i, n in enumerate((2, 3, 4, 5, 7, 11, 64)):
        before = counters.compiled + counters.from_disk if i == 4 else before
        fast(torch.randn(n, 2000)).sum().backward()
    assert counters.compiled + counters.from_disk == before


def test_a_view_of_an_input_is_not_copied_for_the_backward_pass() -> None:
    """Each column of the indices was a tensor of its own between the passes, computed by a launch of its own."""
    model = torch.nn.Embedding(10, 4)

    def columns(ids: Any) -> Any:
        return model(ids[:, 0]) * model(ids[:, 1])

    ids, kept = torch.randint(0, 10, (6, 2)), list[Any]()
    fast = compiled(columns)
    fast(ids).sum().backward()

    def keep(x: Any) -> Any:
        kept.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        fast(ids).sum().backward()
    assert (6, 2) in kept
    assert (6,) not in kept


def test_steps_of_an_optimizer_are_seen() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    other = copy.deepcopy(model)
    fast = compiled(model)
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    losses: list[list[float]] = [[], []]
    for run, own, kept in ((fast, model, losses[0]), (other, other, losses[1])):
        optimizer = torch.optim.AdamW(own.parameters(), lr=0.01)
        for _ in range(10):
            loss = torch.nn.functional.mse_loss(run(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(loss.item())
    close(torch.tensor(losses[0]), torch.tensor(losses[1]))
    assert losses[0][-1] < losses[0][0]


def mutates(x: Any) -> Any:
    y = x[1:]
    y.mul_(2)
    x[0, 0] = 7
    return x.sum(0), x.t()


def branches(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x - 1


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "writes to an input": (mutates, lambda: (torch.randn(3, 4),)),
    "a branch on values": (branches, lambda: (torch.randn(3, 4),)),
    "two names of one result": (lambda x: (x + 1, x + 1, x.clone()), lambda: (torch.randn(3),)),
    "no axes": (lambda x, y: x * y + 1, lambda: (torch.tensor(2.0), torch.tensor(3))),
    "nothing": (lambda x: x.sum(0) + x.mean(), lambda: (torch.zeros(0, 3),)),
    "constants": (lambda x: (torch.arange(4), torch.ones(2), x + torch.arange(4)), lambda: (torch.randn(4),)),
    "not contiguous": (lambda x: (x.t() @ x).relu(), lambda: (torch.randn(6, 4)[::2],)),
    "transposed": (lambda x: x.t().softmax(0), lambda: (torch.randn(6, 4).t(),)),
    "channels last": (lambda x: torch.nn.functional.relu(x) + 1,
                      lambda: (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),)),
    "half": (lambda x: x @ x.t(), lambda: (torch.randn(4, 4).bfloat16(),)),
    "integers": (lambda x: (x // 2, x % 3, x / 2, x & 1, x > 2, (x + 1).sum()), lambda: (torch.arange(-5, 5),)),
    "promotion": (lambda x: (x + 1.5, x.float() * torch.ones((), dtype=torch.float64)), lambda: (torch.arange(3),)),
    "indices": (lambda x, i: (x[i], x[:, i, None], x.gather(1, i[None]), x.index_select(0, i)),
                lambda: (torch.randn(5, 5), torch.tensor([0, 2, 4]))),
    "writes by index": (lambda x, i: (x.clone().index_put_((i,), torch.ones(3, 5)), x.clone().scatter_(1, i[None], 3.0),
                                      x.clone().index_put_((i, i), torch.ones(3), accumulate=True)),
                        lambda: (torch.randn(5, 5), torch.tensor([0, 2, 2]))),
    "scans and sorts": (lambda x: (x.cumsum(1), x.sort(1).values, x.topk(2).indices, x.max(1).indices, x.argmin()),
                        lambda: (torch.randn(5, 6),)),
    "reductions": (lambda x: (x.var(), x.std(1), x.prod(1), x.amax((0, 1)), (x > 0).any(1), x.norm(), x.logsumexp(0)),
                   lambda: (torch.randn(5, 6),)),
    "padding": (lambda x: (torch.nn.functional.pad(x, (1, -1, 2, 0)), torch.nn.functional.pad(x, (1, 1), "reflect")),
                lambda: (torch.randn(2, 3, 4),)),
    "pooling": (lambda x: (torch.nn.functional.avg_pool2d(x, 3, 2, 1), torch.nn.functional.adaptive_avg_pool2d(x, 3)),
                lambda: (torch.randn(2, 3, 8, 8),)),
    "losses": (lambda x, y: (torch.nn.functional.cross_entropy(x, y), torch.nn.functional.nll_loss(x, y),
                             torch.nn.functional.binary_cross_entropy_with_logits(x, x.sigmoid())),
               lambda: (torch.randn(4, 5), torch.tensor([0, 4, 2, 2]))),
    "another operator": (lambda x: torch.linalg.svdvals(x + 1) * 2, lambda: (torch.randn(4, 3),)),
    # regression: of several results of one operator, some are read by a later step
    "maxima on both sides of another operator": (
        lambda x: (lambda m: torch.linalg.svdvals(m.values).sum() + m.indices)(x.max(0)),
        lambda: (torch.randn(3, 4, 4),)),
    "sizes as numbers": (lambda x: x * x.shape[0] + x.numel(), lambda: (torch.randn(4, 3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, batch = FUNCTIONS[name]
    fast = compiled(function)
    for _ in range(3):
        given = batch()
        mine, theirs = copy.deepcopy(given), copy.deepcopy(given)
        close(fast(*mine), function(*theirs), rtol=1e-2 if name == "half" else 1e-4)
        close(mine, theirs)


def test_results_may_be_written() -> None:
    fast = compiled(lambda x: (x + 1, torch.arange(3), x + 1))
    for _ in range(3):
        x = torch.zeros(3)
        for result in fast(x):
            result += 5
        assert x.tolist() == [0, 0, 0]
    a, b, c = fast(torch.zeros(3))
    a += 1
    assert (a.tolist(), b.tolist(), c.tolist()) == ([2, 2, 2], [0, 1, 2], [1, 1, 1])


def test_strides_are_those_of_eager() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert compiled(torch.relu)(x).stride() == torch.relu(x).stride()


def test_dropout_draws_pytorchs_numbers() -> None:
    drop = torch.nn.Dropout(0.25)
    fast = compiled(drop)
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(3)
    first = fast(x)
    first.sum().backward()
    torch.manual_seed(3)
    assert torch.equal(first, fast(x))
    assert not torch.equal(first, fast(x))
    assert 0.15 < (first == 0).float().mean() < 0.35
    close(x.grad, first.detach())


def test_other_operators_are_reported_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernmill.torch_backend.dynamo._reported", set())
    with caplog.at_level(logging.WARNING, "kernmill"):
        for _ in range(2):
            torch._dynamo.reset()
            compiled(lambda x: torch.linalg.svdvals(x * 2) + 1)(torch.randn(3, 3))
    texts = [record.getMessage() for record in caplog.records if "torch.compile" in record.getMessage()]
    assert texts == [
        "torch.compile: these operators run in PyTorch, between kernels of kernmill: aten._linalg_svd.default (the "
        "operator is not in the table)"
    ]


def test_other_devices_are_refused() -> None:
    with pytest.raises(DeviceError) as caught:
        backend(torch.nn.Linear(2, 2), [torch.ones(1), torch.ones(1, device="meta")])
    assert str(caught.value) == (
        "torch.compile: the tensors are on cpu, meta, and the backend kernmill takes tensors on the CPU. Move model "
        "and inputs with .to('cpu'); DEVICE says where kernmill computes."
    )


def test_parameters_are_not_copied() -> None:
    from kernmill.torch_backend.memory import Converter, to_torch

    weight = torch.nn.Parameter(torch.randn(4, 5))
    convert = Converter()
    tensor, order = convert(weight, "LLVM")
    assert convert(weight, "LLVM")[0] is tensor
    assert order is None
    assert tensor.numpy().ctypes.data == weight.data_ptr()
    turned, order = Converter()(torch.nn.Parameter(weight.detach().t()), "LLVM")
    assert (turned.shape, order) == ((4, 5), (1, 0))
    assert turned.numpy().tolist() == weight.tolist()
    ours = Tensor([[1.0, 2.0, 3.0]]).realize()
    theirs = to_torch(ours, (1, 0), "LLVM", is_copied=lambda _: False)
    assert theirs.tolist() == [[1], [2], [3]]
    assert convert(theirs, "LLVM") == (ours, (1, 0))
    theirs.data = torch.zeros(3, 1)  # other memory
    assert convert(theirs, "LLVM")[0].tolist() == [[0], [0], [0]]


def test_values_between_the_passes_are_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: each of them was converted, for an LSTM a hundred in each step."""
    from kernmill.torch_backend.packing import packed as known

    counts = list[int]()

    def packed(forward: Any, backward: Any, count: int) -> Any:
        forward, backward = known(forward, backward, count)
        (output,) = forward.graph.find_nodes(op="output")
        counts.append(sum("tanh" in n.name or "packed" in n.name for n in output.args[0]))
        return forward, backward

    monkeypatch.setattr("kernmill.torch_backend.dynamo.packed", packed)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def run(x: Any) -> Any:
        y = torch.tanh(x @ w)
        z = torch.tanh(y @ w)
        return (z @ w).exp().sum()

    want = torch.autograd.grad(run(x), (x, w))
    close(torch.autograd.grad(compiled(run)(x), (x, w)), want)
    assert counts == [1]


def gapped() -> Any:
    return torch.nn.Parameter(torch.randn(4, 8)[:, ::2])


@pytest.mark.parametrize("make", [lambda: torch.nn.Parameter(torch.randn(4, 4)), gapped])
def test_writes_to_parameters_are_seen_on_every_device(make: Callable[[], Any], device: str) -> None:
    """Named regression: where the memory of the host is copied, the values of the first call remained."""
    with Context(DEVICE=device):
        weight = make()
        fast = compiled(lambda x: x + weight)
        x = torch.zeros(4, 4)
        for _ in range(3):
            assert torch.equal(fast(x), weight)
            with torch.no_grad():
                weight += 1


def test_another_device(device: str) -> None:
    if device == "PYTHON":
        pytest.skip("each kernel would take long")
    with Context(DEVICE=device):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
        x = torch.randn(4, 8)
        close(compiled(model)(x), model(x))
