"""The methods of Tensor, a file for each family: each class extends another, and Tensor the last of them.

    elementwise - functions - activations - reduce - sorting - indexing - contraction - convolution - random
    elementwise - movement - reduce                            indexing - scan - random
    creation - sorting                                         random - attention - losses - casting - Tensor

Arrows point down: methods import `lazy`, `size` and `arguments`, and one another; never `autograd`, `tensor` or modules
above them (tests/test_layers.py).
"""
