"""Lazy imports: modules of this folder that only compiling, searching and reporting need, imported when first used.

A program whose plans and kernels are all in the cache uses none of them, nor the compiler that they import
(docs/topics/plans-and-caches.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernmill.ir import lazy_exports

if TYPE_CHECKING:
    from . import check as check
    from . import compiling as compiling
    from . import device_rates as device_rates
    from . import placement_report as placement_report
    from . import planning as planning
    from . import profile as profile
    from . import tune as tune

__getattr__ = lazy_exports(
    __name__.rpartition(".")[0], "check", "compiling", "device_rates", "placement_report", "planning", "profile", "tune"
)[0]
