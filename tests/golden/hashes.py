"""The hashes that are kept, and whether this machine's mathematics can make them.

python -m tests.golden.hashes            # make those that are missing, drop those without a case
python -m tests.golden.hashes CASE ...   # and make these anew: only where a change is meant
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("hashes.json")
_PROBE = "mathematics"


@cache
def mathematics() -> str:
    """A digest of functions whose last bit another C library or another processor may round otherwise."""
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


def main(anew: list[str]) -> None:
    """Make hashes and write the file."""
    from tests.golden.cases import cases, digest

    found, old = cases(), kept()
    hashes = {_PROBE: mathematics()}
    for name, make in found.items():
        hashes[name] = digest(make()) if name in anew or name not in old else old[name]
        if hashes[name] != old.get(name):
            print(name, flush=True)
    FILE.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
