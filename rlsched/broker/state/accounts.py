"""Accounts: which accounts a user may charge jobs to."""

from __future__ import annotations

from rlsched.broker.base.entries import MemberSet
from rlsched.errors import InputError
from rlsched.wire.messages import Member


class AccountMembers:
    """Accounts of each user; the first is the default. An account exists while it has members."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}

    def set(self, entry: MemberSet) -> None:
        """Apply a user's joining or leaving of an account."""
        accounts = self._of.setdefault(entry.person, [])
        if entry.member and entry.account not in accounts:
            accounts.append(entry.account)
        elif not entry.member and entry.account in accounts:
            accounts.remove(entry.account)

    def may_charge(self, account: str, person: str) -> bool:
        """Whether a user may charge jobs to an account."""
        return account in self._of.get(person, ())

    def account_to_charge(self, person: str, wanted: str) -> str:
        """Return the account to charge for a job that names `wanted`, or no account ("").

        Raises:
            InputError: the user is not a member of it.
        """
        accounts = self._of.get(person, [])
        if not wanted:
            return accounts[0] if accounts else ""
        if wanted in accounts:
            return wanted
        may = f"may charge jobs to {', '.join(accounts)}" if accounts else "is a member of no account"
        raise InputError(
            f"account {wanted!r}: {person or 'nobody'} {may}; an admin adds members with "
            "`rlsched quota account add`"
        )

    def entries(self) -> list[MemberSet]:
        """Facts that recreate these accounts, each user's default first."""
        return [
            MemberSet(account=account, person=person, member=True)
            for person, accounts in self._of.items()
            for account in accounts
        ]

    def members(self) -> list[Member]:
        """All members, by account and user."""
        found = [
            Member(account=account, person=person, default=position == 0)
            for person, accounts in self._of.items()
            for position, account in enumerate(accounts)
        ]
        return sorted(found, key=lambda member: (member.account, member.person))
