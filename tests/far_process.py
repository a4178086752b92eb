"""The process of a FAR device (tests/far_device.py): memory, kernels, and a queue for them beside the copies."""

import contextlib
import ctypes
import os
import pickle
import queue
import sys
import threading
import time

import llvmlite.binding as llvm


class Machine:
    def __init__(self, options):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.size, self.options, self.align = options.get("mib", 64) << 20, options, options.get("align", 64)
        self.memory = ctypes.create_string_buffer(self.size + self.align)
        self.begin = -(-ctypes.addressof(self.memory) // self.align) * self.align
        self.used, self.entries, self.queue = {}, [], queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def alloc(self, size):
        ends = [self.begin, *(end + -end % self.align for end in self.used.values())]
        at = min(at for at in ends if not any(begin < at + size and at < end for begin, end in self.used.items()))
        if size > self.options.get("most", size) or at + size > self.begin + self.size:
            raise MemoryError
        self.used[at] = at + max(1, size)
        return at

    def free(self, address):
        del self.used[address]

    def room(self):
        return self.size - sum(end - begin for begin, end in self.used.items())

    def inside(self, address, size):
        if not any(begin <= address and address + size <= end for begin, end in self.used.items()):
            raise ValueError(f"{size} bytes at {address:#x} are in no block")
        return address

    def link(self, size):
        time.sleep((self.options.get("latency_ns", 0) + self.options.get("ns_per_kib", 0) * size / 1024) / 1e9)

    def put(self, address, data):
        self.link(len(data))
        ctypes.memmove(self.inside(address, len(data)), data, len(data))

    def get(self, address, size):
        self.link(size)
        return ctypes.string_at(self.inside(address, size), size)

    def load(self, name, source):
        target = llvm.Target.from_default_triple().create_target_machine()
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source), target)
        engine.finalize_object()
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.entries.append((entry(engine.get_function_address(name)), engine))
        return len(self.entries) - 1

    def run(self, calls):
        _ = [self.inside(*buffer) for call in calls for buffer in call[1]]
        return self.queue.put(calls) if self.options.get("queueing") else [self.launch(*call) for call in calls]

    def launch(self, program, buffers, variables, threads):
        words, start = [*(address for address, _ in buffers), *variables], time.perf_counter_ns()
        time.sleep(self.options.get("sleep_ns", 0) / 1e9)
        self.entries[program][0]((ctypes.c_int64 * len(words))(*words), 0, threads)
        return time.perf_counter_ns() - start

    def work(self):
        while True:
            for call in self.queue.get():
                self.launch(*call)
            self.queue.task_done()

    def sync(self):
        self.queue.join()


def answer(machine, verb, *given):
    try:
        return True, getattr(machine, verb)(*given)
    except Exception as error:
        return False, error


def messages():
    with contextlib.suppress(EOFError):  # the other end is gone
        while True:
            yield pickle.load(sys.stdin.buffer)


if __name__ == "__main__":
    machine = Machine(pickle.load(sys.stdin.buffer))
    for count, message in enumerate(messages(), 1):
        if count == machine.options.get("die_at"):
            os._exit(1)
        sys.stdout.buffer.write(pickle.dumps(answer(machine, *message)))
        sys.stdout.buffer.flush()
