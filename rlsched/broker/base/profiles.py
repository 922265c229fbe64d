"""Profiles: expected resource use of jobs, learnt from earlier jobs as means and spreads of figures.

There is a profile for each signature and GPU type. A signature is a user and a command line in which numbers
are ignored. Runs of a program with different seeds or sizes therefore have the same signature.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

Status = Literal["learnt", "measured", "estimated", "named", "median"]
"""Source of a figure; the most certain source is first. `learnt`: from earlier attempts with the same
signature. `measured`: in the present attempt. `estimated`: from the catalogue (table of measured workloads),
for the workload nearest to the job's learnt figures. `named`: from the catalogue, for the workload that the
user named. `median`: the median of all workloads.
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
    "sensitivity",
    "pressure",
)
"""Names of the figures. `host_mib`: resident memory of the largest rank. `full_util_frac`: as `util_frac`,
but only from attempts at the highest clock. `run_s`: run time of a completed job of one GPU. `sensitivity`
and `pressure`: how much a co-tenant slows the job down, and how much the job slows a co-tenant down
(`rlsched.models.learning.seen_factor`). The other figures are per GPU and defined as in the catalogue.
"""
OF_PAIRS: Final = ("sensitivity", "pressure")
"""Figures learnt from pairs of jobs. Their `Estimate.count` is the number of observed co-tenants."""
MOST_COUNT: Final = 40
"""Number of attempts above which a mean does not become more certain, because the weights of older attempts
decay: about (1 + f) / (1 - f) with f = `LATEST` / (`LATEST` + 1).
"""
MOST_SPEED_SD: Final = 0.15
"""Largest standard deviation of ln(speed) at which a learnt relative speed is used. The speed is uncertain,
because runs of one signature can do different amounts of work. The value is an assumption: half of the
difference between successive generations of GPUs.
"""
MAX_GPU_COUNTS: Final = 8
"""Run times of jobs with several GPUs are stored for at most this number of GPU counts, for each signature
and GPU type. The least recently observed GPU count is removed. 8 are enough for the powers of two up to 256.
"""
MAX_SIGNATURES: Final = 5_000
"""Maximum number of signatures in memory. Beyond it, the least recently observed signature is removed."""
LATEST: Final = 20.0
"""Approximate number of latest attempts that determine a mean. Older attempts weigh less, because programs
change.
"""
ATTEMPT_SPREAD: Final = 0.10
"""Assumed standard deviation of ln(value) among attempts of a signature; each attempt reduces its effect."""
PAIR_SPREAD: Final = 0.33
"""Assumed standard deviation of ln(value) among observations of a job's sensitivity or pressure.

Each observation reduces its effect. It is sqrt(a^2 + b^2). a = `INTRODUCED_SD` is the uncertainty of the
co-tenant's figure. b = `OBSERVATION_SD` / .39 is the scatter of ln(speed), divided by the slope
d ln(speed) / d ln(figure) at `POPULATION`. These constants are in `rlsched.models.learning`.
"""
K = TypeVar("K")
Signature = tuple[str, str]
"""(user, command line in which numbers are ignored)"""


class Estimate(msgspec.Struct, frozen=True, array_like=True):
    """Estimate of one figure of a profile.

    Attributes:
        value: Value of the figure, in its unit.
        spread: Expected standard deviation of ln(value) in the next attempt.
        count: Number of observed attempts; 0 for a value of the catalogue.
        status: Source of the value, as a keyword.
        source: Source of the value, as text for users.
    """

    value: float
    spread: float
    count: int
    status: Status = "learnt"
    source: str = ""


class WorkloadProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Expected figures of a job on one GPU type, one field for each name in `FIELDS`; None: unknown.

    Attributes:
        scaling: Speed of the job by number of GPUs, relative to the number with the most completed jobs;
            empty if not known (`relative_speeds`).
    """

    util_frac: Estimate | None = None
    memory_mib: Estimate | None = None
    dynamic_w: Estimate | None = None
    cores_each: Estimate | None = None
    host_mib: Estimate | None = None
    full_util_frac: Estimate | None = None
    clock_bound: Estimate | None = None
    run_s: Estimate | None = None
    sensitivity: Estimate | None = None
    pressure: Estimate | None = None
    scaling: dict[int, Estimate] = {}

    def known_figures(self) -> dict[str, Estimate]:
        """Return the known figures by field."""
        found = {field: getattr(self, field) for field in FIELDS}
        return {field: estimate for field, estimate in found.items() if estimate is not None}


_OF_ATTEMPTS: Final = (ATTEMPT_SPREAD, "earlier attempt")


class Learnt(msgspec.Struct, array_like=True):
    """Running statistics of one figure.

    Attributes:
        count: Number of attempts.
        weight: Sum of the attempts' weights, which decay.
        mean: Weighted mean of ln(value).
        squares: Weighted sum of the squared deviations of ln(value) from the mean.
    """

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

    def estimate(self, field: str = "") -> Estimate:
        """Return the estimate for the next attempt.

        Its variance is the variance of the attempts plus the variance of their mean, as for predictions from
        a sample mean. More attempts reduce the effect of the assumed spread.

        Args:
            field: Name of the figure, which determines the assumed spread.
        """
        first, noun = (PAIR_SPREAD, "observed co-tenant") if field in OF_PAIRS else _OF_ATTEMPTS
        variance = (first**2 + self.squares) / self.weight * (1.0 + 1.0 / self.weight)
        plural = "" if self.count == 1 else "s"
        source = f"{self.count} {noun}{plural}"
        return Estimate(math.exp(self.mean), math.sqrt(variance), self.count, "learnt", source)


class KeptProfile(msgspec.Struct, frozen=True, array_like=True):
    """Statistics of one signature on one GPU type, as stored in a base (state that begins a journal).

    `run_s_of`: run times of completed jobs of more than one GPU, by number of GPUs.
    """

    user: str
    command: str
    gpu_type: str
    fields: dict[str, Learnt]
    run_s_of: dict[int, Learnt] = {}


class _OnType(NamedTuple):
    """Statistics of one signature on one GPU type: `KeptProfile` without signature and GPU type."""

    fields: dict[str, Learnt]
    run_s_of: dict[int, Learnt]

    def profile(self) -> WorkloadProfile:
        found = {field: one.estimate(field) for field, one in self.fields.items()}
        return WorkloadProfile(**found, scaling=self._scaling() if self.run_s_of else {})

    def _scaling(self) -> dict[int, Estimate]:
        alone = {1: self.fields["run_s"]} if "run_s" in self.fields else {}
        known = {gpus: one.estimate() for gpus, one in {**alone, **self.run_s_of}.items()}
        return relative_speeds(dict(sorted(known.items())))

    def note_run_s(self, num_gpus: int, run_s: float) -> None:
        """Add the run time of a completed job of more than one GPU."""
        one = self.run_s_of.pop(num_gpus, None) or Learnt()
        self.run_s_of[num_gpus] = one
        one.add(run_s)
        if len(self.run_s_of) > MAX_GPU_COUNTS:
            del self.run_s_of[next(iter(self.run_s_of))]


def learnt_speeds(profiles: Mapping[str, WorkloadProfile]) -> dict[str, Estimate]:
    """Return the speed of each GPU type, learnt from run times of completed jobs.

    A speed is relative to the type with the most completed jobs.

    Args:
        profiles: Profiles of one signature by GPU type.

    Returns:
        Speeds by GPU type, the type with the most completed jobs first; empty if only one type is left.
    """
    return relative_speeds({name: one.run_s for name, one in profiles.items() if one.run_s is not None})


def relative_speeds(known: Mapping[K, Estimate]) -> dict[K, Estimate]:
    """Return the speed of a signature's jobs on each GPU type, or with each number of GPUs.

    A speed is relative to the GPU type (or number of GPUs) with the most completed jobs. It is the quotient
    of two geometric mean run times. A speed is left out if it is more uncertain than `MOST_SPEED_SD`. The
    result is empty if only one key is left.

    Args:
        known: Run times of completed jobs, seconds, by GPU type or by number of GPUs.

    Returns:
        Speeds, with keys as in `known`. The key with the most completed jobs is first, with speed 1.
    """
    if len(known) < 2:
        return {}
    base = max(known, key=lambda name: known[name].count)
    speeds = {name: _relative_speed(one, known[base]) for name, one in known.items() if name != base}
    speeds = {name: one for name, one in speeds.items() if one.spread <= MOST_SPEED_SD}
    return {base: _relative_speed(known[base], known[base]), **speeds} if speeds else {}


def _relative_speed(one: Estimate, base: Estimate) -> Estimate:
    """Return the speed of jobs with run time `one` relative to jobs with run time `base`; both in seconds."""
    spread = math.hypot(*(each.spread / math.sqrt(min(each.count, MOST_COUNT)) for each in (one, base)))
    source = f"run times of {one.count} and {base.count} completed jobs"
    return Estimate(base.value / one.value, spread, min(one.count, base.count), "learnt", source)


def signature_of(user: str, command: Sequence[str]) -> Signature:
    """Return the signature of a user's command: the user, and the command line with numbers replaced."""
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
    """Join a command to one line. The result is cached, because each submission needs it twice."""
    return shlex.join(command)


class Profiles:
    """Profiles of all signatures. They depend only on the recorded attempts and their order."""

    def __init__(self) -> None:
        self._known: dict[Signature, dict[str, _OnType]] = {}

    def observe(
        self, signature: Signature, gpu_type: str, seen: Mapping[str, float], *, num_gpus: int = 1
    ) -> None:
        """Record the resource use of an ended attempt, or the sensitivity or pressure seen with a co-tenant.

        Args:
            signature: Signature of the attempt's job.
            gpu_type: GPU type on which the attempt ran.
            seen: Values by field of `FIELDS`; fields that were not measured are missing.
            num_gpus: Number of GPUs of the job. If it is above 1, `run_s` is used only for `scaling`.
        """
        types = self._known.pop(signature, {})
        self._known[signature] = types
        if gpu_type not in types:
            types[gpu_type] = _OnType({}, {})
        of_type = types[gpu_type]
        for field in FIELDS:
            if field not in seen or not (math.isfinite(seen[field]) and seen[field] >= 0.0):
                continue
            if field == "run_s" and num_gpus > 1:
                of_type.note_run_s(num_gpus, seen[field])
            else:
                of_type.fields.setdefault(field, Learnt()).add(seen[field])
        if len(self._known) > MAX_SIGNATURES:
            del self._known[next(iter(self._known))]

    def profiles_of(self, signature: Signature) -> dict[str, WorkloadProfile]:
        """Return the learnt profiles of a signature by GPU type."""
        return {gpu_type: of_type.profile() for gpu_type, of_type in self._known.get(signature, {}).items()}

    def figure(self, signature: Signature, gpu_type: str, field: str) -> Estimate | None:
        """Return the learnt estimate of one figure of a signature on a GPU type; None: unknown."""
        of_type = self._known.get(signature, {}).get(gpu_type)
        one = None if of_type is None else of_type.fields.get(field)
        return None if one is None else one.estimate(field)

    def kept_profiles(self) -> list[KeptProfile]:
        """Return all profiles for storage, the least recently observed first. `from_kept` restores them."""
        return [
            KeptProfile(*signature, gpu_type, *of_type)
            for signature, types in self._known.items()
            for gpu_type, of_type in types.items()
        ]

    @classmethod
    def from_kept(cls, kept: Sequence[KeptProfile]) -> Profiles:
        """Restore profiles from the result of `kept_profiles`."""
        found = cls()
        for one in kept:
            types = found._known.setdefault((one.user, one.command), {})
            types[one.gpu_type] = _OnType(dict(one.fields), dict(one.run_s_of))
        return found
