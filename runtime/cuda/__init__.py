"""NVIDIA's GPUs through the CUDA driver: their Targets, and the driver's functions."""
