"""Batches of examples: from arrays, from folders of files, or from anything with a length and items."""

from .folder import Folder
from .loader import DataLoader

__all__ = ["DataLoader", "Folder"]
