"""Interface from which the state machine gets the latest forecasts. It never waits for new forecasts."""

from __future__ import annotations

from collections.abc import Sequence

from rlsched.broker.events import ClientAsked
from rlsched.broker.state.jobs import Job
from rlsched.wire.messages import DryRun, ForecastReport, JobForecast


class Forecasts:
    """Interface to a forecaster. This base class has no forecasts: a broker without forecaster uses it."""

    def latest_forecast(self, job: Job) -> JobForecast | None:
        """Return the latest forecast of a live job; None if there is none."""
        del job
        return None

    def ask(self, asked: ClientAsked, question: DryRun) -> str:
        """Accept a client's dry run, to be answered later. Return the reason for a refusal, else ""."""
        del asked, question
        return "this broker makes no forecasts"

    def report(self) -> ForecastReport | None:
        """Return the forecaster's report; None if there is no forecaster."""
        return None


NO_FORECASTS = Forecasts()


def wired(times: Sequence[float]) -> list[float | None]:
    """Return forecast times (Unix seconds) for a message. Infinity (beyond the horizon) becomes None."""
    return [time if time < float("inf") else None for time in times]
