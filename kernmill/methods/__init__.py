"""The methods of Tensor, a file for each family: each class extends another, and Tensor the last of them.

    elementwise - float_bits - functions - activations - reduce - sorting - indexing
    elementwise - movement - reduce                      creation - sorting
    indexing - contraction - matrices - convolution - random
    indexing - scan - searching - random - factors - spectral - attention - losses - casting - Tensor

Arrows point down: methods import `lazy`, `size` and `arguments`, and one another; never `autograd`, `tensor` or modules
above them (tests/test_layers.py).
"""
