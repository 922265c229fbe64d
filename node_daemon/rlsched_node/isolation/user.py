"""The user that runs each job: the daemon's own user, one user for all jobs, or the owner of the job."""

from __future__ import annotations

import os
import pwd
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rlsched.errors import InputError, RlschedError
from rlsched_node.isolation.accounts import SystemAccounts

FIRST_UID = 1000
"""Accounts with a lower user ID are system accounts. They run jobs only if `--users` names them."""
UMASK = 0o022
"""Umask of jobs that run as their owner."""


class OwnerError(RlschedError):
    """This node does not run jobs of this owner."""


class JobUser(msgspec.Struct, frozen=True):
    """An account of this machine."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    umask: int | None = None
    """Umask of the account's jobs; None: the daemon's umask."""

    def environment(self) -> dict[str, str]:
        """Return the variables that a login of this user would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


class JobUsers:
    """Chooses the user that runs each job of this node.

    Args:
        run_as: Name of the user for all jobs; None: no name was given.
        allow_root: Jobs may run as root.
        as_owner: Each job runs as the account of the user who submitted it.
        accounts: Account name by person (user name at the broker), for persons whose account has another
            name, and for system accounts.

    Raises:
        InputError: jobs would run as root without permission, the user does not exist, or the daemon must be
            root to run jobs as this user.
    """

    def __init__(
        self,
        run_as: str | None = None,
        *,
        allow_root: bool = False,
        as_owner: bool = False,
        accounts: Mapping[str, str] | None = None,
    ) -> None:
        self._allow_root, self._accounts = allow_root, dict(accounts or {})
        self._as_owner, self._directory = as_owner, SystemAccounts()
        if as_owner and run_as is not None:
            raise InputError("--run-as and --run-as-owner exclude each other: give only one")
        if accounts is not None and not as_owner:
            raise InputError("--users maps owners to accounts, so it needs --run-as-owner")
        if as_owner and os.geteuid() != 0:
            raise InputError(
                f"--run-as-owner: only a daemon that runs as root can do that, and this one runs as "
                f"{_my_name()}; leave the option out (all jobs then run as that user), or start "
                "the daemon as root"
            )
        self._all = None if as_owner else job_user(run_as, allow_root=allow_root)

    def user_of(self, person: str) -> JobUser | None:
        """Return the user that runs a job of this person (the job's owner); None: the daemon's own user.

        Raises:
            OwnerError: the person has no account on this node, or the account may not run jobs.
            AccountsAwayError: the account cannot be looked up now.
        """
        if not self._as_owner:
            return self._all
        if not person:
            raise OwnerError(
                "the broker did not send the job's owner, and this node runs each job as its owner"
            )
        name = self._accounts.get(person, person)
        if "\0" in name:
            raise OwnerError("the name of the job's owner contains a NUL character")
        try:
            user = _user(self._directory.account_of(name))
        except KeyError:
            raise OwnerError(
                f"{person} has no account on this node: there is no user {name!r}; create this user, or map "
                f"{person} to an existing one (rlsched node --users)"
            ) from None
        if user.uid == 0 and not self._allow_root:
            raise OwnerError(f"{person} would be root on this node, which runs no jobs as root")
        if user.uid < FIRST_UID and user.uid != 0 and person not in self._accounts:
            raise OwnerError(
                f"{name!r} is a system account on this node (uid {user.uid}, below {FIRST_UID}): "
                "jobs can run as this account only if `rlsched node --users` names it"
            )
        return msgspec.structs.replace(user, umask=UMASK)

    def check_reachable(self, directory: Path) -> None:
        """Check that the users who run jobs can reach the node's directory.

        Raises:
            InputError: a parent directory denies the users access.
        """
        if self._as_owner or self._all is not None:
            check_reachable(directory, self._all)

    def __str__(self) -> str:
        """Return a description for the log."""
        if self._as_owner:
            return "each job runs as the account of its owner"
        if self._all is not None:
            return f"every job runs as {self._all.name}"
        return f"every job runs as {_my_name()}, the user of this daemon, not as its owner"


def read_users(path: Path) -> dict[str, str]:
    """Read a file with lines `person = "account"`. Return the account name by person.

    Raises:
        InputError: the file cannot be read, has another format, or is writable by other users.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            found = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise InputError(f'--users {path}: expected lines `person = "account"`: {what}') from error
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(
            f"--users {path}: other users can write to this file, which maps users to accounts: "
            f"run `chown root {path}; chmod 644 {path}`"
        )
    for person, account in found.items():
        if not isinstance(account, str) or not account:
            raise InputError(
                f"--users {path}: {person}: expected the name of an account, got {account!r}; "
                "names with a dot need quotes"
            )
    return found


def job_user(run_as: str | None, *, allow_root: bool) -> JobUser | None:
    """Return the user that runs jobs; None: the daemon's own user.

    Args:
        run_as: Name of a user; None: no name was given.
        allow_root: Jobs may run as root.

    Raises:
        InputError: jobs would run as root without permission, the user does not exist, or the daemon must be
            root to run jobs as this user.
    """
    mine = os.geteuid()
    user = None
    if run_as is not None:
        try:
            user = _user(pwd.getpwnam(run_as))
        except KeyError:
            raise InputError(
                f"--run-as: there is no user {run_as!r} on this machine; give an existing user"
            ) from None
    if (mine if user is None else user.uid) == 0 and not allow_root:
        raise InputError(
            "this node would run every job as root: give --run-as USER, --run-as-owner, "
            "or --allow-root if all users may be root on this node"
        )
    if user is None or user.uid == mine:
        return None
    if mine != 0:
        raise InputError(
            f"--run-as {run_as}: only a daemon that runs as root can do that; leave the option out, or start "
            "the daemon as root"
        )
    return user


def check_reachable(directory: Path, user: JobUser | None) -> None:
    """Check that a user (None: every user) can reach a directory.

    Raises:
        InputError: the user has no access to a parent directory.
    """
    for above in directory.absolute().parents:
        found = above.stat() if above.exists() else None
        if found is None or found.st_mode & 0o001:
            continue
        if user is not None and found.st_uid == user.uid and found.st_mode & 0o100:
            continue
        who = "the owners of jobs" if user is None else user.name
        raise InputError(
            f"--dir {directory}: {who} cannot enter {above}, but jobs have files there; "
            "give another --dir, such as /var/lib/rlsched"
        )


def _my_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _user(found: pwd.struct_passwd) -> JobUser:
    return JobUser(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir, found.pw_shell)
