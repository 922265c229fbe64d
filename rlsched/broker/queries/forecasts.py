"""Forecasts in the state machine's view: the latest ones, however old. The machine never waits for one."""

from __future__ import annotations

from collections.abc import Sequence

from rlsched.broker.events import ClientAsked
from rlsched.broker.state.jobs import Job
from rlsched.wire.messages import DryRun, ForecastReport, JobForecast


class Forecasts:
    """Forecasts of a broker without a forecaster. Other brokers use a class derived from this one."""

    def latest_forecast(self, job: Job) -> JobForecast | None:
        """Return the latest forecast of a live job; None: there is none."""
        del job
        return None

    def ask(self, asked: ClientAsked, question: DryRun) -> str:
        """Accept a question for a later answer. Return the reason for a refusal, else ""."""
        del asked, question
        return "this broker makes no forecasts"

    def report(self) -> ForecastReport | None:
        """Return the forecaster's report; None: there is no forecaster."""
        return None


NO_FORECASTS = Forecasts()


def wired(times: Sequence[float]) -> list[float | None]:
    """Return times for a message: None for a time beyond the horizon."""
    return [time if time < float("inf") else None for time in times]
