"""A broker that is away: every job ends by itself, with its own exit code.

`tests/property/test_preempting_broker.py` has brokers that are away for an hour, by a clock that is moved.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.online.cluster import Cluster, all_up, until

pytestmark = pytest.mark.slow


def test_jobs_outlast_their_broker(tmp_path: Path) -> None:
    options = ("--lease-s", "2", "--policy", "fifo-backfill", "--prediction", "running-mean")
    cluster = Cluster(tmp_path, broker_options=options)
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    script = f"echo $RLSCHED_JOB.$RLSCHED_ATTEMPT >> {ran}; until [ -e {gate} ]; do sleep 0.05; done; exit $0"
    codes = [0, 3, 0, 17, 1, 0, 99]
    try:
        with cluster.client() as client:
            all_up(client)
            jobs = [client.submit(["sh", "-c", script, str(code)]) for code in codes]
            timed = client.submit(["sh", "-c", script, "0"], lost_after_s=6.0)
            until(lambda: all(job.state == "running" for job in client.jobs()), "all run")
            cluster.kill("broker")
            until(
                lambda: "fenced" in cluster.log("n0") + cluster.log("n1"),
                "the job with a time has been ended",
            )
            gate.touch()
            cluster.start("broker")
            infos = [client.wait(job) for job in jobs]
            assert [(info.exit_code, info.attempt) for info in infos] == [(code, 1) for code in codes]
            assert client.wait(timed).attempt == 2, "it was queued again, as it was submitted to be"
        starts = sorted(ran.read_text().split())
        assert starts == sorted([*(f"{job}.1" for job in jobs), f"{timed}.1", f"{timed}.2"])
    finally:
        cluster.close()
