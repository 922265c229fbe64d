"""How a broker runs, as its command line or a test says, and what is made of that before it has a journal."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlsched.broker.base.limits import Limits
from rlsched.broker.compaction.keeping import Keeps
from rlsched.broker.forecasts.forecasting import AFTER_S, LEAST_S
from rlsched.broker.forecasts.messages import Setup
from rlsched.broker.journal.journal import JOURNAL_FILE
from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.broker.server.policy import load_policy
from rlsched.broker.server.power_commands import PowerSettings
from rlsched.broker.standby.warm import Warm
from rlsched.broker.state.priorities import Ranks
from rlsched.decide.policies.policy import Policy
from rlsched.files.space import MIN_FREE_MIB
from rlsched.forecast.world import DEFAULT
from rlsched.transport.budgets import SenderLimits


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker runs.

    Attributes:
        address: `tcp://HOST:PORT`; port 0 takes a free one.
        directory: Where journal and records are kept.
        keys: The key directory.
        policy: Who decides, as `Policy.of` reads it.
        fallback: The rule behind it, likewise; None: see `load_policy`.
        decision_budget_ms: Time that one decision may take.
        speed_energy: What energy counts against time for jobs that do not say it themselves, 0 to 1.
        shares: Jobs that may share GPUs do, where the policy says so.
        prediction: `running-mean` or `hedge`; None: see `Predictions`.
        history: What sacct printed of jobs before, which predictions begin with; None: with nothing.
        logdir: Folder for TensorBoard, None for none.
        limits: Leases and timeouts.
        senders: What one key may say.
        ranks: Priorities and fair share.
        min_free_mib: New jobs are refused while the journal's disk has less free space, MiB.
        new_cluster: Begin a new cluster where the journal of the one before is lost.
        keeps: What the journal keeps.
        seed: Seed of the policy's draws.
        forecaster: Who says when jobs start and end, an entry point of `rlsched.forecasters`; "": nobody.
        forecast_after_s: It is started when the broker has served for so long.
        forecast_every_s: Time between two refreshes, at least.
        power: How idle nodes are powered down, and up again; None: they are not.
    """

    address: str
    directory: Path
    keys: Path
    policy: Policy | str = "tuned"
    fallback: Policy | str | None = None
    decision_budget_ms: float = 100.0
    speed_energy: float = 0.0
    shares: bool = False
    prediction: str | None = None
    history: Path | None = None
    logdir: Path | None = None
    limits: Limits = Limits()
    senders: SenderLimits = SenderLimits()
    ranks: Ranks = Ranks()
    min_free_mib: int = MIN_FREE_MIB
    new_cluster: bool = False
    keeps: Keeps = Keeps()
    seed: int = 0
    forecaster: str = DEFAULT
    forecast_after_s: float = AFTER_S
    forecast_every_s: float = LEAST_S
    power: PowerSettings | None = None


def warmed_up(settings: Settings) -> Warm:
    """The policy of these settings, loaded and compiled, before the first entry of any journal.

    Raises:
        InputError: it cannot be loaded, or serve.
    """
    scheduler, fallback = load_policy(
        Policy.of(settings.policy),
        None if settings.fallback is None else Policy.of(settings.fallback),
        settings.decision_budget_ms,
        seed=settings.seed,
        has_models=settings.speed_energy > 0.0,
        shares=settings.shares,
    )
    past = None
    if settings.history is not None:
        from rlsched.broker.base.past import Past  # every publisher's format, which no other start needs

        past = Past.read(settings.history)
    return Warm(scheduler, fallback, settings.prediction, settings.ranks.half_life_s, past)


def forecast_setup(settings: Settings) -> Setup:
    """What the process that forecasts is told of a broker with these settings."""
    policy = Policy.of(settings.policy)
    return Setup(
        journal=str((settings.directory / JOURNAL_FILE).absolute()),
        store=str((settings.directory / STORE_FOLDER).absolute()),
        forecaster=settings.forecaster,
        policy=policy.toml,
        policy_name=policy.name,
        seed=settings.seed,
        prediction=settings.prediction,
        half_life_s=settings.ranks.half_life_s,
        least_s=settings.forecast_every_s,
    )
