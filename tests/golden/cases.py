"""What the net holds: every case is a name and a function that makes its content, as named arrays.

A table is named `table/WORLD/MODE/POLICY`, the steps of an environment `steps/CONFIGURATION`, decision
records `records/WORLD/MODE/POLICY`, a journal that is decided again `journal/POLICY`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.record import DecisionRecord
from rlsched.decide.rules import Rule
from rlsched.decide.scheduler import Scheduler, load_scheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.engine import Engine, predict_trace
from rlsched_envs.job_table import JobTable
from rlsched_envs.sources import EpisodeConfig, EpisodeSource
from rlsched_envs.vector import ClusterVecEnv
from tests.golden.journal import journal_content
from tests.golden.worlds import MODES, WORLDS, world

Content = Mapping[str, NDArray[Any]]
"""Arrays by name; the first axis of those of one prefix runs over the same things."""

RULES = {
    "fifo": "fifo",
    "sjf": "sjf",
    "qssf": "qssf",
    "fifo-backfill": "fifo-backfill",
    "sjf-backfill": "sjf-backfill",
    "qssf-backfill": "qssf-backfill",
    "easy": "easy",
    "easy-size-revised": "easy:size+revise",
    "easy-sjf-6h": "easy:sjf,6h",
    "reserve": "reserve",
    "tiresias": "tiresias",
    "tiresias-clear": "tiresias:18000,clear",
    "srtf": "srtf",
    "gittins": "gittins",
    "gittins-revised": "gittins+revise",
    "gittins-moving": "gittins+repack",
}
"""Rules that need no models."""
MODELLED_RULES = {
    "fifo-backfill": "fifo-backfill",
    "easy": "easy",
    "tiresias": "tiresias",
    "pack": "pack",
    "lucid": "lucid",
    "qssf-share-cores": "qssf-backfill+share+cores",
    "qssf-four-tenants": "qssf-backfill+share=0.6+tenants=4",
    "qssf-blocking-share": "qssf+share",
    "qssf-fixed-clock": "qssf-backfill+clock=0.75",
    "qssf-slowdown": "qssf-backfill+slowdown=0.05",
    "qssf-lull": "qssf-backfill+lull=0.1",
    "qssf-weighed": "qssf-backfill+weight=0.3",
    "easy-size-share-revised": "easy:size,1h+share=0.5+cores+revise",
    "gittins-share-cores": "gittins+share=0.5+cores",
    "gittins-share-weighed-moving": "gittins+share+weight=0.4+repack",
}
NETWORKS = {
    "random": "random",
    "ppo": "ppo",
    "ppo-preempting": "ppo+preempt",
    "ppo-untrained": "ppo:untrained",
}
"""Policies that decide one at a time, here on the first `NETWORK_JOBS` jobs."""
PLAYERS = {"rollout": "rollout:3", "clairvoyant": "rollout:clairvoyant", "ppo-searching": "ppo+search=3"}
"""Policies that look ahead, here on the first `PLAYED_JOBS` jobs."""
NETWORK_JOBS = 160
PLAYED_JOBS = 240

EPISODE = EpisodeConfig(warmup_jobs=96, agent_jobs=160, tail_jobs=48, load_low=0.95, load_high=1.15)
EPISODES = {
    "plain": EPISODE,
    "models": msgspec.structs.replace(EPISODE, modelled_frac=1.0, learning=True),
    "preempting": msgspec.structs.replace(
        EPISODE, preempting_frac=0.8, modelled_frac=0.4, known_high=0.9, block_jobs=16
    ),
    "reserving": msgspec.structs.replace(
        EPISODE, reserving_frac=0.7, preempting_frac=0.2, modelled_frac=0.3, revising=True, window_rows=40
    ),
}
STEPS, CLUSTERS = 2_000, 4


# ---- tables ---------------------------------------------------------------------------------------


def replay(
    where: str, mode: str, policy: str, jobs: int | None = None, records: list[DecisionRecord] | None = None
) -> JobTable:
    """Replay a world, or its first jobs; with `records`, decision by decision."""
    made = world(where, mode)
    scheduler = load_scheduler(policy)
    trace = made.trace if jobs is None else made.trace.select(slice(0, jobs))
    stamps = made.stamps
    if scheduler.information == "oracle":
        stamps = predict_trace(made.trace, made.spec, "oracle")
    engine = Engine(
        trace,
        made.spec,
        order=scheduler.order,
        predictions=type(stamps)(stamps.predicted_s[: len(trace)], stamps.spread[: len(trace)]),
        rules=made.rules,
        models=made.models,
    )
    rule = getattr(scheduler, "rule", None)
    if isinstance(rule, Rule) and records is None:
        return engine.run_rule(rule)
    return engine.run(scheduler, on_record=None if records is None else records.append)


def table_content(table: JobTable) -> Content:
    """Every fact of a job table."""
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
    """A number for each tuple of whole numbers."""
    packed = (hashlib.blake2b(repr(tuple(row)).encode(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(packed), np.uint64)


def _table(where: str, mode: str, policy: str, jobs: int | None = None) -> Content:
    return table_content(replay(where, mode, policy, jobs))


# ---- environments ---------------------------------------------------------------------------------


@cache
def _source() -> EpisodeSource:
    trace, spec = synthesize("helios", 3_000, 1.05, 64, gpus_per_node=4, seed=3, predictability="informative")
    return EpisodeSource.from_trace(trace, spec)


def _steps(configuration: str) -> Content:
    """What an agent that draws its actions sees in `STEPS` steps."""
    env = ClusterVecEnv([_source()], CLUSTERS, seed=7, config=EPISODES[configuration])
    observations, masks, rewards, dones = [env.reset()], [env.action_masks()], [], []
    for _ in range(STEPS // CLUSTERS):
        seen, reward, done, _ = env.step(env.sample_actions())
        observations.append(seen)
        masks.append(env.action_masks())
        rewards.append(reward)
        dones.append(done)
    return {
        "step.observation": np.stack([np.asarray(one) for one in observations]),
        "step.mask": np.stack(masks),
        "decision.reward": np.stack(rewards),
        "decision.done": np.stack(dones),
    }


# ---- records --------------------------------------------------------------------------------------


def record_content(records: list[DecisionRecord]) -> Content:
    """Everything in decision records but how long they took and who is said to have made them."""
    encode = msgspec.msgpack.encode
    halves = [encode(one.halves) for one in records]
    return {
        "record.number": np.array([one.number for one in records]),
        "record.now_s": np.array([one.now_s for one in records]),
        "record.state_digest": np.array([one.state_digest for one in records]),
        "record.source": np.array([one.source for one in records]),
        "record.action": _digests([(encode(one.action),) for one in records]),
        "record.halves": _digests([(half,) for half in halves]),
        "record.value": np.array([math.nan if one.value is None else one.value for one in records]),
        "record.rest": _digests(
            [(one.partition, one.temperature, one.guard, one.samples, one.overruled) for one in records]
        ),
    }


def _records(where: str, mode: str, policy: str) -> Content:
    records: list[DecisionRecord] = []
    replay(where, mode, policy, NETWORK_JOBS, records)
    return record_content(records[:500])


# ---- all of it ------------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[], Content]]:
    """Every case by name."""
    found: dict[str, Callable[[], Content]] = {}
    for where in WORLDS:
        for mode in MODES:
            rules = MODELLED_RULES if mode == "models" else RULES
            for name, policy in rules.items():
                found[f"table/{where}/{mode}/{name}"] = partial(_table, where, mode, policy)
            for name, policy in NETWORKS.items():
                found[f"table/{where}/{mode}/{name}"] = partial(_table, where, mode, policy, NETWORK_JOBS)
        for name, policy in PLAYERS.items():
            if where != "mixed" or name == "rollout":
                found[f"table/{where}/plain/{name}"] = partial(_table, where, "plain", policy, PLAYED_JOBS)
    for name in ("qssf-share-cores", "qssf-weighed", "gittins-share-cores"):
        found[f"table/slices/models/{name}"] = partial(_table, "slices", "models", MODELLED_RULES[name])
    for name in ("fifo-backfill", "gittins"):
        found[f"table/philly/sleeping/{name}"] = partial(_table, "philly", "sleeping", name)
    for configuration in EPISODES:
        found[f"steps/{configuration}"] = partial(_steps, configuration)
    for mode, recorded in (
        ("plain", ("easy", "gittins-moving", "srtf", "ppo", "ppo-preempting", "random")),
        ("attempts", ("tiresias", "reserve", "ppo")),
        ("models", ("pack", "gittins-share-weighed-moving", "qssf-weighed", "ppo", "random")),
    ):
        for name in recorded:
            policy = {**RULES, **MODELLED_RULES, **NETWORKS}[name]
            found[f"records/mixed/{mode}/{name}"] = partial(_records, "mixed", mode, policy)
    for name, policy in (("ppo", "ppo"), ("ppo-preempting", "ppo+preempt"), ("tiresias", "tiresias:60")):
        found[f"journal/{name}"] = partial(_journal, policy)
    return found


def _journal(policy: str) -> Content:
    live, again = journal_content(load_scheduler(policy), _fresh(policy))
    return {**record_content(live), **{f"again.{k}": v for k, v in record_content(again).items()}}


def _fresh(policy: str) -> Scheduler:
    return load_scheduler(policy)


def digest(content: Content) -> str:
    """SHA-256 of all arrays, by name."""
    hasher = hashlib.sha256()
    for name in sorted(content):
        values = np.ascontiguousarray(content[name])
        hasher.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        hasher.update(values.tobytes())
    return hasher.hexdigest()


def rows_of(content: Content) -> list[str]:
    """The prefixes whose arrays run over the same things: `job`, `attempt`, ..."""
    return sorted(set(chain(name.partition(".")[0] for name in content)))
