"""OpenCL: finding drivers, their memory, their programs."""
