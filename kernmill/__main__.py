"""`python -m kernmill` and the console script."""

import gc
import sys

from . import cli

__all__ = ["main"]


def main() -> int:
    """One command, and then the process ends: Python need not look for garbage in a model first, for 0.1 s."""
    try:
        return cli.main()
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
