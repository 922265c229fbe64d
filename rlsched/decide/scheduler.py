"""The one interface of every scheduler: state in, decision out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from rlsched.decide.abilities import read_abilities
from rlsched.decide.actions import Action
from rlsched.decide.orders import NETWORK_ORDERS, REPACKING, REVISING, Order
from rlsched.decide.record import DecisionRecord, Source
from rlsched.decide.repack import Repack
from rlsched.errors import UnknownSchedulerError

if TYPE_CHECKING:
    from rlsched.cluster.state import ClusterState

Information = Literal["causal", "oracle"]
"""Which predictions a rule is fed: what history tells, or the true durations (`sjf*`, `srtf`)."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, who decided it, and the record if one was asked for.

    Attributes:
        action: What to do.
        source: Who decided.
        record: Everything about it, None unless asked for.
        marks_hold: For a *wait*: whether it passes over jobs of the candidate window that fit (a policy's
            choice does; a rule that blocks its queue follows its own order).
    """

    action: Action
    source: Source
    record: DecisionRecord | None = None
    marks_hold: bool = False


@runtime_checkable
class Scheduler(Protocol):
    """State in, decision out. No I/O, no clock, no hidden state that changes a decision.

    A scheduler that may answer `Preempt` has an attribute `preempts` that is True, and is asked at every
    event and timer at which jobs wait (`may_preempt`).

    Attributes:
        name: The name by which it was asked for.
        order: The queue order that `ClusterState` keeps for it.
        information: Which predictions it is fed.
    """

    name: str
    order: Order
    information: Information

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """One decision for one partition: a `Start` that the ledger will accept, or `Wait`.

        Called at a decision point (some waiting job can start now), again and again until it waits.
        `record` asks for a `DecisionRecord`.
        """


def may_preempt(scheduler: Scheduler) -> bool:
    """Whether a scheduler preempts; one that does not say so does not."""
    return bool(getattr(scheduler, "preempts", False))


def may_repack(scheduler: Scheduler) -> bool:
    """Whether a scheduler moves running jobs for a gang (`decide.repack`); mostly not."""
    rule = getattr(scheduler, "rule", None)
    return any(getattr(one, "repack", None) is not None for one in (scheduler, rule))


def may_share(scheduler: Scheduler) -> bool:
    """Whether a scheduler starts jobs on GPUs that others have; one that does not say so does not."""
    return bool(getattr(scheduler, "shares", False))


def may_reclock(scheduler: Scheduler) -> bool:
    """Whether a scheduler changes the SM clocks of running jobs; one that does not say so does not."""
    return bool(getattr(scheduler, "reclocks", False))


def weighs_clocks(scheduler: Scheduler) -> bool:
    """Whether a scheduler chooses the SM clocks of its starts by itself; most leave them to others."""
    return bool(getattr(scheduler, "weighs_clocks", False))


def needs_models(scheduler: Scheduler) -> bool:
    """Whether a scheduler shares GPUs or sets clocks or cores by what models say; most do not."""
    return bool(getattr(scheduler, "needs_models", False))


def revises_predictions(scheduler: Scheduler) -> bool:
    """Whether predictions of waiting jobs are revised for a scheduler (`cluster.siblings`); mostly not."""
    rule = getattr(scheduler, "rule", None)
    return bool(getattr(scheduler, "revises", False) or getattr(rule, "revises", False))


def scheduler_names() -> list[str]:
    """Names of all installed schedulers."""
    return sorted(point.name for point in _points())


def load_scheduler(name: str, *, seed: int = 0) -> Scheduler:
    """The scheduler of this name; `NAME:ARGUMENT` passes ARGUMENT on (`ppo:PATH`).

    `NAME+ABILITY`, again and again, gives a rule abilities (`read_abilities`): `qssf-backfill+share+cores`.
    `NAME+preempt` lets a network preempt jobs, `NAME+reserve` reserve GPUs for them (`NETWORK_ORDERS`).
    `NAME+repack` lets one that preempts by the index move running jobs for a gang (`decide.repack`).
    `NAME+revise`: predictions of waiting jobs are revised by what jobs of their burst do.
    `NAME+search=AMOUNT`, at the end, lets a network look ahead: `ppo+search=8`, `ppo+reserve+search=5ms`.

    Args:
        name: An entry point of the group `rlsched.schedulers`, called as `factory(argument, seed)`.
        seed: Seed of its action draws.

    Raises:
        UnknownSchedulerError: listing the known names.
    """
    plain, amount = split_search(name)
    if amount is not None:
        searching = getattr(load_scheduler(plain, seed=seed), "with_search", None)
        if searching is None:
            raise UnknownSchedulerError(f"policy {name!r}: {plain!r} takes no +search; ppo does")
        searcher: Scheduler = searching(name, amount)
        return searcher
    plain = name.removesuffix(REVISING)
    if plain != name:
        return _revising(load_scheduler(plain, seed=seed), name)
    plain = name.removesuffix(REPACKING)
    if plain != name:
        still = load_scheduler(plain, seed=seed)
        if may_repack(still):
            raise UnknownSchedulerError(f"policy {name!r}: {plain!r} moves running jobs already")
        repacking = getattr(still, "with_repack", None)
        if repacking is None:
            raise UnknownSchedulerError(
                f"policy {name!r}: {plain!r} takes no {REPACKING}; those that preempt by an index do: "
                "gittins, tiresias:THRESHOLD,clear, ppo+preempt"
            )
        moving: Scheduler = repacking(name, Repack())
        return moving
    for ending, order in NETWORK_ORDERS.items():
        plain = name.removesuffix(ending)
        if plain != name:
            ordered = getattr(load_scheduler(plain, seed=seed), "with_order", None)
            if ordered is None:
                raise UnknownSchedulerError(f"policy {name!r}: {plain!r} takes no {ending}; ppo does")
            other: Scheduler = ordered(name, order)
            return other
    plain, plus, words = name.partition("+")
    if plus and not plain.startswith("ppo:"):
        able = getattr(load_scheduler(plain, seed=seed), "with_abilities", None)
        if able is None:
            raise UnknownSchedulerError(f"policy {name!r}: {plain!r} chooses by itself and takes no +ABILITY")
        given: Scheduler = able(name, read_abilities(name, words.split("+")))
        return given
    base, colon, argument = name.partition(":")
    for point in _points():
        if point.name == base and bool(colon) == bool(argument):
            scheduler: Scheduler = point.load()(argument, seed)
            return scheduler
    if colon and base in scheduler_names():
        raise UnknownSchedulerError(
            f"policy {name!r}: expected a setting behind the colon, or {base!r} alone; "
            f"known: {', '.join(scheduler_names())}"
        )
    raise UnknownSchedulerError(f"unknown policy {name!r}; known: {', '.join(scheduler_names())}")


def _revising(scheduler: Scheduler, name: str) -> Scheduler:
    """The same scheduler, by another name; predictions are revised for it.

    Raises:
        UnknownSchedulerError: they are revised already, or are true run times, or it lets nobody set that.
    """
    if revises_predictions(scheduler):
        raise UnknownSchedulerError(
            f"policy {name!r}: {scheduler.name!r} has its predictions revised already"
        )
    plain = name.removesuffix(REVISING)
    try:
        other: Any = copy.copy(scheduler)
        information = other.information
        other.name, other.revises = name, True
        rule = getattr(other, "rule", None)
        if isinstance(rule, msgspec.Struct) and "revises" in rule.__struct_fields__:
            other.rule = msgspec.structs.replace(rule, name=name, revises=True)
        if hasattr(other, "policy_id"):
            other.policy_id += REVISING
    except (AttributeError, TypeError) as error:
        raise UnknownSchedulerError(
            f"policy {name!r}: {plain!r} takes no {REVISING}: expected a scheduler of which a copy may get "
            f"another name and `revises`, got «{error}»; give it an attribute `revises` that is True instead"
        ) from error
    if information == "oracle":
        raise UnknownSchedulerError(
            f"policy {name!r}: {plain!r} is fed true run times, which need no {REVISING}"
        )
    return cast("Scheduler", other)


def split_search(name: str) -> tuple[str, str | None]:
    """A policy's name without its search, and AMOUNT of `+search=AMOUNT` at its end, None without."""
    plain, mark, amount = name.rpartition("+search=")
    return (plain, amount) if mark else (name, None)


def add_search(names: Sequence[str], amount: str) -> list[str]:
    """These policies, with `+search=AMOUNT` behind each that can search and does not say how.

    Raises:
        UnknownSchedulerError: a name is unknown, or none of these policies can search.
    """
    added = []
    for name in names:
        can = split_search(name)[1] is None and hasattr(load_scheduler(name), "with_search")
        added.append(f"{name}+search={amount}" if can else name)
    if all(split_search(name)[1] is None for name in added):
        raise UnknownSchedulerError(
            f"a search was asked for, and none of these policies has one: {', '.join(names)}; ppo has"
        )
    return added


def _points() -> list[EntryPoint]:
    return list(entry_points(group="rlsched.schedulers"))
