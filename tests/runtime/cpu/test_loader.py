import ctypes

import pytest

from kernmill.ir import FormatError
from kernmill.runtime import host, llvm_codegen, loader

TEXT = "define i64 @f(i64 %x) nounwind {\n  %y = add i64 %x, NUMBER\n  ret i64 %y\n}"


@pytest.mark.parametrize("use_lljit", [None, True])
def test_same_name_many_times(use_lljit: bool | None) -> None:
    modules = [
        loader.load_object(
            llvm_codegen.compile_ir(TEXT.replace("NUMBER", str(n)), host.this_host()), ["f"], use_lljit=use_lljit
        )
        for n in range(5)
    ]
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert [kind(module.symbols["f"])(10) for module in modules] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("use_lljit", [None, True])
def test_garbage_is_a_format_error(use_lljit: bool | None) -> None:
    with pytest.raises(FormatError, match=r"[Cc]lear the cache"):
        loader.load_object(b"not an object at all", ["f"], use_lljit=use_lljit)
