"""Forecasts as the state machine reads them: the latest, however old. It never waits for a forecast."""

from __future__ import annotations

from collections.abc import Sequence

from rlsched.broker.events import ClientAsked
from rlsched.broker.state.jobs import Job
from rlsched.wire.messages import DryRun, ForecastReport, JobForecast


class Forecasts:
    """Forecasts of a broker that makes none; a broker that makes some derives from this class."""

    def latest_forecast(self, job: Job) -> JobForecast | None:
        """Return the latest forecast of a live job."""
        del job
        return None

    def ask(self, asked: ClientAsked, question: DryRun) -> str:
        """Accept a question, to be answered later. Returns the reason if it is refused, else ""."""
        del asked, question
        return "this broker makes no forecasts"

    def report(self) -> ForecastReport | None:
        """Return the forecaster's report; None: there is no forecaster."""
        return None


NO_FORECASTS = Forecasts()


def wired(times: Sequence[float]) -> list[float | None]:
    """Return times for a message: None for a time beyond the horizon."""
    return [time if time < float("inf") else None for time in times]
