import pytest

from kernmill.runtime import pool_ir


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "riscv64"])
def test_text_for_every_system(arch: str, system: str) -> None:
    text = pool_ir.pool_ir(arch, system)
    assert ("@syscall" in text) == (system == "linux")
    assert ("pause" in text) == (arch == "x86_64")
    assert all(f"@{name}(" in text for name in pool_ir.POOL_FUNCTIONS)
