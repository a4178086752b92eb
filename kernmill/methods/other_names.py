"""Names of methods of Tensor in other libraries whose meaning differs: a message with what to write here.

The message is made after a name was not found, so a program with our names pays nothing. Names with the same meaning
are in synonyms.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "FRONT", "MODULE", "OPTIMIZER", "OPTIMIZERS", "instead_of", "layer_instead_of", "named_in", "no_attribute",
]  # fmt: skip

_INSTEAD: dict[str, str] = {  # their name: the replacement here
    "add_": "x += y", "sub_": "x -= y", "mul_": "x *= y", "div_": "x /= y", "copy_": "x.assign(y)",
    "fill_": "x.assign(number)", "zero_": "x.assign(0)", "fill": "x.assign(number)",
    "normal_": "x.assign(Tensor.normal(*x.shape))", "uniform_": "x.assign(Tensor.uniform(*x.shape))",
    "bernoulli_": "x.assign((Tensor.rand(*x.shape) < p).cast(x.dtype))", "t": "x.T", "dim": "x.ndim",
    "ndimension": "x.ndim", "itemsize": "x.element_size()",
    "narrow": "x[:, start : start + length]", "select": "x[:, i]", "slice": "x[start:stop]",
    "expand_as": "x.expand(y.shape)", "view_as": "x.reshape(y.shape)", "reshape_as": "x.reshape(y.shape)",
    "fliplr": "x.flip(1)", "flipud": "x.flip(0)",
    "tensor_split": "x.split(sizes, axis)", "hsplit": "x.chunk(n, 1)", "vsplit": "x.chunk(n, 0)",
    "type_as": "x.cast(y.dtype)", "byte": "x.cast(dtypes.uint8)", "char": "x.cast(dtypes.int8)",
    "data": "x.detach(), or memoryview(x.numpy()) for its bytes",
    "cpu": "x.to('LLVM'), or x.numpy()", "cuda": "x.to('CL')", "is_cuda": "x.device", "get_device": "x.device",
    "is_contiguous": "x.contiguous(), where a separate buffer is needed", "retain_grad": "loss.gradient(x)",
    "register_hook": "x.grad, after backward()", "grad_fn": "x.requires_grad",
    "clamp_min": "x.clamp(min=low)", "clamp_max": "x.clamp(max=high)", "positive": "x",
    "deg2rad": "x * (math.pi / 180)", "rad2deg": "x * (180 / math.pi)",
    "ptp": "x.max() - x.min()",
    "aminmax": "x.min(), x.max()", "real": "x", "conj": "x", "imag": "x.zeros_like()",
    "angle": "kernmill.ComplexTensor(x).angle()",
    "glu": "a * b.sigmoid() with a, b = x.chunk(2, -1)", "prelu": "where(x > 0, x, weight * x), or nn.PReLU",
    "addmm": "x + a @ b", "baddbmm": "x + a @ b", "addcdiv": "x + a / b", "inner": "x.linear(y)",
    "vdot": "x.flatten() @ y.flatten()", "dist": "(x - y).norm()", "sum_to_size": "x.sum(axis, keepdim=True)",
    "index_fill": "x[index] = number", "index_put": "x[index] = y", "index_copy": "x[index] = y", "at": "x[index] = y",
    "take": "x.flatten()[index]", "equal": "(x == y).all()", "array_equal": "(x == y).all()",
    "is_nonzero": "bool(x)", "kthvalue": "x.sort(), and its entry k - 1",
    "fft": "kernmill.fft.fft(x)",
    "values": "x, and x.argmax(axis) for the indices", "indices": "x.argmax(axis)", "block_until_ready": "x.realize()",
    "new_full": "Tensor.full(shape, value)", "new_empty": "Tensor.zeros(*shape)", "new_zeros": "Tensor.zeros(*shape)",
    "new_ones": "Tensor.ones(*shape)", "new_tensor": "Tensor(values)", "diag_embed": "x.unsqueeze(-1) * Tensor.eye(n)",
    "batch_norm": "nn.BatchNorm(channels)", "embedding": "weight[index]",
    "group_norm": "nn.GroupNorm(groups, channels)", "batchnorm": "nn.BatchNorm(channels)",
    "layernorm": "x.layer_norm(sizes)", "sequential": "nn.Sequential(*layers)(x)", "usum": "x + y",

}  # fmt: skip
_RESHAPING = frozenset(
    ["detach", "movedim", "moveaxis", "permute", "squeeze", "swapaxes", "swapdims", "transpose", "unsqueeze", "view"]
)

_LAYERS: dict[str, str] = {
    "Flatten": "lambda x: x.flatten(1)", "Identity": "lambda x: x", "MaxPool2d": "lambda x: x.max_pool2d(2)",
    "AvgPool2d": "lambda x: x.avg_pool2d(2)", "AdaptiveAvgPool2d": "lambda x: x.adaptive_avg_pool2d(1)",
    "Softmax": "lambda x: x.softmax(-1)", "Upsample": "lambda x: x.interpolate(scale_factor=2)",
    "ModuleList": "a list", "ModuleDict": "a dict", "ParameterList": "a list",
    "Parameter": "Tensor(.., requires_grad=True)", "functional": "the methods of Tensor",
    "CrossEntropyLoss": "predictions.cross_entropy(target)", "NLLLoss": "predictions.nll_loss(target)",
    "MSELoss": "predictions.mse_loss(target)", "L1Loss": "predictions.l1_loss(target)",
    "BCELoss": "predictions.binary_cross_entropy(target)", "KLDivLoss": "predictions.kl_div(target)",
    "BCEWithLogitsLoss": "predictions.binary_cross_entropy_with_logits(target)",
    "SmoothL1Loss": "predictions.smooth_l1_loss(target)", "HuberLoss": "predictions.huber_loss(target)",
    "MultiheadAttention": "nn.MultiHeadAttention(embed_dim, num_heads)", "utils": "nn.optim.clip_grad_norm",
    "LeakyReLU": "Tensor.leaky_relu", "LogSoftmax": "lambda x: x.log_softmax(-1)", "F": "the methods of Tensor",
    "scope": "kernmill.scope",
    "init": "x.assign(Tensor.glorot_uniform(*x.shape))",
    "DataParallel": "the model alone: kernels use every core",
    "MaxPool1d": "lambda x: x.unsqueeze(2).max_pool2d((1, 2)).squeeze(2)", "Buffer": "self.name = tensor",
    "GLU": "a * b.sigmoid() with a, b = x.chunk(2, -1)",
    "ZeroPad2d": "lambda x: x.pad((1, 1, 1, 1))", "ReflectionPad2d": "lambda x: x.pad((1, 1, 1, 1), mode='reflect')",
    "ReplicationPad2d": "lambda x: x.pad((1, 1, 1, 1), mode='replicate')", "Softmax2d": "lambda x: x.softmax(-3)",
    "AvgPool1d": "lambda x: x.unsqueeze(2).avg_pool2d((1, 2)).squeeze(2)",
    "AdaptiveMaxPool2d": "lambda x: x.max((-2, -1), keepdim=True) for the output size 1", "ParameterDict": "a dict",
    "CosineSimilarity": "x.cosine_similarity(y)",
    "TripletMarginLoss": "((x - y).norm(axis=-1) - (x - z).norm(axis=-1) + margin).relu().mean()",
}  # fmt: skip


MODULE: dict[str, str] = {
    "zero_grad": "optimizer.zero_grad()", "register_buffer": "self.name = tensor", "add_module": "self.name = layer",
    "register_parameter": "self.name = Tensor(.., requires_grad=True)", "children": "model.modules()",
    "named_modules": "model.modules()", "apply": "for module in model.modules(): ..",
    "requires_grad_": "for p in model.parameters(): p.requires_grad_(False)",
    "to": "with Context(DEVICE=..) around what makes the model", "cuda": "with Context(DEVICE='CL') around it",
    "compile": "jit(model)", "device": "parameter.device", "named_children": "model.modules()", "cpu": "model",
    "reset_parameters": "a new module", "type": "dtype=.. where layers are made",
    "half": "dtype=dtypes.float16 where layers are made", "bfloat16": "dtype=dtypes.bfloat16 where layers are made",
}  # fmt: skip


OPTIMIZERS: dict[str, str] = {
    **{name: f"nn.optim.lr_scheduler.{name}" for name in (
        "LRScheduler", "LambdaLR", "StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR", "OneCycleLR",
        "ReduceLROnPlateau", "LinearLR",
    )}, "CyclicLR": "LambdaLR, with a function of the step", "clip_grad_norm_": "nn.optim.clip_grad_norm",
    "clip_grad_value_": "p.grad = p.grad.clamp(-most, most) for each p",
}  # fmt: skip


OPTIMIZER: dict[str, str] = {
    "param_groups": "optimizer.groups, each with its lr, or optimizer.lr", "defaults": "optimizer.lr",
    "add_param_group": "groups where the optimizer is made: SGD([{'params': a}, {'params': b, 'lr': 1e-4}])",
}  # fmt: skip


FRONT: dict[str, str] = {
    "save": "nn.state.save(path, model)", "load": "nn.state.load(path)", "compile": "jit(function)",
    "grad": "loss.gradient(x)", "array": "Tensor(values)", "as_tensor": "Tensor(values)", "concatenate": "cat",
    "concat": "cat", "nan": "math.nan", "inf": "math.inf", "newaxis": "None", "optim": "nn.optim",
    "inference_mode": "no_grad()", "device": "with Context(DEVICE=..)", "set_grad_enabled": "no_grad()",
    "DataLoader": "kernmill.data.DataLoader", "utils": "kernmill.data",
    "amp": "kernmill.autocast(), nn.optim.GradScaler()",
    "cuda": "with Context(DEVICE='CL')", "seed": "manual_seed(1)", "random": "manual_seed(1), Tensor.rand(..)",
    "PRNGKey": "manual_seed(1)", "value_and_grad": "loss.gradient(x)", "functional": "the methods of Tensor",
    "numpy": "Tensor(values), and its methods", "FloatTensor": "Tensor(values)", "LongTensor": "Tensor(values)",
}  # fmt: skip


def named_in(names: Mapping[str, str], name: str) -> str:
    """Return a message with the replacement of a name that kernmill does not have; empty if the table has none."""
    return f" Write {names[name]}." if name in names else ""


def no_attribute(owner: object, name: str, names: Mapping[str, str]) -> AttributeError:
    """Return the error for a missing attribute, with the replacement of another library's name if the table has one."""
    text, hint = f"{type(owner).__name__!r} object has no attribute {name!r}", named_in(names, name)
    return AttributeError(f"{text}.{hint}" if hint else text, name=name, obj=owner)


def instead_of(name: str, own: type) -> str:
    """Return a message with the replacement of a method that Tensor does not have; empty if unknown."""
    stem = name.removesuffix("_")
    if name in _INSTEAD:
        return named_in(_INSTEAD, name)
    if name.endswith("_") and hasattr(own, stem) and not name.startswith("_"):
        return f" Write x = x.{stem}(..)." if stem in _RESHAPING else f" Write x.assign(x.{stem}(..))."
    return ""


def layer_instead_of(name: str, own: type) -> str:
    """Return a message with the replacement of a layer that nn does not have: functions of a tensor are layers."""
    if name in _LAYERS:
        return named_in(_LAYERS, name)
    method = getattr(own, name.lower(), None)
    if not callable(method) or not _takes_one(method):
        return ""
    return f" Any function of a tensor is a layer: write Tensor.{name.lower()}."


def _takes_one(function: Callable[..., Any]) -> bool:
    """True if a call with one tensor is complete."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True
