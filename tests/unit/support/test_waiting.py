"""`until` of the processes' tests: a time-out that progress restarts."""

from __future__ import annotations

import pytest

from tests.support.online import cluster
from tests.support.online.cluster import until


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cluster, "time", clock)
    return clock


def test_without_progress_the_wait_ends_at_its_time_out(clock: Clock) -> None:
    with pytest.raises(AssertionError, match="until it listens"):
        until(lambda: False, "it listens", 10.0)
    assert clock.now_s == pytest.approx(10.0, abs=0.1)


def test_a_process_that_goes_on_has_all_the_time_that_it_needs(clock: Clock) -> None:
    until(lambda: clock.now_s > 300.0, "it listens", 10.0, progress=lambda: int(clock.now_s) // 9)
    assert clock.now_s == pytest.approx(300.0, abs=0.1)


def test_a_process_that_stops_has_the_time_out_from_its_last_progress(clock: Clock) -> None:
    with pytest.raises(AssertionError):
        until(lambda: False, "it listens", 10.0, progress=lambda: min(clock.now_s, 50.0))
    assert clock.now_s == pytest.approx(60.0, abs=0.1)
