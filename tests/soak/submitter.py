"""Submits a round's jobs in a process of its own, which may be shot: `ADDRESS HOME PLAN ACKNOWLEDGED`.

A line on `ACKNOWLEDGED` says that the broker has said that a job is on disk.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlsched.client.client import Client


def main(address: str, home: str, plan: str, acknowledged: str) -> None:
    """Submit, and cancel what is to be cancelled."""
    with Client(address, home=home, timeout_s=60.0) as client, open(acknowledged, "a") as log:
        for token, gpus, script, cancelled in json.loads(Path(plan).read_text()):
            job = client.submit(["sh", "-c", script], num_gpus=gpus, name=token, token=token)
            print(token, job, file=log, flush=True)
            if cancelled:
                client.cancel(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
