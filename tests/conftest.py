"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    # Two workers have two cores. With a thread for each core in both, torch and BLAS mostly wait for a thread
    # that has no core, and small networks run ten times slower. It is set before numpy is imported.
    os.environ.setdefault(_name, "1")

for _signal in (signal.SIGINT, signal.SIGHUP):
    # A suite in the background of a shell, or under `nohup`, ignores one, and so would all that it starts.
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _signal == signal.SIGINT else signal.SIG_DFL)

import tests.golden  # noqa: E402, F401 - before anything imports numpy

pytest.register_assert_rewrite("tests.unit", "tests.contract", "tests.integration", "tests.support")
"""What test files share stands in modules beside them, whose asserts are explained as a test's own are."""

os.environ.setdefault("RLSCHED_ALLOW_ROOT", "1")
"""Containers run tests as root, and the jobs of the nodes that they start are the tests' own."""

ROOT = Path(__file__).resolve().parent.parent


def _shared_data() -> Path:
    return (ROOT / os.environ.get("RLSCHED_DATA", "../shared")).resolve()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for the shared data, so that `-m shared_data` finds it."""
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared_data)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip by name what needs the shared data where it is absent."""
    if item.get_closest_marker("shared_data") and not (_shared_data() / "traces").is_dir():
        pytest.skip(f"shared_data: no traces in {_shared_data()} (set RLSCHED_DATA)")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the shared data (`RLSCHED_DATA`, default `../shared`); tests are skipped without it."""
    path = _shared_data()
    if not (path / "traces").is_dir():
        pytest.skip(f"shared_data: no traces in {path} (set RLSCHED_DATA)")
    return path


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> Iterator[None]:
    """What a test runs puts the handlers of signals back: the next test's process is this one."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, was in zip(numbers, before, strict=True):
        signal.signal(number, was)
    assert after == before, "a handler of a signal was left behind"
