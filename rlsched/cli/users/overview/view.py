"""The main view of `rlsched top`: the overview of the cluster, with a cursor on a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from rlsched.cli.shared.screen.looking import Looking
from rlsched.cli.shared.screen.page import foot
from rlsched.cli.users.overview.bars import Marks
from rlsched.cli.users.overview.overview_lines import overview
from rlsched.cli.users.overview.pages import LogsPage, WhyPage
from rlsched.cli.users.overview.picture import Picture, picture, title
from rlsched.terminal.visible import visible
from rlsched.wire.messages import JobInfo

if TYPE_CHECKING:
    from rlsched.cli.shared.screen.live import View
    from rlsched.client.client import Client

_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
_KEYS = (("↑↓", "job"), ("w", "why"), ("l", "logs"), ("c", "cancel"), ("q", "quit"))


class Overview:
    """The view of the whole cluster."""

    def __init__(self) -> None:
        self._marks = Marks()
        self._jobs: list[JobInfo] = []
        self._chosen: int | None = None
        self._at = 0
        self._to_cancel: JobInfo | None = None

    def fetch(self, client: Client) -> Picture:
        """Request the state of the cluster from its broker."""
        return picture(client)

    def lines(self, found: Picture, columns: int, height: int, now_s: float) -> list[Text]:
        """Return the overview, cut to the size of the screen."""
        self._jobs = [*found.running, *found.queue]
        numbers = [job.job for job in self._jobs]
        if self._chosen in numbers:
            self._at = numbers.index(self._chosen)
        elif self._chosen is not None:  # the chosen job has finished: choose the next one
            self._at = min(self._at, len(numbers) - 1)
            self._chosen = numbers[self._at] if numbers else None
        return overview(found, columns, height, now_s, self._marks, self._chosen)

    def key(self, key: str, looking: Looking) -> View | None:
        """Move the cursor, open a page, or cancel the job at the cursor; return the view to show next."""
        if self._to_cancel is not None:
            asked, self._to_cancel = self._to_cancel, None
            if key == "y":
                looking.order(lambda client: _cancelled(client, asked))
            return self
        looking.said = ""
        if key == "q":
            return None
        if key in _STEPS and self._jobs:
            step = _STEPS[key] if self._chosen is not None else 0
            self._at = min(max(self._at + step, 0), len(self._jobs) - 1)
            self._chosen = self._jobs[self._at].job
        elif key == "escape":
            self._chosen = None
        elif key in ("w", "l", "c", "enter"):
            return self._open(key, looking)
        return self

    def _open(self, key: str, looking: Looking) -> View:
        job = next((job for job in self._jobs if job.job == self._chosen), None)
        if job is None:
            looking.said = "choose a job with the arrow keys first"
        elif key == "c":
            self._to_cancel = job
        elif key == "l":
            return LogsPage(job, self)
        else:
            return WhyPage(job, self)
        return self

    def foot(self) -> Text:
        """Return the line of available keys, or the question whether to cancel the job."""
        if self._to_cancel is None:
            return foot(_KEYS)
        return Text(
            visible(f"cancel {_all_of(self._to_cancel)}? y: yes, any other key: no"), style="bold red"
        )


def _all_of(job: JobInfo) -> str:
    """Return a text that names the job or the array to cancel, for a question to the user."""
    return f"array {job.job} ({job.name}) with all its tasks" if job.num_tasks else f"job {title(job)}"


def _cancelled(client: Client, job: JobInfo) -> str:
    client.cancel(job.job)
    return f"{_all_of(job)}: cancelled"
