"""Figures of GPU types, each with its status and source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from rlsched.models.at_clock import SWITCH_S

MEASURED: Final = "measured"
FITTED: Final = "fitted"
ASSUMED: Final = "assumed"
GENERIC: Final = "generic"


class Figure(NamedTuple):
    """One number: its value, its status (`measured`, `fitted` or `assumed`), and its source."""

    value: float
    status: str
    source: str


_DATA_SHEET = "vendor's data sheet"
_AS_V100 = "as a V100"
_CLOCKS = "highest application clock (Amazon EC2 guide, `Optimize GPU settings`)"
_DVFS = "GPU-DVFS-Dataset, 33 workloads at 13 SM clocks, V100"
_ZEUS = "power-limit traces of Zeus (NSDI'23), coarse grid"
_IDLE = "median of {n} nvidia-smi readings (no memory used, lowest state) in public repositories"
_MEMORY_READ = "as NVML reports it (public nvidia-smi readings)"
_SETTLING = "between the worst cases of three types, 25 to 480 ms (arXiv:2502.20075, unverified)"


class _Curve(NamedTuple):
    """Constants of the clock model for a GPU type, and the clocks that decisions choose from."""

    static_w: float
    knee_frac: float
    voltage_slope: float
    theta: float
    levels_frac: tuple[float, float, float, float]
    status: str
    source: str

    def assumed(self, like: str, static_w: float) -> _Curve:
        """Return a copy of this curve, as an assumption for another GPU type that has no public curve.

        `like`: GPU type of this curve. `static_w`: static power of the other GPU type, W.
        """
        source = f"no clock curve is public: shape of the {like}, P_s = idle power"
        return self._replace(static_w=static_w, status=ASSUMED, source=source)


class _Type(NamedTuple):
    """Figures of a GPU type, as entered in `_TYPES`; `_figures` adds each figure's status and source."""

    tdp_w: float
    memory_mib: float
    max_clock_mhz: float
    clock_source: str
    idle_w: float
    idle_readings: int
    curve: _Curve


_V100 = _Curve(15, 0.70, 0.48, 0.61, (1.0, 1335 / 1530, 1207 / 1530, 952 / 1530), FITTED, _DVFS)
_P100 = _Curve(20, 0.45, 0.80, 0.7, (1.0, 0.87, 0.75, 0.55), FITTED, _ZEUS)
_RTX6000 = _Curve(40, 0.45, 0.40, 0.7, (1.0, 0.87, 0.75, 0.55), FITTED, _ZEUS)
_A40 = _Curve(40, 0.70, 0.40, 0.7, (1.0, 0.87, 0.79, 0.66), FITTED, _ZEUS)

_TYPES: Final = {
    "V100": _Type(300, 16_160, 1530, _CLOCKS, 41, 10, _V100),
    "P100": _Type(250, 16_280, 1328, "highest application clock (public set-up scripts)", 28, 9, _P100),
    "RTX6000": _Type(260, 24_220, 1770, _DATA_SHEET, 14, 5, _RTX6000),
    "A40": _Type(300, 46_068, 1740, _DATA_SHEET, 29, 5, _A40),
    "A100": _Type(400, 40_536, 1410, _CLOCKS, 51, 19, _A40.assumed("A40", 51)),
    "H100": _Type(700, 81_559, 1980, _CLOCKS, 70, 10, _A40.assumed("A40", 70)),
    "H200": _Type(700, 143_771, 1980, _CLOCKS, 78, 7, _A40.assumed("A40", 78)),
    "T4": _Type(70, 15_109, 1590, _CLOCKS, 9, 6, _RTX6000.assumed("RTX6000", 9)),
    "K80": _Type(149, 11_441, 875, _CLOCKS, 27.5, 6, _P100.assumed("P100", 27.5)),
    GENERIC: _Type(300, 16_160, 1530, _AS_V100, 41, 0, _V100._replace(status=ASSUMED, source=_AS_V100)),
}


def _figures(row: _Type) -> Mapping[str, Figure]:
    known = row.idle_readings > 0
    status, sheet = (MEASURED, _DATA_SHEET) if known else (ASSUMED, _AS_V100)
    idle = _IDLE.format(n=row.idle_readings) if known else _AS_V100
    curve = row.curve
    figures = {
        "tdp_w": Figure(row.tdp_w, status, sheet),
        "memory_mib": Figure(row.memory_mib, status, _MEMORY_READ if known else sheet),
        "max_clock_mhz": Figure(row.max_clock_mhz, status, row.clock_source),
        "idle_w": Figure(row.idle_w, status, idle),
        "switch_s": Figure(SWITCH_S, ASSUMED, _SETTLING),
    }
    for field in ("static_w", "knee_frac", "voltage_slope", "theta"):
        figures[field] = Figure(getattr(curve, field), curve.status, curve.source)
    return MappingProxyType(figures)


GPU_FIGURES: Final[Mapping[str, Mapping[str, Figure]]] = MappingProxyType(
    {name: _figures(row) for name, row in _TYPES.items()}
)
"""Figures by GPU type and field of `GPU_MODEL`, except `levels_frac`.

The figures of a K80 are for one of the board's two GPUs. Board limits and memory refer to the SXM
board for V100, A100, H100 and H200, and to the PCIe board for P100. Memory is as NVML reports it.
"""

_PATTERNS: Final = (
    (r"^(?:rtx|quadrortx)6000(?!ada)", "RTX6000"),
    (r"^(?:rtx)?a6000", "A40"),
    (r"^gh200", "H100"),
    (r"^h200", "H200"),
    (r"^h[18]00", "H100"),
    (r"^a[18]00(?!0)", "A100"),
    (r"^a40(?!0)", "A40"),
    (r"^v100", "V100"),
    (r"^p100", "P100"),
    (r"^t4(?!\d)", "T4"),
    (r"^k80", "K80"),
)
"""Patterns of GPU names, and the type for each pattern. A pattern matches the start of a name without vendor,
`Tesla` and separators. An RTX A6000 has the A40's chip and limit; A800 and H800 are an A100 and an H100 with
slower links; a GH200 has the GPU of an H100.
"""
_MEMORY: Final = re.compile(r"(?:^|[^0-9])(\d{2,3})G(?:I?B)?\b|[0-9]M(\d{2})$", re.IGNORECASE)

_MAKERS: Final = frozenset(("nvidia", "tesla", "geforce", "quadro"))

NAME_TOLERANCE: Final = 0.07
"""Largest relative difference at which the memory size in a GPU's name counts as equal to a known size."""


def canonical_kind(name: str) -> str:
    """Return the type in `GPU_FIGURES` for a GPU name as written by traces and drivers.

    Case, vendor and form factor are ignored: `Tesla V100-SXM2-32GB`, `v100`, `V100M32` and `nvidia_v100` are
    a `V100`. Unknown names (`G2`, `G3`: undisclosed in Alibaba's traces) are `generic`.
    """
    bare = re.sub(r"[^a-z0-9]", "", re.sub(r"(?i)nvidia|tesla|geforce", "", name).lower())
    for pattern, kind in _PATTERNS:
        if re.match(pattern, bare):
            return kind
    return GENERIC


def asked_type(text: str) -> str:
    """Return a requested GPU type, with the spelling of `GPU_FIGURES` if it is listed: `h100` -> `H100`."""
    text = text.strip()
    kind = canonical_kind(text)
    return kind if kind != GENERIC and "".join(_words(text)) == kind.lower() else text


@lru_cache(1 << 14)
def stands_for(asked: str, name: str) -> bool:
    """Return whether a request for `asked` accepts GPUs named `name` by a driver or in a cluster file.

    The name must be equal, or contain all words of the request: `NVIDIA H100 80GB HBM3` matches `h100-80gb`.
    Vendors and case are ignored. A request for a type in `GPU_FIGURES` matches only GPUs of this type:
    `RTX6000` does not match `RTX 6000 Ada`. A MIG slice matches if the GPU and the profile match. The
    name of a node with several types (`A40+T4`) matches only a request with the same name.
    """
    if asked == name:
        return True
    if "+" in name + asked:
        return asked.lower() == name.lower()
    if "/" in name + asked:
        (gpu, _, profile), (asked_gpu, _, asked_profile) = name.rpartition("/"), asked.rpartition("/")
        return profile.lower() == asked_profile.lower() and bool(gpu) and stands_for(asked_gpu, gpu)
    words, wanted = _words(name), _words(asked)
    joined = "".join(wanted)
    kind = canonical_kind(asked)
    if not wanted or (joined == kind.lower() and canonical_kind(name) != kind):
        return False
    runs = {"".join(words[a:b]) for a in range(len(words)) for b in range(a + 1, len(words) + 1)}
    return joined in runs or set(wanted) <= set(words)


def in_common(types: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether a type in `types` matches a type in `others` (`stands_for`), or one of them is empty."""
    types, others = list(types), list(others)
    if not types or not others:
        return True
    return any(stands_for(one, other) or stands_for(other, one) for one in types for other in others)


def _words(name: str) -> list[str]:
    """Return the words of a name, except names of vendors."""
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MAKERS]


def named_memory_mib(name: str) -> float | None:
    """Return the memory stated in a GPU's name (`A100-SXM4-80GB`, `V100M32`), MiB; None: none is stated.

    A board reports up to 6 % less than its name states, because of ECC and memory reserved by the driver.
    """
    found = _MEMORY.search(name)
    return float(found[1] or found[2]) * 1024 if found else None


def levels_frac(kind: str) -> tuple[float, ...]:
    """Return the SM clocks that decisions choose from on a GPU type; fractions of the maximum, descending."""
    return _TYPES[kind].curve.levels_frac
