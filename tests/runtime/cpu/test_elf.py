import contextlib
import ctypes
import functools
import random
import re
from pathlib import Path

import pytest

from kernmill.ir import FormatError
from kernmill.runtime import elf, host, llvm_codegen, llvm_process, loader

pytestmark = pytest.mark.skipif(not elf.is_elf_host(), reason="the ELF loader is for Linux on x86-64 and AArch64")

SNIPPETS = {
    "plain": "define i64 @f(i64 %x) nounwind {\n  %y = mul i64 %x, 3\n  ret i64 %y\n}",
    "constant pool": """
define i64 @f(i64 %x) nounwind {
  %d = sitofp i64 %x to double
  %m = fmul double %d, 2.5
  %v = insertelement <8 x double>
      <double 1.5, double 2.5, double 3.5, double 4.5, double 5.5, double 6.5, double 7.5, double 8.5>, double %m, i64 3
  %w = fadd <8 x double> %v,
      <double 0.25, double 1.25, double 2.25, double 3.25, double 4.25, double 5.25, double 6.25, double 7.25>
  %r = call double @llvm.vector.reduce.fadd.v8f64(double 0.0, <8 x double> %w)
  %i = fptosi double %r to i64
  ret i64 %i
}
declare double @llvm.vector.reduce.fadd.v8f64(double, <8 x double>)""",
    "memset and memcpy": """
define i64 @f(i64 %x) nounwind {
  %a = alloca [4096 x i8], align 64
  %b = alloca [4096 x i8], align 64
  %c = trunc i64 %x to i8
  call void @llvm.memset.p0.i64(ptr %a, i8 %c, i64 4096, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %b, ptr %a, i64 4096, i1 false)
  %q = getelementptr i8, ptr %b, i64 4088
  %r = load i64, ptr %q
  ret i64 %r
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)""",
    "data, bss, address tables": """
@counter = internal global i64 5
@zeros = internal global [100 x i64] zeroinitializer
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@where = internal global ptr @counter
define i64 @f(i64 %x) nounwind {
  %c = load i64, ptr @counter
  %c1 = add i64 %c, 1
  store i64 %c1, ptr @counter
  %p = load ptr, ptr @where
  %d = load i64, ptr %p
  %i = and i64 %x, 3
  %q = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %t = load i64, ptr %q
  %z = getelementptr [100 x i64], ptr @zeros, i64 0, i64 %i
  %u = load i64, ptr %z
  %u1 = add i64 %u, 7
  store i64 %u1, ptr %z
  %s = add i64 %d, %t
  %r = add i64 %s, %u1
  ret i64 %r
}""",
    "two functions, switch": """
define i64 @g(i64 %x) nounwind noinline {
  switch i64 %x, label %d [
    i64 0, label %a  i64 1, label %b  i64 2, label %c  i64 3, label %e  i64 4, label %h  i64 5, label %i ]
a: ret i64 7
b: ret i64 -3
c: ret i64 99
e: ret i64 1234
h: ret i64 -17
i: ret i64 5
d: ret i64 0
}
define i64 @f(i64 %x) nounwind {
  %y = call i64 @g(i64 %x)
  %z = add i64 %y, %x
  ret i64 %z
}""",
    "address of an extern": """
declare ptr @memmove(ptr, ptr, i64)
@fn = internal global ptr @memmove
define i64 @f(i64 %x) nounwind {
  %a = alloca i64
  %b = alloca i64
  store i64 %x, ptr %a
  %g = load volatile ptr, ptr @fn
  %r = call ptr %g(ptr %b, ptr %a, i64 8)
  %same = icmp eq ptr %g, @memmove
  %one = zext i1 %same to i64
  %v = load i64, ptr %b
  %w = add i64 %v, %one
  ret i64 %w
}""",
}  # fmt: skip


def call(module: elf.ElfModule, argument: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(module.symbols["f"])(argument))


@functools.cache
def built(name: str, level: int = 2) -> bytes:
    cpu = host.this_host()
    machine, module = llvm_process.Emitter().parse(SNIPPETS[name], cpu.cpu, ",".join(cpu.features), level)
    return bytes(machine.emit_object(module))


@pytest.mark.parametrize("name", SNIPPETS)
@pytest.mark.parametrize("level", [0, 2])
def test_same_results_as_llvms_own_linker(name: str, level: int) -> None:
    data = built(name, level)
    ours = loader.load_object(data, ["f"], use_lljit=False)
    theirs = loader.load_object(data, ["f"], use_lljit=True)
    for argument in [0, 1, 2, 3, 5, 200, -1]:
        assert call(ours, argument) == call(theirs, argument)


def test_externs_are_called() -> None:
    text = "declare i64 @twice(i64)\ndefine i64 @f(i64 %x) nounwind {\n  %r = call i64 @twice(i64 %x)\n  ret i64 %r\n}"
    twice = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: 2 * x)
    address = ctypes.cast(twice, ctypes.c_void_p).value or 0
    data = llvm_codegen.compile_ir(text, host.this_host())
    for use_lljit in (False, True):
        assert call(loader.load_object(data, ["f"], {"twice": address}, use_lljit=use_lljit), 21) == 42
    with pytest.raises(FormatError, match="calls 'twice', which is not among the externs given"):
        elf.load_elf(data)


def test_missing_symbol() -> None:
    with pytest.raises(FormatError, match="does not define nothing"):
        loader.load_object(built("plain"), ["f", "nothing"])
    with pytest.raises(FormatError):
        loader.load_object(built("plain"), ["f", "nothing"], use_lljit=True)


def test_no_page_is_writable_and_executable() -> None:
    module = elf.load_elf(built("data, bss, address tables"))
    rights = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line)
        assert found is not None
        if int(found[1], 16) <= module.symbols["f"] < int(found[2], 16):
            rights[found[1]] = found[3]
        assert not ("w" in found[3] and "x" in found[3] and int(found[1], 16) == module.symbols["f"] // 4096 * 4096)
    assert set(rights.values()) == {"r-xp"}


def test_memory_is_returned() -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0])

    data = built("plain")
    kept = [elf.load_elf(data) for _ in range(200)]
    high = mapped()
    kept.clear()
    elf.unmap_unused()  # as the next load does
    assert mapped() <= high - 200


def test_damaged_objects_never_crash() -> None:
    """Truncations and random mutations: the answer is a module or a FormatError, nothing else."""
    chance = random.Random(7)
    refused = 0
    for name in SNIPPETS:
        data = built(name)
        for _ in range(250):
            damaged = bytearray(data)
            for _ in range(chance.choice([1, 1, 2, 8])):
                at = chance.randrange(len(damaged))
                damaged[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            if chance.random() < 0.2:
                del damaged[chance.randrange(len(damaged)) :]
            try:
                elf.load_elf(bytes(damaged))
            except FormatError:
                refused += 1
    assert refused > 100


def test_each_header_and_table_byte_set_to_ff() -> None:
    data = built("data, bss, address tables")
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] = 0xFF
        with contextlib.suppress(FormatError):
            elf.load_elf(bytes(damaged))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01\x01" + bytes(100), b"MZ" + bytes(200)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"not a relocatable .* ELF object"):
        elf.load_elf(data)
