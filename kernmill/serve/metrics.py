"""Counters of the server, in the text format of Prometheus."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jobs import Job

__all__ = ["Metrics"]

_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class _Histogram:
    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(_BOUNDS) + 1), 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self.counts[bisect.bisect_left(_BOUNDS, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Cumulative counts."""
        total = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts of the server since its start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.ends: Counter[str] = Counter()
        self.running = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self._first_token = _Histogram()

    def count_job(self, job: Job) -> None:
        """Add the counts of a request that has ended."""
        for reply in job.replies:
            usage = reply.usage
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
            self.completion_tokens += usage.completion_tokens
            self.ends[reply.finish_reason or "cancelled"] += 1
        if job.first_token_s is not None:
            self._first_token.add(job.first_token_s)

    def text(self, gauges: dict[str, tuple[str, float]], loaded: dict[str, Any]) -> str:
        """All of them. `gauges`: a meaning and a value for each name."""
        lines: list[str] = []
        counters = {
            "prompt_tokens_total": ("tokens of prompts", self.prompt_tokens),
            "cached_tokens_total": ("tokens of prompts that a slot already had", self.cached_tokens),
            "completion_tokens_total": ("generated tokens", self.completion_tokens),
        }
        for name, (meaning, value) in counters.items():
            lines += [
                f"# HELP kernmill_{name} {meaning}",
                f"# TYPE kernmill_{name} counter",
                f"kernmill_{name} {value}",
            ]
        lines += [
            "# HELP kernmill_requests_total requests by path and status",
            "# TYPE kernmill_requests_total counter",
        ]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'kernmill_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += [
            "# HELP kernmill_answers_total answers by the reason of their end",
            "# TYPE kernmill_answers_total counter",
        ]
        for reason, count in sorted(self.ends.items()):
            lines.append(f'kernmill_answers_total{{reason="{reason}"}} {count}')
        gauges = {**gauges, "requests_running": ("requests that generate", self.running)}
        for name, (meaning, gauge) in gauges.items():
            lines += [
                f"# HELP kernmill_{name} {meaning}",
                f"# TYPE kernmill_{name} gauge",
                f"kernmill_{name} {gauge:g}",
            ]
        lines += ["# HELP kernmill_model_loaded 1 for a model in memory", "# TYPE kernmill_model_loaded gauge"]
        lines += [f'kernmill_model_loaded{{model="{_escaped(name)}"}} {int(is_so)}' for name, is_so in loaded.items()]
        lines += [
            "# HELP kernmill_first_token_seconds time to the first token",
            "# TYPE kernmill_first_token_seconds histogram",
        ]
        return "\n".join([*lines, *self._first_token.lines("kernmill_first_token_seconds")]) + "\n"


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
