import threading
from pathlib import Path

import pytest

from kernmill.ir import CompileError
from kernmill.runtime import compile_cache, host, llvm_codegen

GOOD = "define i64 @answer() nounwind {\n  ret i64 42\n}\n"


def test_object_and_assembly() -> None:
    assert llvm_codegen.compile_ir(GOOD, host.this_host())
    assert "answer" in llvm_codegen.assembly(GOOD, host.this_host())


def test_syntax_error_shows_the_line_and_its_neighbours() -> None:
    bad = "define i64 @f() {\n  %a = add i64 1, 2\n  %b = frobnicate i64 %a\n  ret i64 %b\n}\n"
    with pytest.raises(CompileError) as caught:
        llvm_codegen.compile_ir(bad, host.this_host())
    text = str(caught.value)
    assert "LLVM refuses line 3 of the generated IR" in text
    assert "->    3 |   %b = frobnicate i64 %a" in text
    assert "      2 |   %a = add i64 1, 2" in text
    assert "expected instruction opcode" in text


def test_verifier_error_shows_the_line() -> None:
    bad = "define i64 @f() {\n  %a = add i64 %b, 2\n  %b = add i64 1, 2\n  ret i64 %b\n}\n"
    with pytest.raises(CompileError, match="does not dominate") as caught:
        llvm_codegen.compile_ir(bad, host.this_host())
    assert " | " in str(caught.value)


def test_cached_compilation(tmp_path: Path) -> None:
    cache = compile_cache.CompileCache(str(tmp_path / "cache"))
    first = llvm_codegen.compile_cached(GOOD, host.this_host(), {"kernel": "answer"}, cache)()
    assert llvm_codegen.compile_cached(GOOD, host.this_host(), {}, cache)() == first
    assert cache.puts == 1
    other = compile_cache.CompileCache(str(tmp_path / "other"))
    assert llvm_codegen.compile_cached(GOOD, host.this_host(), {}, other, is_later=True)() == first
    assert other.puts == 1
    assert cache.info()["entries"] == 1


def test_version_is_llvmlites() -> None:
    import llvmlite

    assert llvm_codegen.llvm_version() == llvmlite.__version__


def test_threads_may_compile_at_once() -> None:
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(llvm_codegen.compile_ir(GOOD, host.this_host())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1


MASKED = """
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)

define <16 x float> @turned(ptr %from, <16 x i1> %mask, <16 x float> %other) nounwind {
  %row = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %from, i32 4, <16 x i1> %mask, <16 x float> zeroinitializer)
  %both = shufflevector <16 x float> %other, <16 x float> %row, <16 x i32> <i32 17, i32 0, i32 25, i32 9, i32 18,
    i32 18, i32 27, i32 27, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %kept = select <16 x i1> %mask, <16 x float> %both, <16 x float> zeroinitializer
  ret <16 x float> %kept
}
"""


@pytest.mark.skipif(not host.this_host().has("avx512f"), reason="masks are registers with AVX-512 only")
def test_what_a_mask_leaves_out_is_not_read() -> None:
    """LLVM 22 moved the masked load into the permutation after it, which has the same mask and reads all lanes: a
    transposed convolution read in front of its buffer, and ended the process now and then."""
    text = llvm_codegen.assembly(MASKED, host.this_host())
    reading = [line.split() for line in text.splitlines() if "(%rdi)" in line]
    assert [words[0] for words in reading] == ["vmovups"], text
