"""The feature schema: the columns that a policy observes, in order, with a hash for decision records."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

WINDOW_ROWS: Final = 24
"""Rows of an observation: *wait*, then up to 23 jobs (or variants of one job)."""
FEASIBLE_ROWS: Final = 12
OLDEST_ROWS: Final = 3
MAX_VARIANTS: Final = 4
"""Placements that a decision chooses from. With models, each placement may have a row for every clock, and
one more row shares the GPUs of a running job.
"""
GUARD_FREE_FRAC: Final = 0.5
"""*Wait* is illegal while this share of the partition's GPUs is free and a job can start."""
HOLD_S: Final = 1800.0
"""Seconds for which a *wait* keeps back the jobs it passed over, unless the blocked job starts earlier."""
MAX_HOLD_S: Final = 43_200.0
"""A job that fits and was first passed over by a *wait* this long ago must start before all others."""
PREEMPTING_ROWS: Final = 4
"""Most rows for jobs that can start by preempting others."""
SCHEMA_VERSION: Final = 3
SERVED_SINCE: Final = 2
"""Since this version of the schema, columns were only appended, and no name changed its meaning."""

ACTOR_FEATURES: Final[tuple[tuple[str, str], ...]] = (
    ("is_wait", "1 for the *wait* row"),
    ("is_job", "1 for a row of the first half that is a job"),
    ("is_variant", "1 for a row of the second half"),
    (
        "is_reference",
        "1 for the row that the reference rule (qssf-backfill, or gittins; best fit) would take",
    ),
    ("feasible", "1 where the job can start now"),
    ("predicted_log", "ln(1 + predicted run time in s) / 12"),
    ("spread", "standard deviation of ln(run time / prediction), clipped at 4, / 4"),
    ("predicted_gpu_time_log", "ln(1 + predicted run time x GPUs in GPU-s) / 15"),
    ("gpus_log", "log2(1 + GPUs) / 8"),
    ("gpus_frac", "GPUs / GPUs of the partition"),
    ("waited_log", "ln(1 + time since submission in s) / 12"),
    ("held_log", "ln(1 + time since first passed over by a *wait* in s) / 12"),
    ("rank_log", "ln(1 + place in the reference order) / 8"),
    ("free_after_frac", "free share of the partition after the start; free share now where infeasible"),
    ("leftover_frac", "free GPUs left on the chosen node / its GPUs; 0 where infeasible"),
    ("opens_node", "1 where the start breaks into a wholly free node"),
    ("fit_in_log", "ln(1 + predicted time until enough GPUs are free, wherever, in s) / 12; 0 if feasible"),
    ("node_ends_log", "ln(1 + predicted time until the chosen node's last job ends in s) / 12"),
    ("free_frac", "free GPUs / GPUs of the partition"),
    ("full_nodes_frac", "wholly free nodes / nodes of the partition"),
    ("largest_hole_frac", "most free GPUs on one node / GPUs of the largest node"),
    ("queue_log", "ln(1 + jobs waiting) / 8"),
    ("queued_demand_log", "ln(1 + GPUs asked for by waiting jobs / GPUs of the partition) / 4"),
    ("queued_work_log", "ln(1 + predicted GPU-s waiting / GPUs of the partition) / 15"),
    (
        "shorter_infeasible_log",
        "ln(1 + jobs ahead that do not fit) / 8 on the first rows that fit, else 0",
    ),
    (
        "blocked_gpus_log",
        "log2(1 + GPUs of the blocked job: the first of the order that does not fit) / 8",
    ),
    ("blocked_predicted_log", "ln(1 + predicted run time of the blocked job in s) / 12"),
    ("blocked_gpu_time_log", "ln(1 + predicted GPU-s of the blocked job) / 15"),
    ("blocked_waited_log", "ln(1 + time that the blocked job has waited in s) / 12"),
    (
        "blocked_fit_in_log",
        "ln(1 + predicted time until the blocked job fits if nothing starts, in s) / 12",
    ),
    ("blocked_key_ratio", "ln(GPU-time of the row's job / of the blocked job), clipped at +-6, / 6"),
    ("ends_after_fit", "ln(predicted run time of the row's job / time until the blocked job fits), likewise"),
    (
        "energy_weight",
        "weight of energy against time, 0 to 1; this and those to gpu_memory_frac are 0 without models",
    ),
    ("by_sharing", "1 where the job starts on GPUs that a running one has"),
    ("clock_frac", "SM clock of the variant, of the highest"),
    ("rate", "predicted speed of the row's job: of the variant, or on the best GPUs that it can share"),
    ("partner_rate", "predicted speed of the job that it shares GPUs with"),
    ("partner_left_log", "ln(1 + predicted time that the job it shares with still needs, in s) / 12"),
    ("power_frac", "power of each of the variant's GPUs / their board's limit"),
    ("util_frac", "utilisation of a GPU by the row's job without co-tenants"),
    ("clock_bound", "share of the run time of the row's job that follows the SM clock"),
    ("gpu_memory_frac", "GPU memory of the row's job / that of a GPU"),
    ("preempts", "1 where jobs may be preempted; all that follow are 0 elsewhere"),
    ("index_log", "ln(cost of the row's job by the Gittins index) / 20"),
    ("attained_log", "ln(1 + time on its GPUs that the row's job has had in s) / 12"),
    ("must_stay", "1 where the row's job must not be preempted once it runs"),
    ("by_preempting", "1 where the row's job can start by preempting others"),
    ("preempted_gpus_frac", "GPUs of the jobs to be preempted / GPUs of the partition"),
    (
        "preempt_margin",
        "ln(least cost of the jobs to be preempted / cost of the row's job), clipped at 6, / 6",
    ),
)
"""(name, meaning) of every column that the actor receives, in the order of the arrays. Names are hashed; a
column with another meaning needs another name, or a new `SCHEMA_VERSION`.
"""

CRITIC_FEATURES: Final[tuple[tuple[str, str], ...]] = (
    ("waiting_beyond_reference", "(jobs waiting - jobs waiting in the reference run) / 32"),
    ("reference_waiting_log", "ln(1 + jobs waiting in the reference run) / 8"),
    ("episode_left_frac", "share of the episode's arrivals still to come"),
    ("true_log", "ln(1 + true run time of the row's job in s) / 12; 0 for *wait*"),
    ("true_left_log", "ln(1 + true GPU-s left on running jobs / GPUs of the partition) / 15"),
    ("true_queued_log", "ln(1 + true GPU-s waiting / GPUs of the partition) / 15"),
    ("reference_in_1h_log", "ln(1 + mean jobs waiting in the reference run over the next hour) / 8"),
    ("reference_in_6h_log", "the same over the next 6 hours"),
    ("reference_in_1d_log", "the same over the next day"),
)
"""Columns that only the critic receives, in training: the truth and the future, which reduce the variance of
its estimates. Not part of the schema's hash."""

NUM_FEATURES: Final = len(ACTOR_FEATURES)
NUM_CRITIC: Final = len(CRITIC_FEATURES)


def _digest(content: object) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]


class FeatureSchema(msgspec.Struct, frozen=True):
    """The actor's columns as data, stored in every checkpoint."""

    version: int
    features: tuple[tuple[str, str], ...]
    window_rows: int
    feasible_rows: int
    oldest_rows: int
    max_variants: int
    guard_free_frac: float
    hold_s: float
    max_hold_s: float

    def begins_with(self, other: FeatureSchema) -> bool:
        """Return whether another schema is an earlier version whose policies are still served."""
        same = msgspec.structs.replace(self, version=other.version, features=other.features)
        names, others = ([name for name, _ in one.features] for one in (self, other))
        return same == other and other.version >= SERVED_SINCE and names[: len(others)] == others

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of version, names and numbers, without descriptions."""
        facts = {**msgspec.structs.asdict(self), "features": [name for name, _ in self.features]}
        return _digest(facts)

    @property
    def checksum(self) -> str:
        """First 16 digits of the SHA-256 of all content; a checkpoint's card stores them to detect damage."""
        return _digest(self)

    def column(self, name: str) -> int:
        """Return the position of a named column."""
        return [known for known, _ in self.features].index(name)


SCHEMA: Final = FeatureSchema(
    SCHEMA_VERSION,
    ACTOR_FEATURES,
    WINDOW_ROWS,
    FEASIBLE_ROWS,
    OLDEST_ROWS,
    MAX_VARIANTS,
    GUARD_FREE_FRAC,
    HOLD_S,
    MAX_HOLD_S,
)
