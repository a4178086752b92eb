"""Files in a folder for each class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import FormatError
from kernmill.data import DataLoader, Folder
from tests.kernmill.against import only_on

on_device = only_on("LLVM")


def test_folders(tmp_path: Any) -> None:
    for name, count in (("cat", 2), ("ant", 3)):
        (tmp_path / name).mkdir()
        for i in range(count):
            np.save(tmp_path / name / f"{i}.npy", np.full((2, 2), i, np.float32))
        (tmp_path / name / "notes.txt").write_text("not an example")
    folder = Folder(tmp_path, transform=lambda values: values + 1)
    assert (folder.classes, len(folder)) == (["ant", "cat"], 5)
    images, labels = next(iter(DataLoader(folder, 5, workers=2)))
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert images[:, 0, 0].tolist() == [1, 2, 3, 1, 2]
    texts = Folder(tmp_path, load=lambda path: path.suffix)
    assert len(texts) == 7
    for path, text in (
        (tmp_path / "none", "none is not a folder. Give one with a folder for each class"),
        (tmp_path / "cat", "has no folders. Put the files of each class"),
    ):
        with pytest.raises(FormatError, match=text):
            Folder(path)


def test_images(tmp_path: Any) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    (tmp_path / "red").mkdir()
    image.fromarray(np.full((4, 5, 3), [255, 0, 0], np.uint8)).save(tmp_path / "red" / "a.png")
    values, label = Folder(tmp_path)[0]
    assert (values.shape, values[:, 0, 0].tolist(), label) == ((3, 4, 5), [255, 0, 0], 0)
