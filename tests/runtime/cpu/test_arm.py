"""AArch64 CPUs: what texts of /proc/cpuinfo, macOS and names of cores say about features."""

from __future__ import annotations

import pytest

from kernmill.ir import SettingError, dtypes
from kernmill.runtime import arm, cpu_target, host

TEXT = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: {}\nCPU implementer\t: {}\nCPU part\t: {}\n\nprocessor\t: 1\n"
N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
CORES = [
    ("fp asimd evtstrm crc32 cpuid", "0x41", "0xd08", "cortex-a72", set[str]()),
    (N1, "0x41", "0xd0c", "neoverse-n1", {"dotprod", "fullfp16", "lse"}),
    (N1 + " sve i8mm bf16 asimdfhm", "0x41", "0xd40", "neoverse-v1", {"dotprod", "i8mm", "bf16", "fp16fml"}),
    (N1 + " sve sve2 i8mm bf16", "0x41", "0xd4f", "neoverse-v2", {"i8mm", "bf16"}),
    (N1, "0x61", "0x022", "apple-m1", {"dotprod"}),
    (N1, "0x99", "0x001", "generic", {"dotprod"}),
]


@pytest.mark.parametrize(("flags", "maker", "part", "name", "needed"), CORES, ids=[core[3] for core in CORES])
def test_cpuinfo(flags: str, maker: str, part: str, name: str, needed: set[str]) -> None:
    cpu, features = arm.arm_from_cpuinfo(TEXT.format(flags, maker, part))
    assert cpu == name
    on = {feature[1:] for feature in features if feature[0] == "+"}
    assert needed <= on
    assert {"neon", "fp-armv8"} <= on
    assert not any(feature.startswith("+sve") for feature in features)
    assert {"-sve", "-sve2"} <= set(features)


@pytest.mark.parametrize("text", ["", "Features", "Features\t:\n", "\0" * 100])
def test_a_damaged_cpuinfo_is_plain_armv8(text: str) -> None:
    cpu, features = arm.arm_from_cpuinfo(text)
    assert cpu == "generic"
    assert {f for f in features if f[0] == "+"} == {"+fp-armv8", "+neon"}


@pytest.mark.parametrize(("known", "name"), [({"FEAT_DotProd"}, "apple-m1"), ({"FEAT_I8MM", "FEAT_BF16"}, "apple-m2")])
def test_macos(known: set[str], name: str) -> None:
    cpu, features = arm.arm_from_macos(lambda key: key.removeprefix("hw.optional.arm.") in known)
    assert cpu == name
    assert ("+dotprod" in features) == ("FEAT_DotProd" in known)


def test_a_cpu_without_dot_products_is_not_offered_them() -> None:
    old, new = (host.named_host("neoverse-v1")._replace(features=arm.feature_list(f)) for f in (set(), {"dotprod"}))
    assert cpu_target.host_target(old).dots == frozenset()
    assert cpu_target.host_target(new).dots == {(dtypes.int8, dtypes.int8), (dtypes.uint8, dtypes.uint8)}
    assert dtypes.float16 not in cpu_target.host_target(old).compute_dtypes


def test_an_unknown_core() -> None:
    with pytest.raises(SettingError) as caught:
        host.named_host("z80")
    assert str(caught.value) == (
        "named_host('z80'): must be one of cortex-a72, neoverse-n1, neoverse-v1, neoverse-v2, apple-m1."
    )
