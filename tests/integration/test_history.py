"""`history` and `account` on a real cluster, over a kill -9 of its broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlsched.client.sums import sums
from tests.integration.cluster import Cluster, all_up, until


def test_what_jobs_have_used_survives_the_broker(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        with cluster.client() as client:
            all_up(client)
            began_s = time.time()
            jobs = [client.submit(["sh", "-c", f"exit {k % 2}"], num_gpus=2, name=f"j{k}") for k in range(4)]
            until(lambda: not client.jobs(), "all jobs are over")
            runs = client.submit(["sleep", "600"], num_gpus=4, name="runs")
            until(lambda: client.job(runs).state == "running", "the long job runs")
            before = client.history()
            used = sorted(client.usage(), key=repr)
            assert sorted(job.job for job in before[:-1]) == jobs
            assert (before[-1].job, before[-1].state, before[-1].end_s) == (runs, "running", None)
            assert all(
                job.end_s is not None and job.end_s > began_s and job.gpu_s > 0.0 for job in before[:-1]
            )
        cluster.kill("broker")
        cluster.start("broker")
        with cluster.client() as client:
            assert client.history()[:-1] == before[:-1]
            assert sorted(client.usage(), key=repr) == used
            rows, total = sums(client.usage(), ["user"], str)
            assert len(rows) == 1
            assert (total.jobs, total.outcomes["completed"], total.outcomes["failed"]) == (4, 2, 2)
            assert total.gpu_hours * 3600 == pytest.approx(sum(job.gpu_s for job in before[:-1]))
            client.cancel(runs)
            until(lambda: client.job(runs).state == "cancelled", "it is cancelled")
            assert [job.job for job in client.history(states=["cancelled"])] == [runs]
    finally:
        cluster.close()
