"""Pages that `rlsched top` opens for a job: why it waits or runs where it does, and its last output."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from rlsched.cli.shared.screen.page import Page
from rlsched.cli.users.overview.picture import title
from rlsched.client.following import Tail, tail
from rlsched.terminal.visible import visible
from rlsched.wire.messages import Explanation, JobInfo

if TYPE_CHECKING:
    from rlsched.cli.shared.screen.live import View
    from rlsched.client.client import Client


class WhyPage(Page):
    """The page with the explanation that `rlsched why` prints."""

    def __init__(self, job: JobInfo, back: View) -> None:
        super().__init__(visible(f"why: job {title(job)}"), back)
        self._job = job.job

    def fetch(self, client: Client) -> Explanation:
        """Request the explanation from the broker."""
        return client.why(self._job)

    def text(self, found: Explanation, columns: int) -> list[Text]:
        """Return the explanation as lines, wrapped between words."""
        lines = [found.summary, *found.details]
        return [
            Text(part)
            for line in lines
            for part in wrap(visible(line), columns, initial_indent="- ", subsequent_indent="  ") or [""]
        ]


class LogsPage(Page):
    """The page with the last output of all ranks of a job, which is updated while the job runs."""

    def __init__(self, job: JobInfo, back: View) -> None:
        super().__init__(visible(f"output: job {title(job)}"), back, from_end=True)
        self._job = job.job

    def fetch(self, client: Client) -> Tail:
        """Request the job and its last output from the broker."""
        return tail(client, client.job(self._job))

    def text(self, found: Tail, columns: int) -> list[Text]:  # noqa: ARG002
        """Return the lines of the output; if there is no output, a line with the job's state."""
        if found.is_empty:
            return [Text(visible(f"no output: it is {found.job.state}: {found.job.reason}".rstrip(": ")))]
        return [Text(visible(line.decode(errors="replace"))) for line in found.lines()]
