"""The kept hashes, and whether this machine's mathematics can make them.

python -m tests.golden.hashes            # make missing hashes, drop hashes without a case
python -m tests.golden.hashes CASE ...   # make these hashes again: only for an intended change

Neither runs on a machine whose mathematics differ, unless every case is named.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("hashes.json")
SKIP = "RLSCHED_SKIP_GOLDEN"
"""Environment variable: `1` skips the comparison on a machine that cannot make the hashes."""
_PROBE = "mathematics"


@cache
def mathematics() -> str:
    """A digest of functions whose last bit depends on the C library and the processor."""
    x = np.linspace(1e-3, 40.0, 20_001)
    scalar = [(math.log(v), math.exp(v / 8.0), math.log1p(v), math.erfc(v / 9.0), v**0.7) for v in x.tolist()]
    matrix = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    hasher = hashlib.sha256(np.array(scalar).tobytes())
    for values in (np.exp(x / 8.0), np.log(x), np.power(x, 0.7), np.tanh(matrix), matrix @ matrix):
        hasher.update(np.ascontiguousarray(values).tobytes())
    return hasher.hexdigest()[:16]


@cache
def _read() -> dict[str, str]:
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.is_file() else {}


def kept() -> dict[str, str]:
    """Hash by case."""
    return {name: value for name, value in _read().items() if name != _PROBE}


def same_mathematics() -> bool:
    """Whether the hashes can be made on this machine."""
    return _read()[_PROBE] == mathematics()


def cannot_compare() -> str:
    """One line with cause and remedy; "" where the hashes can be made on this machine."""
    if same_mathematics():
        return ""
    return (
        f"golden: floating-point functions here round differently ({mathematics()}) than on the machine that "
        f"made the hashes ({_read()[_PROBE]}): use an x86 processor with AVX2 and numpy of constraints.txt, "
        "compare a case by `python -m tests.golden.explain CASE --against COMMIT`, or leave these tests out "
        f"with {SKIP}=1"
    )


def left_out() -> bool:
    """Whether the environment skips a comparison that is impossible on this machine."""
    return os.environ.get(SKIP, "") == "1"


def main(anew: list[str]) -> None:
    """Make hashes and write the file.

    Raises:
        SystemExit: a case is unknown, or hashes of another machine's mathematics would stay in the file.
    """
    from tests.golden.cases import cases, digest

    found, old = cases(), kept()
    unknown = sorted(set(anew) - found.keys())
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; tests/golden/hashes.json has their names")
    if old and not same_mathematics() and not found.keys() <= set(anew):
        sys.exit(cannot_compare())
    hashes = {_PROBE: mathematics()}
    for name, make in found.items():
        hashes[name] = digest(make()) if name in anew or name not in old else old[name]
        if hashes[name] != old.get(name):
            print(name, flush=True)
    FILE.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
