"""The net: hashes of what is decided, the same on every x86 processor of the last ten years.

numpy and its BLAS take wider vectors where a processor has them, and those round otherwise. Where AVX2 is
there, they are told to stop at it, before numpy is imported; elsewhere the tests fail, with what to do.
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
