"""Golden hashes of decisions, the same on every x86 processor of the last ten years.

numpy and its BLAS use wider vectors where a processor has them, and those round otherwise. Where AVX2 is
available, both are limited to it before numpy is imported; elsewhere the tests fail, with a remedy.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

_CPU = Path("/proc/cpuinfo")
if _CPU.is_file() and " avx2 " in _CPU.read_text(encoding="ascii", errors="replace"):
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR")
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # another version of numpy has other names
    import numpy as np  # noqa: F401
