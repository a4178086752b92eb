"""Kernels of ONNX models in the corpus: what the rows of the bench set lack.

They are padded 3 x 3 and strided 1 x 1 convolutions of large images, and grouped and depthwise ones behind others. One
convolution is fused with a pool, and one product is of one row with a large matrix. The files are light
copies of the ONNX project, whose weights are constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MODEL_KERNELS", "kernels_of_models"]

MODEL_KERNELS: dict[str, tuple[str, ...]] = {
    "resnet50": ("sum_64x112x112_k3x7x7", "sum_64x56x56_k64x3x3", "sum_128x28x28_k128x3x3", "sum_512x28x28_k256",
                 "sum_2048x7x7_k1024"),
    "squeezenet": ("sum_max_64x55x55_k3x3x3x3x3",),
    "shufflenet": ("sum_24x28x28_k3x3", "sum_136x28x28_k3x3", "sum_136x28x28_k34"),
    "inception_v1": ("sum_192x55x55_k5", "sum_96x27x27_k32x5x5"),
    "alexnet": ("sum_4096_k9216",),
    "super_resolution": ("sum_64x224x224_k64x3x3", "sum_224x3x224x3_k32x3x3"),
    "mnist": ("sum_16x14x14_k8x5x5",),
}  # fmt: skip


def kernels_of_models(folder: Path) -> Iterator[tuple[str, Any]]:
    """Run each model of a folder once, at one image; yield the kernels above with the model's name. A file belongs to
    the model whose name is part of its path."""
    from kernmill.onnx import load
    from kernmill.runtime import collecting_kernels

    for name, wanted in MODEL_KERNELS.items():
        path = _file_of(name, folder.rglob("*.onnx"))
        model = load(str(path))
        shape = [size if isinstance(size, int) else 1 for size in next(iter(model.inputs.values())) or ()]
        with collecting_kernels() as seen:
            found = model(np.ones(shape, np.float32))
            (found[0] if isinstance(found, tuple) else found).numpy()
        kernels: dict[str, Any] = {}
        for kernel, _ in seen.values():
            kernels.setdefault(kernel.name, kernel)
        if missing := set(wanted) - kernels.keys():
            raise SystemExit(f"bench.corpus: {path} has no kernel {', '.join(sorted(missing))}.")
        yield from ((name, kernels[one]) for one in wanted)


def _file_of(name: str, paths: Iterable[Path]) -> Path:
    found = sorted(path for path in paths if name in str(path).replace("superres", "super_resolution"))
    if not found:
        raise SystemExit(f"bench.corpus: no .onnx file of {name} is in the folder given with --models.")
    return found[0]
