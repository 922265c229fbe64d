"""Runs a broker's process: as a standby first if requested, then as the broker, until a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Timer
from types import FrameType

from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings, warmed_up
from rlsched.broker.standby.copying import Copies, CopyBounds, Orders, copy_and_wait
from rlsched.broker.standby.standby import stand_by
from rlsched.broker.standby.supersede_notice import Telling
from rlsched.compile.compiling import COMPILING
from rlsched.decide.policies.policy import Policy
from rlsched.signals import on_signals
from rlsched.transport.keys import KeyHome
from rlsched.transport.starting import Starting

SLOW_S = 5.0
"""Time from the begin of the broker's start until a log line explains why the start is slow, seconds."""


class _StoppedError(BaseException):
    """A signal arrived while the policy was loaded and compiled: end the broker's start at once."""


def run_broker(
    settings: BrokerSettings,
    announce: Callable[[str], None],
    *,
    warn: Callable[[str], None] | None = None,
    stands_by: bool = False,
    copies: Copies | None = None,
) -> None:
    """Run a broker, as a standby first if requested, until SIGTERM or SIGINT.

    Args:
        settings: Settings of the broker.
        announce: Function that prints the ready line and the progress of a standby.
        warn: Function that logs the lines after the ready line; None: `announce` prints them.
        stands_by: Whether to run as a standby until no other broker has the journal open or, with `copies`,
            until it takes over.
        copies: Source of the journal for a standby on another machine, which takes over if the primary fails,
            or on SIGUSR1. None: the standby uses the primary's journal file.

    Raises:
        SupersededError: a later broker (with a higher epoch) of the cluster serves.
        RlschedError: see `Broker`, `stand_by` and `copy_and_wait`.
    """
    orders = Orders()
    broker: Broker | None = None
    is_loading = False

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        orders.stop = True
        if broker is not None:
            broker.stop()
        elif is_loading:
            raise _StoppedError

    def promote(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        orders.promote = True

    with suppress(_StoppedError), ExitStack() as opened:
        opened.enter_context(on_signals(stop))
        opened.enter_context(on_signals(promote, [signal.SIGUSR1]))
        slow = _say_if_slow(settings, announce)
        opened.callback(slow.cancel)
        if stands_by:
            path, warm = settings.directory / JOURNAL_FILE, warmed_up(settings)
            slow.cancel()
            if copies is None:
                taken = stand_by(path, warm, announce, lambda: orders.stop)
            else:
                taken = copy_and_wait(
                    path,
                    settings.address,
                    KeyHome(settings.keys),
                    warm,
                    copies,
                    announce,
                    orders,
                    CopyBounds(settings.keeps, settings.ranks.half_life_s),
                )
            if taken is None:
                return
            broker = Broker(settings, taken.open, say=warn or announce, warm=taken.warm)
            if taken.previous:
                announce(taken.line())
        else:
            with Starting(settings.keys, settings.address) as word:
                word.report_step("it has just begun")
                COMPILING.tells = word.report_step
                is_loading = True
                try:
                    broker = Broker(settings, say=warn or announce, doing=word.report_step)
                finally:
                    COMPILING.tells, is_loading = None, False
            slow.cancel()
        opened.callback(broker.close)
        if copies is not None:
            telling = Telling(
                copies.of, KeyHome(settings.keys), broker.start_fact, broker.supersede, announce
            )
            opened.callback(telling.close)
        if not orders.stop:
            announce(broker.ready_line())
            if broker.clock_line():
                announce(broker.clock_line())
            broker.serve()


def _say_if_slow(settings: BrokerSettings, announce: Callable[[str], None]) -> Timer:
    """Start and return a timer that announces why the broker's start is slow; the caller cancels it."""
    name = Policy.of(settings.policy).name
    line = (
        f"rlsched broker is still starting: the first time on a machine, compiling policy {name} takes a "
        "minute or two"
    )
    timer = Timer(SLOW_S, announce, [line])
    timer.daemon = True
    timer.start()
    return timer
