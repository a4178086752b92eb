"""A Hexagon NPU: its Targets, a resident program, a linker of kernels, and the process of a session."""
