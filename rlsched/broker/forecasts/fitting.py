"""Fits of the boosting model in the background. Each fit has its own process, and a thread that waits for it.

The process is needed because a fit takes seconds, can hold the GIL, and can hang. The broker's loop passes
the training set, and later collects the model; it never waits.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from rlsched.broker.state.predictions import Predictions
from rlsched.errors import RlschedError
from rlsched.workload.predict.boosting import HazardModel
from rlsched.workload.predict.distribution import Floats
from rlsched.workload.predict.predictor import TrainingSet
from rlsched.yielding import background_command

LIMIT_S = 3600.0
"""Time-out for a fit, seconds. The largest fit (20,000 jobs) takes only seconds on an idle core."""
RETRY_S = 60.0
MAX_RETRY_S = 3600.0
"""Maximum delay from a failed fit to the next attempt, seconds. The delay doubles with every failure."""
_JOIN_S = 5.0
_WARM_ROWS = 64


class FitError(RlschedError):
    """A fit failed."""


def fit_command(limit_s: float) -> list[str]:
    """Return the command that starts a fitting process. `limit_s`: time-out of the fit, seconds."""
    module = "rlsched.workload.predict.fit_process"
    return background_command(module, str(max(1, round(limit_s))))


class Fits:
    """Fits the boosting model again whenever a fit is due. The loop calls `step`, which never waits.

    Args:
        predictions: Run-time predictors of the broker. They receive each fitted model, or the error.
        say: Function that logs a line.
        command: Function that returns the command of the fitting process for a time-out in seconds.
        limit_s: Time-out for a fit, seconds.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(
        self,
        predictions: Predictions,
        say: Callable[[str], None],
        *,
        command: Callable[[float], Sequence[str]] = fit_command,
        limit_s: float = LIMIT_S,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._predictions, self._say = predictions, say
        self._command, self._limit_s, self._elapsed = command, limit_s, elapsed
        self._fit: _Fit | None = None
        self._retry_s = RETRY_S
        self._not_before_s = -float("inf")

    def step(self, now_s: float) -> None:
        """Collect a finished fit, and start a fit if one is due. `now_s`: the broker's time, Unix seconds."""
        if self._fit is not None and self._fit.done.is_set():
            self._pick_up(self._fit, now_s)
            self._fit = None
        if self._fit is None and self._elapsed() >= self._not_before_s and self._predictions.fit_due():
            training = self._predictions.training(now_s)
            try:
                self._fit = _Fit(training, self._command(self._limit_s), self._limit_s)
            except RuntimeError as error:
                self._failed(f"no thread can be started: {error}")

    def close(self) -> None:
        """Cancel a running fit."""
        if self._fit is not None:
            self._fit.cancel()

    def _pick_up(self, fit: _Fit, now_s: float) -> None:
        if fit.model is not None:
            self._predictions.install(fit.model, now_s)
            self._retry_s = RETRY_S
            self._tell(f"boosting fitted on {fit.jobs:,} jobs in {fit.took_s:.1f} s")
        else:
            self._failed(fit.error)

    def _failed(self, why: str) -> None:
        self._predictions.fit_failed(why)
        self._not_before_s = self._elapsed() + self._retry_s
        self._tell(f"a fit failed: {why}; next try in {self._retry_s:,.0f} s")
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the log is no longer read
            self._say(f"predictions: {line}")


class _Fit:
    """One fit: a process, and the thread that writes its input and waits for it.

    Attributes:
        done: Set when the fit has returned a model or an error.
    """

    def __init__(self, training: TrainingSet, command: Sequence[str], limit_s: float) -> None:
        self.done = threading.Event()
        self.model: HazardModel | None = None
        self.error = ""
        self.took_s = 0.0
        self.jobs = len(training.rows)
        self._training, self._command, self._limit_s = training, list(command), limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="fit", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Kill the process, and wait until it has ended."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            self.model = self._fitted()
        except (FitError, OSError, subprocess.SubprocessError) as error:
            self.error = str(error)
        except Exception as error:  # unpickling a damaged result may raise anything
            self.error = f"the result of the fit cannot be used: {error!r}"
        self.took_s = time.monotonic() - began_s
        self.done.set()

    def _fitted(self) -> HazardModel:
        training = pickle.dumps(self._training.arguments(), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            if self._cancelled:
                raise FitError("cancelled")
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C reaches only the broker, which ends this process
            )
        with self._process as process:
            try:
                result, said = process.communicate(training, timeout=self._limit_s)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise FitError(f"the fit took longer than {self._limit_s:g} s") from error
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            last = said.decode(errors="replace").strip().splitlines()[-1:]
            raise FitError(
                f"the fitting process ended with exit code {process.returncode}: "
                f"{' '.join(last) or 'no message'}"
            )
        return _checked(pickle.loads(result), self._training.rows[-_WARM_ROWS:])  # from our own child


def _checked(model: object, features: list[Floats]) -> HazardModel:
    """Return `model` if its predictions for sample jobs are distributions of run times.

    Args:
        model: The object that the fitting process returned.
        features: Features of each sample job.

    Raises:
        FitError: the object is not a model, or the probabilities of a prediction do not sum to 1.
    """
    if not isinstance(model, HazardModel):
        raise FitError(f"expected a HazardModel, got {type(model).__name__}")
    rows = model.probabilities(np.stack(features))
    if not (abs(rows.sum(axis=1) - 1.0) < 1e-6).all():
        raise FitError("expected probabilities that sum to 1 for each job, got other sums from the model")
    return model


def child_environment() -> dict[str, str]:
    """Return this process's environment, with the same import path and one OpenMP thread."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
