"""Comparison of runs under models of speed and power."""

from __future__ import annotations

import numpy as np

from rlsched_envs.sim.job_table import JobTable


def check_equal(one: JobTable, two: JobTable) -> None:
    np.testing.assert_array_equal(one.start_s, two.start_s)
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.gpus == two.gpus
    assert one.energy is not None
    assert two.energy is not None
    np.testing.assert_array_equal(one.energy.job_j, two.energy.job_j)
    assert one.energy.cluster_j == two.energy.cluster_j
    assert one.log is not None
    assert two.log is not None
    assert one.log.books is not None
    assert two.log.books is not None
    for mine, theirs in zip(one.log.books, two.log.books, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def check_books(table: JobTable) -> None:
    """Attempts' energy adds up to their jobs', shares of a GPU never exceed it, and a gang is complete."""
    log, energy, trace = table.log, table.energy, table.trace
    assert log is not None
    assert log.books is not None
    assert energy is not None
    books, length_s = log.books, log.end_s - log.start_s
    per_job = np.bincount(log.job, books.energy_j, minlength=len(trace))
    np.testing.assert_allclose(per_job, energy.job_j, rtol=1e-9)
    assert (np.diff(log.gpu_at) == trace.num_gpus[log.job]).all()
    for integral in (books.share_s, books.used_s, books.clock_s):
        assert (integral <= length_s * (1 + 1e-9)).all()
        assert (integral >= 0).all()
    assert (books.used_s <= length_s * (1 + 1e-9)).all()
    done_s = np.bincount(log.job, log.useful_s, minlength=len(trace))
    np.testing.assert_allclose(done_s[~table.rejected], trace.duration_s[~table.rejected], rtol=1e-9)
