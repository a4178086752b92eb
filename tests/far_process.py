"""The process of a FAR device (tests/far_device.py): memory, kernels, and a queue for them beside the copies."""

import ctypes
import os
import pickle
import queue
import sys
import threading
import time

import llvmlite.binding as llvm


class Machine:
    def __init__(self, mib=64, most=1 << 62, align=64, queueing=0, sleep_ns=0, latency_ns=0, ns_per_kib=0, **_):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.memory = ctypes.create_string_buffer((mib << 20) + align)
        start = ctypes.addressof(self.memory)
        self.begin, self.most, self.align = start + -start % align, most, align
        self.end = self.begin + (mib << 20)
        self.used, self.entries, self.faults = {}, {}, []
        self.sleep_ns, self.latency_ns, self.ns_per_kib = sleep_ns, latency_ns, ns_per_kib
        self.queue = queue.Queue() if queueing else None
        if self.queue:
            threading.Thread(target=self.work, daemon=True).start()

    def alloc(self, size):
        at = self.begin
        for begin, end in sorted(self.used.items()):
            if at + size <= begin:
                break
            at = end + -end % self.align
        if size > self.most or at + size > self.end:
            raise MemoryError
        self.used[at] = at + max(1, size)
        return at

    def free(self, address):
        del self.used[address]

    def room(self):
        return self.end - self.begin - sum(end - begin for begin, end in self.used.items())

    def put(self, address, data):
        self.link(len(data))
        ctypes.memmove(self.inside(address, len(data)), data, len(data))

    def get(self, address, size):
        self.link(size)
        return ctypes.string_at(self.inside(address, size), size)

    def link(self, size):
        time.sleep((self.latency_ns + self.ns_per_kib * size / 1024) / 1e9)

    def inside(self, address, size):
        if not any(begin <= address and address + size <= end for begin, end in self.used.items()):
            raise ValueError(f"{size} bytes at {address:#x} are in no block")
        return address

    def load(self, name, binary):
        engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine()
        )
        engine.add_object_file(llvm.ObjectFileRef.from_data(binary))
        engine.finalize_object()
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.entries[len(self.entries)] = entry(engine.get_function_address(name)), engine
        return len(self.entries) - 1

    def run(self, calls):
        for call in calls:
            for address, size in call[1]:
                self.inside(address, size)
        return self.queue.put(calls) if self.queue else [self.launch(*call) for call in calls]

    def launch(self, program, buffers, variables, threads):
        words = [*(address for address, _ in buffers), *variables]
        start = time.perf_counter_ns()
        time.sleep(self.sleep_ns / 1e9)
        self.entries[program][0]((ctypes.c_int64 * len(words))(*words), 0, threads)
        return time.perf_counter_ns() - start

    def work(self):
        while True:
            for call in self.queue.get():
                self.launch(*call)
            self.queue.task_done()

    def sync(self):
        if self.queue:
            self.queue.join()


def main():
    channel, out, machine, count = sys.stdin.buffer, sys.stdout.buffer, None, 0
    options = pickle.load(channel)
    machine = Machine(**options)
    while True:
        verb, *given = pickle.load(channel)
        count += 1
        if count == options.get("die_at"):
            os._exit(1)
        try:
            answer = True, getattr(machine, verb)(*given)
        except Exception as error:
            answer = False, error
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    main()
