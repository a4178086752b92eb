"""`python -m bench.serve`: the server with many clients against llama-server, on one machine in one run.

Both serve the same file of random weights, and both are up all the time. Each of 1, 4, 16 and 64 clients asks for an
answer to a prompt of its own, streamed. In a round one server answers, then the other; with one client
`kernmill bench` measures the model alone before them: a prompt as long, and the answer behind it. A server's processor
time is measured as well: it says more than the clock where other programs run.

    python -m bench.serve --llama-server PATH --vocabulary FILE

In the table `HTTP` is the processor time of the thread with the event loop, for each new token. `outside of steps` is
the share of time in which the model computed nothing.
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
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .machine import machine, machine_line
from .model_file import write_model
from .model_shapes import SHAPES

__all__ = ["Line", "main"]

ALONE = "kernmill bench"
_WARM_UP = 1 << 30  # its prompts are those of no round: a server would have them in its cache. Random(-1) is Random(1)

_WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "his", "they", "at", "be", "this")


@dataclass
class Line:
    """A round of one server with some clients. Rates are tokens per second; times of processors are for each new token.

    first_ms  the 95th percentile of the times to the first token.
    loop_us   of the thread with the event loop, of our server.
    outside   share of the time in which our model computed nothing.
    """

    server: str
    clients: int
    tokens: int
    seconds: float
    rate: float
    first_ms: float
    cpu_us: float
    loop_us: float = 0.0
    outside: float = 0.0


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    port: int
    process: int

    def cpu_s(self) -> float:
        """The processor time of all its threads."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def loop_s(self) -> float:
        """The processor time of its first thread: of ours, that with the event loop."""
        return int(Path(f"/proc/{self.process}/task/{self.process}/schedstat").read_text().split()[0]) / 1e9

    def busy_s(self) -> float:
        """The time of our server's steps; 0 of another one."""
        if self.name != "kernmill":
            return 0.0
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answered:
            lines = answered.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("kernmill_busy_seconds ")))


@contextmanager
def serving(name: str, command: Sequence[str]) -> Generator[Server]:
    """Run a server; yields it when it is ready."""
    port = _free_port()
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
            yield Server(name, port, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _is_ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answered:
        return bool(answered.status == 200)
    return False


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


def measured(server: Server, clients: int, prompt: int, count: int, seed: int) -> Line:
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
        return await asyncio.gather(*(_ask(server.port, body) for body in bodies))

    before, start = (server.cpu_s(), server.loop_s(), server.busy_s()), time.perf_counter()
    found = asyncio.run(all_of_them())
    seconds = time.perf_counter() - start
    after = server.cpu_s(), server.loop_s(), server.busy_s()
    cpu, loop, busy = (new - old for new, old in zip(after, before, strict=True))
    tokens = sum(made for _, made in found)
    firsts = sorted(first for first, _ in found)
    late = firsts[min(len(firsts) - 1, round(0.95 * len(firsts)))]
    line = Line(server.name, clients, tokens, seconds, tokens / seconds, late * 1e3, cpu / tokens * 1e6)
    if server.name == "kernmill":
        line.loop_us, line.outside = loop / tokens * 1e6, 1 - busy / seconds
    return line


def alone(path: str, given: argparse.Namespace) -> Line:
    """Run `kernmill bench`; return what it says about one client: the prompt, then the answer."""
    command = [
        sys.executable, "-m", "kernmill", "bench", path, "-p", str(given.prompt), "-n", "0", "-pg",
        f"{given.prompt},{given.tokens}", "-r", "3", "-t", str(given.threads), "-ctk", "f16", "-o", "json",
    ]  # fmt: skip
    tests = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    reading, seconds = (statistics.median(test["samples_ns"]) / 1e9 for test in tests)
    return Line(ALONE, 1, given.tokens, seconds, given.tokens / seconds, reading * 1e3, 0.0)


def rounds_of(servers: Sequence[Server], path: str, given: argparse.Namespace) -> Iterator[Line]:
    """Ask the servers in turns, with each number of clients; yields each round of each."""
    for count in map(int, given.clients.split(",")):
        for server in servers:
            measured(server, count, given.prompt, 4, _WARM_UP)  # what is built when first needed is built
        for number in range(given.rounds):
            if count == 1:
                yield alone(path, given)
            for server in servers:
                yield measured(server, count, given.prompt, given.tokens, number * 1000 + count)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def markdown(lines: Sequence[Line]) -> str:
    """A table: medians of the rounds, ours against the peer's. A ratio is the median of the rounds' ratios."""
    rows = [
        "| clients | server | tokens/s | ours against it | first token, p95 | CPU a token | HTTP | outside of steps |",
        "| --: | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for clients in dict.fromkeys(line.clients for line in lines):
        here = [line for line in lines if line.clients == clients]
        ours = [line.rate for line in here if line.server == "kernmill"]
        for name in dict.fromkeys(line.server for line in here):
            own = [line for line in here if line.server == name]
            rate, first, cpu, loop, outside = (
                statistics.median(getattr(one, key) for one in own)
                for key in ("rate", "first_ms", "cpu_us", "loop_us", "outside")
            )
            ratio = statistics.median(mine / one.rate for mine, one in zip(ours, own, strict=True))
            is_ours = name == "kernmill"
            rows.append(
                f"| {clients} | {name} | {rate:.1f} | {'' if is_ours else f'{ratio:.2f}x'} | {first:.0f} ms | "
                f"{f'{cpu / 1e3:.2f} ms' if cpu else ''} | "
                + (f"{loop:.0f} us | {outside:.1%} |" if is_ours else " | |")
            )
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
    slots, length = max(map(int, given.clients.split(","))), given.prompt * 2 + given.tokens
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
        with ExitStack() as running:
            servers = [running.enter_context(serving(*one)) for one in commands.items()]
            for line in rounds_of(servers, str(path), given):
                lines.append(line)
                print(line, file=sys.stderr, flush=True)
    print(f"{machine_line(facts)}; {given.shape} {given.mix}, {given.threads} threads.\n\n{markdown(lines)}")
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": facts, "lines": [*map(asdict, lines)]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
