"""What the state machine sees of forecasts: what was said last, however old. It never waits for any."""

from __future__ import annotations

from collections.abc import Sequence

from rlsched.broker.events import ClientAsked
from rlsched.broker.state.jobs import Job
from rlsched.wire.messages import DryRun, ForecastReport, JobForecast


class Forecasts:
    """Nobody forecasts anything."""

    def of(self, job: Job) -> JobForecast | None:
        """What was last said of a live job."""
        del job
        return None

    def ask(self, asked: ClientAsked, question: DryRun) -> str:
        """Let it be answered later, or say in a line why it cannot."""
        del asked, question
        return "this broker makes no forecasts"

    def report(self) -> ForecastReport | None:
        """How it does; None: there is none."""
        return None


NO_FORECASTS = Forecasts()


def wired(times: Sequence[float]) -> list[float | None]:
    """Times as messages have them: None where they are not within the horizon."""
    return [time if time < float("inf") else None for time in times]
