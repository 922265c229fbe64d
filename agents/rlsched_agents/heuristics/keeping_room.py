"""`easy`, `sgf-age` and `reserve`: rules that keep room for jobs that greedy ones pass over for ever."""

from __future__ import annotations

from typing import Final

from rlsched.decide.easy import PATIENCE_S
from rlsched.decide.orders import Order
from rlsched.decide.rules import Rule
from rlsched.decide.schema import MAX_HOLD_S
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.heuristics.queue_order import QueueOrder

AGE_BOUND_S: Final = MAX_HOLD_S
"""The bound that a policy's mask keeps (12 h): rule and policy make the same promise."""
LONG_JOB_S: Final = 43_200.0
FREE_FRAC: Final = 0.25
"""12 h and a quarter waited least of eight settings on six traces (`studies/policy/sequences.py`)."""

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


EASY_ORDERS: Final[dict[str, Order]] = {
    "fifo": "submit",
    "sjf": "predicted",
    "qssf": "predicted_gpu_time",
    "size": "predicted_size",
}


def easy_rule(name: str = "easy", order: Order = "submit", patience_s: float = 0.0) -> Rule:
    """EASY backfill; jobs have a reservation once they have waited `patience_s`."""
    return Rule(name=name, order=order, kind="easy", bound_s=patience_s)


def aging_rule(name: str = "sgf-age", bound_s: float = AGE_BOUND_S) -> Rule:
    """Shortest predicted GPU-time first; who has waited `bound_s` comes before all others."""
    return Rule(name=name, order="predicted_gpu_time", kind="aging", bound_s=bound_s)


def reserve_rule(
    name: str = "reserve", longer_than_s: float = LONG_JOB_S, free_frac: float = FREE_FRAC
) -> Rule:
    """QSSF with backfill; jobs predicted longer than `longer_than_s` leave a share of the GPUs free."""
    return Rule(
        name=name, order="predicted_gpu_time", kind="reserve", bound_s=longer_than_s, free_frac=free_frac
    )


def make_easy(argument: str, _seed: int) -> QueueOrder:
    """EASY backfill with predicted run times (Lifka, JSSPP 1995; Mu'alem and Feitelson, TPDS 2001).

    `easy` is in order of submission; `easy:ORDER` and `easy:ORDER,PATIENCE` in another (`EASY_ORDERS`), as
    Tsafrir, Etsion and Feitelson (TPDS 2007) have it with the shortest job first.
    `rlsched.decide.easy` says where ours differs: predictions that are corrected once they are outlived,
    gangs on nodes instead of a flat pool, one reservation a partition.
    """
    if not argument:
        return QueueOrder(easy_rule())
    word, comma, wait = argument.partition(",")
    patience_s = _seconds(wait) if comma else 0.0 if word != "size" else PATIENCE_S
    if word not in EASY_ORDERS or patience_s is None:
        raise UnknownSchedulerError(
            f"policy 'easy:{argument}': expected easy:ORDER or easy:ORDER,PATIENCE, an order of "
            f"{', '.join(EASY_ORDERS)} and a time with its unit (s, m, h or d) such as easy:sjf,6h, "
            f"got {argument!r}"
        )
    return QueueOrder(easy_rule(f"easy:{argument}", EASY_ORDERS[word], patience_s))


def make_sgf_age(argument: str, _seed: int) -> QueueOrder:
    """Shortest predicted GPU-time first, with a bound on age: `sgf-age`, or `sgf-age:24h`.

    The order of QSSF (Hu et al., SC'21), the bound of Lelong, Reis and Trystram (JSSPP 2017);
    `rlsched.decide.aging` says where ours differs.
    """
    if not argument:
        return QueueOrder(aging_rule())
    bound_s = _seconds(argument)
    if bound_s is None:
        raise UnknownSchedulerError(
            f"policy 'sgf-age:{argument}': expected sgf-age:AGE, an age with its unit (s, m, h or d) such as "
            f"sgf-age:24h, got {argument!r}"
        )
    return QueueOrder(aging_rule(f"sgf-age:{argument}", bound_s))


def make_reserve(argument: str, _seed: int) -> QueueOrder:
    """A long job may start only if a share of the GPUs stays free: `reserve`, or `reserve:4h,0.25`.

    No paper has it; `rlsched.decide.reserve` says what it does, and what is exempt.
    """
    if not argument:
        return QueueOrder(reserve_rule())
    first, _, second = argument.partition(",")
    longer_than_s, free_frac = _seconds(first), _fraction(second)
    if longer_than_s is None or free_frac is None:
        raise UnknownSchedulerError(
            f"policy 'reserve:{argument}': expected reserve:TIME,SHARE, a run time with its unit (s, m, h or "
            f"d) and a share of the GPUs between 0 and 1, such as reserve:4h,0.25, got {argument!r}"
        )
    return QueueOrder(reserve_rule(f"reserve:{argument}", longer_than_s, free_frac))


def _seconds(text: str) -> float | None:
    """`30m`, `1.5h` in seconds; None for anything else."""
    value = _number(text[:-1]) if text[-1:] in _UNIT_S else None
    return None if value is None else value * _UNIT_S[text[-1]]


def _fraction(text: str) -> float | None:
    value = _number(text)
    return value if value is not None and value <= 1.0 else None


def _number(text: str) -> float | None:
    """A plain decimal number, 0 or more; no sign, exponent or name of a number."""
    whole, _, part = text.partition(".")
    return float(text) if whole.isascii() and whole.isdigit() and (part or "0").isdigit() else None
