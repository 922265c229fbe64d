"""`history` and `account` on a real cluster, across a kill -9 of its broker."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from rlsched.broker.journal.checking import check
from rlsched.cli.shared.when import period_end_s, period_of
from rlsched.client.sums import sums
from tests.support.online.cluster import DEADLINE_S, Cluster, all_up, until


@pytest.mark.slow
def test_usage_of_jobs_survives_the_broker(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        with cluster.client() as client:
            all_up(client)
            began_s = time.time()
            jobs = [client.submit(["sh", "-c", f"exit {k % 2}"], num_gpus=2, name=f"j{k}") for k in range(4)]
            until(lambda: not client.jobs(), "all jobs have ended")
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
            rows, total = sums(client.usage(), ["user"], period_of, period_end_s)
            assert len(rows) == 1
            assert (total.jobs, total.outcomes["completed"], total.outcomes["failed"]) == (4, 2, 2)
            assert total.gpu_hours * 3600 == pytest.approx(sum(job.gpu_s for job in before[:-1]))
            by_hour, total = sums(client.usage(unfinished=True), ["hour"], period_of, period_end_s)
            assert total.gpu_hours * 3600 >= before[-1].gpu_s + sum(job.gpu_s for job in before[:-1])
            assert sum(row.gpu_hours for row in by_hour) == pytest.approx(total.gpu_hours, rel=1e-9)
            client.cancel(runs)
            until(lambda: client.job(runs).state == "cancelled", "it is cancelled")
            assert [job.job for job in client.history(states=["cancelled"])] == [runs]
    finally:
        cluster.close()


def snapshots(cluster: Cluster) -> list[int]:
    with closing(sqlite3.connect(cluster.journal)) as db:
        return [n for (n,) in db.execute("SELECT n FROM snapshots ORDER BY n")]


@pytest.mark.slow
def test_stopped_broker_continues_from_its_snapshot(tmp_path: Path) -> None:
    """Stopped, then killed, then with its snapshot damaged: the same jobs each time."""
    cluster = Cluster(tmp_path, broker_options=("--ended-s", "0"))
    try:
        with cluster.client() as client:
            all_up(client)
            done = client.submit(["true"], token="done")
            runs = client.submit(["sleep", "600"], num_gpus=4, token="runs")
            until(lambda: client.job(done).state == "completed", "the first job has ended")
            until(lambda: client.job(runs).state == "running", "the second job runs")
            known, why = client.job(done), client.why(done).summary
        cluster.signal("broker", signal.SIGTERM)
        assert cluster.running["broker"].wait(DEADLINE_S) == 0
        assert len(snapshots(cluster)) == 1
        for damaged in (False, False, True):
            if damaged:
                with closing(sqlite3.connect(cluster.journal)) as db, db:
                    db.execute("UPDATE snapshots SET crc = 0")
            cluster.start("broker")
            with cluster.client() as client:
                all_up(client)
                assert (client.job(done), client.why(done).summary) == (known, why)
                assert client.submit(["true"], token="done") == done
                assert client.submit(["true"], token="runs") == runs
                until(lambda: client.job(runs).state == "running", "the job still runs")
                assert client.job(runs).attempt == 1
                assert client.wait(client.submit(["true"])).state == "completed"
            cluster.kill("broker")
            assert ("is damaged: its checksum does not fit" in cluster.log("broker")) == damaged
        cluster.start("broker")
        report = check(cluster.journal)
        assert report.jobs == {"completed": 4, "running": 1}
        assert report.damage == []
        assert all("snapshot" in line for line in report.derived)
    finally:
        cluster.close()
