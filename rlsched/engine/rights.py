"""Checks this user's permissions in Slurm, before any job is held."""

from __future__ import annotations

import os
import pwd
import re
import subprocess

from rlsched.errors import InputError

_WRITES = ("operator", "administrator")


def check_rights(config: dict[str, str]) -> None:
    """Check that this user can change other users' jobs: root, SlurmUser, or an Operator in accounting.

    Raises:
        InputError: the user has none of these rights, as far as this process can detect.
    """
    user, level = _level(config)
    if level not in _WRITES:
        raise InputError(
            f"user {user} may not release and place jobs of others: its admin level in Slurm is "
            f"{level or 'None'}; run as root or SlurmUser, or make it an Operator with sacctmgr"
        )


def check_sight(config: dict[str, str]) -> None:
    """Check that this user can read the jobs of other users, and all nodes.

    Raises:
        InputError: Slurm hides jobs or nodes from this user, as far as this process can detect.
    """
    private = {"jobs", "nodes"}.intersection(re.split(r"[,\s]+", config.get("PrivateData", "")))
    if not private:
        return
    user, level = _level(config)
    if level not in _WRITES:
        raise InputError(
            f"user {user} sees no {' and '.join(sorted(private))} of others (PrivateData of this Slurm): run "
            "as root or SlurmUser, or make it an Operator with sacctmgr"
        )


def _level(config: dict[str, str]) -> tuple[str, str]:
    """Return (name of this user, admin level of this user in Slurm, in lower case)."""
    uid = os.getuid()
    match = re.search(r"\((\d+)\)", config.get("SlurmUser", ""))
    if uid == 0 or (match is not None and int(match[1]) == uid):
        return "root", "administrator"
    user = pwd.getpwuid(uid).pw_name
    try:
        asked = subprocess.run(
            ["sacctmgr", "-nP", "show", "user", user, "format=AdminLevel"],
            capture_output=True,
            text=True,
            timeout=30.0,
            check=False,
        )
        level = asked.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        level = ""
    return user, level.lower()
