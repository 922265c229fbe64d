"""A broker's process: it stands by where it is told to, serves, and ends at a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

from rlsched.broker.copying import Copies, Orders, copy_and_wait
from rlsched.broker.keys import KeyHome
from rlsched.broker.replay import JOURNAL_FILE
from rlsched.broker.serve import Broker, Settings, warmed_up
from rlsched.broker.standby import stand_by
from rlsched.broker.telling import Telling


def run_broker(
    settings: Settings,
    announce: Callable[[str], None],
    *,
    warn: Callable[[str], None] | None = None,
    stands_by: bool = False,
    copies: Copies | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: How it runs.
        announce: Gets the ready line, and what becomes of a standby.
        warn: Gets lines for the log after that; None: `announce` does.
        stands_by: Wait first until no other broker holds the journal.
        copies: Copy the journal of a broker elsewhere first, until it is taken over: then, or at SIGUSR1.

    Raises:
        SupersededError: a later broker of the cluster serves.
        RlschedError: as `Broker`, `stand_by` and `copy_and_wait`.
    """
    orders = Orders()
    broker: Broker | None = None

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        orders.stop = True
        if broker is not None:
            broker.stop()

    def promote(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        orders.promote = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGUSR1, promote)
    with ExitStack() as opened:
        if stands_by:
            path, warm = settings.directory / JOURNAL_FILE, warmed_up(settings)
            if copies is None:
                taken = stand_by(path, warm, announce, lambda: orders.stop)
            else:
                lost_after_s = settings.limits.lost_after_s
                taken = copy_and_wait(
                    path,
                    settings.address,
                    KeyHome(settings.keys),
                    warm,
                    copies,
                    lost_after_s,
                    announce,
                    orders,
                )
            if taken is None:
                return
            broker = Broker(settings, taken.open, say=warn or announce, warm=taken.warm)
            if taken.whom:
                announce(taken.line())
        else:
            broker = Broker(settings, say=warn or announce)
        opened.callback(broker.close)
        if copies is not None:
            telling = Telling(copies.of, KeyHome(settings.keys), broker.started, broker.supersede, announce)
            opened.callback(telling.close)
        if not orders.stop:
            announce(broker.ready_line())
            if broker.clock_line():
                announce(broker.clock_line())
            broker.serve()
