"""As whom jobs run: the daemon's own user, or one that a daemon of root is told."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import msgspec

from rlsched.errors import InputError


class JobUser(msgspec.Struct, frozen=True):
    """An account of this machine."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str

    def environment(self) -> dict[str, str]:
        """What a login of this user would have."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def job_user(run_as: str | None, *, allow_root: bool) -> JobUser | None:
    """As whom to run jobs; None: as the daemon's own user.

    Args:
        run_as: A user's name; None: nobody was named.
        allow_root: Jobs may run as root.

    Raises:
        InputError: jobs would run as root and may not, there is no such user, or only root can become it.
    """
    mine = os.geteuid()
    user = _account(run_as) if run_as is not None else None
    if (mine if user is None else user.uid) == 0 and not allow_root:
        raise InputError(
            "this node would run every job as root: give --run-as USER, or --allow-root "
            "if all who can submit may be root here"
        )
    if user is None or user.uid == mine:
        return None
    if mine != 0:
        raise InputError(
            f"--run-as {run_as}: only a node that is root can do that; leave it out, or start as root"
        )
    return user


def check_reachable(directory: Path, user: JobUser) -> None:
    """See that a user can come to a directory.

    Raises:
        InputError: some directory above it keeps it out.
    """
    for above in directory.absolute().parents:
        found = above.stat() if above.exists() else None
        if found is None or found.st_mode & 0o001 or (found.st_uid == user.uid and found.st_mode & 0o100):
            continue
        raise InputError(
            f"--dir {directory}: {user.name} cannot enter {above}, and jobs have files there; "
            "give a --dir that it can reach, such as /var/lib/rlsched"
        )


def _account(name: str) -> JobUser:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"--run-as: there is no user {name!r} on this machine; give one that is") from None
    return JobUser(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir, found.pw_shell)
