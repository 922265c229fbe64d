"""Events of jobs and nodes in the store of a broker whose disk was full for some time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlsched.decisions.reading import StoreReader
from rlsched.decisions.segments import segment_files

CHILD = """
import resource, sys
from pathlib import Path
from rlsched.broker.journal.records import RecordLog
from rlsched.decisions.schema import JobEvent, NodeChange
from tests.support.decided import record

def room(size):  # a process may write no file beyond this: a full disk, but for the error's number
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def write(number, *events):
    log.add([record(number)], events)
    log.flush()

def submitted(job, at_s):
    return JobEvent(time_s=at_s, kind="submit", job=job, num_gpus=1.0)

def started(job, at_s):
    return JobEvent(time_s=at_s, kind="start", job=job, num_gpus=1.0, attempt=1, nodes=["n0"], gpus=[0])

def ended(job, at_s):
    return JobEvent(time_s=at_s, kind="end", job=job, num_gpus=1.0, state="completed", run_s=1.0)

def node(state, at_s):
    return NodeChange(time_s=at_s, node="n0", num_gpus=8, state=state)

log, flood = RecordLog(Path(sys.argv[1])), int(sys.argv[2])
log.begin_with([node("up", 0.0)])
write(0, submitted("long", 1.0), started("long", 1.0), submitted("short", 2.0), started("short", 2.0))
room(100)
write(1, submitted("meanwhile", 3.0), started("meanwhile", 3.0))
write(2, ended("short", 4.0), submitted("waits", 4.0), node("drained", 4.0))
write(3, *(submitted(f"w{n}", 5.0) for n in range(flood)))
room(resource.RLIM_INFINITY)
write(4, submitted("later", 6.0))
assert log.soft_errors.lost == {"written": 3}
log.close()
"""


@pytest.fixture(params=[0, 3_000], ids=["few events", "more events than are kept"])
def flood(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_store_opened_again_after_a_full_disk_has_all_live_jobs(tmp_path: Path, flood: int) -> None:
    root = Path(__file__).resolve().parents[4]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(flood)], check=True, env=environment)
    waiting = {"waits", "later", *(f"w{number}" for number in range(flood))}

    whole = StoreReader(tmp_path)
    whole.refresh()
    assert whole.numbers.tolist() == [0, 4]
    assert {one.job.job for one in whole.timeline.running_at(6.0)} >= {"long", "meanwhile"}
    assert {job.job for job in whole.timeline.queue_at(6.0)} == waiting
    if not flood:  # else this event is too old to be kept
        assert whole.timeline.jobs["short"].end_s == 4.0
    assert [change[:2] for change in whole.timeline.nodes["n0"].changes] == [(0.0, "up"), (4.0, "drained")]

    first, _ = segment_files(tmp_path, "jobs")
    first.unlink()  # as the writer does at the limit
    rest = StoreReader(tmp_path)
    rest.refresh()
    assert {one.job.job for one in rest.timeline.running_at(6.0)} == {"long", "meanwhile"}
    assert {job.job for job in rest.timeline.queue_at(6.0)} == waiting
    assert rest.timeline.jobs["long"].attempts[0].start_s == 1.0
