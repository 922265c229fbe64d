"""Accounts of this machine, looked up so that a directory service that hangs holds nothing else up.

A thread does the lookup, and the caller waits `WAIT_S` for it. Where it takes longer, or fails, the account
is the one that was found last. A name that was never found raises `AccountsAwayError`, and can be asked for
again.
"""

from __future__ import annotations

import pwd
import threading
from typing import Final

from rlsched.errors import RlschedError

WAIT_S: Final = 1.0
"""A lookup is waited for so long, if no other one hangs already."""
MOST_HANGING: Final = 8
"""Threads that wait for the directory service."""


class AccountsAwayError(RlschedError):
    """The machine does not say now who an account is."""


class Accounts:
    """Looks accounts up by name.

    Args:
        wait_s: Time to wait for an answer.
    """

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._known: dict[str, pwd.struct_passwd] = {}
        self._asked: dict[str, _Lookup] = {}

    def of(self, name: str) -> pwd.struct_passwd:
        """The account of this name.

        Raises:
            KeyError: there is none.
            AccountsAwayError: no answer came in time, and none is known from before.
        """
        hanging = sum(not lookup.done.is_set() for lookup in self._asked.values())
        lookup = self._asked.get(name)
        if lookup is None and hanging < MOST_HANGING:
            lookup = self._asked[name] = _Lookup(name)
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
                f"this node cannot find out who {name!r} is: its directory service does not answer "
                f"(`getent passwd {name}` asks it)"
            )
        return found


class _Lookup:
    """One lookup, in a thread of its own.

    Attributes:
        done: Set at its end.
        found: The account; None: there is no such account, or the lookup failed.
        failed: Whether the machine could not say which.
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
