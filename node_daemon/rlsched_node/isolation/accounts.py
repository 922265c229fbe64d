"""Looks up accounts of this machine. A directory service that hangs does not block the daemon.

Each lookup runs in its own thread, and the caller waits for a limited time. If the lookup fails or takes
longer, the caller gets the result of the last successful lookup of the name, or else `AccountsAwayError`.
"""

from __future__ import annotations

import pwd
import threading
from typing import Final

from rlsched.errors import RlschedError

WAIT_S: Final = 1.0
"""Maximum time to wait for a lookup, seconds. While an earlier lookup of any name is unanswered, callers
do not wait."""
MOST_HANGING: Final = 8
"""Maximum number of threads that wait for the directory service."""


class AccountsAwayError(RlschedError):
    """The directory service does not answer."""


class SystemAccounts:
    """Accounts of this machine by name.

    Args:
        wait_s: Maximum time to wait for a lookup, seconds.
    """

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._known: dict[str, pwd.struct_passwd] = {}
        self._asked: dict[str, _Lookup] = {}

    def account_of(self, name: str) -> pwd.struct_passwd:
        """Return the account with this name.

        Raises:
            KeyError: there is no such account.
            AccountsAwayError: no answer came in time, or the node has no thread for the lookup, and no
                earlier lookup found the account.
        """
        hanging = sum(not lookup.done.is_set() for lookup in self._asked.values())
        lookup = self._asked.get(name)
        if lookup is None and hanging < MOST_HANGING:
            try:
                lookup = self._asked[name] = _Lookup(name)
            except RuntimeError as error:  # the node has no process left for the thread
                if name not in self._known:
                    raise AccountsAwayError(f"this node cannot look up the user {name!r}: {error}") from error
        if lookup is not None and lookup.done.wait(0.0 if hanging else self._wait_s):
            del self._asked[name]
            if lookup.found is not None:
                self._known[name] = lookup.found
            elif not lookup.failed:
                self._known.pop(name, None)
                raise KeyError(name)
        found = self._known.get(name)
        if found is None:
            raise AccountsAwayError(
                f"this node cannot look up the user {name!r}: its directory service does not answer "
                f"(test it with `getent passwd {name}`)"
            )
        return found


class _Lookup:
    """One lookup, which runs in its own thread.

    Attributes:
        done: Set when the lookup has ended.
        found: The account; None if there is no such account, or the lookup failed.
        failed: Whether the lookup failed. Then it is unknown whether the account exists.
    """

    def __init__(self, name: str) -> None:
        self.done = threading.Event()
        self.found: pwd.struct_passwd | None = None
        self.failed = False
        self._name = name
        threading.Thread(target=self._run, name="account", daemon=True).start()

    def _run(self) -> None:
        try:
            self.found = pwd.getpwnam(self._name)
        except (KeyError, ValueError):  # ValueError: a name that no account can have
            pass
        except Exception:
            self.failed = True
        finally:
            self.done.set()
