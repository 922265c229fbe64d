"""The account that a job runs under, by its user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from rlsched.errors import InputError
from rlsched_node.isolation.user import JobUsers, OwnerError, read_users

ADA = pwd.struct_passwd(("ada", "x", 4711, 4712, "", "/home/ada", "/bin/sh"))
SYSTEM = pwd.struct_passwd(("backup", "x", 34, 34, "", "/var/backups", "/bin/sh"))
ROOT = pwd.struct_passwd(("root", "x", 0, 0, "", "/root", "/bin/sh"))


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three accounts, on which this process is root."""
    known = {account.pw_name: account for account in (ADA, SYSTEM, ROOT)}
    monkeypatch.setattr(pwd, "getpwnam", known.__getitem__)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_job_runs_as_the_account_with_its_users_name() -> None:
    user = JobUsers(as_owner=True).user_of("ada")
    assert user is not None
    assert (user.name, user.uid, user.gid, user.umask) == ("ada", 4711, 4712, 0o022)
    assert user.environment()["HOME"] == "/home/ada"


def test_file_maps_users_to_accounts() -> None:
    users = JobUsers(as_owner=True, accounts={"Ada Lovelace": "ada", "spool": "backup", "boss": "root"})
    assert [users.user_of(person).name for person in ("Ada Lovelace", "spool")] == ["ada", "backup"]  # type: ignore[union-attr]
    with pytest.raises(OwnerError, match="boss would be root"):
        users.user_of("boss")


@pytest.mark.parametrize(
    ("person", "line"),
    [
        ("eve", "eve has no account on this node: there is no user 'eve'"),
        ("../ada", "there is no user '../ada'"),
        ("backup", r"a system account on this node \(uid 34, below 1000\)"),
        ("root", "root would be root on this node"),
        ("", "the broker did not send the job's owner"),
        ("ada\0root", "NUL"),
    ],
)
def test_refused_user_gets_the_reason(person: str, line: str) -> None:
    with pytest.raises(OwnerError, match=line):
        JobUsers(as_owner=True).user_of(person)


def test_root_is_allowed_if_configured() -> None:
    user = JobUsers(as_owner=True, allow_root=True).user_of("root")
    assert user is not None
    assert user.uid == 0


def test_only_root_can_run_jobs_as_other_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="--run-as-owner: only a daemon that runs as root can do that"):
        JobUsers(as_owner=True)


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(InputError, match="--run-as and --run-as-owner exclude each other"):
        JobUsers("ada", as_owner=True)
    with pytest.raises(InputError, match="--users maps owners to accounts, so it needs --run-as-owner"):
        JobUsers("ada", accounts={})


def test_without_users_all_jobs_run_as_one_account() -> None:
    users = JobUsers("ada")
    assert (users.user_of("eve"), str(users)) == (users.user_of(""), "every job runs as ada")
    assert "not as its owner" in str(JobUsers(allow_root=True))


@pytest.mark.parametrize(
    ("text", "mode", "line"),
    [
        ("ada = 3", 0o644, "ada: expected the name of an account, got 3"),
        ("ada.lovelace = 'ada'", 0o644, "ada: expected the name of an account, got {'lovelace'"),
        ("ada", 0o644, "expected lines `person"),
        ("ada = 'ada'", 0o666, "other users can write to this file"),
    ],
)
def test_invalid_file_of_users_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, mode: int, line: str
) -> None:
    monkeypatch.setattr(os, "geteuid", os.getuid)
    path = tmp_path / "users.toml"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(InputError, match=line) as caught:
        read_users(path)
    assert len(str(caught.value).splitlines()) == 1


def test_file_of_users_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", os.getuid)
    path = tmp_path / "users.toml"
    path.write_text('"ada.l" = "ada"\nspool = "backup"\n')
    assert read_users(path) == {"ada.l": "ada", "spool": "backup"}
    with pytest.raises(InputError, match="No such file"):
        read_users(tmp_path / "none")
