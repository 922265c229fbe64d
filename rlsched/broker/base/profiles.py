"""Profiles: resource use of jobs, learnt from earlier jobs as means and spreads of figures.

There is a profile for each signature and GPU type. A signature is a user and a command line without its
numbers: runs of the same program with other seeds, paths and sizes have the same signature. This module
contains no compiled code.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

Status = Literal["learnt", "measured", "estimated", "named", "median"]
"""Origin of a figure, from the most to the least certain: learnt from earlier attempts of the same signature;
measured in the present attempt; estimated from other figures of the job; the catalogue's value for the
workload that the user named; the median of all workloads.
"""
FIELDS: Final = (
    "util_frac",
    "memory_mib",
    "dynamic_w",
    "cores_each",
    "host_mib",
    "full_util_frac",
    "clock_bound",
    "run_s",
)
"""Names of the figures. `host_mib`: resident memory of the largest rank. `full_util_frac`: as `util_frac`,
but only from attempts at the highest clock. `run_s`: run time of a completed job of one GPU; it is
compared between GPU types (`learnt_speeds`). The other figures are per GPU and defined as in the catalogue.
"""
MOST_COUNT: Final = 40
"""Number of equally weighted attempts whose mean is as certain as the fading mean of very many: with f =
`LATEST` / (`LATEST` + 1), it is (1 + f) / (1 - f)."""
MOST_SPEED_SD: Final = 0.15
"""Largest standard deviation of ln(speed) of a learnt relative speed. Runs of a signature can do different
amounts of work, because numbers are not part of the signature. Assumed: half of the difference between
successive generations of GPUs."""
MAX_SIGNATURES: Final = 5_000
"""Maximum number of signatures in memory; beyond it, the least recently observed signature is removed."""
LATEST: Final = 20.0
"""Number of attempts that count fully. The weight of older attempts decays because users change programs."""
ATTEMPT_SPREAD: Final = 0.10
"""Assumed standard deviation of ln(value) between attempts of one signature, used for the first attempts."""
Signature = tuple[str, str]
"""(user, command line without its numbers)"""


class Estimate(msgspec.Struct, frozen=True, array_like=True):
    """Estimate of one figure of a profile.

    Attributes:
        value: Value, in the unit of its field.
        spread: Standard deviation of ln(value) of the next attempt.
        count: Number of observed attempts; 0 for a value of the catalogue.
        status: Origin of the value.
        source: Description of the origin.
    """

    value: float
    spread: float
    count: int
    status: Status = "learnt"
    source: str = ""


class WorkloadProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of a job on one GPU type; fields as in `FIELDS`, None if a figure is unknown."""

    util_frac: Estimate | None = None
    memory_mib: Estimate | None = None
    dynamic_w: Estimate | None = None
    cores_each: Estimate | None = None
    host_mib: Estimate | None = None
    full_util_frac: Estimate | None = None
    clock_bound: Estimate | None = None
    run_s: Estimate | None = None

    def known_figures(self) -> dict[str, Estimate]:
        """Return the known figures by field."""
        found = {field: getattr(self, field) for field in FIELDS}
        return {field: estimate for field, estimate in found.items() if estimate is not None}


class Learnt(msgspec.Struct, array_like=True):
    """Running sums of one figure: count and weight of attempts, mean and squared deviations of ln(value)."""

    count: int = 0
    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add an attempt's value. A value of 0, which has no logarithm, counts as 1e-6."""
        self.count += 1
        fade = min(1.0, LATEST / (self.weight + 1.0))
        self.weight, self.squares = self.weight * fade + 1.0, self.squares * fade
        off = math.log(max(value, 1e-6)) - self.mean
        self.mean += off / self.weight
        self.squares += off * off * (1.0 - 1.0 / self.weight)

    def estimate(self) -> Estimate:
        """Return the estimate for the next attempt. More attempts reduce the effect of `ATTEMPT_SPREAD`.

        The variance is that of the attempts plus that of their mean, as for predictions from a sample mean.
        """
        variance = (ATTEMPT_SPREAD**2 + self.squares) / self.weight * (1.0 + 1.0 / self.weight)
        plural = "" if self.count == 1 else "s"
        source = f"{self.count} earlier attempt{plural}"
        return Estimate(math.exp(self.mean), math.sqrt(variance), self.count, "learnt", source)


class KeptProfile(msgspec.Struct, frozen=True, array_like=True):
    """Statistics of one signature on one GPU type, as stored in the base of a journal."""

    user: str
    command: str
    gpu_type: str
    fields: dict[str, Learnt]


def learnt_speeds(profiles: Mapping[str, WorkloadProfile]) -> dict[str, Estimate]:
    """Return the speeds of GPU types that follow from run times, relative to the type with most attempts.

    The speed is the quotient of the geometric mean run times of completed jobs on both types. Types whose
    speed is uncertain (`MOST_SPEED_SD`) are left out. The result is empty if no other type has a speed.

    Args:
        profiles: Profiles of one signature by GPU type.

    Returns:
        Speeds by GPU type; the first type is the one with most attempts, with the speed 1.
    """
    known = {name: one.run_s for name, one in profiles.items() if one.run_s is not None}
    if len(known) < 2:
        return {}
    base = max(known, key=lambda name: known[name].count)
    speeds = {name: _relative_speed(one, known[base]) for name, one in known.items() if name != base}
    speeds = {name: one for name, one in speeds.items() if one.spread <= MOST_SPEED_SD}
    return {base: _relative_speed(known[base], known[base]), **speeds} if speeds else {}


def _relative_speed(one: Estimate, base: Estimate) -> Estimate:
    """Return the speed of a GPU type relative to another; arguments: run times on both, seconds."""
    spread = math.hypot(*(each.spread / math.sqrt(min(each.count, MOST_COUNT)) for each in (one, base)))
    source = f"run times of {one.count} and {base.count} completed jobs"
    return Estimate(base.value / one.value, spread, min(one.count, base.count), "learnt", source)


def signature_of(user: str, command: Sequence[str]) -> Signature:
    """Return the signature of a user's command: the user, and the command line without its numbers."""
    return user, _stem_of(command_line(command))


@lru_cache(maxsize=128)
def _stem_of(line: str) -> str:
    from rlsched.workload.predict.facts import stem  # imports numpy, which readers of entries do not need

    return stem(line)


def command_line(command: Sequence[str]) -> str:
    """Return a command as one line, quoted as for a shell."""
    return _command_line(tuple(command))


@lru_cache(maxsize=128)
def _command_line(command: tuple[str, ...]) -> str:
    """Join a command to a line. Cached: each submission needs the line twice, for profile and prediction."""
    return shlex.join(command)


class Profiles:
    """Profiles of all signatures. The same attempts in the same order give the same profiles."""

    def __init__(self) -> None:
        self._known: dict[Signature, dict[str, dict[str, Learnt]]] = {}

    def observe(self, signature: Signature, gpu_type: str, seen: Mapping[str, float]) -> None:
        """Record the resource use of an attempt that has ended.

        Args:
            signature: Signature of the attempt's job.
            gpu_type: GPU type on which the attempt ran.
            seen: Values by field of `FIELDS`; fields that were not measured are missing.
        """
        types = self._known.pop(signature, {})
        self._known[signature] = types
        fields = types.setdefault(gpu_type, {})
        for field in FIELDS:
            if field in seen and math.isfinite(seen[field]) and seen[field] >= 0.0:
                fields.setdefault(field, Learnt()).add(seen[field])
        if len(self._known) > MAX_SIGNATURES:
            del self._known[next(iter(self._known))]

    def profiles_of(self, signature: Signature) -> dict[str, WorkloadProfile]:
        """Return the learnt profiles of a signature by GPU type."""
        return {
            gpu_type: WorkloadProfile(**{field: one.estimate() for field, one in fields.items()})
            for gpu_type, fields in self._known.get(signature, {}).items()
        }

    def figure(self, signature: Signature, gpu_type: str, field: str) -> Estimate | None:
        """Return the learnt estimate of one figure of a signature on a GPU type; None: unknown."""
        one = self._known.get(signature, {}).get(gpu_type, {}).get(field)
        return None if one is None else one.estimate()

    def kept_profiles(self) -> list[KeptProfile]:
        """Return all profiles for storage, the least recently observed first. `from_kept` restores them."""
        return [
            KeptProfile(*signature, gpu_type, fields)
            for signature, types in self._known.items()
            for gpu_type, fields in types.items()
        ]

    @classmethod
    def from_kept(cls, kept: Sequence[KeptProfile]) -> Profiles:
        """Restore profiles from the result of `kept_profiles`."""
        found = cls()
        for one in kept:
            types = found._known.setdefault((one.user, one.command), {})
            types[one.gpu_type] = dict(one.fields)
        return found
