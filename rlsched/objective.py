"""`Objective`: the weights, classes of jobs and bounds that define the cost of a schedule.

A cost is relative to reference runs of the same jobs: the weighted mean of the ratios of the terms (`TERMS`).
When strategies are trained and compared, a term whose mean ratio exceeds its bound multiplies the cost by
(ratio / bound)^`PENALTY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.settings import Seconds, as_table, as_toml, convert_settings, parse_table, read_table

Floats = NDArray[np.float64]

TERMS: Final = {
    "time": "time in the system beyond the jobs' slack, weighted by class",
    "urgent": "time in the system of the jobs without slack",
    "rest": "time in the system beyond the slack, of the jobs in no class",
    "tail": "delay beyond the slack, in excess of `tail_after`, weighted by class",
    "late": "number of jobs with slack whose delay exceeds it by more than ten minutes",
    "energy": "energy of the jobs",
    "money": "price of the energy; in training, with the idle power of the nodes that run a job",
    "peak": "highest power of the jobs and of the nodes that run them, averaged over about 15 minutes",
    "preemptions": "number of preemptions",
    "wake_ups": "number of times that an unused node gets a job",
}
"""Terms of a cost, in the order of the arrays."""


class Term(IntEnum):
    """Positions of the terms in arrays, in the order of `TERMS`."""

    TIME = 0
    URGENT = 1
    REST = 2
    TAIL = 3
    LATE = 4
    ENERGY = 5
    MONEY = 6
    PEAK = 7
    PREEMPTIONS = 8
    WAKE_UPS = 9


NUM_TERMS: Final = len(Term)
NEED_SIGNAL: Final = ("money", "carbon", "peak", "wake_ups")
"""Settings that need a series of prices or carbon intensities in each window (part of a trace)."""
PENALTY: Final = 5.0
"""Exponent of ratio / bound: a ratio 1 % above its bound raises the whole cost by 5 %. Chosen, not tuned."""
_RAMP: Final = 0.005
"""In training, the penalty of a bound starts to rise where the mean ratio equals the bound minus this
value."""
SMALL_FRAC: Final = {"tail": 0.1, "late": 0.01, "preemptions": 0.1}
"""The numerator and the denominator of a ratio are increased by the same amount, so that the ratio changes
little if both are near 0. The amount is this fraction of the jobs' run times (`tail`), or of the number of
jobs (`late`, `preemptions`).
"""
LATE_S: Final = 600.0
"""Delay in addition to a job's slack after which the job counts as late, seconds."""
LEAST: Final = 1e-9
"""Lower limit for the denominator of a ratio."""


class JobClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that match all given conditions.

    Attributes:
        weight: Weight of the time of these jobs, 0 or more; the weight of jobs in no class is 1.
        min_gpus: Minimum number of GPUs.
        max_gpus: Maximum number of GPUs; None: any.
        min_predicted: Minimum predicted run time.
        max_predicted: Maximum predicted run time; None: any.
        slack: Whether the jobs have slack; None: either.
        preemptible: Whether the jobs may be preempted; None: either.
        vc: Names of virtual clusters; empty: any.
    """

    weight: float
    min_gpus: int = 0
    max_gpus: int | None = None
    min_predicted: Seconds = Seconds(0.0)
    max_predicted: Seconds | None = None
    slack: bool | None = None
    preemptible: bool | None = None
    vc: tuple[str, ...] = ()


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of J jobs that objectives use, as arrays (J,). `vc`: (0,) if all are unknown."""

    gpus: NDArray[Any]
    run_s: Floats
    predicted_s: Floats
    slack_s: Floats
    preemptible: NDArray[np.bool_]
    vc: NDArray[np.str_] = np.zeros(0, np.str_)


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights of the terms of a cost (`TERMS`), classes of jobs, and bounds.

    If no weight is given, the cluster's weight of energy, w, applies: money has the weight w (energy if there
    are no prices), and time has the weight 1 - w.

    Attributes:
        time, urgent, rest, tail, late, energy, money, peak, preemptions, wake_ups: Weights, 0 or more; only
            their ratios matter.
        carbon: Weight of the carbon of the energy. A run has one series, of prices or of carbon intensities,
            so `money` and `carbon` cannot both have a weight or a bound.
        tail_after: Delay beyond the slack above which further delay counts in `tail`.
        classes: Classes of jobs. The first class that matches a job sets the weight of the job's time.
        bounds: Upper limits of the ratios to the reference run, by term.
    """

    time: float = 0.0
    urgent: float = 0.0
    rest: float = 0.0
    tail: float = 0.0
    late: float = 0.0
    energy: float = 0.0
    money: float = 0.0
    carbon: float = 0.0
    peak: float = 0.0
    preemptions: float = 0.0
    wake_ups: float = 0.0
    tail_after: Seconds = Seconds(4 * 3600.0)
    classes: tuple[JobClass, ...] = ()
    bounds: dict[str, float] = {}

    @classmethod
    def of(cls, named: str | Path | Objective) -> Objective:
        """Return the objective with this name (`PRESETS`) or from this TOML file.

        If `named` is an objective, check and return it.

        Raises:
            InputError: the name or the file does not exist, or a setting is invalid.
        """
        if isinstance(named, Objective):
            named._check("objective")
            return named
        if str(named) in PRESETS:
            return PRESETS[str(named)]
        if not str(named).endswith(".toml"):
            raise InputError(
                f"objective {str(named)!r}: expected one of {', '.join(PRESETS)}, or a file whose name "
                "ends in .toml"
            )
        return cls._from_table(read_table(named, "objective"), str(named))

    @classmethod
    def from_toml(cls, text: str, where: str = "objective") -> Objective:
        """Return the objective in a TOML text; `where`: name of the text in errors. Errors are as in `of`."""
        return cls._from_table(parse_table(text, where), where)

    @classmethod
    def _from_table(cls, table: Mapping[str, Any], where: str) -> Objective:
        inside = table.get("objective")
        if not isinstance(inside, dict) or len(table) != 1:
            found = ", ".join(table) or "nothing"
            raise InputError(f"{where}: expected one table [objective], got {found}")
        made = convert_settings(inside, cls, f"{where}: objective")
        made._check(where)
        return made

    def _check(self, where: str) -> None:
        numbers = {name: float(getattr(self, name)) for name in (*TERMS, "carbon")}
        numbers |= {f"bounds.{name}": bound for name, bound in self.bounds.items()}
        numbers |= {f"classes[{k}].weight": one.weight for k, one in enumerate(self.classes)}
        for name, value in numbers.items():
            if not 0.0 <= value < np.inf:
                raise InputError(f"{where}: objective.{name}: expected 0 or more, got {value:g}")
        for name, bound in self.bounds.items():
            if bound == 0.0:
                raise InputError(
                    f"{where}: objective.bounds.{name}: expected more than 0, got 0; 1 allows the value of "
                    "the reference run"
                )
            if name not in (*TERMS, "carbon"):
                raise InputError(
                    f"{where}: objective.bounds: expected some of {', '.join((*TERMS, 'carbon'))}; got {name}"
                )
        if self.counts("money") and self.counts("carbon"):
            raise InputError(
                f"{where}: objective: expected money or carbon, got both; a run has one series, of prices or "
                "of carbon intensities"
            )

    def counts(self, name: str) -> bool:
        """Return whether a term (or `carbon`) has a weight or a bound."""
        return getattr(self, name) > 0.0 or name in self.bounds

    @property
    def is_default(self) -> bool:
        """Whether this objective has no settings."""
        return self == DEFAULT

    @property
    def needs_signal(self) -> tuple[str, ...]:
        """Terms in use that need a series of prices or carbon intensities."""
        return tuple(name for name in NEED_SIGNAL if self.counts(name))

    @property
    def by_job(self) -> bool:
        """Whether a term in use needs the delay of each job, not only the sum of all delays."""
        return bool(self.classes) or any(self.counts(name) for name in ("urgent", "rest", "tail", "late"))

    @property
    def shown(self) -> tuple[str, ...]:
        """Names (of `TERMS`) of the terms in use. Carbon is counted in the term `money`."""
        return tuple(
            name for name in TERMS if self.counts(name) or (name == "money" and self.counts("carbon"))
        )

    def name_of(self, term: str) -> str:
        """Return the name under which users see a term: `carbon` for `money` if carbon is in use."""
        return "carbon" if term == "money" and self.counts("carbon") else term

    def weights(self, energy_weight: float, *, has_prices: bool) -> Floats:
        """Return the (NUM_TERMS,) weights, with sum 1.

        Args:
            energy_weight: The cluster's weight of energy, 0 to 1; used only if the objective sets no weight.
            has_prices: Whether the run has prices. If so, `energy_weight` is the weight of money instead.
        """
        found = np.array([float(getattr(self, name)) for name in TERMS])
        found[Term.MONEY] += self.carbon
        if found.any():
            found /= found.sum()
            return found
        found[Term.TIME], found[Term.MONEY if has_prices else Term.ENERGY] = (
            1.0 - energy_weight,
            energy_weight,
        )
        return found

    @property
    def limits(self) -> Floats:
        """The (NUM_TERMS,) bounds of the ratios; inf: none."""
        found = np.array([self.bounds.get(name, np.inf) for name in TERMS])
        found[Term.MONEY] = min(found[Term.MONEY], self.bounds.get("carbon", np.inf))
        return found

    def penalties(self, means: Floats) -> Floats:
        """Return the (NUM_TERMS,) penalties: the exponents of ratio / bound in `cost`.

        A penalty is `PENALTY` if the mean ratio of the term exceeds its bound, else 0.
        """
        return np.where(means > self.limits, PENALTY, 0.0)

    def training_penalties(self, means: Floats) -> Floats:
        """Return the (NUM_TERMS,) penalties (see `penalties`) in training, where they rise gradually.

        A penalty is 0 for a mean ratio up to bound - `_RAMP`, then rises linearly to `PENALTY` at the bound.
        `means`: mean ratios over several windows, because a single window can exceed a bound by chance.
        """
        found: Floats = PENALTY * np.clip((means - self.limits) / _RAMP + 1.0, 0.0, 1.0)
        return found

    def job_weights(self, jobs: Jobs) -> Floats:
        """Return the weight of each job's time, (J,): the weight of its class, or -1 if it is in no class.

        -1 only marks such a job: its time counts with weight 1.
        """
        found = np.full(jobs.gpus.size, -1.0)
        for one in reversed(self.classes):
            found[_matches(one, jobs)] = one.weight
        return found

    def offsets(self, jobs: Jobs, nodes: int) -> Floats:
        """Return the (NUM_TERMS,) amounts that are added to numerator and denominator of each ratio.

        For the terms `time`, `urgent` and `rest`, the amount is the run time of the jobs, so that the ratios
        compare delays plus run times. `nodes`: number of nodes of the cluster.
        """
        found: Floats = self.offsets_by_job(jobs).sum(axis=1)
        found[Term.WAKE_UPS] = nodes
        return found

    def offsets_by_job(self, jobs: Jobs) -> Floats:
        """Return each job's part of the `offsets`, (NUM_TERMS, J)."""
        weight = self.job_weights(jobs)
        own = np.where(weight < 0.0, 1.0, weight) * jobs.run_s
        found = np.zeros((NUM_TERMS, jobs.gpus.size))
        found[Term.TIME], found[Term.TAIL] = own, SMALL_FRAC["tail"] * own
        found[Term.URGENT] = np.where(jobs.slack_s == 0.0, jobs.run_s, 0.0)
        found[Term.REST] = np.where(weight < 0.0, jobs.run_s, 0.0)
        found[Term.LATE], found[Term.PREEMPTIONS] = SMALL_FRAC["late"], SMALL_FRAC["preemptions"]
        return found

    def terms_by_job(self, jobs: Jobs, delay_s: Floats) -> Floats:
        """Return what each job adds to each term that depends on delays, (NUM_TERMS, J).

        The rows of all other terms are 0. `delay_s`: (J,) time from submission to last end, less the run time
        on unshared GPUs at full clock.
        """
        weight, has_slack = self.job_weights(jobs), jobs.slack_s > 0.0
        beyond_s = np.where(has_slack, np.maximum(delay_s - jobs.slack_s, 0.0), delay_s)
        own = np.where(weight < 0.0, 1.0, weight)
        found = np.zeros((NUM_TERMS, jobs.gpus.size))
        found[Term.TIME], found[Term.TAIL] = own * beyond_s, own * np.maximum(beyond_s - self.tail_after, 0.0)
        found[Term.URGENT] = np.where(has_slack, 0.0, delay_s)
        found[Term.REST] = np.where(weight < 0.0, beyond_s, 0.0)
        found[Term.LATE] = has_slack & (delay_s > jobs.slack_s + LATE_S)
        return found

    @property
    def toml(self) -> str:
        """The objective as a TOML file."""
        table = as_table(self)
        classes = [as_table(one) for one in self.classes]
        text = f"[objective]\n{as_toml({k: v for k, v in table.items() if k not in ('classes', 'bounds')})}"
        if self.bounds:
            text += f"\n[objective.bounds]\n{as_toml(self.bounds)}"
        for one in classes:
            text += f"\n[[objective.classes]]\n{as_toml(one)}"
        return text


def _matches(one: JobClass, jobs: Jobs) -> NDArray[np.bool_]:
    """Return whether each job is in a class, (J,)."""
    found = (jobs.gpus >= one.min_gpus) & (jobs.predicted_s >= one.min_predicted)
    if one.max_gpus is not None:
        found &= jobs.gpus <= one.max_gpus
    if one.max_predicted is not None:
        found &= jobs.predicted_s <= one.max_predicted
    if one.slack is not None:
        found &= (jobs.slack_s > 0.0) == one.slack
    if one.preemptible is not None:
        found &= jobs.preemptible == one.preemptible
    if one.vc:
        found &= np.isin(jobs.vc, one.vc) if jobs.vc.size else False
    return found


def ratios(mine: Floats, other: Floats, offsets: Floats) -> Floats:
    """Return the (n, NUM_TERMS) ratios of the terms of n runs, relative to n reference runs.

    `mine`, `other`: terms of the runs and of the reference runs. `offsets`: from `Objective.offsets`.
    """
    both = np.maximum(other + offsets, LEAST)
    return np.where((mine == 0.0) & (other == 0.0), 1.0, (mine + offsets) / both)


def mean_ratios(ratio: Floats) -> Floats:
    """Return the (NUM_TERMS,) geometric means of (n, NUM_TERMS) ratios."""
    found: Floats = np.exp(np.log(np.maximum(ratio, LEAST)).mean(axis=0))
    return found


def cost(ratio: Floats, weights: Floats, limits: Floats, penalties: Floats) -> Floats:
    """Return the (n,) costs of n runs. A cost of 1 equals the cost of the reference run.

    Args:
        ratio: (n, NUM_TERMS) ratios to the reference runs, as returned by `ratios`.
        weights: (n, NUM_TERMS), rows as returned by `Objective.weights`.
        limits: (NUM_TERMS,) `Objective.limits`.
        penalties: (NUM_TERMS,) as returned by `Objective.penalties` or `Objective.training_penalties`.
    """
    excess = np.where(penalties > 0.0, np.log(np.maximum(ratio, LEAST)) - np.log(limits), 0.0)
    found: Floats = (weights * ratio).sum(axis=1) * np.exp((penalties * excess).sum(axis=1))
    return found


_BOUNDS: Final = {"time": 1.02, "urgent": 1.01}
_SMALL: Final = (
    JobClass(weight=5.0, max_gpus=1, max_predicted=Seconds(3600.0)),
    JobClass(weight=2.0, slack=False),
)
DEFAULT: Final = Objective()
PRESETS: Final = {
    "balanced": DEFAULT,
    "bill": Objective(time=0.2, money=0.8, bounds=_BOUNDS),
    "carbon": Objective(time=0.2, carbon=0.8, bounds=_BOUNDS),
    "peak": Objective(time=0.3, money=0.4, peak=0.3, bounds=_BOUNDS),
    "small-first": Objective(time=0.8, energy=0.2, classes=_SMALL, bounds={"rest": 1.1, "tail": 1.1}),
}
"""Named objectives, in order: time and energy as weighted by the cluster; the bill for electricity; the
carbon of the electricity; the bill and the highest power (a demand charge); small and urgent jobs first, with
bounds for the other jobs.
"""
