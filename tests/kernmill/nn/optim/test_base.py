"""Twenty steps of each optimizer against PyTorch's."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, FormatError, GradientError, Tensor, dtypes, jit, nn
from kernmill.captures.ownership import buffer_of
from kernmill.ir import DType
from kernmill.nn import optim
from kernmill.runtime import collecting_kernels
from tests.kernmill.against import values

torch = pytest.importorskip("torch")
SHAPES = ((2, 3), (3,))


def twenty_steps(name: str, options: dict[str, Any], steps: int = 20) -> float:
    """The largest difference after them."""
    ours = [Tensor(values(*s), requires_grad=True) for s in SHAPES]
    theirs = [torch.tensor(values(*s), requires_grad=True) for s in SHAPES]
    own, other = (
        getattr(nn.optim, name)(ours, lr=0.01, **options),
        getattr(torch.optim, name)(theirs, lr=0.01, **options),
    )
    for i in range(steps):
        own.zero_grad()
        other.zero_grad()
        for mine, their, shape in zip(ours, theirs, SHAPES, strict=True):
            target = values(*shape, seed=1)
            ((mine - Tensor(target)) * mine * (0.1 * i)).sum().backward()
            ((their - torch.tensor(target)) * their * (0.1 * i)).sum().backward()
        own.step()
        other.step()
    return max(float(np.abs(a.numpy() - b.detach().numpy()).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {}),
        ("Adam", {"weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
        ("Adam", {"betas": (0.0, 0.9)}),
        ("AdamW", {}),
        ("AdamW", {"weight_decay": 0.2}),
        ("RMSprop", {}),
        ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1, "alpha": 0.5}),
        ("Adagrad", {}),
        ("Adagrad", {"weight_decay": 0.1, "initial_accumulator_value": 0.5}),
        ("Adadelta", {}),
        ("Adadelta", {"weight_decay": 0.1, "rho": 0.5, "eps": 1e-3}),
        ("Adamax", {}),
        ("Adamax", {"weight_decay": 0.1, "betas": (0.5, 0.9)}),
        ("NAdam", {}),
        ("NAdam", {"weight_decay": 0.1, "betas": (0.5, 0.9), "momentum_decay": 0.1}),
        ("RAdam", {}),
        ("RAdam", {"weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
    ],
)
def test_steps_are_pytorchs(name: str, options: dict[str, Any]) -> None:
    assert twenty_steps(name, options) < 1e-6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
        ("Adam", {"weight_decay": 0.1}),
        ("AdamW", {}),
        ("RMSprop", {"weight_decay": 0.1}),
        ("Adagrad", {}),
    ],
)
@pytest.mark.parametrize("is_captured", [False, True])
def test_groups_are_pytorchs(name: str, options: dict[str, Any], is_captured: bool) -> None:
    """Rates and weight decays of their own, also where a rate changes on the way."""
    ours = [Tensor(values(*s), requires_grad=True) for s in SHAPES]
    theirs = [torch.tensor(values(*s), requires_grad=True) for s in SHAPES]
    own, other = (
        getattr(module, name)([{"params": [w], "lr": 0.1, "weight_decay": 0.5}, {"params": [b]}], lr=0.01, **options)
        for module, (w, b) in ((nn.optim, ours), (torch.optim, theirs))
    )

    def step(scale: Tensor) -> Tensor:
        own.zero_grad()
        loss = (ours[0] * ours[0] * scale).sum() + (ours[1] * ours[1] * scale).sum()
        loss.backward()
        own.step(loss)
        detached: Tensor = loss.detach()
        return detached

    run = jit(step) if is_captured else step
    for i in range(6):
        if i == 4:
            own.groups[1].lr = 0.05
            other.param_groups[1]["lr"] = 0.05
        run(Tensor([float(i)]))
        other.zero_grad()
        sum((p * p * float(i)).sum() for p in theirs).backward()
        other.step()
    for mine, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), their.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_the_rates_of_groups_are_kept() -> None:
    def optimizer() -> nn.optim.SGD:
        ours = [Tensor(values(*s), requires_grad=True) for s in SHAPES]
        return nn.optim.SGD([{"params": ours[:1], "lr": 0.5}, {"params": ours[1]}], lr=0.1, momentum=0.9)

    first, second = optimizer(), optimizer()
    first.groups[1].lr = 0.25
    second.load_state_dict(first.state_dict())
    assert list(first.state_dict()) == ["lr.0", "lr.1", "velocity.0", "velocity.1"]
    assert [group.lr.item() for group in second.groups] == [0.5, 0.25]


@pytest.mark.parametrize("kind", [nn.optim.SGD, nn.optim.AdamW])
def test_a_captured_step_advances_as_a_plain_one(kind: Any) -> None:
    def train(is_captured: bool) -> Any:
        weight = Tensor(values(3, 2), requires_grad=True)
        optimizer = kind([weight], lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (x @ weight).square().sum()
            loss.backward()
            optimizer.step(loss)
            return loss.detach()

        run = jit(step) if is_captured else step
        for i in range(6):
            if i == 4:
                optimizer.lr = 0.01
            run(Tensor(values(4, 3, seed=i)))
        return weight.numpy().copy()

    np.testing.assert_allclose(train(True), train(False), rtol=1e-6, atol=1e-7)


def test_parameters_without_gradient_stay() -> None:
    used, unused = Tensor([1.0], requires_grad=True), Tensor([1.0], requires_grad=True)
    optimizer = nn.optim.SGD([used, unused], lr=0.5)
    used.sum().backward()
    optimizer.step()
    assert (used.item(), unused.item()) == (0.5, 1.0)
    optimizer.zero_grad()
    assert used.grad is None


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize(("kind", "options"), [("Adam", {"weight_decay": 0.1}), ("AdamW", {"betas": (0.5, 0.9)})])
def test_the_steps_of_a_parameter_are_those_with_a_gradient(
    kind: str, options: dict[str, Any], is_captured: bool, tmp_path: Path
) -> None:
    """Named regression: what had no gradient in some steps was corrected as if it had made them all."""
    ours = [Tensor(values(*s), requires_grad=True) for s in (*SHAPES, (2,))]
    theirs = [torch.tensor(values(*s), requires_grad=True) for s in (*SHAPES, (2,))]
    own, other = (getattr(m, kind)(ps, lr=0.1, **options) for m, ps in ((nn.optim, ours), (torch.optim, theirs)))

    def step(scale: Tensor, which: tuple[int, ...]) -> None:
        own.zero_grad()
        for i in which:
            (ours[i] * ours[i] * scale).sum().backward()
        own.step()

    run = jit(step) if is_captured else step
    every = 0, 1, 2
    for n, which in enumerate([(0, 2), every, (1, 2), every, every, (0, 2), every, every, (1, 2)]):
        run(Tensor([n + 1.0]), which)
        other.zero_grad()
        for i in which:
            (theirs[i] * theirs[i] * (n + 1)).sum().backward()
        other.step()
        if n == 5:  # by way of a file, into an optimizer that knows of no missed steps, and back
            nn.state.save(tmp_path / "state", own.state_dict())
            for optimizer in (getattr(nn.optim, kind)(ours, lr=0.1, **options), own):
                optimizer.load_state_dict(nn.state.load(tmp_path / "state"))
                assert optimizer.state_dict()["missed"].tolist() == [1, 2, 0]
    for mine, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), their.detach().numpy(), rtol=1e-5, atol=1e-6)
    own.load_state_dict(getattr(nn.optim, kind)(ours, lr=0.1, **options).state_dict())
    assert own.state_dict()["missed"].tolist() == [0, 0, 0]


def test_the_rate_is_a_tensor() -> None:
    rate, weight = Tensor([0.5]), Tensor([1.0], requires_grad=True)
    optimizer = nn.optim.SGD([weight], lr=rate)
    assert optimizer.lr is rate
    optimizer.lr = 0.25
    weight.sum().backward()
    optimizer.step()
    assert (weight.item(), rate.item()) == (0.75, 0.25)


def test_half_parameters_stay_half() -> None:
    weight = Tensor([1.0, 2.0], dtypes.float16, requires_grad=True)
    optimizer = nn.optim.Adam([weight], lr=0.5)
    weight.square().sum().backward()
    optimizer.step()
    assert weight.dtype is dtypes.float16
    assert weight.tolist() == [0.5, 1.5]


def test_clipping_is_pytorchs() -> None:
    ours = [Tensor(values(*s), requires_grad=True) for s in SHAPES]
    theirs = [torch.tensor(values(*s), requires_grad=True) for s in SHAPES]
    for mine, their in zip(ours, theirs, strict=True):
        mine.square().sum().backward()
        their.square().sum().backward()
    norm = nn.optim.clip_grad_norm(ours, 1.0)
    want = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    assert norm.item() == pytest.approx(float(want), rel=1e-5)
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        np.testing.assert_allclose(mine.grad.numpy(), their.grad.numpy(), rtol=1e-5)


class Training:
    """A small model and its optimizer; steps plainly or captured."""

    def __init__(self, kind: Any, is_captured: bool, **options: Any) -> None:
        self.model = nn.Linear(3, 2)
        self.model.load_state_dict({"weight": values(2, 3), "bias": values(2)})
        self.optimizer = kind(self.model.parameters(), lr=0.1, **options)
        self.run = jit(self.step) if is_captured else self.step

    def step(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().sum()
        loss.backward()
        self.optimizer.step(loss)
        detached: Tensor = loss.detach()
        return detached

    def steps(self, first: int, last: int) -> None:
        for i in range(first, last):
            self.run(Tensor(values(4, 3, seed=i)))

    def save(self, folder: Path) -> None:
        nn.state.save(folder / "model", self.model)
        nn.state.save(folder / "optimizer", self.optimizer.state_dict())

    def load(self, folder: Path) -> None:
        self.model.load_state_dict(nn.state.load(folder / "model"))
        self.optimizer.load_state_dict(nn.state.load(folder / "optimizer"))


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.optim.SGD, {}),
        (nn.optim.SGD, {"momentum": 0.9}),
        (nn.optim.Adam, {}),
        (nn.optim.AdamW, {}),
        (nn.optim.RMSprop, {"momentum": 0.9}),
        (nn.optim.Adagrad, {}),
    ],
)
def test_training_goes_on_exactly(kind: Any, options: dict[str, Any], is_captured: bool, tmp_path: Path) -> None:
    whole, first, second = (Training(kind, is_captured, **options) for _ in range(3))
    whole.steps(0, 4)
    whole.optimizer.lr = 0.05
    whole.steps(4, 9)
    first.steps(0, 4)
    first.optimizer.lr = 0.05
    first.save(tmp_path)
    second.steps(20, 24)  # another way: loading is to undo all of it, also for what is captured already
    second.load(tmp_path)
    second.steps(4, 9)
    first.steps(4, 9)
    for name, tensor in whole.model.state_dict().items():
        np.testing.assert_array_equal(second.model.state_dict()[name].numpy(), tensor.numpy())
        np.testing.assert_array_equal(first.model.state_dict()[name].numpy(), tensor.numpy())
    assert second.optimizer.lr.item() == pytest.approx(0.05)
    for name, tensor in whole.optimizer.state_dict().items():
        np.testing.assert_array_equal(second.optimizer.state_dict()[name].numpy(), tensor.numpy())


def test_a_resumed_training_is_pytorchs() -> None:
    ours, theirs = Tensor(values(3, 2), requires_grad=True), torch.tensor(values(3, 2), requires_grad=True)
    other = torch.optim.AdamW([theirs], lr=0.1)
    saved: dict[str, np.ndarray[Any, Any]] = {}
    for i in range(6):
        own = nn.optim.AdamW([ours], lr=0.7)  # made anew for each step
        own.load_state_dict(saved or own.state_dict() | {"lr": Tensor([0.1])})
        (ours * ours * (i + 1)).sum().backward()
        own.step()
        own.zero_grad()
        saved = {name: tensor.numpy().copy() for name, tensor in own.state_dict().items()}
        other.zero_grad()
        (theirs * theirs * (i + 1)).sum().backward()
        other.step()
    assert saved["steps"].tolist() == [6]
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    adam = nn.optim.Adam([Tensor(values(2), requires_grad=True)], lr=0.5)
    sgd = nn.optim.SGD([Tensor(values(3), requires_grad=True)], lr=0.25, momentum=0.9)
    with pytest.raises(FormatError) as caught:
        adam.load_state_dict(sgd.state_dict())
    assert str(caught.value) == (
        "load_state_dict: Adam: missing steps, mean.0, square.0; unexpected velocity.0. "
        "Make the optimizer with the options of the saved one, and the same parameters in the same order."
    )
    with pytest.raises(FormatError, match=r"mean.0 has shape \(3,\), the optimizer \(2,\)"):
        adam.load_state_dict(nn.optim.Adam([Tensor(values(3), requires_grad=True)], lr=0.25).state_dict())
    with pytest.raises(DTypeError, match=r"Optimizer.load_state_dict: state is 5, of type int. Give a dict."):
        adam.load_state_dict(5)  # type: ignore[arg-type]
    assert adam.lr.item() == 0.5


@pytest.mark.parametrize("is_captured", [False, True])
def test_schedules_of_the_rate_are_pytorchs(is_captured: bool) -> None:
    """The rate as a number that the loop sets, and as an expression of a step counter that the step itself computes."""
    inputs = [values(4, 3, seed=i) for i in range(8)]
    theirs = torch.tensor(values(3, 2), requires_grad=True)
    other = torch.optim.Adam([theirs], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(other, lambda i: 1 / (1 + i))
    for x in inputs:
        other.zero_grad()
        (torch.tensor(x) @ theirs).square().sum().backward()
        other.step()
        schedule.step()

    def train(is_own: bool) -> Any:
        weight = Tensor(values(3, 2), requires_grad=True)
        optimizer = nn.optim.Adam([weight], lr=0.1)
        counter = Tensor([0.0])

        def step(x: Tensor) -> None:
            if is_own:
                counter.assign(counter + 1)
                optimizer.lr = (0.1 / counter).reshape(())
            optimizer.zero_grad()
            (x @ weight).square().sum().backward()
            optimizer.step(counter)

        run = jit(step) if is_captured else step
        for i, x in enumerate(inputs):
            if not is_own:
                optimizer.lr = 0.1 / (1 + i)
            run(Tensor(x))
        return weight.numpy()

    for is_own in (False, True):
        np.testing.assert_allclose(train(is_own), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_captured", [False, True])
def test_two_optimizers_are_pytorchs_groups(is_captured: bool) -> None:
    """Each group's gradients are those of the parameters before either step."""
    inputs = [values(5, 3, seed=i) for i in range(6)]
    theirs = [torch.tensor(values(*shape), requires_grad=True) for shape in ((3, 4), (4, 2))]
    other = torch.optim.AdamW([{"params": theirs[:1], "weight_decay": 0.5}, {"params": theirs[1:], "lr": 0.01}], lr=0.1)
    for x in inputs:
        other.zero_grad()
        (torch.tensor(x) @ theirs[0] @ theirs[1]).square().mean().backward()
        other.step()
    first, second = ours = [Tensor(values(*shape), requires_grad=True) for shape in ((3, 4), (4, 2))]
    groups = [nn.optim.AdamW([first], lr=0.1, weight_decay=0.5), nn.optim.AdamW([second], lr=0.01)]

    def step(x: Tensor) -> None:
        for group in groups:
            group.zero_grad()
        (x @ first @ second).square().mean().backward()
        for group in groups:
            group.step()

    run = jit(step) if is_captured else step
    for x in inputs:
        run(Tensor(x))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_a_name_of_others_is_told() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'StepLR'. Write nn.optim.lr_scheduler.StepLR."):
        _ = nn.optim.StepLR


def test_a_step_computes_the_losses_along() -> None:
    """Computed later they needed the parameters as they were: a captured step made the forward pass twice, and gave all
    parameters new memory at each call."""
    x = Tensor(values(5, 4))

    def counted(step: Any) -> tuple[int, list[float]]:
        parameter = Tensor(values(4, 3), requires_grad=True)
        optimizer = nn.optim.Adam([parameter], lr=0.01)

        @jit
        def train() -> Tensor:
            loss = (x @ parameter).square().mean()
            optimizer.zero_grad()
            loss.backward()
            step(optimizer, loss)
            return loss

        losses = [train().item() for _ in range(5)]
        return train.cache_info().kernels, losses

    given = counted(lambda optimizer, loss: optimizer.step(loss))
    assert counted(lambda optimizer, _: optimizer.step()) == given


def test_a_step_computes_the_losses_of_all_its_gradients() -> None:
    parameter = Tensor(values(4, 3), requires_grad=True)
    optimizer = nn.optim.SGD([parameter], lr=0.01)
    losses = [(parameter * n).sum() for n in range(1, 4)]
    for loss in losses:
        loss.backward()
    optimizer.step()
    with collecting_kernels() as found:
        total = [loss.item() for loss in losses]
    assert not found
    np.testing.assert_allclose(total, values(4, 3).sum() * np.arange(1, 4), rtol=1e-5)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_captured_step_may_return_the_output_and_what_is_made_of_it(is_listed: bool) -> None:
    """The output of the model, an accuracy: a replay needed the old parameters for them."""
    x, y = Tensor(values(5, 4)), Tensor(np.arange(5) % 3)
    parameter = Tensor(values(4, 3), requires_grad=True)
    start, average = parameter.numpy(), parameter * 0.5  # which nobody computes before the first step
    optimizer = nn.optim.SGD([parameter], lr=0.01)

    @jit
    def train() -> tuple[Tensor, Tensor]:
        output = x @ parameter
        hits = (output.argmax(1) == y).sum()
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step(*[output, hits] if is_listed else [])
        return output, hits

    for step in range(4):
        before = parameter.numpy()
        output, hits = train()
        np.testing.assert_allclose(output.numpy(), x.numpy() @ before, rtol=1e-5, atol=1e-6)
        assert hits.item() == (output.numpy().argmax(1) == y.numpy()).sum(), step
    np.testing.assert_allclose(average.numpy(), start * 0.5)
    assert train.cache_info()[:2] == (1, 2)
    assert train.cache_info().kernels <= 6


def test_a_step_computes_what_is_on_the_way_to_its_losses() -> None:
    """The output of the model, which a loop of PyTorch's reads after the step."""
    x = Tensor(values(5, 4))
    parameter = Tensor(values(4, 3), requires_grad=True)
    optimizer = nn.optim.Adam([parameter], lr=0.01)

    def train() -> tuple[Tensor, Tensor, Tensor]:
        output = x @ parameter
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, output, output.argmax(1)

    before = parameter.numpy().copy()
    loss, output, _ = train()
    assert output.is_realized
    np.testing.assert_allclose(output.numpy(), x.numpy() @ before, rtol=1e-5)
    captured = jit(train)
    for _ in range(4):
        before = parameter.numpy().copy()
        loss, output, found = captured()
        np.testing.assert_allclose(output.numpy(), x.numpy() @ before, rtol=1e-5)
        np.testing.assert_array_equal(found.numpy(), output.numpy().argmax(1))
        np.testing.assert_allclose(loss.item(), np.square(output.numpy()).mean(), rtol=1e-5)
    entry = next(iter(captured._entries.values()))[0]
    assert not entry.effects.rebound  # written in place


def test_what_is_not_on_the_way_is_left() -> None:
    """It is not computed along, and has the parameters as they were when it is."""
    parameter = Tensor(values(4, 3), requires_grad=True)
    before = parameter.numpy().copy()
    other, beside = parameter * 3, parameter.detach() * 2
    optimizer = nn.optim.SGD([parameter], lr=0.5)
    (parameter * parameter).sum().backward()
    optimizer.step()
    assert not other.is_realized
    assert not beside.is_realized
    np.testing.assert_array_equal(other.numpy(), before * 3)
    np.testing.assert_array_equal(beside.numpy(), before * 2)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_a_rate_is_no_part_of_a_kernel(dtype: DType) -> None:
    parameter = Tensor(values(4, 3), requires_grad=True)
    optimizer = nn.optim.SGD([parameter], lr=Tensor([0.5], dtype))
    names = []
    for rate in (0.1, 0.2, 0.3):
        with collecting_kernels() as found:
            optimizer.lr = rate
        names.append(list(found))
        assert optimizer.lr.numpy() == np.array([rate], dtype.name)
    assert names[0] == names[1] == names[2]


def test_a_captured_step_may_return_the_norm() -> None:
    parameter = Tensor(values(4, 3), requires_grad=True)
    optimizer = nn.optim.SGD([parameter], lr=0.01)

    @jit
    def train() -> Tensor:
        optimizer.zero_grad()
        (parameter * parameter * parameter).sum().backward()
        norm = nn.optim.clip_grad_norm([parameter], 0.5)
        optimizer.step()
        return norm

    for _ in range(4):
        before = parameter.numpy().copy()
        np.testing.assert_allclose(train().item(), np.linalg.norm(3 * before * before), rtol=1e-5)
    assert not next(iter(train._entries.values()))[0].effects.rebound  # written in place


def test_groups_that_were_given_one_tensor_as_rate_are_set_apart() -> None:
    """Named regression: to set the rate of one group changed those of all, and the caller's tensor."""
    rate = Tensor([0.5])
    parts = [Tensor(values(2), requires_grad=True) for _ in range(3)]
    optimizer = nn.optim.SGD([{"params": part} for part in parts], lr=rate)
    rate.assign(Tensor([0.25])).realize()
    assert [group.lr.item() for group in optimizer.groups] == [0.25] * 3
    optimizer.groups[1].lr = 0.125
    assert [group.lr.item() for group in optimizer.groups] == [0.25, 0.125, 0.25]
    assert rate.item() == 0.25


def test_a_rate_that_is_set_before_each_captured_step_is_followed() -> None:
    """Only what has changed is looked up again (`Entry._follow`), and only while the step does not write the rate."""
    weight, rates = Tensor(np.zeros(3, np.float32), requires_grad=True), []
    optimizer = nn.optim.SGD([weight], lr=0.5, momentum=0.0)

    @jit
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    want, other = 0.0, Tensor([0.0])
    for i in range(12):
        if i % 3 != 2:
            optimizer.lr = 0.5 / (1 + i)
        if i == 7:
            other = weight.detach()  # shares its elements with the weight, as in PyTorch
        rates.append(optimizer.lr.item())
        want -= rates[-1]
        step()
        np.testing.assert_allclose(weight.numpy(), [want] * 3, rtol=1e-5)
    np.testing.assert_array_equal(other.numpy(), weight.numpy())
    assert step.cache_info().captures == 1
    assert rates[0] == 0.5
    assert rates[2] == rates[1] == 0.25
    optimizer.groups[0]._lr.replace(weight.detach()[:1].reshape(()).realize())
    step()
    np.testing.assert_allclose(weight.numpy(), [0.0] * 3, atol=1e-6)


def test_a_captured_step_that_sets_the_rate_to_a_number_keeps_doing_so() -> None:
    weight = Tensor(np.zeros(2, np.float32), requires_grad=True)
    optimizer = nn.optim.SGD([weight], lr=1.0)

    @jit
    def step() -> None:
        optimizer.lr = 0.25
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    for i in range(5):
        optimizer.lr = 1.0
        step()
        assert optimizer.lr.item() == 0.25
        np.testing.assert_allclose(weight.numpy(), [-0.25 * (i + 1)] * 2)


def test_a_kept_loss_keeps_its_value_and_not_its_batch() -> None:
    """Named regression: `losses.append(loss)` kept every batch, and all that was computed from it."""
    weight, losses, batches = Tensor(values(3, 1), requires_grad=True), [], []
    optimizer = nn.optim.SGD([weight], lr=0.1)
    for i in range(3):
        x = Tensor(values(4, 3, seed=i))
        optimizer.zero_grad()
        loss = (x @ weight).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        batches.append(weakref.ref(buffer_of(x)))
    del x
    optimizer.zero_grad()
    assert [batch() for batch in batches] == [None] * 3
    assert losses[0].item() == pytest.approx(float(((values(4, 3, seed=0) @ values(3, 1)) ** 2).mean()), rel=1e-5)
    for call in ("backward", "gradient"):
        with pytest.raises(
            GradientError, match=rf"^{call}: the optimizer has already made the step of this loss.* {call}\(\) "
        ):
            getattr(losses[0], call)(*[weight] * (call == "gradient"))


def test_a_loss_of_two_optimizers_leads_to_the_second_ones_parameters_after_the_first_step() -> None:
    first, second = (Tensor(np.ones(2, np.float32), requires_grad=True) for _ in range(2))
    loss = (first * second).sum()
    loss.backward()
    nn.optim.SGD([first], lr=0.5).step()
    other = nn.optim.SGD([second], lr=0.5)
    other.zero_grad()
    (loss + (second * second).sum()).backward()
    assert second.grad is not None
    assert second.grad.tolist() == [3.0, 3.0]
    other.step()
    assert second.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_a_step_that_captured_itself_means_what_it_meant(name: str) -> None:
    """Outside of `jit` the update is captured from the third step on. Earlier results that depend on the parameters,
    computed or not, views and NumPy's arrays: all are what they are after an ordinary step."""

    def trained(is_ordinary: bool) -> list[Any]:
        w, b = (Tensor(values(4, seed=seed), requires_grad=True) for seed in (1, 2))
        optimizer = getattr(nn.optim, name)([w, b], lr=0.1)
        optim.base._ordinary[optimizer] = -1000 if is_ordinary else 0
        found: list[Any] = []
        for n in range(8):
            optimizer.zero_grad()
            loss = (w if n == 6 else w * b - 3).square().sum()  # in the seventh step b does not move
            loss.backward()
            made: list[Any] = [w.numpy(), w.detach(), w[1:], w.clone(), w * 2, w.grad]
            optimizer.step()
            found += [np.array(one.tolist()) for one in (*made, w, b, loss)]
            optimizer.lr = 0.05
        assert (optimizer._captured.replays > 0) is not is_ordinary
        return found

    for got, want in zip(trained(is_ordinary=False), trained(is_ordinary=True), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_optimizer_from_elsewhere_captures_nothing() -> None:
    """Its update may do more than compute."""
    seen: list[int] = []

    class Noted(nn.optim.SGD):
        def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
            seen.append(i)
            return super()._move(i, parameter, grad)

    w = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = Noted([w], lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()
    assert seen == [0] * 6
