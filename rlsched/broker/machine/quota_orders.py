"""Checks admins' orders about quotas and accounts, and makes the pages that list quotas and accounts."""

from __future__ import annotations

import math
from typing import TypeVar

from msgspec import UNSET

from rlsched.broker.base.entries import MemberSet, QuotaSet
from rlsched.broker.state.accounts import AccountMembers
from rlsched.broker.state.quotas import QuotaTable
from rlsched.errors import InputError
from rlsched.terminal.visible import CONTROL, visible
from rlsched.transport.names import MAX_PERSON_CHARACTERS
from rlsched.wire.messages import Accounts as AccountsPage
from rlsched.wire.messages import Quotas as QuotasPage
from rlsched.wire.messages import SetMember, SetQuota

Row = TypeVar("Row")
Limit = TypeVar("Limit", int | None, float | None)
MAX_PAGE_ROWS = 500
MAX_COUNT = 1_000_000_000
"""Maximum value of a quota's limit on GPUs, jobs or GPU-hours."""


def changed_quota(quotas: QuotaTable, order: SetQuota) -> QuotaSet:
    """Return the journal entry for an order to change a quota's limits.

    Raises:
        InputError: the name is invalid, a limit is out of range, or no limit is given.
    """
    check_party(order.kind, order.name)
    own = quotas.own_limits(order.kind, order.name)
    if order.gpus is UNSET and order.jobs is UNSET and order.gpu_hours is UNSET:
        raise InputError("expected a limit: --gpus, --jobs or --gpu-hours; `none` removes a limit")
    return QuotaSet(
        kind=order.kind,
        name=order.name,
        gpus=own.gpus if order.gpus is UNSET else _checked("--gpus", order.gpus),
        jobs=own.jobs if order.jobs is UNSET else _checked("--jobs", order.jobs),
        gpu_hours=own.gpu_hours if order.gpu_hours is UNSET else _checked("--gpu-hours", order.gpu_hours),
    )


def changed_member(accounts: AccountMembers, order: SetMember) -> MemberSet | None:
    """Return the journal entry for an order to add or remove a member of an account; None if no change.

    Raises:
        InputError: a name is invalid, or the user to remove is not a member.
    """
    check_party("account", order.account)
    check_party("user", order.person)
    is_member = accounts.may_charge(order.account, order.person)
    if not order.member and not is_member:
        raise InputError(f"{order.person} is not a member of account {order.account}")
    if order.member == is_member:
        return None
    return MemberSet(account=order.account, person=order.person, member=order.member)


def check_party(kind: str, name: str) -> None:
    """Check the name of a user, account or VC.

    Raises:
        InputError: the name is invalid.
    """
    if not 0 < len(name) <= MAX_PERSON_CHARACTERS or CONTROL.search(name):
        raise InputError(
            f"{kind} {visible(name)!r}: expected 1 to {MAX_PERSON_CHARACTERS} characters, "
            "no control characters"
        )


def quotas_page(quotas: QuotaTable, first: int, now_s: float) -> QuotasPage:
    """Return one page of the list of quotas. The page begins at row `first` of the list."""
    page, omitted = _page(quotas.rows(now_s), first)
    return QuotasPage(quotas=page, omitted=omitted)


def accounts_page(accounts: AccountMembers, first: int) -> AccountsPage:
    """Return one page of the list of accounts' members. The page begins at row `first` of the list."""
    page, omitted = _page(accounts.members(), first)
    return AccountsPage(members=page, omitted=omitted)


def _page(rows: list[Row], first: int) -> tuple[list[Row], int]:
    """Return the page of `rows` that begins at row `first`, and the number of rows after the page."""
    first = max(first, 0)
    page = rows[first : first + MAX_PAGE_ROWS]
    return page, max(len(rows) - first - len(page), 0)


def _checked(option: str, limit: Limit) -> Limit:
    if limit is not None and not (math.isfinite(limit) and 0 <= limit <= MAX_COUNT):
        raise InputError(f"{option}: expected a limit of 0 to {MAX_COUNT:,}, or `none`, got {limit:g}")
    return limit
