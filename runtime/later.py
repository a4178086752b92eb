"""Lazy imports: modules of this folder that only compiling, searching and reporting need, imported when first used.

A program whose plans and kernels are all in the cache uses none of them, nor the compiler that they import
(docs/topics/plans-and-caches.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernmill.ir import lazy_exports

if TYPE_CHECKING:
    from . import device_rates as device_rates
    from . import kernel_report as kernel_report
    from . import pages as pages
    from . import placement_report as placement_report
    from .plans import planning as planning
    from .programs import check as check
    from .programs import compiling as compiling
    from .programs import kernel_inputs as kernel_inputs
    from .programs import reproduce as reproduce
    from .programs import tune as tune

__getattr__ = lazy_exports(
    __name__.rpartition(".")[0], "programs.check", "programs.compiling", "device_rates", "programs.kernel_inputs",
    "pages", "placement_report", "plans.planning", "kernel_report", "programs.reproduce", "programs.tune",
)[0]  # fmt: skip
