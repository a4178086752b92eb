"""The gradient of every public method that has one: against finite differences in float64, and against PyTorch.

METHODS has a row for each of them; CONSTANT names the methods without a gradient. A new method is in one of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from kernmill import Tensor, dtypes, einsum
from kernmill.lazy import Lazy
from tests.kernmill.against import only_on

Function: TypeAlias = Callable[..., Any]
on_device = only_on("LLVM")  # the rules are those of graphs; what devices compute is tested elsewhere

SHAPE = (3, 4)
INDEX = np.array([[0, 2, 1, 0], [1, 1, 2, 0]])
CLASSES = np.array([1, 3, 0])


def _index(x: Any, index: Any = INDEX) -> Tensor:
    """Return an index for x."""
    return Tensor(index)


def _mask(x: Tensor) -> Tensor:
    return Tensor(np.arange(12).reshape(SHAPE) % 3 == 0)


def _images(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 3, 4)


# methods of x and y, both of SHAPE, in 0.15 .. 0.85; what has the method's own name and no arguments is in ONE or TWO
ONE = [
    "abs",
    "absolute",
    "acos",
    "arccos",
    "asin",
    "arcsin",
    "asinh",
    "arcsinh",
    "atan",
    "arctan",
    "atanh",
    "arctanh",
    "celu",
    "clone",
    "contiguous",
    "copy",
    "cos",
    "cosh",
    "double",
    "elu",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "expit",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "lgamma",
    "logit",
    "sinc",
    "exp",
    "exp2",
    "expm1",
    "flatten",
    "frac",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsigmoid",
    "logsumexp",
    "max",
    "mean",
    "median",
    "min",
    "mish",
    "nan_to_num",
    "nanmean",
    "nansum",
    "neg",
    "negative",
    "norm",
    "prod",
    "quick_gelu",
    "ravel",
    "reciprocal",
    "relu",
    "relu6",
    "rsqrt",
    "selu",
    "sigmoid",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "std",
    "sum",
    "swish",
    "tan",
    "tanh",
    "transpose",
    "tril",
    "triu",
    "var",
    "squeeze",
    "normalize",
    "amax",
    "amin",
]
TWO = [
    "add",
    "atan2",
    "arctan2",
    "copysign",
    "cosine_similarity",
    "div",
    "divide",
    "true_divide",
    "hypot",
    "huber_loss",
    "l1_loss",
    "logaddexp",
    "maximum",
    "minimum",
    "mse_loss",
    "mul",
    "multiply",
    "pow",
    "power",
    "smooth_l1_loss",
    "sub",
    "subtract",
    "fmod",
    "mod",
    "remainder",
    "kron",
    "binary_cross_entropy",
    "binary_crossentropy",
    "binary_cross_entropy_with_logits",
    "binary_crossentropy_logits",
]
MORE: dict[str, Function] = {
    "T": lambda x, y: x.T,
    "mT": lambda x, y: x.mT,
    "acosh": lambda x, y: (x + 1).acosh(),
    "arccosh": lambda x, y: (x + 1).arccosh(),
    "adaptive_avg_pool2d": lambda x, y: _images(x).adaptive_avg_pool2d(2),
    "addcmul": lambda x, y: x.addcmul(y, y * x, value=0.5),
    "avg_pool2d": lambda x, y: _images(x).avg_pool2d(2, 1),
    "bincount": lambda x, y: Tensor(np.array([0, 1, 0, 3])).bincount(x[0], 4),
    "bmm": lambda x, y: x.reshape(1, 3, 4).bmm(y.reshape(1, 4, 3)),
    "broadcast_to": lambda x, y: x.broadcast_to((2, *SHAPE)),
    "broadcast_tensors": lambda x, y: x[0].broadcast_tensors(y)[0],
    "cast": lambda x, y: x.cast(dtypes.float64),
    "astype": lambda x, y: x.astype(dtypes.float64),
    "type": lambda x, y: x.type(dtypes.float64),
    "to": lambda x, y: x.to("LLVM"),
    "cat": lambda x, y: x.cat(y),
    "concat": lambda x, y: x.concat(y),
    "cdist": lambda x, y: x.cdist(y),
    "chunk": lambda x, y: x.chunk(2)[0],
    "clamp": lambda x, y: x.clamp(0.3, 0.6),
    "clip": lambda x, y: x.clip(0.3, y),
    "conv1d": lambda x, y: x.reshape(1, 3, 4).conv1d(y[:, :2].reshape(1, 3, 2)),
    "conv2d": lambda x, y: _images(x).conv2d(y[:2, :2].reshape(1, 1, 2, 2), padding=1),
    "conv3d": lambda x, y: x.reshape(1, 1, 1, 3, 4).conv3d(y[:2, :2].reshape(1, 1, 1, 2, 2)),
    "conv_transpose1d": lambda x, y: x.reshape(1, 3, 4).conv_transpose1d(y[:, :2].reshape(3, 1, 2), stride=2),
    "conv_transpose2d": lambda x, y: _images(x).conv_transpose2d(y[:2, :2].reshape(1, 1, 2, 2), stride=2),
    "conv_transpose3d": lambda x, y: x.reshape(1, 1, 1, 3, 4).conv_transpose3d(y[:2, :2].reshape(1, 1, 1, 2, 2)),
    "cross": lambda x, y: x.T.cross(y.T, 1),
    "cross_entropy": lambda x, y: x.cross_entropy(_index(x, CLASSES)),
    "sparse_categorical_crossentropy": lambda x, y: x.sparse_categorical_crossentropy(_index(x, CLASSES)),
    "nll_loss": lambda x, y: x.log_softmax(1).nll_loss(_index(x, CLASSES)),
    "kl_div": lambda x, y: x.log().kl_div(y),
    "cummax": lambda x, y: x.cummax(1)[0],
    "cummin": lambda x, y: x.cummin(1)[0],
    "cumprod": lambda x, y: x.cumprod(1),
    "cumsum": lambda x, y: x.cumsum(1),
    "cumulative_prod": lambda x, y: x.cumulative_prod(axis=1),
    "cumulative_sum": lambda x, y: x.cumulative_sum(axis=1),
    "logcumsumexp": lambda x, y: x.logcumsumexp(1),
    "diag": lambda x, y: x[0].diag(),
    "diagonal": lambda x, y: x.diagonal(),
    "diff": lambda x, y: x.diff(axis=1),
    "dot": lambda x, y: x[0].dot(y[0]),
    "einsum": lambda x, y: einsum("ij,kj->ik", x, y),
    "expand": lambda x, y: x.reshape(1, 3, 4).expand(2, 3, 4),
    "expand_dims": lambda x, y: x.expand_dims(0),
    "unsqueeze": lambda x, y: x.unsqueeze(0),
    "flip": lambda x, y: x.flip(0),
    "gather": lambda x, y: x.gather(0, _index(x)),
    "gradient": lambda x, y: (x.square() * y).sum().gradient(x)[0],
    "dropout": lambda x, y: x.dropout(0.0),
    "index_add": lambda x, y: x.index_add(0, _index(x, CLASSES % 3), y),
    "index_select": lambda x, y: x.index_select(0, _index(x, CLASSES % 3)),
    "corrcoef": lambda x, y: x.corrcoef(),
    "cov": lambda x, y: x.cov(),
    "grid_sample": lambda x, y: _images(x).grid_sample(y[:, :2].reshape(1, 1, 3, 2)),
    "pixel_shuffle": lambda x, y: x.reshape(1, 4, 1, 3).pixel_shuffle(2),
    "pixel_unshuffle": lambda x, y: x.reshape(1, 2, 6).pixel_unshuffle(2),
    "polygamma": lambda x, y: x.polygamma(1),
    "segment_mean": lambda x, y: x.segment_mean(Tensor([0, 1, 1]), 2),
    "to_device": lambda x, y: x.to_device(x.device),
    "xlogy": lambda x, y: x.xlogy(y),
    "zeta": lambda x, y: (x.ones_like() + 1.5).zeta(x * y),  # there is no gradient by the exponent
    "gammainc": lambda x, y: (y.detach() * 0 + 1.5).gammainc(x),
    "gammaincc": lambda x, y: (y.detach() * 0 + 1.5).gammaincc(x),
    "betainc": lambda x, y: (y.detach() * 0 + 1.5).betainc(2.5, x),
    "interpolate": lambda x, y: _images(x).interpolate((5, 7), mode="linear"),
    "lerp": lambda x, y: x.lerp(y, 0.3),
    "linear": lambda x, y: x.linear(y, y[:, 0]),
    "log_softmax": lambda x, y: x.log_softmax(1),
    "softmax": lambda x, y: x.softmax(1),
    "layer_norm": lambda x, y: x.layer_norm((x.shape[-1],)),
    "softmin": lambda x, y: x.softmin(1),
    "masked_fill": lambda x, y: x.masked_fill(_mask(x), 2.0),
    "matmul": lambda x, y: x @ y.T,
    "mm": lambda x, y: x.mm(y.T),
    "cholesky": lambda x, y: (x @ x.T + Tensor(np.eye(3))).cholesky(),
    "det": lambda x, y: (x @ x.T).det(),
    "eigh": lambda x, y: (x @ x.T).eigh().eigenvectors.square(),
    "eigvalsh": lambda x, y: (x @ x.T).eigvalsh(),
    "inv": lambda x, y: (x[:, :3] + 2 * Tensor(np.eye(3))).inv(),
    "inverse": lambda x, y: (x[:, :3] + 2 * Tensor(np.eye(3))).inverse(),
    "lstsq": lambda x, y: x.T.lstsq(y.T),
    "matrix_exp": lambda x, y: x[:, :3].matrix_exp(),
    "pinv": lambda x, y: x.pinv(),
    "pinverse": lambda x, y: x.pinverse(),
    "qr": lambda x, y: x.qr()[1].square(),
    "slogdet": lambda x, y: (x @ x.T).slogdet()[1],
    "solve": lambda x, y: (x[:, :3] + 2 * Tensor(np.eye(3))).solve(y),
    "solve_triangular": lambda x, y: (x[:, :3] + 1).solve_triangular(y),
    "svd": lambda x, y: x.svd(full_matrices=False).U.square(),
    "svdvals": lambda x, y: x.svdvals(),
    "matrix_power": lambda x, y: x[:, :3].matrix_power(3),
    "mv": lambda x, y: x.mv(y[0]),
    "max_pool2d": lambda x, y: _images(x).max_pool2d(2, 1),
    "meshgrid": lambda x, y: x[0].meshgrid(y[0])[0],
    "max_unpool2d": lambda x, y: (
        x[:1, :1].reshape(1, 1, 1, 1).max_unpool2d(Tensor(np.zeros((1, 1, 1, 1), np.int64)), 2)
    ),
    "moveaxis": lambda x, y: x.moveaxis(0, 1),
    "movedim": lambda x, y: x.movedim(0, 1),
    "outer": lambda x, y: x[0].outer(y[0]),
    "pad": lambda x, y: x.pad((1, 2)),
    "permute": lambda x, y: x.permute(1, 0),
    "permute_dims": lambda x, y: x.permute_dims(1, 0),
    "quantile": lambda x, y: x.quantile(0.4, 1),
    "rearrange": lambda x, y: x.rearrange("a (b c) -> b a c", b=2),
    "repeat": lambda x, y: x.repeat(2, 1),
    "repeat_interleave": lambda x, y: x.repeat_interleave(2, 1),
    "tile": lambda x, y: x.tile((1, 2)),
    "reshape": lambda x, y: x.reshape(4, 3),
    "view": lambda x, y: x.view(4, 3),
    "roll": lambda x, y: x.roll(1, 1),
    "rot90": lambda x, y: x.rot90(),
    "scaled_dot_product_attention": lambda x, y: x.reshape(1, 3, 4).scaled_dot_product_attention(
        y.reshape(1, 3, 4), (x * y).reshape(1, 3, 4)
    ),
    "scatter": lambda x, y: x.scatter(0, _index(x, INDEX[:1]), y[:1]),
    "scatter_add": lambda x, y: x.scatter_add(0, _index(x), y),
    "scatter_reduce": lambda x, y: x.scatter_reduce(0, _index(x), y, "sum"),
    "segment_max": lambda x, y: x.segment_max(_index(x, np.array([0, 0, 1])), 2),
    "segment_min": lambda x, y: x.segment_min(_index(x, np.array([0, 0, 1])), 2),
    "segment_prod": lambda x, y: x.segment_prod(_index(x, np.array([0, 0, 1])), 2),
    "segment_sum": lambda x, y: x.segment_sum(_index(x, np.array([0, 0, 1])), 2),
    "shrink": lambda x, y: x.shrink(((0, 2), (1, 3))),
    "sort": lambda x, y: x.sort(1)[0],
    "split": lambda x, y: x.split(2, 1)[1],
    "stack": lambda x, y: x.stack(y),
    "std_mean": lambda x, y: x.std_mean()[0],
    "swapaxes": lambda x, y: x.swapaxes(0, 1),
    "swapdims": lambda x, y: x.swapdims(0, 1),
    "take_along_dim": lambda x, y: x.take_along_dim(_index(x), 0),
    "take_along_axis": lambda x, y: x.take_along_axis(_index(x), 0),
    "tensordot": lambda x, y: x.tensordot(y, ([1], [1])),
    "topk": lambda x, y: x.topk(2)[0],
    "unbind": lambda x, y: x.unbind(0)[1],
    "unflatten": lambda x, y: x.unflatten(1, (2, 2)),
    "unfold": lambda x, y: x.unfold(1, 2, 1),
    "var_mean": lambda x, y: x.var_mean(1)[0],
    "where": lambda x, y: x.where(_mask(x), y),
    "replace": lambda x, y: (x * 1).replace(y * x),
    "assign": lambda x, y: (x * 1).assign(y * x),
    "realize": lambda x, y: (x * y).realize(),
    "requires_grad_": lambda x, y: x.requires_grad_(),
    "item": lambda x, y: x[0, 0] * y[0, 0],
    "squeeze": lambda x, y: x.unsqueeze(1).squeeze(1),
    "trace": lambda x, y: x[:, :3].trace(),
}
ROWS: dict[str, Function] = {
    **{name: lambda x, y, name=name: getattr(x, name)() for name in ONE},
    **{name: lambda x, y, name=name: getattr(x, name)(y) for name in TWO},
    **MORE,
}
METHODS = {name: function for name, function in ROWS.items() if hasattr(Tensor, name)}
CONSTANT = frozenset(
    [
        "all",
        "allclose",
        "any",
        "arange",
        "argmax",
        "argmin",
        "argsort",
        "backward",
        "bernoulli",
        "bfloat16",
        "bitcast",
        "bitwise_and",
        "bitwise_invert",
        "bitwise_left_shift",
        "bitwise_not",
        "bitwise_or",
        "bitwise_right_shift",
        "bitwise_xor",
        "bool",
        "ceil",
        "count_nonzero",
        "data",
        "detach",
        "device",
        "dtype",
        "element_size",
        "empty",
        "empty_like",
        "eq",
        "eye",
        "fix",
        "float",
        "floor",
        "floor_divide",
        "from_dlpack",
        "from_numpy",
        "full",
        "full_like",
        "ge",
        "glorot_uniform",
        "greater",
        "greater_equal",
        "gt",
        "half",
        "argwhere",
        "from_float8",
        "to_float8",
        "bucketize",
        "histc",
        "histogram",
        "unique",
        "int",
        "invert",
        "is_floating_point",
        "is_leaf",
        "is_realized",
        "isclose",
        "isfinite",
        "isin",
        "isinf",
        "isnan",
        "kaiming_normal",
        "kaiming_uniform",
        "le",
        "less",
        "less_equal",
        "linspace",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "long",
        "lshift",
        "lt",
        "lu",
        "manual_seed",
        "matrix_rank",
        "masked_select",
        "multinomial",
        "nbytes",
        "ndim",
        "ne",
        "nelement",
        "nextafter",
        "node_shape",
        "nonzero",
        "normal",
        "not_equal",
        "numel",
        "numpy",
        "one_hot",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randint",
        "randn",
        "randn_like",
        "random_state",
        "randperm",
        "requires_grad",
        "round",
        "rshift",
        "scaled_uniform",
        "searchsorted",
        "set_random_state",
        "shape",
        "short",
        "sgn",
        "sign",
        "signbit",
        "size",
        "tobytes",
        "tolist",
        "trunc",
        "uniform",
        "xor",
        "zeros",
        "zeros_like",
    ]
)


def test_every_public_method_has_a_row() -> None:
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    assert public - METHODS.keys() - CONSTANT == set()


def _inputs() -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.permutation(np.linspace(low, low + 0.7, 12)).reshape(SHAPE) for low in (0.15, 0.17)]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_gradient_is_the_slope(name: str) -> None:
    """Along one random direction, in float64."""
    points, rng = _inputs(), np.random.default_rng(5)
    x, y = (Tensor(p) for p in points)
    result: Lazy = METHODS[name](x, y)
    weight = rng.standard_normal(result.shape)
    flagged = [Tensor(p, requires_grad=True) for p in points]
    loss = (METHODS[name](*flagged) * Tensor(weight)).sum()
    loss.backward()
    ways = [rng.standard_normal(SHAPE) for _ in points]
    slope = sum(float((t.grad.numpy() * w).sum()) for t, w in zip(flagged, ways, strict=True) if t.grad is not None)
    step = 1e-5
    ends = [
        (METHODS[name](*(Tensor(p + s * w) for p, w in zip(points, ways, strict=True))).detach().numpy() * weight).sum()
        for s in (step, -step)
    ]
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-5, abs=2e-7)
    for t, p in zip(flagged, points, strict=True):
        if t.grad is not None:
            assert (t.grad.shape, t.grad.dtype) == (p.shape, t.dtype)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.0, np.inf, -np.inf, np.nan, 1e-30], np.float64)
AT_SPECIAL = [
    "abs",
    "acos",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "floor",
    "ceil",
    "trunc",
    "round",
    "sign",
]
REDUCED: dict[str, Function] = {
    "norm": lambda t: t.norm(),
    "std": lambda t: t.std(),
    "var": lambda t: t.var(),
    "prod": lambda t: t.prod(),
    "max": lambda t: t.max(),
    "min": lambda t: t.min(),
    "mean": lambda t: t.mean(),
    "softmax": lambda t: t.softmax(0)[0],
    "logsumexp": lambda t: t.logsumexp(0),
    "cumprod": lambda t: t.cumprod(0).sum(),
    "log_softmax": lambda t: t.log_softmax(0)[1],
}
SAME: dict[str, list[float]] = {"zeros": [0.0] * 4, "ties": [2.0, 2.0, 1.0, 2.0], "one zero": [2.0, 0.0, 3.0, 1.0]}


@pytest.mark.parametrize("name", AT_SPECIAL)
def test_gradients_at_special_values_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    points = SPECIAL[~np.isnan(SPECIAL)] if name == "abs" else SPECIAL  # of nan it is nan, in PyTorch 0
    ref = torch.tensor(points, requires_grad=True)
    getattr(ref, name)().sum().backward()
    own = Tensor(points, requires_grad=True)
    getattr(own, name)().sum().backward()
    assert own.grad is not None
    np.testing.assert_allclose(own.grad.numpy(), ref.grad.numpy(), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("points", SAME)
@pytest.mark.parametrize("name", REDUCED)
def test_gradients_of_reductions_at_special_values_are_torchs(name: str, points: str) -> None:
    torch = pytest.importorskip("torch")
    ref = torch.tensor(SAME[points], dtype=torch.float64, requires_grad=True)
    REDUCED[name](ref).backward()
    own = Tensor(SAME[points], dtypes.float64, requires_grad=True)
    REDUCED[name](own).backward()
    assert own.grad is not None
    np.testing.assert_allclose(own.grad.numpy(), ref.grad.numpy(), rtol=1e-6, atol=1e-9)
