"""A job as the broker lists it."""

from __future__ import annotations

from rlsched.wire.messages import JobInfo


def job(number: int, **more: object) -> JobInfo:
    told: dict[str, object] = {
        "job": number,
        "name": "resnet-50-imagenet",
        "user": "ada",
        "vc": "",
        "state": "running",
        "num_gpus": 8,
        "attempt": 1,
        "submit_s": 0.0,
        "predicted_s": 60.0,
        "start_s": 10.0,
        "end_s": None,
        "exit_code": None,
        "nodes": ["gpu-node-1", "gpu-node-2"],
        "gpus": [[0, 1, 2, 3], [0, 1, 2, 3]],
        "decided_by": "policy",
        "reason": "",
    }
    return JobInfo(**(told | more))  # type: ignore[arg-type]
