"""The operators of ONNX, a file for each family: importing one adds its rows to the table."""

import importlib

_FAMILIES = (
    "activations", "arithmetic", "attention", "controls", "convolutions", "indexing", "learning", "movement", "narrow",
    "normalizing", "pooling", "quantized", "randoms", "recurrent", "reductions", "resizing", "selecting", "sequences",
    "shapes", "signals", "strings", "vision",
)  # fmt: skip
for _family in _FAMILIES:
    importlib.import_module(f".{_family}", __name__)
