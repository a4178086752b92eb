"""kernmill: a tensor compiler."""

from pathlib import Path as _Path

_here = _Path(__file__).resolve().parent
if not (_here / "ir").is_dir():  # a checkout: the sub-packages stand beside this folder, in a wheel they are in it
    __path__.append(str(_here.parent))
