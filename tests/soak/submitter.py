"""Submits a round's jobs in a process that may be killed: `ADDRESS HOME PLAN ACKNOWLEDGED WORKLOAD`.

Each line on `ACKNOWLEDGED` is a job that the broker has acknowledged, so it is on disk. Jobs with a workload
are clients of the fake MPS on a node that shares by MPS.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlsched.client.client import Client
from tests.support.fake_mps import CLIENT


def main(address: str, home: str, plan: str, acknowledged: str, workload: str = "") -> None:
    """Submit the jobs and cancel the ones marked so in the plan."""
    with Client(address, home=home, timeout_s=60.0) as client, open(acknowledged, "a") as log:
        for token, gpus, script, cancelled in json.loads(Path(plan).read_text()):
            command = [*([CLIENT] if workload else []), "sh", "-c", script]
            job = client.submit(command, num_gpus=gpus, name=token, token=token, workload=workload)
            print(token, job, file=log, flush=True)
            if cancelled:
                client.cancel(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
