"""Choice of a run-time predictor by name, and predictions for a whole trace, cached on disk.

The default of a broker is the hedge, a mixture of several predictors. The default of a simulator is the hedge
for traces with users, job names or commands, else the running mean: without these data, rules perform no
better with the hedge (`python -m studies.policy.information confirm`).

The hedge takes a minute or two for a hundred thousand jobs. Its predictions are therefore stored in the
user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.installing import install_command
from rlsched.workload.predict.boosting import sklearn_installed
from rlsched.workload.predict.distribution import Floats, point_and_spread

if TYPE_CHECKING:
    from rlsched.workload.predict.at_submission import Progress
    from rlsched.workload.trace import Trace

RUNNING_MEAN: Final = "running-mean"
HEDGE: Final = "hedge"
KINDS: Final = (RUNNING_MEAN, HEDGE)
_UNREADABLE: Final = (OSError, ValueError, KeyError, EOFError, BadZipFile)
KEPT_UNUSED_DAYS: Final = 30
"""A cached file is removed after this number of days without use."""


def chosen_kind(kind: str | None) -> str:
    """Return the requested kind of predictor (one of `KINDS`), or the hedge for None.

    Raises:
        InputError: the kind is unknown, or the hedge was requested and scikit-learn is missing.
    """
    if kind not in (None, *KINDS):
        raise InputError(f"unknown --prediction {kind!r}; known: {', '.join(KINDS)}")
    if kind is not None:
        require(kind)
    return kind or HEDGE


def require(kind: str) -> None:
    """Check that a predictor can be used. Call this before other slow work.

    Raises:
        InputError: The predictor is the hedge, and scikit-learn is missing.
    """
    if kind == HEDGE and not sklearn_installed():
        raise InputError(
            "predicting run times by the hedge (the default) needs scikit-learn, which is not installed: "
            f"{install_command('predict')}, or use --prediction running-mean, which predicts other run times"
        )


def kind_for(trace: Trace, kind: str | None = None) -> str:
    """Return the kind of predictor for a trace (one of `KINDS`).

    The result is the running mean if `kind` is None and no job has a user, a name or a command, otherwise
    `chosen_kind(kind)`. If `kind` is None, the hedge is returned even if scikit-learn is missing: call
    `require` before the first prediction.

    Raises:
        InputError: the kind is unknown, or the hedge was requested and scikit-learn is missing.
    """
    if kind is None and not any(np.any(texts != "") for texts in _told(trace)):
        return RUNNING_MEAN
    return chosen_kind(kind)


def _told(trace: Trace) -> tuple[NDArray[np.str_], ...]:
    """Return the users, names and commands of the jobs of a trace."""
    return trace.user, trace.job_name, trace.extra.get("x_command", np.full(len(trace), ""))


def hedge_predictions(
    trace: Trace, end_s: Floats, *, progress: Progress | None = None
) -> tuple[Floats, Floats]:
    """Predict every job at its submission by the hedge. Predictions are cached in the user's cache folder.

    Args:
        trace: J jobs.
        end_s: (J,) end of each job in the history, nan if it never ended.
        progress: Function that is called with the finished fraction of the trace.

    Returns:
        (J,) predicted run times in s, at most the user's limit, and (J,) spreads.
    """
    from rlsched.workload.predict.at_submission import predict_at_submission

    path = _folder() / f"{_digest(trace, end_s)}.npz"
    with suppress(*_UNREADABLE), path.open("rb") as raw, np.load(raw) as file:
        found = file["predicted_s"], file["spread"]
        os.utime(path)
        return found
    said = predict_at_submission(trace, end_s, progress=progress)
    predicted_s, spread = point_and_spread(said.probabilities, trace.time_limit_s)
    with suppress(OSError):  # disk full, or folder not writable: the next call predicts again
        _keep(path, predicted_s, spread)
    return predicted_s, spread


def _folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rlsched" / "predictions"


def _keep(path: Path, predicted_s: Floats, spread: Floats) -> None:
    """Write predictions to a cache file atomically. Remove cache files unused for `KEPT_UNUSED_DAYS` days."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half_written = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    np.savez(half_written, predicted_s=predicted_s, spread=spread)
    half_written.replace(path)
    for other in path.parent.glob("*.npz"):
        if other.stat().st_mtime < time.time() - KEPT_UNUSED_DAYS * 86400.0:
            other.unlink(missing_ok=True)


def _digest(trace: Trace, end_s: Floats) -> str:
    """Return a digest of all inputs of the predictions: the jobs, the history, and the code of predictors."""
    hasher = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        hasher.update(source.read_bytes())
    for numbers in (trace.submit_s, trace.duration_s, trace.num_gpus, trace.time_limit_s, end_s):
        hasher.update(np.ascontiguousarray(numbers, np.float64).tobytes())
    for texts in (trace.job_id, trace.vc, *_told(trace)):
        hasher.update("\0".join(map(str, texts.tolist())).encode())
    return hasher.hexdigest()[:32]
