"""The policy of a broker: loaded by name, compiled before it is needed, guarded."""

from __future__ import annotations

import math

from rlsched.broker.clocks import Clocks
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.clocked import with_clocks
from rlsched.decide.guard import Guarded
from rlsched.decide.loop import decide_all
from rlsched.decide.orders import REFERENCE_RULES, REPACKING
from rlsched.decide.scheduler import (
    Scheduler,
    add_search,
    load_scheduler,
    may_preempt,
    may_repack,
    needs_models,
    revises_predictions,
)
from rlsched.errors import InputError

DEFAULT_FALLBACK = "qssf-backfill"
"""Behind a policy whose order no network has: where the orders differ, there is no fallback."""


def load_policy(
    name: str,
    fallback: str | None,
    budget_ms: float,
    *,
    search_ms: float | None = None,
    seed: int = 0,
    chooses_clocks: bool = False,
    reclock_s: float = math.inf,
) -> tuple[Scheduler, str]:
    """The guarded policy, and the name of the rule behind it ("" where a rule needs none).

    Args:
        name: A scheduler's name, such as `ppo` or `ppo:PATH`.
        fallback: The rule that decides where the policy fails; None: the one that a network of its
            order follows (`REFERENCE_RULES`), with `+repack` where the policy moves running jobs; none where
            there is no such rule.
        budget_ms: Time that one decision may take.
        search_ms: Time of it that the policy may spend on look-ahead; None: what its name says.
        seed: Seed of the policy's draws.
        chooses_clocks: Compile what chooses clocks now, and not when the first job asks for it.
        reclock_s: Running jobs follow the queue with their clocks, but keep one for so long at least;
            infinite: until they end.

    Raises:
        InputError: a name is unknown, the policy cannot be loaded, or the two do not go together.
    """
    if search_ms is not None:
        (name,) = add_search([name], f"{search_ms:g}ms")
    policy = _load(name, seed)
    searches_ms = float(getattr(policy, "search_ms", 0.0))
    if searches_ms >= budget_ms:
        raise InputError(
            f"a search of {searches_ms:g} ms leaves nothing of the {budget_ms:g} ms that a decision may "
            "take; lower --search-ms, or raise --decision-budget-ms"
        )
    if policy.information != "causal":
        raise InputError(
            f"policy {name!r} needs the true run times, which a broker cannot know; choose another --policy"
        )
    behind = _load(fallback or REFERENCE_RULES.get(policy.order, DEFAULT_FALLBACK), seed)
    moves = may_repack(policy)
    if fallback is None and moves and may_preempt(behind):
        behind = _load(behind.name + REPACKING, seed)
    alike = policy.order == behind.order and moves == may_repack(behind)
    for option, scheduler in (("--policy", policy), ("--fallback", behind)):
        if needs_models(scheduler):
            raise InputError(
                f"{option} {scheduler.name!r} shares GPUs, or sets clocks or cores, by models of speed, "
                "which a broker does not have; choose one that does not (clocks: --speed-energy W)"
            )
    policy, behind = with_clocks(policy, reclock_s), with_clocks(behind, reclock_s)
    if fallback is None and not alike:
        _warm_up(policy, chooses_clocks)
        return policy, ""
    if policy.order != behind.order:
        raise InputError(
            f"--fallback {fallback!r} keeps the queue by {behind.order}, --policy {name!r} by "
            f"{policy.order}; choose a fallback of the same order"
        )
    if may_preempt(behind) and not may_preempt(policy):
        raise InputError(
            f"--fallback {behind.name!r} preempts jobs, --policy {name!r} does not; "
            "choose a fallback that does not either"
        )
    if not alike:
        raise InputError(
            f"--policy {name!r} {_moves(moves)}, --fallback {fallback!r} {_moves(not moves)}; "
            f"give both {REPACKING}, or neither"
        )
    _warm_up(policy, chooses_clocks)
    _warm_up(behind, chooses_clocks)
    return Guarded(policy, behind, budget_ms=budget_ms), behind.name


def _moves(moves: bool) -> str:
    return "moves running jobs" if moves else "moves none"


def _load(name: str, seed: int) -> Scheduler:
    try:
        return load_scheduler(name, seed=seed)
    except (ImportError, AttributeError) as error:
        raise InputError(f"policy {name!r} cannot be loaded: {error}") from error


def _warm_up(scheduler: Scheduler, chooses_clocks: bool) -> None:
    """Decide on a toy cluster, so that kernels are compiled before the first job waits for them."""
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), order=scheduler.order)
    state.revise_predictions(revises_predictions(scheduler))
    if chooses_clocks:
        Clocks(state).weigh(0.5)
    seqs = {
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=60.0 * gpus, spread=1.0)
        for gpus in (1, 3, 2, 8, 4, 1, 2)
    }
    state.stops_take_time = True
    for now_s in (3600.0, 7200.0):  # ticks of rules that decide at ticks
        for _ in decide_all(state, scheduler, now_s, record=True):
            pass
        running = sorted(seqs & set(state.running()))
        if may_preempt(scheduler) and running:
            state.preempt(running[0], now_s + 0.5)
            state.requeue(running[0], now_s + 0.5)
        for seq in running[1:]:
            state.release(seq, now_s)
