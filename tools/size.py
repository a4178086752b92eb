"""Lines per folder and the largest files: `python tools/size.py [number of files]`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ("ir", "compiler", "renderers", "runtime")
FOLDERS = (*CORE, "kernmill", "tests", "examples", "bench", "tools")


def line_count(path: Path) -> int:
    """Non-blank lines: what tests/test_sizes.py counts."""
    return sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    lines = {folder: {path: line_count(path) for path in (ROOT / folder).rglob("*.py")} for folder in FOLDERS}
    print(f"{'folder':<12}{'files':>7}{'lines':>8}")
    for folder in FOLDERS:
        print(f"{folder:<12}{len(lines[folder]):>7}{sum(lines[folder].values()):>8}")
    core = [count for folder in CORE for count in lines[folder].values()]
    print(f"{'core':<12}{len(core):>7}{sum(core):>8}\n")
    files = {path: count for found in lines.values() for path, count in found.items()}
    for path, count in sorted(files.items(), key=lambda item: -item[1])[:largest]:
        print(f"{count:>6}  {path.relative_to(ROOT).as_posix()}")


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `| head` reads no further: end, without a traceback
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
