"""Short jobs leave so little memory, files and journal that many more would fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.endurance import endure
from tests.support.soak_size import times

JOBS = times(800)


@pytest.mark.soak
def test_short_jobs_leave_next_to_nothing(tmp_path: Path) -> None:
    found = endure(tmp_path, JOBS)
    assert (found.jobs, found.failed) == (JOBS, 0)
    growth = {name: found.growth_mib(name) for name in found.readings[-1].rss_mib}
    files = {name: found.growth_files(name) for name in found.readings[-1].files}
    assert max(growth.values()) < 25.0, growth
    assert max(files.values()) < 10, files
    assert found.compacted_mib < 4.0, "0.6 KB per job: its row of the table, and its run time for predictors"
