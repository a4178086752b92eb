"""Mistakes with layers, optimizers and files of weights: the class of the error, and the whole message."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernmill import DTypeError, FormatError, GradientError, SettingError, ShapeError, Tensor, nn
from tests.errors.mistakes import Case, each_message


def leaf(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32), requires_grad=True)


def twice() -> list[Tensor]:
    one = leaf(2)
    return [one, one]


class Theirs(np.ndarray[Any, Any]):
    """Stands for a tensor of PyTorch's."""


Theirs.__name__, Theirs.__module__ = "Tensor", "torch._tensor"
THEIRS: Any = np.ones(2).view(Theirs)
NOT_A_TENSOR: Any = 3
CASES: dict[str, Case] = {
    "sizes": (lambda: nn.Linear(0, 3), ShapeError, "Linear: in_features=0: must be an integer >= 1."),
    "linear": (lambda: nn.Linear(4, 3)(leaf(2, 5)), ShapeError,
               "Linear: x of shape (2, 5): its last axis must have size 4. Reshape x, or build the layer with a "
               "different in_features."),
    "groups": (lambda: nn.Conv2d(3, 4, 3, groups=2), ShapeError,
               "Conv2d: 3 to 4 channels: both must be multiples of groups=2."),
    "kernel": (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ShapeError,
               "Conv2d: kernel_size=(3, 3, 3). Give one size, or 2, each 1 or more."),
    "heads": (lambda: nn.MultiHeadAttention(8, 3), ShapeError,
              "MultiHeadAttention: embed_dim 8 does not divide into 3 heads."),
    "layer norm": (lambda: nn.LayerNorm(3)(leaf(2, 4)), ShapeError,
                   "LayerNorm: x of shape (2, 4) does not end in (3,). Reshape x, or the layer."),
    "batch norm": (lambda: nn.BatchNorm(3)(leaf(2, 4)), ShapeError,
                   "BatchNorm: x of shape (2, 4): axis 1 must have 3 channels."),
    "one value": (lambda: nn.BatchNorm(3).train()(leaf(1, 3)), ShapeError,
                  "BatchNorm: one value per channel has no variance. Train with larger batches, or call eval()."),
    "array for a layer": (lambda: nn.Conv2d(1, 1, 1)(np.ones((1, 1, 2, 2))), DTypeError,  # not the base class's name
                          "Conv2d.forward: x is data of shape (1, 1, 2, 2), of type ndarray. Give a Tensor; wrap data "
                          "in Tensor(..)."),
    "another library's": (lambda: nn.Linear(1, 1)(THEIRS), DTypeError,
                          "Linear.forward: x is data of shape (2,), of type torch.Tensor. Give a Tensor; wrap data in "
                          "Tensor(..)."),
    "zero grad": (lambda: nn.optim.SGD([leaf(2)]).zero_grad(set_to_none=True), DTypeError,  # type: ignore[call-arg]
                  "Optimizer.zero_grad: there is no set_to_none=. Leave it out: it is always so."),
    "retained graph": (lambda: leaf(1).backward(retain_graph=True), DTypeError,  # type: ignore[call-arg]
                       "Tensor.backward: there is no retain_graph=. Leave it out: the graph is kept until the step."),
    "graph of gradients": (lambda: leaf(1).backward(create_graph=True), DTypeError,  # type: ignore[call-arg]
                           "Tensor.backward: there is no create_graph=. Write loss.gradient(x), whose results have "
                           "gradients."),
    "several rates": (lambda: nn.optim.SGD([leaf(2)], lr=Tensor([0.1, 0.2])), SettingError,
                      "SGD: lr has shape (2,). Give one number, or make a group for each rate."),
    "rate of whole numbers": (lambda: nn.optim.SGD([leaf(2)], lr=Tensor([1], "int32")), SettingError,
                              "SGD: lr is int32. Give a number, or a tensor of floats."),
    "rate set to several": (lambda: setattr(nn.optim.SGD([leaf(2)]), "lr", Tensor([0.1, 0.2])), SettingError,
                            "SGD: lr has shape (2,). Give one number, or make a group for each rate."),
    "frozen result": (lambda: (leaf(2) * 2).requires_grad_(False), GradientError,
                      "requires_grad can be changed on leaf tensors only, and this one was computed from one with "
                      "requires_grad. Write x.detach(), or compute it in no_grad()."),
    "dropout": (lambda: nn.Dropout(2), SettingError, "Dropout: p=2: must be a number from 0 to 1."),
    "missing": (lambda: nn.Linear(2, 1).load_state_dict({"weight": np.ones((1, 3)), "other": np.ones(1)}), FormatError,
                "load_state_dict: Linear: missing bias; unexpected other; weight has shape (1, 3), the module (1, 2). "
                "Build the module with the sizes of the file, or load with strict=False to ignore names that differ."),
    "no parameters": (lambda: nn.optim.SGD([]), SettingError,
                      "SGD: no parameters. Give model.parameters(), or a list of tensors with requires_grad=True."),
    "no tensor": (lambda: nn.optim.SGD([NOT_A_TENSOR]), SettingError,
                  "SGD: parameter 0 is a int. Give tensors, such as model.parameters()."),
    "empty groups": (lambda: nn.optim.SGD([{"params": []}]), SettingError,
                     "SGD: no parameters. Give model.parameters(), or a list of tensors with requires_grad=True."),
    "a group and a tensor": (lambda: nn.optim.SGD([{"params": [leaf(1)]}, leaf(1)]), SettingError,
                             "SGD: parameter group 1 must be a dict with a list of tensors under 'params'."),
    "options of a group": (lambda: nn.optim.SGD([{"params": [leaf(1)], "momentum": 0.9}]), SettingError,
                           "SGD: group 0 has momentum. A group has params, lr and weight_decay. Where other options "
                           "differ, make two optimizers."),
    "rate of a group": (lambda: nn.optim.SGD([{"params": [leaf(1)], "lr": -1}]), SettingError,
                        "SGD: group 0: lr=-1. Give a number, 0 or more."),
    "rates of groups": (lambda: nn.optim.SGD([{"params": [leaf(1)]}, {"params": [leaf(1)]}]).lr, SettingError,
                        "SGD.lr: there are 2 groups, each with its own rate. Write optimizer.groups[0].lr, and so on."),
    "no leaf": (lambda: nn.optim.Adam([Tensor([1.0])]), GradientError,
                "Adam: parameter 0 of shape (1,) is not a leaf with requires_grad. Make it with requires_grad=True."),
    "computed": (lambda: nn.optim.Adam([leaf(1) * 2]), GradientError,
                 "Adam: parameter 0 of shape (1,) is not a leaf with requires_grad. Make it with requires_grad=True."),
    "twice": (lambda: nn.optim.SGD(twice()), SettingError, "SGD: a parameter is given twice. Give each once."),
    "rate": (lambda: nn.optim.SGD([leaf(1)], lr=-1), SettingError, "SGD: lr=-1. Give a number, 0 or more."),
    "nesterov": (lambda: nn.optim.SGD([leaf(1)], nesterov=True), SettingError,
                 "SGD: nesterov=True without momentum. Give a momentum, such as 0.9."),
    "betas": (lambda: nn.optim.AdamW([leaf(1)], betas=(0.9, 1.0)), SettingError,
              "AdamW: betas=(0.9, 1.0). Give two numbers from 0 to below 1, such as (0.9, 0.999)."),
    "step": (lambda: nn.optim.SGD([leaf(1)]).step(), GradientError,
             "SGD.step: no parameter has a gradient. Call backward() on the loss first."),
    "clip": (lambda: nn.optim.clip_grad_norm([leaf(1)], 1.0), GradientError,
             "clip_grad_norm: no parameter has a gradient. Call backward() on the loss first."),
    "load": (lambda: nn.state.load("no/such/file"), FormatError,
             "no/such/file: cannot be read: No such file or directory. Give the path of a safetensors file."),
}  # fmt: skip


test_the_message_is_this = each_message(CASES)
