"""FAR:0..3: devices in other processes, with memory that the host cannot address. Written from the how-to page."""

import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

from kernmill.ir import Target, dtypes
from kernmill.renderers import LLVM_OPS, LLVMRenderer
from kernmill.runtime import Device, Program, Properties

STORED = frozenset(dtypes.data) - {dtypes.float16}
NUMBERS = "mib most align mapped queueing sleep_ns latency_ns ns_per_kib fail_at die_at"


class FarDevice(Device):
    CONTRACT = 1
    OPTIONS = {"without": "ops and dtypes left out: EXP+float64", **dict.fromkeys(NUMBERS.split(), "a number")}  # noqa: RUF012
    kind = "accel"
    description = "memory in another process"

    def __init__(self, name, index=0, options=()):
        super().__init__(name, index, dict(options))
        self.without = self.options.get("without", "").split("+")
        self.given = {key: int(value) for key, value in self.options.items() if key != "without"}
        self.calls, self.lock = 0, threading.Lock()
        command = [sys.executable, str(Path(__file__).with_name("far_process.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdin.write(pickle.dumps(self.given))

    @classmethod
    def devices(cls):
        return [0, 1, 2, 3]

    def ask(self, *message):
        with self.lock:
            self.calls += 1
            if self.calls == self.given.get("fail_at"):
                raise OSError("DMA error")
            self.process.stdin.write(pickle.dumps(message))
            self.process.stdin.flush()
            is_right, answer = pickle.load(self.process.stdout)
        if not is_right:
            raise answer
        return answer

    def close(self):
        self.process.kill()
        self.process.communicate()

    def props(self):
        get, align = self.given.get, self.given.get("align", 64)
        return Properties(get("mib", 64) << 20, self.ask("room"), get("most", 1 << 62), get("mapped", 1 << 62), align,
                          slice_alignment=get("align", 1), is_async=bool(get("queueing")), is_host_visible=False,
                          wraps_host_memory=False)  # fmt: skip

    @property
    def renderer(self):
        left = frozenset(op for op in LLVM_OPS if op.name not in self.without)
        computed = frozenset(d for d in STORED if d.name not in [*self.without, "bfloat16"])
        return LLVMRenderer(Target("far", ops=left, storage_dtypes=STORED, compute_dtypes=computed))

    def compile(self, name, source):
        return source.encode()

    def load(self, name, binary):
        return Program(name, self.ask("load", name, binary.decode()))

    def allocate(self, size_bytes):
        return SimpleNamespace(address=self.ask("alloc", size_bytes))

    def free(self, block):
        self.ask("free", block.address)

    def copy_in(self, target, source):
        self.ask("put", target.address, bytes(source))

    def copy_out(self, target, source):
        target[:] = self.ask("get", source.address, source.nbytes)

    def synchronize(self):
        self.ask("sync")

    def run(self, calls, *, is_timed=False):
        times = self.ask("run", [(c.program.handle, [(b.address, b.nbytes) for b in c.buffers], c.variables, c.threads)
                                 for c in calls])  # fmt: skip
        return (times or [0] * len(calls)) if is_timed else []
