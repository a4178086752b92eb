import ctypes
import mmap
import threading

import pytest

from kernmill.ir import InternalError, KernmillError, OutOfMemoryError
from kernmill.runtime import allocator

MB = 1 << 20
SIZES = [0, 1, 63, 64, 65, 4096, 100_000, MB - 1, MB, 3 * MB + 7]


@pytest.mark.parametrize("nbytes", SIZES)
def test_blocks_are_aligned_and_writable(nbytes: int) -> None:
    block = allocator.HostAllocator().alloc(nbytes)
    assert block.address % allocator.ALIGNMENT_BYTES == 0
    assert block.nbytes == nbytes <= block.capacity_bytes
    ctypes.memset(block.address, 0xAB, block.capacity_bytes)
    assert ctypes.string_at(block.address, block.capacity_bytes) == b"\xab" * block.capacity_bytes


def test_slack_is_at_most_an_eighth() -> None:
    for nbytes in [513, 4097, 5000, 123_457, MB + 1, 7 * MB, (1 << 40) + 1]:
        capacity = allocator.HostAllocator().bucket_bytes(nbytes)
        assert nbytes <= capacity <= nbytes * 1.125 + 64
        assert allocator.HostAllocator().bucket_bytes(capacity) == capacity


def test_freed_blocks_are_reused() -> None:
    memory = allocator.HostAllocator()
    for nbytes in SIZES:
        first = memory.alloc(nbytes)
        address = first.address
        memory.free(first)
        second = memory.alloc(max(0, nbytes - 1) if nbytes > 65 else nbytes)
        assert second.address == address
        memory.free(second)
    assert memory.held_bytes()[0] == 0


def test_held_bytes() -> None:
    memory = allocator.HostAllocator()
    a, b = memory.alloc(1000), memory.alloc(3000)
    assert memory.held_bytes()[0] == 4000
    memory.free(a)
    assert memory.held_bytes() == (3000, 1024)
    memory.free(b)
    assert memory.trim() == memory.held_bytes()[1] + 1024 + 3072
    assert memory.held_bytes()[1] == 0


def test_cache_is_limited_and_drops_the_oldest() -> None:
    memory = allocator.HostAllocator(cache_limit_bytes=4 * MB)
    blocks = [memory.alloc(MB) for _ in range(6)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        memory.free(block)
    assert memory.held_bytes()[1] == 4 * MB
    assert memory.alloc(MB).address == addresses[-1]
    huge = memory.alloc(5 * MB)
    memory.free(huge)  # larger than the cache: goes back at once
    assert memory.held_bytes()[1] == 3 * MB


def test_double_free_is_an_error() -> None:
    memory = allocator.HostAllocator()
    block = memory.alloc(10)
    memory.free(block)
    with pytest.raises(InternalError, match="was freed before"):
        memory.free(block)


def test_out_of_memory_leaves_the_process_usable() -> None:
    memory = allocator.HostAllocator()
    memory.free(memory.alloc(2 * MB))
    with pytest.raises(
        OutOfMemoryError,
        match=r"LLVM: out of memory: a buffer of 1024\.0 TiB\ cannot be allocated. Free: .*smaller batches",
    ):
        memory.alloc(1 << 50)
    assert memory.held_bytes()[1] == 0  # it was trimmed before giving up
    with pytest.raises(KernmillError):
        memory.alloc(-1)
    assert memory.alloc(64).nbytes == 64


def test_allocation_is_tried_again_after_trimming(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = allocator.HostAllocator()
    memory.free(memory.alloc(3 * MB))
    real = memory.new_block

    def short_of_memory(capacity: int) -> allocator.Block:
        if memory.held_bytes()[1]:
            raise OSError(12, "Cannot allocate memory")
        return real(capacity)

    monkeypatch.setattr(memory, "new_block", short_of_memory)
    assert memory.alloc(2 * MB).nbytes == 2 * MB


def test_free_from_a_finalizer_while_the_lock_is_held() -> None:
    memory = allocator.HostAllocator()
    block = memory.alloc(100)
    with memory._lock:
        memory.free(block)  # what the garbage collector may do inside any method
    assert memory.held_bytes()[0] == 0
    assert memory.held_bytes()[1] == 128


def test_many_threads() -> None:
    memory = allocator.HostAllocator(cache_limit_bytes=MB)
    errors: list[int] = []

    def work(seed: int) -> None:
        for i in range(300):
            block = memory.alloc(64 + (seed * 37 + i * 113) % 5000)
            place, mark = ctypes.c_int64.from_address(block.address), seed * 1000 + i
            place.value = mark
            if place.value != mark:
                errors.append(i)
            memory.free(block)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert memory.held_bytes()[0] == 0
    assert memory.held_bytes()[1] <= MB


def test_page_size_is_a_multiple_of_the_alignment() -> None:
    assert mmap.PAGESIZE % allocator.ALIGNMENT_BYTES == 0
