"""Accounts: who may charge jobs to what, beside themselves."""

from __future__ import annotations

from rlsched.broker.base.entries import MemberSet
from rlsched.errors import InputError
from rlsched.wire.messages import Member


class Accounts:
    """The accounts of each person; the first one is the default. An account is there while it has members."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}

    def set(self, entry: MemberSet) -> None:
        """A person has joined or left an account."""
        accounts = self._of.setdefault(entry.person, [])
        if entry.member and entry.account not in accounts:
            accounts.append(entry.account)
        elif not entry.member and entry.account in accounts:
            accounts.remove(entry.account)

    def has(self, account: str, person: str) -> bool:
        """Whether a person may charge jobs to an account."""
        return account in self._of.get(person, ())

    def charged(self, person: str, wanted: str) -> str:
        """The account of a job that names this one, or none ("").

        Raises:
            InputError: the person is no member of it.
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
        """What makes these accounts anew, each person's default first."""
        return [
            MemberSet(account=account, person=person, member=True)
            for person, accounts in self._of.items()
            for account in accounts
        ]

    def members(self) -> list[Member]:
        """All members, by account and person."""
        found = [
            Member(account=account, person=person, default=position == 0)
            for person, accounts in self._of.items()
            for position, account in enumerate(accounts)
        ]
        return sorted(found, key=lambda member: (member.account, member.person))
