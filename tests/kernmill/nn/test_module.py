from __future__ import annotations

import numpy as np
import pytest

from kernmill import FormatError, Tensor, nn, train


class Model(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(2, 3)
        self.norms = [nn.BatchNorm(3), nn.BatchNorm(3)]
        self.by_name = {"last": nn.Linear(3, 1, bias=False)}
        self.scale = Tensor([2.0], requires_grad=True)
        self.shared = self.scale
        self._hidden = Tensor([1.0], requires_grad=True)


def test_names() -> None:
    model = Model()
    norm = ["weight", "bias", "running_mean", "running_var"]
    assert list(model.state_dict()) == [
        "first.weight",
        "first.bias",
        *(f"norms.0.{n}" for n in norm),
        *(f"norms.1.{n}" for n in norm),
        "by_name.last.weight",
        "scale",
    ]
    assert len(model.parameters()) == 8
    assert [type(m).__name__ for m in model.modules()] == ["Model", "Linear", "BatchNorm", "BatchNorm", "Linear"]


def test_training_is_said_by_the_module_or_by_the_block() -> None:
    model = Model()
    with train(False):
        assert not model.norms[1].training
        model.train()
        assert model.norms[1].training
    assert not model.eval().norms[0].training


def test_a_new_module_trains_as_in_pytorch() -> None:
    """Named regression: dropout and batch norms of a ported loop did nothing, without a word."""
    norm = nn.BatchNorm(2000)
    layers = nn.Sequential(nn.Linear(3, 2000), norm, nn.Dropout(0.5))
    assert norm.running_mean is not None
    assert [module.training for module in layers.modules()] == [True] * 4
    before = norm.running_mean.numpy()
    x = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    assert 0.4 < float((layers(x) == 0).float().mean()) < 0.6
    assert (norm.running_mean.numpy() != before).any()


def test_state_goes_from_one_module_to_another() -> None:
    one, two = Model(), Model()
    two.load_state_dict(one.state_dict())
    for name, tensor in two.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), one.state_dict()[name].numpy())
        assert tensor.is_realized
    assert len(two.parameters()) == 8
    two.scale.assign(Tensor([5.0]))
    assert float(one.scale) == 2.0


def test_names_that_do_not_fit_are_passed_over_on_request() -> None:
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"bias": np.array([3.0], np.float64), "other": np.zeros(3)}, strict=False)
    assert layer.bias is not None
    assert layer.bias.tolist() == [3.0]


@pytest.mark.parametrize("given", [["wte.weight", "head.weight"], ["wte.weight"], ["head.weight"], ["again.weight"]])
@pytest.mark.parametrize("strict", [True, False])
def test_a_shared_tensor_is_found_by_each_of_its_names(given: list[str], strict: bool) -> None:
    """Named regression: PyTorch's state of a model with tied weights was refused, with strict=False passed over."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            self.wte, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
            self.head.weight = self.wte.weight
            self.again = self.wte

    model = Tied()
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    model.load_state_dict(dict.fromkeys(given, values), strict)
    np.testing.assert_array_equal(model.head.weight.numpy(), values)
    assert model.head.weight is model.wte.weight
    with pytest.raises(FormatError, match=r"unexpected head\.bias, head\.weight\.x\."):
        model.load_state_dict({"wte.weight": values, "head.bias": values, "head.weight.x": values})


def test_repr() -> None:
    text = repr(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1)))
    assert text == "Sequential(\n  0: Linear(weight(3, 2), bias(3,))\n  1: Dropout(p=0.1)\n)"


def test_pytorchs_counters_of_batches_are_let_be() -> None:
    """Every state of a PyTorch model with batch norm has some, and was refused as a whole."""
    model = Model()
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state | {"norms.0.num_batches_tracked": np.array(3)})
    with pytest.raises(FormatError, match=r"unexpected first\.num_batches_tracked\."):
        model.load_state_dict(state | {"first.num_batches_tracked": np.array(3)})
