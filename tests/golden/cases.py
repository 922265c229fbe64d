"""Golden cases: each is a name and a function that makes its content, as named arrays.

A table is named `table/WORLD/MODE/POLICY`, decision records `records/WORLD/MODE/POLICY`, a journal that is
decided again `journal/POLICY`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable
from tests.golden.journal import journal_content
from tests.golden.worlds import MODES, WORLDS, world

Content = Mapping[str, NDArray[Any]]
"""Arrays by name; arrays with one prefix have the same first axis."""

RULES = {
    "fifo": Policy("fifo"),
    "sjf": Policy("sjf"),
    "qssf": Policy("qssf"),
    "fifo-backfill": Policy("fifo-backfill"),
    "sjf-backfill": Policy("sjf-backfill"),
    "qssf-backfill": Policy("qssf-backfill"),
    "easy": Policy("easy"),
    "easy-size-revised": Policy("easy", order="area^0.7", reserve_after="1h", predictions="revised"),
    "easy-sjf-6h": Policy("easy", order="predicted", reserve_after="6h"),
    "reserve": Policy("reserve"),
    "tiresias": Policy("tiresias"),
    "tiresias-clear": Policy(preempt={"by": "service", "threshold_gpu_s": 18_000.0}),
    "srtf": Policy("srtf"),
    "gittins": Policy("gittins"),
    "gittins-revised": Policy("gittins", predictions="revised"),
}
"""Rules that need no models."""
MODELLED_RULES = {
    "fifo-backfill": Policy("fifo-backfill"),
    "easy": Policy("easy"),
    "tiresias": Policy("tiresias"),
    "pack": Policy("pack"),
    "lucid": Policy("lucid"),
    "qssf-share-cores": Policy("qssf-backfill", share={}, cores=True),
    "qssf-four-tenants": Policy("qssf-backfill", share={"min_speed": 0.6, "max_jobs": 4}),
    "qssf-blocking-share": Policy("qssf", share={}),
    "qssf-fixed-clock": Policy("qssf-backfill", clock={"rule": "fixed", "at": 0.75}),
    "qssf-slowdown": Policy("qssf-backfill", clock={"rule": "slowdown", "slowdown": 0.05}),
    "qssf-lull": Policy("qssf-backfill", clock={"rule": "lull", "slowdown": 0.1}),
    "qssf-weighed": Policy("qssf-backfill", clock={"rule": "weighed", "energy_weight": 0.3}),
    "easy-size-share-revised": Policy(
        "easy",
        order="area^0.7",
        reserve_after="1h",
        share={"min_speed": 0.5},
        cores=True,
        predictions="revised",
    ),
    "gittins-share-cores": Policy("gittins", share={"min_speed": 0.5}, cores=True),
    "tuned": Policy("tuned"),
}
SCHEDULERS = {"random": Policy("random")}
"""Policies that decide one at a time, on the first `FIRST_JOBS` jobs."""
SHIPPED = {"ppo": Policy("ppo")}
"""The trained policy; its hashes change with `make checkpoint`."""
FIRST_JOBS = 160


# ---- tables ---------------------------------------------------------------------------------------


def replay(
    where: str,
    mode: str,
    policy: Policy,
    jobs: int | None = None,
    records: list[DecisionRecord] | None = None,
) -> JobTable:
    """Replay a world, or its first jobs; with `records`, decision by decision."""
    made = world(where, mode)
    scheduler = load_scheduler(policy)
    trace = made.trace if jobs is None else made.trace.select(slice(0, jobs))
    predictions = predict_trace(made.trace, made.spec, oracle=True) if scheduler.oracle else made.predictions
    engine = Engine(
        trace,
        made.spec,
        order=scheduler.order,
        predictions=PredictedTimes(*(values[: len(trace)] for values in predictions)),
        rules=made.rules,
        models=made.models,
    )
    if scheduler.rule is not None and records is None:
        return engine.run_rule(scheduler.rule)
    return engine.run(scheduler, on_record=None if records is None else records.append)


def table_content(table: JobTable) -> Content:
    """All columns of a job table."""
    attempts = table.attempts
    order = np.lexsort((attempts.attempt, attempts.job, attempts.start_s))
    over = ~np.isnan(attempts.end_s[order])
    gpus = [attempts.gpus(k) for k in order.tolist()]
    content = {
        "job.start_s": table.start_s,
        "job.end_s": table.end_s,
        "job.rejected": table.rejected,
        "job.ended_by": np.zeros(len(table.start_s), np.int8) if table.ended_by is None else table.ended_by,
        "job.gpus": _digests(table.gpus[k] for k in range(len(table.start_s))),
        "attempt.job": attempts.job[order].astype(np.int64),
        "attempt.attempt": attempts.attempt[order],
        "attempt.start_s": attempts.start_s[order],
        "attempt.end_s": attempts.end_s[order],
        "attempt.useful_s": attempts.useful_s[order],
        "attempt.reason": attempts.reason[order],
        "attempt.gpus": _digests(gpus),
        "run.decisions": np.array([table.decisions]),
    }
    if attempts.books is not None and attempts.done_s is not None:
        content["attempt.done_s"] = np.where(over, attempts.done_s[order], math.nan)
        for name, values in attempts.books._asdict().items():
            content[f"attempt.{name}"] = values[order]
    if table.energy is not None:
        energy = table.energy
        content["job.energy_j"] = energy.job_j
        content["run.energy"] = np.array([energy.idle_j, energy.cluster_j, energy.span_s])
    if table.slept is not None:
        content["run.slept"] = np.array([float(value) for value in vars(table.slept).values()])
    return content


def _digests(rows: Any) -> NDArray[np.uint64]:
    """A number for each tuple of integers."""
    packed = (hashlib.blake2b(repr(tuple(row)).encode(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(packed), np.uint64)


def _table(where: str, mode: str, policy: Policy, jobs: int | None = None) -> Content:
    return table_content(replay(where, mode, policy, jobs))


# ---- records --------------------------------------------------------------------------------------


def record_content(records: list[DecisionRecord]) -> Content:
    """All fields of decision records except their duration and the name of the policy."""
    encode = msgspec.msgpack.encode
    return {
        "record.number": np.array([one.number for one in records]),
        "record.now_s": np.array([one.now_s for one in records]),
        "record.state_digest": np.array([one.state_digest for one in records]),
        "record.source": np.array([one.source for one in records]),
        "record.action": _digests([(encode(one.action),) for one in records]),
        "record.turn": np.array([one.turn for one in records]),
        "record.plans": _digests([(encode(one.plans),) for one in records]),
        "record.rest": _digests([(one.partition, one.guard) for one in records]),
    }


def _records(where: str, mode: str, policy: Policy) -> Content:
    records: list[DecisionRecord] = []
    replay(where, mode, policy, FIRST_JOBS, records)
    return record_content(records[:500])


# ---- all cases ------------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[], Content]]:
    """Every case by name."""
    found: dict[str, Callable[[], Content]] = {}
    for where in WORLDS:
        for mode in MODES:
            rules = MODELLED_RULES if mode == "models" else RULES
            for name, policy in rules.items():
                found[f"table/{where}/{mode}/{name}"] = partial(_table, where, mode, policy)
            for name, policy in SCHEDULERS.items():
                found[f"table/{where}/{mode}/{name}"] = partial(_table, where, mode, policy, FIRST_JOBS)
            for name, policy in SHIPPED.items():
                found[f"table/{where}/{mode}/{name}"] = partial(_table, where, mode, policy)
    for name in ("qssf-share-cores", "qssf-weighed", "gittins-share-cores"):
        found[f"table/slices/models/{name}"] = partial(_table, "slices", "models", MODELLED_RULES[name])
    for name in ("fifo-backfill", "gittins"):
        found[f"table/philly/sleeping/{name}"] = partial(_table, "philly", "sleeping", Policy(name))
    for mode, recorded in (
        ("plain", ("easy", "gittins", "srtf", "ppo", "random")),
        ("attempts", ("tiresias", "reserve", "ppo")),
        ("models", ("pack", "gittins-share-cores", "qssf-weighed", "tuned", "ppo", "random")),
    ):
        for name in recorded:
            policy = {**RULES, **MODELLED_RULES, **SCHEDULERS, **SHIPPED}[name]
            found[f"records/mixed/{mode}/{name}"] = partial(_records, "mixed", mode, policy)
    short = Policy("tiresias", preempt={"threshold_gpu_s": 60.0})
    for name, policy in (
        ("ppo", Policy("ppo")),
        ("tiresias", short),
    ):
        found[f"journal/{name}"] = partial(_journal, policy)
    return found


def _journal(policy: Policy) -> Content:
    live, again = journal_content(load_scheduler(policy), load_scheduler(policy))
    return {**record_content(live), **{f"again.{k}": v for k, v in record_content(again).items()}}


def digest(content: Content) -> str:
    """SHA-256 of all arrays, by name."""
    hasher = hashlib.sha256()
    for name in sorted(content):
        values = np.ascontiguousarray(content[name])
        hasher.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        hasher.update(values.tobytes())
    return hasher.hexdigest()


def rows_of(content: Content) -> list[str]:
    """Prefixes whose arrays share the first axis: `job`, `attempt`, ..."""
    return sorted(set(chain(name.partition(".")[0] for name in content)))
