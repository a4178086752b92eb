"""FAR:0..3: devices in other processes, with memory that the host cannot address. Written from the how-to page."""

import contextlib
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import llvmlite.binding as llvm

from kernmill.ir import CompileError, OutOfMemoryError, Target, dtypes
from kernmill.renderers import LLVM_OPS, LLVMRenderer
from kernmill.runtime import Device, Program, Properties

HALVES = frozenset({dtypes.float16, dtypes.bfloat16})


class Memory:
    """A block: its address in the other process."""

    def __init__(self, address):
        self.address = address


class FarDevice(Device):
    CONTRACT = 1
    OPTIONS = {  # noqa: RUF012
        "mib": "memory", "most": "bytes of the largest buffer", "align": "alignment", "without": "ops+dtypes left out",
        "queueing": "1: run returns at once", "sleep_ns": "before each kernel", "latency_ns": "of a copy",
        "ns_per_kib": "of a copy", "fail_at": "the n-th call raises OSError", "die_at": "the n-th ends the process",
    }  # fmt: skip
    kind = "accel"
    description = "memory in another process"

    def __init__(self, name, index=0, options=()):
        super().__init__(name, index, options)
        given = {key: value if key == "without" else int(value) for key, value in self.options.items()}
        self.given, self.calls, self.lock = given, 0, threading.Lock()
        script = str(Path(__file__).with_name("far_process.py"))
        self.process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pickle.dump(given, self.process.stdin)
        self.without = set(given.get("without", "").split("+"))
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")

    @classmethod
    def devices(cls):
        return [0, 1, 2, 3]

    def ask(self, *message):
        with self.lock:
            self.calls += 1
            if self.calls == self.given.get("fail_at"):
                raise OSError("DMA error")
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()
            is_right, answer = pickle.load(self.process.stdout)
        if not is_right:
            raise answer
        return answer

    def close(self):
        with contextlib.suppress(OSError):
            self.process.kill()
            self.process.communicate()

    def props(self):
        given = self.given
        return Properties(
            total_bytes=given.get("mib", 64) << 20,
            free_bytes=self.ask("room"),
            max_alloc_bytes=given.get("most", 1 << 62),
            alignment=given.get("align", 64),
            is_async=bool(given.get("queueing")),
            is_host_visible=False,
            wraps_host_memory=False,
        )

    @property
    def renderer(self):
        left = frozenset(op for op in LLVM_OPS if op.name not in self.without)
        computed = frozenset(d for d in dtypes.data if d.name not in self.without) - HALVES
        stored = frozenset(dtypes.data) - {dtypes.float16}
        return LLVMRenderer(Target("far", ops=left, storage_dtypes=stored, compute_dtypes=computed))

    def compile(self, name, source):
        try:
            return self.machine.emit_object(llvm.parse_assembly(source))
        except RuntimeError as error:
            raise CompileError(f"kernel {name}: {error}") from error

    def load(self, name, binary):
        return Program(name, self.ask("load", name, binary))

    def allocate(self, size_bytes):
        try:
            return Memory(self.ask("alloc", size_bytes))
        except MemoryError:
            raise OutOfMemoryError(f"{size_bytes} bytes") from None

    def free(self, block):
        self.ask("free", block.address)

    def copy_in(self, target, source):
        self.ask("put", target.address, bytes(source))

    def copy_out(self, target, source):
        target[:] = self.ask("get", source.address, source.nbytes)

    def synchronize(self):
        self.ask("sync")

    def run(self, calls, *, is_timed=False):
        times = self.ask(
            "run",
            [(c.program.handle, [(b.address, b.nbytes) for b in c.buffers], c.variables, c.threads) for c in calls],
        )
        if is_timed and times is None:
            self.synchronize()
        return (times or [0] * len(calls)) if is_timed else []
