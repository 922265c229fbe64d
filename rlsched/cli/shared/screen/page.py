"""Pages of a live screen: text that is updated and can be scrolled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

if TYPE_CHECKING:
    from rlsched.cli.shared.screen.live import View
    from rlsched.cli.shared.screen.looking import Looking
    from rlsched.client.client import Client

_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1}
_PAGES: Final = {"page up": -1, "page down": 1, " ": 1}
_KEYS: Final = (("↑↓", "scroll"), ("q", "back"))


def foot(keys: Sequence[tuple[str, str]]) -> Text:
    """Return a line that lists keys and their actions."""
    line = Text()
    for key, what in keys:
        line.append(f" {key}", style="bold").append(f" {what} ", style="dim")
    return line


class Page(ABC):
    """A view with scrollable text below a title. Subclasses define the query, and the text for an answer.

    Args:
        title: First line of the page.
        back: View that the key `q` opens; None: `q` closes the screen.
        from_end: Whether to show the end first, and stay at the end as the text grows.
    """

    def __init__(self, title: str, back: View | None, *, from_end: bool = False) -> None:
        self._title, self._back, self._from_end = title, back, from_end
        self._top: int | None = None if from_end else 0
        self._most = self._height = 0

    @abstractmethod
    def text(self, found: Any, columns: int) -> list[Text]:
        """Return all lines of the text, even if they do not fit the screen."""

    def lines(self, found: Any, columns: int, height: int, now_s: float) -> list[Text]:  # noqa: ARG002
        """Return the title and the visible lines of the text."""
        text = self.text(found, columns)
        self._height = max(height - 1, 1)
        self._most = max(len(text) - self._height, 0)
        top = self._most if self._top is None else min(self._top, self._most)
        return [Text(self._title, style="bold"), *text[top : top + self._height]]

    def key(self, key: str, looking: Looking) -> View | None:  # noqa: ARG002
        """Scroll, or open the previous view."""
        if key in ("q", "escape"):
            return self._back
        step = _STEPS.get(key, 0) + _PAGES.get(key, 0) * self._height
        if step:
            now = self._most if self._top is None else min(self._top, self._most)
            top = min(max(now + step, 0), self._most)
            self._top = None if self._from_end and top == self._most else top
        return self  # type: ignore[return-value]  # a subclass defines fetch

    def foot(self) -> Text:
        """Return the last line of the screen: the available keys."""
        return foot(_KEYS if self._back is not None else (("↑↓", "scroll"), ("q", "quit")))


class ListPage(Page):
    """A page that shows a list of rows.

    Args:
        title: First line of the page.
        fetch: Function that requests the rows from the broker.
        render: Function that returns the rows as lines of the given width.
    """

    def __init__(
        self, title: str, fetch: Callable[[Client], Any], render: Callable[[Any, int], list[Text]]
    ) -> None:
        super().__init__(title, None)
        self.fetch, self._render = fetch, render

    def text(self, found: Any, columns: int) -> list[Text]:
        """Return the rows as lines."""
        return self._render(found, columns)
