"""Submits a round's jobs to Slurm in a separate process, which may be killed: `PLAN ACKNOWLEDGED`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 60.0


def main(plan: str, acknowledged: str) -> None:
    """Submit jobs that are not yet acknowledged, and cancel the ones marked so in the plan."""
    known = {line.split()[0] for line in Path(acknowledged).read_text().splitlines()}
    with open(acknowledged, "a") as log:
        for token, gpus, script, cancelled in json.loads(Path(plan).read_text()):
            if token in known:
                continue
            job = _sbatch(token, gpus, script)
            print(token, job, file=log, flush=True)
            if cancelled:
                subprocess.run(["scancel", job], check=False, capture_output=True)


def _sbatch(token: str, gpus: int, script: str) -> str:
    """The job number that sbatch prints; retried without an answer, as a user would."""
    size = ["--nodes=2", "--gres=gpu:4"] if gpus > 4 else ["--nodes=1", f"--gres=gpu:{gpus}"]
    words = ["sbatch", "--parsable", "--requeue", "--output=/dev/null", f"--job-name={token}", *size]
    until_s = time.monotonic() + PATIENCE_S
    while True:
        asked = subprocess.run(
            words, input=f"#!/bin/sh\n{script}", capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            return asked.stdout.strip()
        print(asked.stderr, file=sys.stderr, flush=True)
        if time.monotonic() > until_s:
            sys.exit(1)
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
