"""`torch.compile(model, backend="kernmill")`: graphs of PyTorch as kernels (extra `torch`)."""

from .dynamo import backend

__all__ = ["backend"]
