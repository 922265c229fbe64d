"""Settings of a broker, and a function that loads the policy before the journal is opened."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlsched.broker.base.limits import Limits
from rlsched.broker.compaction.keeping import Keeps
from rlsched.broker.forecasts.forecasting import AFTER_S, LEAST_S
from rlsched.broker.forecasts.messages import ForecasterSetup
from rlsched.broker.journal.journal import JOURNAL_FILE
from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.broker.nodes.slow_sharing import SharingRules
from rlsched.broker.server.broker_policy import load_policy
from rlsched.broker.server.power_commands import PowerSettings
from rlsched.broker.server.prices import energy_of
from rlsched.broker.standby.warm import Warm
from rlsched.broker.state.priorities import PriorityRules
from rlsched.decide.policies.policy import Policy
from rlsched.decisions.schema import KEEP_DAYS, KEEP_MIB
from rlsched.files.space import MIN_FREE_MIB
from rlsched.forecast.world import DEFAULT
from rlsched.transport.budgets import SenderLimits


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a broker.

    Attributes:
        address: `tcp://HOST:PORT`; port 0 selects a free port.
        directory: Directory of the journal and the store of decisions.
        keys: The key directory.
        policy: The policy, as `Policy.of` reads it.
        fallback: The fallback rule, as `Policy.of` reads it; None: the rule on which the policy is based.
        decision_budget_ms: Time limit for one decision, milliseconds.
        speed_energy: Weight of energy against time, 0 to 1, for jobs that set no weight.
        shares: Whether jobs that permit sharing can share GPUs.
        prediction: Predictor of run times, `running-mean` or `hedge` (a weighted average of several
            predictors); None: `hedge`.
        history: Output of sacct with earlier jobs, from which predictors learn first; None: no earlier jobs.
        logdir: Directory for TensorBoard curves; None: no curves.
        limits: Time-outs and intervals.
        senders: Limits on the messages that are sent with one key.
        ranks: Rules for priorities and fair share.
        min_free_mib: Free space on the journal's disk below which new jobs are refused, MiB.
        keep_decisions_mib: Size of the store of decisions above which its oldest rows are removed, MiB.
        keep_decisions_days: Age above which rows of the store are removed, days; infinite: never.
        new_cluster: Whether to begin a new cluster in a directory whose journal is lost or damaged.
        keeps: How long journal entries and rows of ended jobs are kept.
        seed: Seed of the policy's random draws.
        forecaster: Name of an entry point in the group `rlsched.forecasters`; "": no forecasts.
        forecast_after_s: Time from the broker's start to the forecaster's start, seconds.
        forecast_every_s: Minimum time between two refreshes of the forecasts, seconds.
        power: Commands and rules that power idle nodes down and up; None: nodes stay on.
        sharing: Reactions to observed speeds of jobs that share GPUs.
        energy: Cluster file whose table `[energy]` names files of prices and power limits; None: there are
            none.
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
    ranks: PriorityRules = PriorityRules()
    min_free_mib: int = MIN_FREE_MIB
    keep_decisions_mib: int = KEEP_MIB
    keep_decisions_days: float = KEEP_DAYS
    new_cluster: bool = False
    keeps: Keeps = Keeps()
    seed: int = 0
    forecaster: str = DEFAULT
    forecast_after_s: float = AFTER_S
    forecast_every_s: float = LEAST_S
    power: PowerSettings | None = None
    sharing: SharingRules = SharingRules()
    energy: Path | None = None


def warmed_up(settings: BrokerSettings) -> Warm:
    """Load and compile the policy of these settings. Call this before a new journal is created.

    Raises:
        InputError: the policy cannot be loaded or served.
    """
    scheduler, fallback = load_policy(
        Policy.of(settings.policy),
        None if settings.fallback is None else Policy.of(settings.fallback),
        settings.decision_budget_ms,
        seed=settings.seed,
        has_models=settings.speed_energy > 0.0,
        shares=settings.shares,
        limits_power=settings.energy is not None and energy_of(settings.energy).is_limited,
    )
    past = None
    if settings.history is not None:
        from rlsched.broker.base.past_jobs import (
            PastJobs,  # imports all trace formats, needed only with a history
        )

        past = PastJobs.read(settings.history)
    return Warm(scheduler, fallback, settings.prediction, settings.ranks.half_life_s, past)


def forecast_setup(settings: BrokerSettings) -> ForecasterSetup:
    """Return the first message to the forecaster process of a broker with these settings."""
    policy = Policy.of(settings.policy)
    return ForecasterSetup(
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
