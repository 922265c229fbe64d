"""Starts the operator's commands that power nodes down and up, and does not wait for them."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from rlsched.broker.events import PowerDone, PowerNode
from rlsched.broker.nodes.sleepers import SleepPlan
from rlsched.broker.server.site_command import SiteCommand
from rlsched.errors import InputError

AT_ONCE: Final = 16
"""Maximum number of commands that run at the same time; further commands wait."""


class PowerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that power nodes down and up, and the rules that decide when nodes sleep.

    Attributes:
        suspend_cmd: Command that powers a node down, split into words as by a shell. The node's name is
            appended.
        resume_cmd: Command that powers a node up, in the same form.
        sleep: Rules that decide when nodes sleep.
    """

    suspend_cmd: str
    resume_cmd: str
    sleep: SleepPlan

    def words(self, order: PowerNode) -> list[str]:
        """Return the program and arguments that carry out an order to power a node down or up.

        Raises:
            InputError: the operator's command is empty, or cannot be split into words.
        """
        option, text = f"--{order.order}-cmd", getattr(self, f"{order.order}_cmd")
        try:
            found = shlex.split(text)
        except ValueError as error:
            raise InputError(f"{option} {text!r}: {error}") from error
        if not found:
            raise InputError(f"{option}: expected a command, such as '/opt/site/power-{order.order}'")
        return [*found, order.node]


class PowerCommands:
    """Runs the commands that power nodes down and up, in order, and one at a time for each node.

    Running commands continue if the broker exits.

    Args:
        settings: The commands; None: no node sleeps.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(self, settings: PowerSettings | None, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._elapsed = settings, elapsed
        self._waiting: deque[PowerNode] = deque()
        self._running: dict[str, tuple[PowerNode, SiteCommand]] = {}
        self._over: list[PowerDone] = []

    def order(self, order: PowerNode) -> None:
        """Queue the command of an order to power a node down or up, unless the same order waits or runs."""
        running = self._running.get(order.node)
        if order not in self._waiting and (running is None or running[0] != order):
            self._waiting.append(order)
        self._begin()

    def step(self) -> list[PowerDone]:
        """Start queued commands, and kill commands that run too long. Return results since the last call."""
        for node, (order, command) in list(self._running.items()):
            error = command.error()
            if error is not None:
                del self._running[node]
                self._over.append(PowerDone(node, order.order, error))
        self._begin()
        over, self._over = self._over, []
        return over

    def _begin(self) -> None:
        for order in list(self._waiting):
            if len(self._running) >= AT_ONCE or self._settings is None:
                return
            if order.node not in self._running:
                self._waiting.remove(order)
                self._start(self._settings, order)

    def _start(self, settings: PowerSettings, order: PowerNode) -> None:
        sleep = settings.sleep
        most_s = sleep.suspend_timeout_s if order.order == "suspend" else sleep.resume_timeout_s
        try:
            command = SiteCommand(settings.words(order), most_s, self._elapsed)
        except OSError as error:
            why = f"cannot be run: {error.strerror or error}"
            self._over.append(PowerDone(order.node, order.order, why))
            return
        self._running[order.node] = order, command
