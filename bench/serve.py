"""`python -m bench.serve`: the server with many clients against llama-server, on one machine in one run.

Both serve the same file of random weights. Each of 1, 4, 16 and 64 clients asks for an answer to a prompt of its own,
streamed. A round asks one server, then the other. A server's processor time is measured as well: it says more than
the clock where other programs run.

    python -m bench.serve --llama-server PATH
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .machine import machine, machine_line
from .model_file import SHAPES, write_model

__all__ = ["Line", "main"]

_WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "his", "they", "at", "be", "this")


@dataclass
class Line:
    """A round of one server with some clients. Rates are tokens per second; `cpu_us`: for each new token."""

    server: str
    clients: int
    tokens: int
    seconds: float
    rate: float
    first_ms: float  # the 95th percentile
    cpu_us: float


@contextmanager
def serving(command: Sequence[str], port: int) -> Iterator[int]:
    """Run a server; yields its process id when it is ready."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        try:
            while not _is_ready(port):
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(
                        f"bench.serve: {command[0]} ended: {log.read()[-2000:].decode('utf-8', 'replace')}"
                    )
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


def _is_ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answered:
        return answered.status == 200
    return False


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _ask(port: int, body: bytes) -> tuple[float, int]:
    """Ask for a streamed text; returns the seconds until its first event with text, and the number of its tokens."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start, first, tokens = time.perf_counter(), 0.0, 0
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                 b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (port, len(body)) + body)  # fmt: skip
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                raise SystemExit(f"bench.serve: {line!r} {await reader.read()!r}")
            continue
        first = first or time.perf_counter() - start
        usage = json.loads(line[6:]).get("usage")
        tokens = usage["completion_tokens"] if usage else tokens
    writer.close()
    return first, tokens


def measured(name: str, port: int, process: int, clients: int, prompt: int, count: int, seed: int) -> Line:
    """Ask with all clients at once."""
    chance = random.Random(seed)
    bodies = [
        json.dumps({
            "prompt": " ".join(chance.choice(_WORDS) for _ in range(prompt)), "max_tokens": count, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        }).encode()
        for _ in range(clients)
    ]  # fmt: skip

    async def all_of_them() -> list[tuple[float, int]]:
        return await asyncio.gather(*(_ask(port, body) for body in bodies))

    cpu, start = _cpu_s(process), time.perf_counter()
    found = asyncio.run(all_of_them())
    seconds, cpu = time.perf_counter() - start, _cpu_s(process) - cpu
    tokens = sum(made for _, made in found)
    firsts = sorted(first for first, _ in found)
    late = firsts[min(len(firsts) - 1, round(0.95 * len(firsts)))]
    return Line(name, clients, tokens, seconds, tokens / seconds, late * 1e3, cpu / tokens * 1e6)


def rounds_of(name: str, command: Sequence[str], clients: Sequence[int], given: argparse.Namespace) -> Iterator[Line]:
    """Run a server, and ask it with each number of clients; yields each round."""
    port = _free_port()
    with serving(command, port) as process:
        for count in clients:
            measured(name, port, process, count, given.prompt, 4, -1)  # what is built when first needed is built
            for number in range(given.rounds):
                yield measured(name, port, process, count, given.prompt, given.tokens, number * 1000 + count)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def markdown(lines: Sequence[Line]) -> str:
    """A table: medians of the rounds, ours against the peer's."""
    rows = ["| clients | server | tokens/s | first token, p95 | CPU a token |", "| --: | --- | --: | --: | --: |"]
    for clients in dict.fromkeys(line.clients for line in lines):
        for name in dict.fromkeys(line.server for line in lines):
            own = [line for line in lines if (line.clients, line.server) == (clients, name)]
            if own:
                rate, first, cpu = (
                    statistics.median(getattr(one, key) for one in own) for key in ("rate", "first_ms", "cpu_us")
                )
                rows.append(f"| {clients} | {name} | {rate:.1f} | {first:.0f} ms | {cpu / 1e3:.2f} ms |")
    return "\n".join(rows)


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.serve", description=__doc__)
    parser.add_argument("--llama-server", metavar="PATH", help="the peer; without it only kernmill runs")
    parser.add_argument(
        "--vocabulary", required=True, metavar="FILE", help="a GGUF file with a tokenizer for the model"
    )
    parser.add_argument("--shape", default="0.5B", choices=sorted(SHAPES))
    parser.add_argument("--mix", default="Q4_0")
    parser.add_argument("--clients", default="1,4,16,64", help="how many at once")
    parser.add_argument("--prompt", type=int, default=256, help="words of a prompt, about as many tokens")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="keep the samples")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    from kernmill.formats import gguf

    given = _parsed(words)
    clients = [int(part) for part in given.clients.split(",")]
    slots, length = max(clients), given.prompt * 2 + given.tokens
    facts = machine()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, given.shape, given.mix, gguf.read(given.vocabulary).metadata)
        threads = str(given.threads)
        commands = {"kernmill": [
            sys.executable, "-m", "kernmill", "serve", str(path), "-c", str(length), "-np", str(slots), "-t", threads,
            "--queue", str(slots), "-ctk", "f16",
        ]}  # fmt: skip
        if given.llama_server:
            commands["llama-server"] = [
                given.llama_server, "-m", str(path), "-c", str(length * slots), "-np", str(slots), "-t", threads,
                "--no-webui", "--no-kv-unified",
            ]  # fmt: skip
        for name, command in commands.items():
            for line in rounds_of(name, command, clients, given):
                lines.append(line)
                print(f"{name}: {line}", file=sys.stderr, flush=True)
    print(f"{machine_line(facts)}; {given.shape} {given.mix}, {given.threads} threads.\n\n{markdown(lines)}")
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": facts, "lines": [*map(asdict, lines)]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
