"""Take weights from a `.pt` file, and a model to an `.onnx` file and back: `python examples/exchange_models.py`.

Files of `torch.save` are read without running their code. Without `--weights` the example writes such a file itself if
PyTorch is installed, else one of safetensors. The ONNX part needs `pip install '.[onnx]'`.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernmill import Tensor, nn, onnx


class Network(nn.Module):
    """Two layers; the names of its weights are those of a PyTorch module of the same attributes."""

    def __init__(self) -> None:
        self.hidden = nn.Linear(8, 32)
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, 8) -> (batch, 3)."""
        result: Tensor = self.out(self.hidden(x).relu())
        return result


def write_weights(folder: Path) -> Path:
    """A file of weights to read: PyTorch's own, where it is installed."""
    random = np.random.default_rng(0)
    shapes = {"hidden.weight": (32, 8), "hidden.bias": (32,), "out.weight": (3, 32), "out.bias": (3,)}
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    if importlib.util.find_spec("torch") is None:
        nn.state.save(folder / "weights.safetensors", {name: Tensor(value) for name, value in weights.items()})
        return folder / "weights.safetensors"
    import torch

    torch.save({name: torch.tensor(value) for name, value in weights.items()}, folder / "weights.pt")
    return folder / "weights.pt"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, help="a .pt, .bin, .npz or .safetensors file for this network")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = options.weights or write_weights(folder)
        model = Network().eval()
        model.load_state_dict(nn.state.load(path))
        x = Tensor(np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32))
        want = model(x).detach().numpy()
        print(f"{len(model.state_dict())} tensors from {path.name}: {np.round(want[0].astype(float), 3).tolist()}")
        if importlib.util.find_spec("onnx") is None:
            print("for the ONNX part: pip install '.[onnx]'")
            return 0
        onnx.export(model, x, path=str(folder / "model.onnx"))
        again = onnx.load(folder / "model.onnx")
        found = again(x)
        found = found[0] if isinstance(found, (list, tuple)) else found
        found = next(iter(found.values())) if isinstance(found, dict) else found
        size = (folder / "model.onnx").stat().st_size
        print(f"through {size:,} bytes of ONNX: largest difference {np.abs(found.numpy() - want).max():.1e}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
