"""Fixtures for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("others", deadline=None)
settings.load_profile("same")  # the same examples in each run; `make soak` draws `others`

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    # Two workers share two cores. With a thread for each core in both, torch and BLAS mostly wait for a
    # thread without a core, and small networks run ten times slower. Set before numpy is imported.
    os.environ.setdefault(_name, "1")

for _signal in (signal.SIGINT, signal.SIGHUP):
    # A suite in the background of a shell, or under `nohup`, ignores SIGINT, and so do its child processes.
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _signal == signal.SIGINT else signal.SIG_DFL)

import tests.golden  # noqa: E402, F401 - before anything imports numpy

pytest.register_assert_rewrite("tests.unit", "tests.contract", "tests.integration", "tests.support")
"""Modules shared by test files: their asserts are rewritten too, so that failures show values."""

os.environ.setdefault("RLSCHED_ALLOW_ROOT", "1")
"""Containers run tests as root, and nodes of the tests run only the tests' jobs."""

ROOT = Path(__file__).resolve().parent.parent


def _shared_data() -> Path:
    return (ROOT / os.environ.get("RLSCHED_DATA", "../shared")).resolve()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the shared data, so that `-m shared_data` finds it."""
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared_data)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests by name that need the shared data if they are missing."""
    if item.get_closest_marker("shared_data") and not (_shared_data() / "traces").is_dir():
        pytest.skip(f"shared_data: no traces in {_shared_data()} (set RLSCHED_DATA)")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the shared data (`RLSCHED_DATA`, default `../shared`); tests are skipped without it."""
    path = _shared_data()
    if not (path / "traces").is_dir():
        pytest.skip(f"shared_data: no traces in {path} (set RLSCHED_DATA)")
    return path


@pytest.fixture(scope="session", autouse=True)
def _sb3_logs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep Stable-Baselines3 from making a folder in /tmp for each model that a test trains."""
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.mktemp("sb3"))


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> Iterator[None]:
    """Fail a test that leaves signal handlers behind: the next test runs in this process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, was in zip(numbers, before, strict=True):
        signal.signal(number, was)
    assert after == before, "a signal handler was left behind"
