"""What jobs of a kind use, learnt from those that ran: means and spreads by signature, GPU type and field.

A signature is a user and a command line without its numbers: what is run again with other seeds, paths and
sizes. Learnt values stand above the catalogue's: `filled` says in which order. No compiled code.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from rlsched.models.catalogue.catalogue import Catalogue

Status = Literal["learnt", "measured", "estimated", "named", "median"]
"""From the surest to the least sure: by jobs that ran here; by a profiler; by a calculation; the catalogue's,
of the workload that its user named; the median of all workloads."""
FIELDS: Final = ("util_frac", "memory_mib", "dynamic_w", "cores_each", "host_mib")
"""The catalogue's, on each GPU, and `host_mib`: resident memory of the largest rank."""
MAX_SIGNATURES: Final = 5_000
"""That are remembered; beyond it the one that was not seen for longest is forgotten."""
LATEST: Final = 20.0
"""So many attempts count fully; of more, earlier ones fade: users change their programs."""
ATTEMPT_SPREAD: Final = 0.10
"""Standard deviation of ln(value) between attempts of one signature, before two were seen. Assumed."""
NAMED_SPREAD: Final = 0.30
"""Likewise of a catalogue's value about a job of that name. Assumed."""
Signature = tuple[str, str]
"""(user, command)"""


class Estimate(msgspec.Struct, frozen=True, array_like=True):
    """One figure of a profile.

    Attributes:
        value: In the unit of its field.
        spread: Standard deviation of ln(value) of the next attempt.
        count: Attempts behind it; 0 of a catalogue's.
        status: How it is known.
        source: Where from, in words.
    """

    value: float
    spread: float
    count: int
    status: Status = "learnt"
    source: str = ""


class WorkloadProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a job on one GPU type; fields as in `FIELDS`, None where nothing is."""

    util_frac: Estimate | None = None
    memory_mib: Estimate | None = None
    dynamic_w: Estimate | None = None
    cores_each: Estimate | None = None
    host_mib: Estimate | None = None

    def known(self) -> dict[str, Estimate]:
        """By field."""
        found = {field: getattr(self, field) for field in FIELDS}
        return {field: estimate for field, estimate in found.items() if estimate is not None}


class Learnt(msgspec.Struct, array_like=True):
    """One figure as it is kept: attempts, their weight, mean of ln(value), and sum of squares about it."""

    count: int = 0
    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """One attempt more; a value of 0 counts as very little, for it has no logarithm."""
        self.count += 1
        fade = min(1.0, LATEST / (self.weight + 1.0))
        self.weight, self.squares = self.weight * fade + 1.0, self.squares * fade
        off = math.log(max(value, 1e-6)) - self.mean
        self.mean += off / self.weight
        self.squares += off * off * (1.0 - 1.0 / self.weight)

    def estimate(self) -> Estimate:
        """Of the next attempt: the spread is at first the assumed one, and that seen as attempts come."""
        variance = (ATTEMPT_SPREAD**2 + self.squares) / self.weight
        plural = "" if self.count == 1 else "s"
        source = f"{self.count} earlier attempt{plural}"
        return Estimate(math.exp(self.mean), math.sqrt(variance), self.count, "learnt", source)


class KeptProfile(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of one signature on one GPU type."""

    user: str
    command: str
    gpu_type: str
    fields: dict[str, Learnt]


def signature_of(user: str, command: Sequence[str]) -> Signature:
    """Whose jobs of which kind these are."""
    from rlsched.workload.predict.facts import stem  # brings numpy, which readers of entries need not have

    return user, stem(command_line(command))


def command_line(command: Sequence[str]) -> str:
    """The words of a command as a shell would read them."""
    return _command_line(tuple(command))


@lru_cache(maxsize=128)
def _command_line(command: tuple[str, ...]) -> str:
    """A submission's is asked for twice within its batch: by its profile and by its prediction."""
    return shlex.join(command)


class Profiles:
    """Learns from attempts, one after the other: the same attempts in the same order, the same profiles."""

    def __init__(self) -> None:
        self._known: dict[Signature, dict[str, dict[str, Learnt]]] = {}

    def observe(self, signature: Signature, gpu_type: str, seen: Mapping[str, float]) -> None:
        """An attempt is over that used this.

        Args:
            signature: Of its job.
            gpu_type: It ran on.
            seen: By field of `FIELDS`; what was not measured is not there.
        """
        types = self._known.pop(signature, {})
        self._known[signature] = types
        fields = types.setdefault(gpu_type, {})
        for field in FIELDS:
            if field in seen and math.isfinite(seen[field]) and seen[field] >= 0.0:
                fields.setdefault(field, Learnt()).add(seen[field])
        if len(self._known) > MAX_SIGNATURES:
            del self._known[next(iter(self._known))]

    def of(self, signature: Signature) -> dict[str, WorkloadProfile]:
        """What was learnt, by GPU type."""
        return {
            gpu_type: WorkloadProfile(**{field: one.estimate() for field, one in fields.items()})
            for gpu_type, fields in self._known.get(signature, {}).items()
        }

    def kept(self) -> list[KeptProfile]:
        """Everything, those that were not seen for longest first; `taken_up` gives back the same."""
        return [
            KeptProfile(*signature, gpu_type, fields)
            for signature, types in self._known.items()
            for gpu_type, fields in types.items()
        ]

    @classmethod
    def taken_up(cls, kept: Sequence[KeptProfile]) -> Profiles:
        """What `kept` gave."""
        found = cls()
        for one in kept:
            types = found._known.setdefault((one.user, one.command), {})
            types[one.gpu_type] = dict(one.fields)
        return found


def filled(
    learnt: WorkloadProfile | None, catalogue: Catalogue, workload: str, gpu_type: str
) -> WorkloadProfile:
    """A profile with what the catalogue has where nothing was learnt.

    Args:
        learnt: None: nothing.
        catalogue: The catalogue.
        workload: A name of it; "" or one that it lacks: the median of all workloads.
        gpu_type: A name as a cluster has it.
    """
    import numpy as np

    known = {} if learnt is None else learnt.known()
    is_named = workload in catalogue.names
    traits = catalogue.traits([gpu_type])[:, 0]
    row = traits[catalogue.number(workload) if is_named else 0]
    for field in FIELDS:
        if field in known or field not in (traits.dtype.names or ()):
            continue
        others = np.maximum(traits[field][1:], 1e-6)
        spread = NAMED_SPREAD if is_named else float(np.std(np.log(others)))
        source = f"catalogue, {workload}" if is_named else "catalogue, median"
        known[field] = Estimate(float(row[field]), spread, 0, "named" if is_named else "median", source)
    return WorkloadProfile(**known)
