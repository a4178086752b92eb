"""The graph half: a closed tensor graph in, kernels in order and a memory plan out."""
