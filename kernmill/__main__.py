"""`python -m kernmill` and the console script."""

import gc
import signal
import sys

try:
    from .commands import cli
except KeyboardInterrupt:  # too early for any message
    raise SystemExit(130) from None

__all__ = ["main"]


def main() -> int:
    """Run one command and end the process, without Python's garbage search in a model, which takes 0.1 s.

    From then on Ctrl-C ends it at once: there is nothing left that a KeyboardInterrupt could close, only tracebacks.
    """
    try:
        return cli.main()
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
