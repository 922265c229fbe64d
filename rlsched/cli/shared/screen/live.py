"""The main loop of a live screen: draws the current view, and passes keys to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rich.text import Text

from rlsched.cli.shared.screen.looking import Looking
from rlsched.cli.shared.screen.terminal import Terminal
from rlsched.terminal.visible import visible

if TYPE_CHECKING:
    from rlsched.client.client import Client

TICK_S = 1.0
"""Interval, seconds, at which the screen is redrawn without a new answer, so that the times on it advance."""


class View(Protocol):
    """Protocol of a view: content of the whole screen, made from data of the broker."""

    def fetch(self, client: Client) -> Any:
        """Request the view's data from the broker."""
        ...

    def lines(self, found: Any, columns: int, height: int, now_s: float) -> list[Text]:
        """Return the data `found` (from `fetch`) as up to `height` lines of up to `columns` characters."""
        ...

    def key(self, key: str, looking: Looking) -> View | None:
        """React to a key; return the view to show next, or None to close the screen."""
        ...

    def foot(self) -> Text:
        """Return the last line of the screen: the available keys, or a question to the user."""
        ...


def live(view: View, reach: Callable[[], Client], every_s: float) -> None:
    """Show a view, and the views that the user opens from it by keys, until the user closes the screen.

    `every_s`: interval between queries to the broker, seconds.
    """
    with Terminal() as terminal:
        looking = Looking(reach, every_s, terminal.wake)
        looking.begin()
        shown: View | None = view
        try:
            while shown is not None:
                terminal.draw(_page(shown, looking, *terminal.size))
                for key in terminal.keys(TICK_S):
                    shown = shown.key(key, looking) if shown is not None else None
        finally:
            looking.end()


def _page(view: View, looking: Looking, columns: int, height: int) -> list[Text]:
    """Return all lines of the screen.

    The view is at the top. Below it are an error or the result of a command, if any, and the available keys.
    """
    found = looking.last_answer(view.fetch)
    said = []
    if looking.trouble:
        age = f" · as of {time.strftime('%H:%M:%S', time.localtime(found[1]))}" if found else ""
        said.append(Text(visible(looking.trouble) + age, style="bold red"))
    elif looking.said:
        said.append(Text(visible(looking.said), style="bold"))
    room = max(height - 1 - len(said), 0)
    body = [Text("asking the broker")] if found is None else view.lines(found[0], columns, room, time.time())
    if not said or found is not None:
        body = body[:room] + [Text("")] * (room - len(body))
    return [*body, *said, view.foot()]
