"""One case per mistake: the call, the class of the error, and the whole message."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernmill import (
    DeviceError,
    DTypeError,
    GradientError,
    IndexRangeError,
    SettingError,
    ShapeError,
    Tensor,
    cat,
    dtypes,
    einsum,
    stack,
    where,
)
from tests.errors.mistakes import Case, each_message


def ones(*shape: int, **options: Any) -> Tensor:
    return Tensor.ones(*shape, **options)


NOT_AN_ARRAY: Any = [1, 2]
ANY_3: Any = 3  # where a list is asked for
ANY_PAIR: Any = (0, 1)
ANY_TEXT: Any = "a"
CLASS: Any = Tensor  # methods called on it, with other things than tensors
CASES: dict[str, Case] = {
    # shapes
    "add": (lambda: ones(2, 3) + ones(2, 4), ShapeError,
            "add: shapes (2, 3) and (2, 4) do not broadcast: at axis -1 the sizes are 3 and 4. "
            "Reshape one of them so that sizes are equal or 1."),
    "matmul": (lambda: ones(2, 3) @ ones(4, 5), ShapeError,
               "matmul: (2, 3) @ (4, 5): inner sizes differ (3 and 4). "
               "Transpose one side, or reshape the left to (..., 4)."),
    "matmul_0d": (lambda: ones(2) @ Tensor(2.0), ShapeError,
                  "matmul: (2,) @ (): a 0-d tensor has no axis to contract. Use * instead."),
    "reshape": (lambda: ones(2, 3).reshape(4, 2), ShapeError,
                "reshape: (2, 3) -> (4, 2): 6 elements do not make 8. Give sizes with the same product, or one -1."),
    "expand": (lambda: ones(2, 3).expand(4, 3), ShapeError,
               "expand: (2, 3) -> (4, 3): only axes of size 1 can grow. "
               "Reshape first so that the growing axes have size 1."),
    "expand_fewer": (lambda: ones(2, 3).expand(3), ShapeError,
                     "expand: (2, 3) -> (3,): the result has fewer axes. Give a size for each."),
    "cat": (lambda: cat([ones(2, 3), ones(3, 2)]), ShapeError,
            "cat: shapes (2, 3) and (3, 2) differ outside axis 0. Reshape or expand one of them."),
    "cat_0d": (lambda: cat([Tensor(1), Tensor(2)]), ShapeError,
               "cat: a 0-d tensor has no axis to join along. Use stack."),
    "cat_nothing": (lambda: cat([]), ShapeError, "cat: no tensors. Give at least one."),
    "stack": (lambda: stack([ones(2), ones(3)]), ShapeError,
              "stack: shapes (2,) and (3,) differ. Reshape or expand one of them."),
    "split": (lambda: ones(4).split([1, 2]), ShapeError,
              "split: sizes (1, 2) make 3, axis 0 has 4. They must add up to it."),
    "split_of_nothing": (lambda: ones().split(1), ShapeError, "split: a 0-d tensor has no axis. Unsqueeze it first."),
    "size_of_nothing": (lambda: ones().size(0), ShapeError, "size: a 0-d tensor has no axis. Unsqueeze it first."),
    "transpose_of_nothing": (lambda: ones().transpose(0, 0), ShapeError,
                             "transpose: a 0-d tensor has no axis. Unsqueeze it first."),
    "unfold_of_nothing": (lambda: ones().unfold(0, 1, 1), ShapeError,
                          "unfold: a 0-d tensor has no axis. Unsqueeze it first."),
    "randint": (lambda: Tensor.randint(2, 5), ShapeError, "randint: no shape. Give one: randint(2, 5, (3,))."),
    "axis": (lambda: ones(2, 3).sum(2), IndexRangeError,
             "sum: axis 2 of a tensor of shape (2, 3). Axes run from -2 to 1."),
    "axis_twice": (lambda: ones(2, 3).sum((0, -2)), ShapeError,
                   "sum: axes (0, 0) name one axis twice. Name each axis once."),
    "max_of_nothing": (lambda: ones(0, 3).max(0), ShapeError,
                       "max: shape (0, 3), axis 0: max of an empty axis is undefined. Check the size first."),
    "argmax_of_nothing": (lambda: ones(0).argmax(), ShapeError,
                          "argmax: shape (0,), axis 0: argmax of an empty axis is undefined. Check the size first."),
    "tril": (lambda: ones(3).tril(), ShapeError,
             "tril: shape (3,) has fewer than two axes. Unsqueeze it first."),
    "ragged": (lambda: Tensor([[1, 2], [3]]), ShapeError,
               "Tensor of a list: the inner lists have different lengths. Pad them, or make a tensor of each."),
    "negative_size": (lambda: Tensor.zeros(2, -1), ShapeError,
                      "zeros: full: shape (2, -1) has a negative size. Sizes are 0 or more."),
    "arange": (lambda: Tensor.arange(1, 2, 0), ShapeError,
               "arange: from 1 to 2 by step 0 never ends. Give a nonzero step."),
    "item": (lambda: ones(2).item(), ShapeError,
             "item: shape (2,) has 2 elements, not one. Index it, or use tolist()."),
    "bool": (lambda: bool(ones(2)), ShapeError,
             "bool(tensor): shape (2,) has 2 truth values. Use .any() or .all()."),
    "len": (lambda: len(Tensor(1)), ShapeError, "len(tensor): a 0-d tensor has no length."),
    "iter": (lambda: list(Tensor(1)), ShapeError, "iter(tensor): a 0-d tensor has no axis to iterate over."),
    "conv": (lambda: ones(1, 3, 5, 5).conv2d(ones(2, 4, 3, 3)), ShapeError,
             "conv: (1, 3, 5, 5) with weight (2, 4, 3, 3), groups 1: 3 input channels are not 1 x 4, or 2 output "
             "channels do not divide into the groups. Change the groups or the weight."),
    "conv_transpose": (lambda: ones(1, 3, 5, 5).conv_transpose2d(ones(2, 4, 3, 3)), ShapeError,
                       "conv_transpose: (1, 3, 5, 5) with weight (2, 4, 3, 3), groups 1: the input is (batch, in, one "
                       "axis or more), the weight (in, out / groups, as many), and in a multiple of the groups. Change "
                       "the groups or the weight."),
    "stride": (lambda: ones(1, 3, 5, 5).conv_transpose2d(ones(3, 4, 3, 3), stride=0), ShapeError,
               "conv_transpose2d: stride=0: give at least 1 for each axis."),
    "padding_of_nothing": (lambda: ones(1, 3, 4, 4).conv_transpose2d(ones(3, 4, 3, 3), padding=3), ShapeError,
                           "conv_transpose: padding 3 on both sides removes all 6 elements. Give a smaller one."),
    "pad_side": (lambda: ones(2, 3).pad(ANY_3), ShapeError,
                 "pad: 3 is not a (before, after) pair per axis. Give (before, after) for the last axis."),
    "axis_of_text": (lambda: ones(2, 3).softmax(ANY_TEXT), ShapeError,
                     "softmax: axis 'a': a str is not an integer. Give an integer."),
    "norm_of_axes": (lambda: ones(2, 3).norm(ANY_PAIR), SettingError,
                     "norm: p=(0, 1) is not a number: 2 is the Euclidean norm. Pass axes by name: norm(axis=..)."),
    "norm_of_text": (lambda: ones(2, 3).norm(ANY_TEXT), SettingError,
                     "norm: p='a' is not a number: 2 is the Euclidean norm. Pass axes by name: norm(axis=..)."),
    "conv_kernel": (lambda: ones(1, 1, 2, 2).conv2d(ones(1, 1, 3, 3)), ShapeError,
                    "conv: (1, 1, 2, 2) with weight (1, 1, 3, 3), groups 1: the kernel spans (3, 3), "
                    "the padded input (2, 2). Pad more."),
    "einsum": (lambda: einsum("ij,jk->ik", ones(2, 3)), ShapeError,
               "einsum 'ij,jk->ik': 2 terms for 1 tensors. Give one term for each."),
    "einsum_sizes": (lambda: einsum("ij,jk->ik", ones(2, 3), ones(4, 5)), ShapeError,
                     "einsum: 'j' has sizes 3 and 4. Each letter has one size."),
    "einsum_on_the_class": (lambda: CLASS.einsum("ij->ji", ones(2, 3)), DTypeError,
                            'Tensor.einsum: str is not a tensor. Write kernmill.einsum("ij,jk->ik", a, b).'),
    "einsum_on_a_tensor": (lambda: CLASS.einsum(ones(2, 3), "ij,jk->ik", ones(3, 4)), DTypeError,
                           'Tensor.einsum: str is not a tensor. Write kernmill.einsum("ij,jk->ik", a, b).'),
    "einsum_of_nothing": (lambda: ones(2, 3).einsum(ones(3, 4)), ShapeError,
                          'einsum: the formula is missing. Write kernmill.einsum("ij,jk->ik", a, b).'),
    "cat_of_a_list": (lambda: CLASS.cat(ones(2), [ones(2)]), DTypeError,
                      "Tensor.cat: list is not a tensor. Write kernmill.cat([a, b], axis)."),
    "cat_on_the_class": (lambda: CLASS.cat([ones(2), ones(2)]), DTypeError,
                         "Tensor.cat: list is not a tensor. Write kernmill.cat([a, b], axis)."),
    "stack_on_the_class": (lambda: CLASS.stack([ones(2)], 1), DTypeError,
                           "Tensor.stack: list is not a tensor. Write kernmill.stack([a, b], axis)."),
    "assign": (lambda: ones(2).assign(ones(3)), ShapeError,
               "assign: shapes (2,) and (3,) do not broadcast: at axis -1 the sizes are 2 and 3. "
               "Reshape one of them so that sizes are equal or 1."),
    "assign_wider": (lambda: ones(2).assign(ones(3, 2)), ShapeError,
                     "assign: a value of shape (3, 2) into a tensor of shape (2,). Reshape or reduce the value."),
    "topk": (lambda: ones(2).topk(3), ShapeError, "topk: k=3 of 2 elements: must be from 0 to 2."),
    "classes": (lambda: ones(2, 3).cross_entropy(Tensor([1])), ShapeError,
                "cross_entropy: predictions (2, 3), target (1,): the target must have the shape of the "
                "predictions without their class axis. Reshape one of them."),
    "heads": (lambda: ones(3, 2, 4).scaled_dot_product_attention(ones(2, 2, 4), ones(2, 2, 4)), ShapeError,
              "scaled_dot_product_attention: query (3, 2, 4), key (2, 2, 4): 3 query heads do not share 2 key heads "
              "evenly. Make one a multiple of the other."),
    # indices
    "index": (lambda: ones(3)[5], IndexRangeError,
              "t[..]: index 5 is outside axis 0 of size 3. Valid are -3 to 2."),
    "index_negative": (lambda: ones(2, 3)[:, -7], IndexRangeError,
                       "t[..]: index -7 is outside axis 1 of size 3. Valid are -3 to 2."),
    "index_list": (lambda: ones(3)[[0, 3]], IndexRangeError,
                   "t[..]: index 3 is outside axis 0 of size 3. Valid are -3 to 2."),
    "index_array": (lambda: ones(2, 3)[np.array([0]), np.array([-4])], IndexRangeError,
                    "t[..]: index -4 is outside axis 1 of size 3. Valid are -3 to 2."),
    "index_empty": (lambda: ones(0)[0], IndexRangeError,
                    "t[..]: index 0 is outside axis 0 of size 0. The axis is empty."),
    "index_tensor": (lambda: ones(3)[Tensor([5])].realize(), IndexRangeError,
                     "t[..]: a computed index is outside axis 0 of size 3. Clamp it, or mask what it selects."),
    "index_many": (lambda: ones(3)[0, 0], IndexRangeError, "t[..]: 2 indices for shape (3,). Give at most 1."),
    "index_ellipses": (lambda: ones(3)[..., ...], IndexRangeError,
                       "t[..]: more than one `...`. Use one, and `:` for the other axes."),
    "index_step": (lambda: ones(3)[::0], IndexRangeError, "t[::0]: a step of 0 never ends. Give a nonzero step."),
    "index_float": (lambda: ones(3)[Tensor([0.5])], DTypeError,
                    "t[..]: an index of dtype float32. Indices must be ints; cast it with .long()."),
    "index_word": (lambda: ones(3)["a"], DTypeError,
                   "t[..]: an index of dtype <U1. Indices are ints, slices, None, `...` or int tensors."),
    "write": (lambda: ones(3).__setitem__(slice(0, 2), ones(3)), ShapeError,
              "t[..] = v: shapes (3,) and (2,) do not broadcast: at axis -1 the sizes are 3 and 2. "
              "Reshape one of them so that sizes are equal or 1."),
    # dtypes
    "too_large": (lambda: Tensor([2**40], dtype=dtypes.int32), DTypeError,
                  "Tensor(.., dtype=int32): the value 1099511627776 does not fit int32 (-2147483648 to 2147483647). "
                  "Use a wider dtype."),
    "too_large_number": (lambda: Tensor.full((2,), 300, dtype=dtypes.uint8), DTypeError,
                         "full: 300 does not fit uint8 (0 to 255). Cast the tensor to a wider dtype first."),
    "full_of_a_tensor": (lambda: Tensor.full((2,), ones()), DTypeError,  # type: ignore[arg-type]
                         "full: a Tensor as the value. Give a number; a tensor is made larger by x.expand(shape)."),
    "too_large_operand": (lambda: ones(2, dtype=dtypes.uint8) + 300, DTypeError,
                          "300 does not fit uint8 (0 to 255). Cast the tensor to a wider dtype first."),
    "too_large_int": (lambda: Tensor([2**70]), DTypeError,
                      "Tensor of a list: 1180591620717411303424 does not fit int64. Use a float dtype."),
    "complex": (lambda: Tensor(np.zeros(2, np.complex64)), DTypeError,
                "Tensor of a NumPy array of complex64: a Tensor is real. Use kernmill.ComplexTensor(..)."),
    "objects": (lambda: Tensor([1, None]), DTypeError,
                "Tensor of a list that contains a NoneType: elements must be Python or NumPy numbers."),
    "operand": (lambda: ones(2).add(NOT_AN_ARRAY), DTypeError,
                "add: Tensor with list: operands are tensors, Python numbers and NumPy arrays. Wrap it in Tensor(..)."),
    "condition_of_others": (lambda: (ones(2) > 0).where(ones(2), 0.0), DTypeError,
                            "where: the condition is float32, and self bool. Write x.where(condition, y), or "
                            "kernmill.where(condition, x, y)."),
    "condition": (lambda: where(ones(2), 1, 2), DTypeError,
                  "where: the condition is float32, not bool. Compare it, for example with `!= 0`."),
    "bits": (lambda: ones(2) & 1, DTypeError,
             "bitwise_and: and: bits of float32 values. Cast to an int dtype first."),
    "bool_minus_bool": (lambda: Tensor([True]) - Tensor([True]), DTypeError,
                        "sub: bool - bool has no meaning. Use ^ (logical_xor), or cast to int first."),
    "minus_bool": (lambda: -Tensor([True]), DTypeError,
                   "neg: a bool has no sign. Use ~ (logical_not), or cast to int first."),
    "negative_power": (lambda: Tensor([2]) ** -1, DTypeError,
                       "pow: int64 ** -1 is not an integer. Cast to a float dtype first."),
    "in_place": (lambda: Tensor([1]).__iadd__(1.5), DTypeError,
                 "+=: the result is float32 and cannot be stored in a int64 tensor. Write x = x + y, or cast."),
    "bitcast": (lambda: ones(2).bitcast(dtypes.bool), DTypeError,
                "bitcast: float32 to bool: a bool has no defined bits. Use cast."),
    "wider_bitcast": (lambda: ones(3).bitcast(dtypes.float64), ShapeError,
                      "bitcast: float32 of shape (3,) to float64: the last axis must be a multiple "
                      "of 2. Slice or pad it."),
    "int_gradient": (lambda: Tensor([1], requires_grad=True), DTypeError,
                     "requires_grad: a int64 tensor has no gradient. Use a float dtype."),
    "norm": (lambda: Tensor([1]).norm(), DTypeError, "norm: of a int64 tensor. Use .float() first."),
    "float_classes": (lambda: ones(2, 3).nll_loss(ones(2)), DTypeError,
                      "nll_loss: a target of dtype float32. Class indices must be ints."),
    # devices
    "devices": (lambda: Tensor([1.0], device="LLVM") + Tensor([1.0], device="PYTHON"), DeviceError,
                "add: tensors on LLVM and PYTHON. Move one side, for example with .to('LLVM')."),
    # gradients
    "no_leaf": (lambda: ones(1).backward(), GradientError,
                "backward: this tensor does not depend on any tensor with requires_grad. Make a leaf with "
                "requires_grad=True, and compute outside no_grad() and captured functions, or call backward() "
                "inside them."),
    "not_scalar": (lambda: (ones(2, requires_grad=True) * 2).backward(), GradientError,
                   "backward: shape (2,) has more than one element. Reduce it to one, for example with .sum(), "
                   "or pass gradient=, a tensor of that shape."),
    "gradient_shape": (lambda: (ones(2, requires_grad=True) * 2).backward(ones(3)), GradientError,
                       "backward: a gradient of shape (3,) for a tensor of shape (2,). Give one of the same shape."),
    "leaf_written": (lambda: ones(2, requires_grad=True).assign(ones(2, requires_grad=True)), GradientError,
        "a write to a leaf, a tensor that was made with requires_grad: the value depends on such a tensor, and "
        "its gradient would be lost. Write in no_grad(), write value.detach(), or write to x.clone()."),
    "no_way": (lambda: ones(1, requires_grad=True).sum().gradient(ones(2, requires_grad=True)), GradientError,
               "gradient: this tensor does not depend on target 0 of shape (2,). Compute it from the target, "
               "outside no_grad() and without detach()."),
}  # fmt: skip


test_the_message_is_this = each_message(CASES)
