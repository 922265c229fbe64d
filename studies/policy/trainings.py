"""Trainings that differ in their seed, or in the excluded cluster, each kept in a file."""

from __future__ import annotations

import hashlib
import shutil
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.training_data import REAL, Lesson, default_data, read, synthetic, weighted
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.sources import TrainingData
from rlsched_agents.ppo.training import RunFiles
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_agents.runtime.network import NetworkConfig
from studies.policy.cases import UNSEEN
from studies.policy.opponents import followed

DATA_SEED: Final = 0
"""Seed of the synthetic traces and of all validation windows: a run's seed only affects its training."""
SHORT_WINDOWS: Final = 20
SHORT_JOBS: Final = 1500
SHORT_LOADS: Final = (0.95,)
SHORT_EVERY: Final = 49_152
"""Validation of the short trainings: least windows, jobs of each, loads, and decisions between two."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training.

    Attributes:
        cluster: The excluded cluster: a trace, or `TRACE/VC`; empty: nothing is left out.
        seed: Of weights, episodes and draws.
        timesteps: Decisions to train on.
        recipe: Hyper-parameters, including validation.
        init: Initial checkpoint; None: the rule.
    """

    cluster: str
    seed: int
    timesteps: int
    recipe: Recipe
    init: Path | None = None

    @property
    def name(self) -> str:
        """Its name, fit for a file."""
        return (
            f"without-{self.cluster.replace('/', '-')}-{self.seed}" if self.cluster else f"seed-{self.seed}"
        )

    @property
    def made_by(self) -> str:
        """Digest of all its inputs except its data."""
        start = load_checkpoint(self.init).policy_id if self.init is not None else ""
        said = msgspec.json.encode((self.timesteps, start, self.recipe))
        return hashlib.sha256(said).hexdigest()[:12]


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """End of a training.

    Attributes:
        cluster: As in `Run`.
        seed: As in `Run`.
        made_by: `Run.made_by`.
        timesteps: Trained decisions.
        kept_at: Decision of the kept policy; 0: the run ended with its start.
        score: Of the policy chosen by validation, on the confirmation windows, lower is better; None: the
            start was chosen, and nothing was confirmed.
        start_score: Of the start, on the same windows.
        rule: Name of the rule that the network follows.
        rule_settings: Its settings, TOML.
        policy_id: Identity of the kept policy.
        traces: Names of all traces of its training and validation.
        steps_per_s: Decisions a second, without validation.
        wall_s: Wall time, validation included; of a resumed run the last part.
    """

    cluster: str
    seed: int
    made_by: str
    timesteps: int
    kept_at: int
    score: float | None
    start_score: float | None
    rule: str
    rule_settings: str
    policy_id: str
    traces: list[str]
    steps_per_s: float
    wall_s: float

    @property
    def followed(self) -> Policy:
        """The rule that the network follows."""
        return Policy.parse(self.rule_settings, name=self.rule)


def short(recipe: Recipe) -> Recipe:
    """The same recipe with less validation, for short trainings."""
    return msgspec.structs.replace(
        recipe,
        validate_every=SHORT_EVERY,
        validation_jobs=SHORT_JOBS,
        validation_loads=SHORT_LOADS,
        validation_windows=1,
        validation_least=SHORT_WINDOWS,
        validation_weights=(),
    )


def data_without(folder: Path, cluster: str) -> list[TrainingData]:
    """Training data that exclude a cluster.

    The real traces of the default policy and all of ITP, which share the total weight of the real traces of
    the default policy; of a trace with an excluded VC, all others; and the synthetic traces.

    Args:
        folder: Folder of the traces.
        cluster: A trace, or `TRACE/VC`.
    """
    out, _, vc = cluster.partition("/")
    itp = [name for name in dict.fromkeys([*UNSEEN, *REAL]) if name.startswith("ms_itp")]
    share = sum(weight for name, weight in REAL.items() if name in itp)
    weights = {name: weight for name, weight in REAL.items() if name not in (*itp, cluster)}
    left = [name for name in itp if name != cluster]
    weights |= {name: share / len(left) for name in left}
    real = [
        weighted(read(folder, name, vc if name == out else ""), weight) for name, weight in weights.items()
    ]
    return [*real, *synthetic(DATA_SEED)]


@lru_cache(maxsize=1)
def lesson_of(folder: Path, cluster: str, recipe: Recipe) -> Lesson:
    """The data of a run, read, and its windows; the last result is cached."""
    data = data_without(folder, cluster) if cluster else default_data(folder, DATA_SEED)
    return Lesson.of(data, recipe, DATA_SEED)


def policy_file(out: Path, run: Run) -> Path:
    """Path of the policy of a run."""
    return out / "trained" / run.name / "policy.zip"


def read_trained(out: Path, run: Run) -> Trained | None:
    """End of a run; None: it has not ended.

    Raises:
        InputError: A run of this name was made with other numbers.
    """
    path = _record(out, run)
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=Trained)
    if found.made_by != run.made_by:
        raise InputError(
            f"{path}: expected a training with this recipe, start and number of decisions, got one with "
            "others; give the original values, or another --out"
        )
    return found


def train_run(out: Path, traces: Path, run: Run) -> Trained | None:
    """Train, or continue a stopped training; None: it was stopped again.

    Args:
        out: Folder of all runs.
        traces: Folder of the traces.
        run: The training, not ended yet.
    """
    files = RunFiles(logdir=policy_file(out, run).parent, out=policy_file(out, run))
    resume = (
        files.last_snapshot.exists() and load_checkpoint(files.last_snapshot).card.timesteps < run.timesteps
    )
    if not resume and files.logdir.exists():
        shutil.rmtree(files.logdir)
    began = time.perf_counter()
    result = lesson_of(traces, run.cluster, run.recipe).train(
        name=run.name,
        timesteps=run.timesteps,
        files=files,
        seed=run.seed,
        init=None if resume else run.init,
        resume=resume,
        progress=False,
    )
    if result.stopped:
        files.out.unlink()
        return None
    verdict, rule = result.verdict, rule_of(result.card.network)
    found = Trained(
        cluster=run.cluster,
        seed=run.seed,
        made_by=run.made_by,
        timesteps=result.timesteps,
        kept_at=result.card.timesteps,
        score=verdict.score if verdict else None,
        start_score=verdict.start_score if verdict else None,
        rule=rule.name,
        rule_settings=rule.toml,
        policy_id=load_checkpoint(files.out).policy_id,
        traces=[use.trace for use in result.card.traces],
        steps_per_s=result.steps_per_s,
        wall_s=time.perf_counter() - began,
    )
    path = _record(out, run)
    half_written = path.with_suffix(".part")
    half_written.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    half_written.replace(path)
    return found


def rule_of(network: NetworkConfig) -> Policy:
    """The rule that a network follows."""
    return followed(network.permissions, revises=network.revises)


def _record(out: Path, run: Run) -> Path:
    return out / f"{run.name}.json"
