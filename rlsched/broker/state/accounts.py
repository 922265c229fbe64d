"""Accounts and their members. A member of an account is a user who can charge jobs to the account."""

from __future__ import annotations

from rlsched.broker.base.entries import MemberSet
from rlsched.errors import InputError
from rlsched.wire.messages import Member


class AccountMembers:
    """Accounts of each user; the first is the user's default. An account exists while it has members."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}

    def set(self, entry: MemberSet) -> None:
        """Apply a fact (journal entry) that adds a user to an account or removes the user."""
        accounts = self._of.setdefault(entry.person, [])
        if entry.member and entry.account not in accounts:
            accounts.append(entry.account)
        elif not entry.member and entry.account in accounts:
            accounts.remove(entry.account)

    def may_charge(self, account: str, person: str) -> bool:
        """Return whether a user can charge jobs to an account."""
        return account in self._of.get(person, ())

    def account_to_charge(self, person: str, wanted: str) -> str:
        """Return the account to charge for a user's job.

        This is `wanted`, or the user's default account if `wanted` is ""; "" if the user has no accounts.

        Raises:
            InputError: the user is not a member of the account.
        """
        accounts = self._of.get(person, [])
        if not wanted:
            return accounts[0] if accounts else ""
        if wanted in accounts:
            return wanted
        may = f"may charge jobs only to {', '.join(accounts)}" if accounts else "is a member of no account"
        raise InputError(
            f"account {wanted!r}: {person or 'a user without a name'} {may}; an admin adds members with "
            "`rlsched quota account add`"
        )

    def entries(self) -> list[MemberSet]:
        """Return journal entries that restore all accounts. The default account of each user comes first."""
        return [
            MemberSet(account=account, person=person, member=True)
            for person, accounts in self._of.items()
            for account in accounts
        ]

    def members(self) -> list[Member]:
        """Return the members of all accounts, sorted by account and user."""
        found = [
            Member(account=account, person=person, default=position == 0)
            for person, accounts in self._of.items()
            for position, account in enumerate(accounts)
        ]
        return sorted(found, key=lambda member: (member.account, member.person))
