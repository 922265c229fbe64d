"""Accounts are looked up without blocking on a directory service that hangs."""

from __future__ import annotations

import pwd
import threading
import time
from collections.abc import Iterator

import pytest

from rlsched_node.isolation.accounts import MOST_HANGING, AccountsAwayError, SystemAccounts

ADA = pwd.struct_passwd(("ada", "x", 4711, 4712, "", "/home/ada", "/bin/sh"))


class Service:
    """A directory service that can hang."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0
        self.known = {"ada": ADA}
        self.error: Exception | None = None

    def look_up(self, name: str) -> pwd.struct_passwd:
        self.asked += 1
        assert self.answers.wait(30.0)
        if self.error is not None:
            raise self.error
        return self.known[name]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service()
    monkeypatch.setattr(pwd, "getpwnam", service.look_up)
    yield service
    service.answers.set()


def test_known_and_removed_accounts(service: Service) -> None:
    accounts = SystemAccounts()
    assert accounts.account_of("ada") == ADA
    with pytest.raises(KeyError):
        accounts.account_of("eve")
    del service.known["ada"]
    with pytest.raises(KeyError):
        accounts.account_of("ada")  # no job starts under a removed account


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
def test_failed_lookup_keeps_the_last_result(service: Service, error: Exception) -> None:
    accounts = SystemAccounts()
    assert accounts.account_of("ada") == ADA
    service.error = error
    assert accounts.account_of("ada") == ADA, "the last known account"
    with pytest.raises(AccountsAwayError):
        accounts.account_of("eve")
    service.error = None
    with pytest.raises(KeyError):
        accounts.account_of("eve")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_invalid_name_has_no_account(name: str) -> None:
    accounts = SystemAccounts(wait_s=30.0)
    for _ in range(2 * MOST_HANGING):
        with pytest.raises(KeyError):
            accounts.account_of(name)


def test_hanging_lookup_is_awaited_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = SystemAccounts(wait_s=0.2)
    assert accounts.account_of("ada") == ADA
    service.answers.clear()
    own_wait, waits = threading.Event.wait, list[float | None]()

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        waits.append(timeout)
        return own_wait(event, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", wait)
        for name in ("eve", "bob", *(f"u{k}" for k in range(20))):
            with pytest.raises(
                AccountsAwayError, match=f"the user '{name}': its directory service does not answer"
            ):
                accounts.account_of(name)
        assert accounts.account_of("ada") == ADA, "known accounts can still be used"
    assert waits.count(0.2) == 1
    assert service.asked <= 1 + MOST_HANGING
    service.answers.set()
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        try:
            accounts.account_of("bob")
        except KeyError:
            return
        except AccountsAwayError:
            continue
    raise AssertionError("it responds again, but no caller notices")
