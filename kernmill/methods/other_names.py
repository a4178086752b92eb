"""Names of methods of Tensor in other libraries whose meaning differs: a message with what to write here.

The message is made after a name was not found, so a program with our names pays nothing. Names with the same meaning
are in synonyms.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "DISTRIBUTIONS", "FRONT", "LINALG", "MODULE", "OPTIMIZER", "OPTIMIZERS", "instead_of", "layer_instead_of",
    "named_in", "no_attribute", "not_in",
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
    "hstack": "cat(tensors, 1), or cat(tensors) of tensors with one axis",
    "vstack": "cat(tensors), or stack(tensors) of tensors with one axis", "dstack": "cat(tensors, 2)",
    "column_stack": "cat(tensors, 1), or stack(tensors, 1) of tensors with one axis",
    "atleast_1d": "x.unsqueeze(0) for a tensor without axes",
    "atleast_2d": "x.unsqueeze(0) for a tensor with one axis",
    "atleast_3d": "x.unsqueeze(-1) for a tensor with two axes", "dsplit": "x.chunk(n, 2)",
    "lcm": "Tensor(np.lcm(x.numpy(), y.numpy()))", "gcd": "Tensor(np.gcd(x.numpy(), y.numpy()))",
    "frexp": "x.abs().log2().floor() + 1 for the exponent", "ldexp": "x * y.exp2()",
    "float_power": "x.cast(dtypes.float64) ** y", "heaviside": "where(x == 0, y, (x > 0).cast(x.dtype))",
    "logaddexp2": "(x.exp2() + y.exp2()).log2()", "fmax": "where(x.isnan(), y, where(y.isnan(), x, x.maximum(y)))",
    "fmin": "where(x.isnan(), y, where(y.isnan(), x, x.minimum(y)))", "isposinf": "x == math.inf",
    "isneginf": "x == -math.inf", "isreal": "x == x",
    "is_complex": "False: complex values are a kernmill.ComplexTensor", "is_signed": "x.dtype",
    "is_same_size": "x.shape == y.shape", "is_cpu": "x.device",
    "mode": "x.unique(return_counts=True), and the value with the largest count", "msort": "x.sort(0)",
    "nanmedian": "x[x == x].median()", "nanquantile": "x[x == x].quantile(q)",
    "unique_consecutive": "x[1:][x[1:] != x[:-1]], after x[:1]", "data_ptr": "memoryview(x.numpy()) for its bytes",
    "storage": "memoryview(x.numpy()) for its bytes", "untyped_storage": "memoryview(x.numpy()) for its bytes",
    "stride": "x.shape: a tensor is contiguous to its user",
    "storage_offset": "x.shape: a tensor is contiguous to its user",
    "as_strided": "x.unfold(axis, size, step), or slices", "pin_memory": "x", "layout": "x.shape", "to_dense": "x",
    "to_sparse": "x.nonzero(), and x[mask] for the values", "is_sparse": "False",
    "dequantize": "x.cast(dtypes.float32)", "addbmm": "x + (a @ b).sum(0)", "addmv": "x + a @ b",
    "addr": "x + a.outer(b)", "ger": "x.outer(y)", "H": "x.mT", "mH": "x.mT", "adjoint": "x.mT",
    "logdet": "x.slogdet()[1]", "diagflat": "x.flatten().diag()", "cholesky_inverse": "(x @ x.mT).inv()",
    "cholesky_solve": "(y @ y.mT).solve(x)", "lu_solve": "a.solve(x), with the matrix itself",
    "triangular_solve": "a.solve_triangular(x, upper=True)", "eig": "kernmill.linalg.eig(x)",
    "stft": "kernmill.fft.rfft(x.unfold(-1, n_fft, hop) * window).mT, for center=False",
    "istft": "kernmill.fft.irfft(frames), then index_add of the frames",
    "hann_window": "0.5 - 0.5 * (Tensor.arange(n) * (2 * math.pi / n)).cos()",
    "hamming_window": "0.54 - 0.46 * (Tensor.arange(n) * (2 * math.pi / n)).cos()",
    "bartlett_window": "1 - (Tensor.arange(n) * (2 / n) - 1).abs()",
    "blackman_window": "0.42 - 0.5 * t.cos() + 0.08 * (2 * t).cos() with t = Tensor.arange(n) * (2 * math.pi / n)",
    "trapezoid": "((y[1:] + y[:-1]) / 2 * x.diff()).sum()", "trapz": "((y[1:] + y[:-1]) / 2 * x.diff()).sum()",
    "cumulative_trapezoid": "((y[1:] + y[:-1]) / 2 * x.diff()).cumsum(0)", "masked_scatter": "x[mask] = y",
    "put": "x[index] = y", "select_scatter": "x[:, i] = y", "slice_scatter": "x[start:stop] = y",
    "diagonal_scatter": "x[i, i] = y with i = Tensor.arange(n)",
    "index_reduce": "x.scatter_reduce(axis, index, y, 'amax')", "split_with_sizes": "x.split(sizes, axis)",
    "narrow_copy": "x[:, start : start + length]", "resize": "x.reshape(shape)", "resize_as": "x.reshape(y.shape)",
    "renorm": "x * (most / x.norm(axis=axis, keepdim=True)).clamp(max=1)",
    "vander": "x.unsqueeze(-1) ** Tensor.arange(n)", "block_diag": "a.pad((0, n, 0, m)) + b.pad((k, 0, l, 0))",
    "cartesian_prod": "stack([t.flatten() for t in meshgrid(x, y)], -1)",
    "tril_indices": "Tensor.ones(n, n).tril().nonzero()", "triu_indices": "Tensor.ones(n, n).triu().nonzero()",
    "logspace": "10 ** Tensor.linspace(start, stop, n)", "unravel_index": "index // n, index % n",
    "poisson": "kernmill.distributions.Poisson(x).sample()", "rsub": "y - x",
    "hardshrink": "where(x.abs() > 0.5, x, 0)", "softshrink": "x.sign() * (x.abs() - 0.5).relu()",
    "tanhshrink": "x - x.tanh()", "threshold": "where(x > low, x, value)", "rrelu": "x.leaky_relu(11 / 48)",
    "rms_norm": "x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight, or nn.RMSNorm",
    "instance_norm": "nn.InstanceNorm2d(channels)(x)",
    "local_response_norm": "x / (k + alpha * s) ** beta, s = means of x.square()",
    "alpha_dropout": "x.dropout(p), which does not keep the variance", "dropout1d": "nn.Dropout1d(p)(x)",
    "dropout2d": "nn.Dropout2d(p)(x)",
    "dropout3d": "nn.Dropout3d(p)(x)", "embedding_bag": "weight[index].mean(1)",
    "bilinear": "nn.Bilinear(n, m, out)(x, y)",
    "gumbel_softmax": "((x - (-Tensor.rand(*x.shape).log()).log()) / tau).softmax(-1)",
    "affine_grid": "a grid of stack(meshgrid(..), -1) times theta.mT", "fold": "x.index_add(..) of the patches",
    "channel_shuffle": "x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)",
    "pairwise_distance": "(x - y).norm(axis=-1)",
    "pdist": "x.cdist(x).triu(1), whose entries above the diagonal are meant",
    "upsample": "x.interpolate(scale_factor=2)", "upsample_nearest": "x.interpolate(scale_factor=2)",
    "upsample_bilinear": "x.interpolate(scale_factor=2, mode='bilinear')",
    "max_pool1d": "x.unsqueeze(2).max_pool2d((1, 2)).squeeze(2)",
    "avg_pool1d": "x.unsqueeze(2).avg_pool2d((1, 2)).squeeze(2)",
    "adaptive_avg_pool1d": "x.unsqueeze(2).adaptive_avg_pool2d((1, n)).squeeze(2)",
    "adaptive_max_pool2d": "x.max((-2, -1), keepdim=True) for the output size 1",
    "max_pool3d": "x.unfold(2, 2, 2).unfold(3, 2, 2).unfold(4, 2, 2).max((-3, -2, -1))",
    "avg_pool3d": "x.unfold(2, 2, 2).unfold(3, 2, 2).unfold(4, 2, 2).mean((-3, -2, -1))",
    "adaptive_avg_pool3d": "x.mean((-3, -2, -1), keepdim=True) for the output size 1",
    "lp_pool2d": "(x.pow(p).avg_pool2d(2) * 4).pow(1 / p)",
    "triplet_margin_loss": "((x - y).norm(axis=-1) - (x - z).norm(axis=-1) + margin).relu().mean()",
    "margin_ranking_loss": "(margin - target * (x - y)).relu().mean()",
    "soft_margin_loss": "(-target * x).softplus().mean()", "poisson_nll_loss": "(x.exp() - target * x).mean()",
    "gaussian_nll_loss": "((x - target).square() / var + var.log()).mean() / 2",
    "cosine_embedding_loss": "where(target > 0, 1 - c, (c - margin).relu()).mean() with c = x.cosine_similarity(y)",
    "hinge_embedding_loss": "where(target > 0, x, (margin - x).relu()).mean()",
    "multilabel_soft_margin_loss": "x.binary_cross_entropy_with_logits(target)",
    "ctc_loss": "a recursion of x.logaddexp(y) over the steps",
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
    "SyncBatchNorm": "nn.BatchNorm2d(channels)", "EmbeddingBag": "lambda index: weight[index].mean(1)",
    "Unflatten": "lambda x: x.unflatten(1, sizes)", "PixelShuffle": "lambda x: x.pixel_shuffle(r)",
    "PixelUnshuffle": "lambda x: x.pixel_unshuffle(r)",
    "ChannelShuffle": "lambda x: x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)",
    "Hardshrink": "lambda x: where(x.abs() > 0.5, x, 0)", "Softshrink": "lambda x: x.sign() * (x.abs() - 0.5).relu()",
    "Tanhshrink": "lambda x: x - x.tanh()", "Threshold": "lambda x: where(x > low, x, value)",
    "RReLU": "lambda x: x.leaky_relu(11 / 48)", "AlphaDropout": "nn.Dropout(p), which does not keep the variance",
    "FeatureAlphaDropout": "nn.Dropout2d(p), which does not keep the variance",
    "UpsamplingNearest2d": "lambda x: x.interpolate(scale_factor=2)",
    "UpsamplingBilinear2d": "lambda x: x.interpolate(scale_factor=2, mode='bilinear')",
    "PairwiseDistance": "(x - y).norm(axis=-1)", "ZeroPad1d": "lambda x: x.pad((1, 1))",
    "ZeroPad3d": "lambda x: x.pad((1, 1, 1, 1, 1, 1))", "ConstantPad1d": "lambda x: x.pad((1, 1), value=value)",
    "ConstantPad2d": "lambda x: x.pad((1, 1, 1, 1), value=value)",
    "ConstantPad3d": "lambda x: x.pad((1, 1, 1, 1, 1, 1), value=value)",
    "ReflectionPad1d": "lambda x: x.pad((1, 1), mode='reflect')",
    "ReplicationPad1d": "lambda x: x.pad((1, 1), mode='replicate')",
    "CircularPad1d": "lambda x: x.pad((1, 1), mode='circular')",
    "CircularPad2d": "lambda x: x.pad((1, 1, 1, 1), mode='circular')",
    "AdaptiveAvgPool1d": "lambda x: x.unsqueeze(2).adaptive_avg_pool2d((1, n)).squeeze(2)",
    "AdaptiveAvgPool3d": "lambda x: x.mean((-3, -2, -1), keepdim=True) for the output size 1",
    "AdaptiveMaxPool1d": "lambda x: x.max(-1, keepdim=True) for the output size 1",
    "AdaptiveMaxPool3d": "lambda x: x.max((-3, -2, -1), keepdim=True) for the output size 1",
    "MaxPool3d": "lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).unfold(4, 2, 2).max((-3, -2, -1))",
    "AvgPool3d": "lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).unfold(4, 2, 2).mean((-3, -2, -1))",
    "MaxUnpool2d": "x.max_unpool2d(indices)", "LPPool2d": "lambda x: (x.pow(p).avg_pool2d(2) * 4).pow(1 / p)",
    "MarginRankingLoss": "(margin - target * (x - y)).relu().mean()",
    "SoftMarginLoss": "(-target * x).softplus().mean()", "PoissonNLLLoss": "(x.exp() - target * x).mean()",
    "GaussianNLLLoss": "((x - target).square() / var + var.log()).mean() / 2",
    "HingeEmbeddingLoss": "where(target > 0, x, (margin - x).relu()).mean()",
    "CosineEmbeddingLoss": "where(target > 0, 1 - c, (c - margin).relu()).mean() with c = x.cosine_similarity(y)",
    "MultiLabelSoftMarginLoss": "x.binary_cross_entropy_with_logits(target)",
    "CTCLoss": "a recursion of x.logaddexp(y) over the steps", "LazyLinear": "nn.Linear(in_features, out_features)",
    "LazyConv1d": "nn.Conv1d(in_channels, out_channels, size)",
    "LazyConv2d": "nn.Conv2d(in_channels, out_channels, size)",
    "LazyConv3d": "nn.Conv3d(in_channels, out_channels, size)", "LazyBatchNorm1d": "nn.BatchNorm1d(channels)",
    "LazyBatchNorm2d": "nn.BatchNorm2d(channels)", "parameter": "Tensor(.., requires_grad=True)",
    "parallel": "the model alone: kernels use every core",
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
    "LARS": "nn.optim.LAMB, which scales steps by the norm of each parameter too", "Adafactor": "nn.optim.AdamW",
    "SparseAdam": "nn.optim.Adam", "ASGD": "nn.optim.SGD, and a mean of the parameters", "Rprop": "nn.optim.RMSprop",
    "LBFGS": "nn.optim.Adam", "MultiplicativeLR": "nn.optim.lr_scheduler.LambdaLR, with the product of the factors",
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
    "vmap": "kernmill.functional.vmap", "cond": "kernmill.functional.cond",
    "while_loop": "kernmill.functional.while_loop", "asarray": "Tensor(values)", "frombuffer": "Tensor(values)",
    "scalar_tensor": "Tensor(number)", "complex": "kernmill.ComplexTensor(x, y)", "enable_grad": "x.requires_grad_()",
    "is_grad_enabled": "x.requires_grad", "finfo": "dtypes.float32, and np.finfo(x.numpy().dtype)",
    "iinfo": "np.iinfo(x.numpy().dtype)", "randint_like": "Tensor.randint(low, high, x.shape)",
    "range": "Tensor.arange(start, stop + 1)", "get_rng_state": "Tensor.random_state()",
    "set_rng_state": "Tensor.set_random_state(state)", "initial_seed": "manual_seed(1)",
    "set_num_threads": "with Context(THREADS=n)", "set_default_device": "with Context(DEVICE='CL')",
}  # fmt: skip


DISTRIBUTIONS: dict[str, str] = {
    "Binomial": "kernmill.distributions.Bernoulli(probs).sample((n,)).sum(0)",
    "Multinomial": "probs.multinomial(n, True), and bincount of its draws",
    "NegativeBinomial": "kernmill.distributions.Poisson(rates), with rates = Gamma(r, (1 - p) / p).sample()",
    "Chi2": "kernmill.distributions.Gamma(k / 2, 0.5)",
    "InverseGamma": "kernmill.distributions.Gamma(a, b), and x.reciprocal() of its samples",
    "HalfCauchy": "kernmill.distributions.Cauchy(0, scale), and x.abs() of its samples",
    "OneHotCategorical": "kernmill.distributions.Categorical(probs), and x.one_hot(n) of its samples",
    "Pareto": "kernmill.distributions.Exponential(a), and scale * x.exp() of its samples",
    "Weibull": "kernmill.distributions.Exponential(1), and scale * x.pow(1 / k) of its samples",
    "Independent": "d.log_prob(x).sum(-1), of the distribution d",
    "MixtureSameFamily": "(weights.log() + parts.log_prob(x)).logsumexp(-1)",
    "TransformedDistribution": "base.log_prob(x) minus the logarithm of the derivative",

    "RelaxedOneHotCategorical": "((x - (-Tensor.rand(*x.shape).log()).log()) / tau).softmax(-1)",
    "LowRankMultivariateNormal": "kernmill.distributions.MultivariateNormal(mean, w @ w.mT + v.diag())",
    "FisherSnedecor": "a ratio of two Gamma samples", "VonMises": "rejection from kernmill.distributions.Uniform",
}  # fmt: skip


LINALG: dict[str, str] = {
    "cholesky_ex": "x.cholesky()", "inv_ex": "x.inv()", "solve_ex": "x.solve(y)", "lu_factor": "x.lu()",
    "lu_factor_ex": "x.lu()", "lu_solve": "a.solve(x), with the matrix itself",
    "vander": "x.unsqueeze(-1) ** Tensor.arange(n)", "tensorinv": "x.reshape(n, n).inv().reshape(shape)",
    "tensorsolve": "x.reshape(n, n).solve(y.flatten()).reshape(shape)",
    "ldl_factor": "x.lu()", "ldl_solve": "x.solve(y)",
}  # fmt: skip


def named_in(names: Mapping[str, str], name: str) -> str:
    """Return a message with the replacement of a name that kernmill does not have; empty if the table has none."""
    return f" Write {names[name]}." if name in names else ""


def not_in(module: str, name: str, hint: str) -> AttributeError:
    """Return the error for a name that a module does not have, with the sentence of a table."""
    text = f"module {module!r} has no attribute {name!r}"
    return AttributeError(f"{text}.{hint}" if hint else text, name=name)


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
