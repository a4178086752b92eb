"""Examples that are files: a folder for each class, as PyTorch's ImageFolder reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kernmill.ir import FormatError, KernmillError

__all__ = ["Folder"]

_IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Folder:
    """The files below a folder with a folder for each class: item i is (values of the file, number of its class).

    `classes` are the names of the folders, in order. `load` reads one file. By default it is `np.load` for `.npy`, and
    Pillow for images, as uint8 of shape (channels, height, width). `transform` is applied to what was loaded.

    Raises:
        FormatError: there is no such folder, no folder for a class, or no file.
    """

    def __init__(self, root: str | Path, load: Callable[[Path], Any] | None = None,
                 transform: Callable[[Any], Any] | None = None) -> None:  # fmt: skip
        self.root = Path(root)
        if not self.root.is_dir():
            raise FormatError(f"Folder: {self.root} is not a folder. Give one with a folder for each class.")
        self.load, self.transform = load or _read_file, transform
        self.classes = sorted(path.name for path in self.root.iterdir() if path.is_dir())
        if not self.classes:
            raise FormatError(f"Folder: {self.root} has no folders. Put the files of each class in a folder.")
        self.files = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((self.root / name).rglob("*"))
            if path.is_file() and (load is not None or path.suffix.lower() in (".npy", *_IMAGES))
        ]
        if not self.files:
            raise FormatError(f"Folder: no .npy files and no images below {self.root}. Give load=, which reads a file.")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, number = self.files[index]
        values = self.load(path)
        return values if self.transform is None else self.transform(values), number


def _read_file(path: Path) -> Any:
    if path.suffix.lower() == ".npy":
        return np.load(path, allow_pickle=False)
    try:
        from PIL import Image
    except ImportError:
        raise KernmillError(
            f"Folder: {path.name} is an image, and Pillow is missing. pip install pillow, or give load=."
        ) from None
    with Image.open(path) as image:
        values = np.asarray(image.convert("RGB"))
    return np.ascontiguousarray(values.transpose(2, 0, 1))
