"""The methods of Tensor, a file for each family: each class extends another, and Tensor the last of them.

Arrows point down: methods import `lazy`, `size` and `arguments`, and one another; never `autograd`, `tensor` or what
stands on them (tests/test_layers.py).
"""
