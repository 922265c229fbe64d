"""Decision records of a broker: written, found again, and never a reason to stop."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.soft_errors import SoftErrors
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.records import RecordLog
from rlsched.broker.machine.store_events import as_it_stands
from rlsched.broker.queries.memory import RecordMemory
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.record import DecisionRecord, PlanSeen
from rlsched.decide.recording import Recording
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.decisions.reading import StoreReader, read_records
from rlsched.decisions.segments import segment_files
from rlsched.errors import InputError
from rlsched.wire.messages import Explanation, Stats, StatsReport, Why
from tests.support.broker.hand import hello, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.decided import record


def test_records_are_written_and_found_again(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "decisions")
    assert log.last == []
    log.add([record(0), record(1)])
    log.close()
    again = RecordLog(tmp_path / "decisions")
    assert again.last == [record(0), record(1)]
    again.add([record(2)])
    again.close()
    assert [kept.number for kept in read_records(tmp_path / "decisions")] == [0, 1, 2]


def test_only_the_last_records_are_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsched.broker.journal.records.LAST_RECORDS", 30)
    log = RecordLog(tmp_path / "decisions")
    log.add([record(number) for number in range(40)])
    log.close()
    log = RecordLog(tmp_path / "decisions")
    assert [log.last[0].number, log.last[-1].number] == [10, 39]
    log.close()


def test_first_rows_are_written_at_once_and_later_ones_buffered(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "decisions")
    log.add([record(0)])
    log.step()
    assert (read_records(tmp_path / "decisions"), log.kept) == ([record(0)], 1)
    deadline_s = time.monotonic() + 60.0
    log.add([record(1)])
    while log.kept < 2:
        log.step()
        assert time.monotonic() < deadline_s
    assert read_records(tmp_path / "decisions") == [record(0), record(1)]


def test_records_go_to_tensorboard_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = RecordLog(tmp_path / "decisions", tmp_path / "tb")
    log.add([record(0)])
    log.flush()
    log.close()
    assert list((tmp_path / "tb").glob("events.out.tfevents.*"))


# ---- a full disk ------------------------------------------------------------------------------------------

CHILD = """
import json, resource, signal, sys
from pathlib import Path
from rlsched.broker.journal.records import RecordLog
from rlsched.broker.base.soft_errors import SoftErrors
from tests.support.decided import record

def room(size):  # a process may write no file beyond this: a full disk, but for the error's number
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

folder, lines = Path(sys.argv[1]), []
logdir = folder / "tb" if sys.argv[2] == "drawn" else None
troubles = SoftErrors(lines.append)
log = RecordLog(folder / "decisions", logdir, troubles)
for n in range(10):
    log.add([record(n)])
    log.flush()
room(100 if logdir is None else next(logdir.glob("events*")).stat().st_size + 100)
for n in range(10, 30):
    log.add([record(n)])
    log.flush()
full = dict(troubles.present), dict(troubles.lost)
room(resource.RLIM_INFINITY)
for n in range(30, 40):
    log.add([record(n)])
    log.flush()
log.close()
print(json.dumps([lines, full, [troubles.present, troubles.lost], log.kept]))
"""


def on_a_full_disk(
    folder: Path, kind: str
) -> tuple[list[str], list[dict[str, int]], list[dict[str, int]], int]:
    root = Path(__file__).resolve().parents[4]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), kind],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    lines, full, later, kept = json.loads(done.stdout)
    return lines, full, later, kept


def test_records_are_lost_only_while_the_disk_is_full(tmp_path: Path) -> None:
    lines, full, later, kept = on_a_full_disk(tmp_path, "written")
    first, last = lines
    assert "decisions: cannot keep decisions: File too large; decisions continue" in first
    lost = full[1]["written"]
    assert lost > 15
    assert list(full[0]) == ["written"]
    assert last.endswith(f"decisions are kept again; {lost} were lost")
    assert later == [{}, {"written": lost}]
    numbers = [one.number for one in read_records(tmp_path / "decisions")]
    assert len(numbers) == kept == 40 - lost
    assert numbers == [*range(kept - 10), *range(30, 40)], "no partial record between them"


def test_curves_continue_once_the_disk_has_space(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from rlsched.board.reader import read_runs

    lines, full, later, _ = on_a_full_disk(tmp_path, "drawn")
    first, last = [line for line in lines if "TensorBoard" in line]
    assert "tb: cannot draw for TensorBoard: " in first
    assert "File too large" in first
    assert "drawn" in full[0]
    assert "curves for TensorBoard are drawn again" in last
    assert later[0] == {}
    points = read_runs(tmp_path / "tb")["."].scalars["time/decision_p50_us"]
    steps = [step for step, _ in points]
    assert steps[:10] == list(range(1, 11))
    assert steps[-10:] == list(range(31, 41))


def test_file_that_cannot_be_opened_is_logged_once_and_retried(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    lines: list[str] = []
    log = RecordLog(tmp_path / "folder" / "decisions", soft_errors=SoftErrors(lines.append))
    log.add([record(0)])
    log.add([record(1), record(2)])
    assert log.last == []
    (line,) = lines
    assert line.endswith("cannot keep decisions: Not a directory; decisions continue")
    assert log.soft_errors.lost == {"written": 3}
    (tmp_path / "folder").unlink()
    (tmp_path / "folder").mkdir()
    log.add([record(3)])
    log.flush()
    assert [one.number for one in read_records(log.folder)] == [3]
    assert lines[1:] == [f"{log.folder}: decisions are kept again; 3 were lost"]


def test_broker_runs_on_if_its_log_cannot_be_written_either(tmp_path: Path) -> None:
    def full(line: str) -> None:
        raise OSError(28, "No space left on device", line)

    (tmp_path / "file").write_text("")
    log = RecordLog(tmp_path / "file" / "decisions", soft_errors=SoftErrors(full))
    log.add([record(0)])
    assert log.soft_errors.lost == {"written": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: needs root")
def test_small_disk_that_other_files_fill(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounts a small disk: {mounted.stderr.decode().strip()}")
    try:
        lines: list[str] = []
        log = RecordLog(disk / "decisions", soft_errors=SoftErrors(lines.append))
        log.add([record(0)])
        log.flush()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            file.writelines(bytes(4096) for _ in range(100))
        many = [record(number) for number in range(1, 100)]
        log.add(many)
        log.flush()
        assert log.soft_errors.lost == {"written": 99}
        assert "No space left on device" in lines[0]
        filler.unlink()
        log.add([record(100)])
        log.flush()
        assert [one.number for one in read_records(log.folder)] == [0, 100]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_unwritable_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write event files here: Not a directory"):
        RecordLog(tmp_path / "decisions", tmp_path / "file" / "tb")


# ---- a wrong record ---------------------------------------------------------------------------------------


def test_record_that_cannot_be_packed_loses_no_other(tmp_path: Path) -> None:
    broken = msgspec.structs.replace(record(1), prices={"x": object()})
    log = RecordLog(tmp_path / "decisions")
    log.add([record(0), broken, record(2)])
    log.flush()
    assert [one.number for one in read_records(log.folder)] == [0, 2]
    assert (log.kept, log.soft_errors.lost) == (2, {"packed": 1})


def test_nan_and_infinity_are_kept_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    nan = float("nan")
    plan = PlanSeen(how="later", wait_s=math.inf, worth=nan)
    log = RecordLog(tmp_path / "decisions", tmp_path / "tb")
    log.add([msgspec.structs.replace(record(0), plans=[plan], prices={"energy": nan}, took_us=nan)])
    log.flush()
    log.close()
    assert log.soft_errors.lost == {}
    assert len(read_records(log.folder)) == 1


def test_failure_to_record_leaves_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ClusterState.from_spec(ClusterSpec.uniform(1, 4), OrderedQueue(Order()))

    def broken(_: Recording) -> bytes:
        raise ValueError("no queue")

    monkeypatch.setattr(Recording, "_queue", broken)
    decision = Recording(cluster, 0, 0.0, wanted=True).decision(Wait(), "policy", "x")
    assert (decision.action, decision.record) == (Wait(), None)
    assert decision.record_failed == "ValueError: no queue"


def invalid() -> DecisionRecord:
    """A record whose job is no number."""
    return msgspec.structs.replace(record(0), turn=[])


class Careless(Scheduler):
    """Starts the first waiting job. Its decisions have `record_failed`, or an invalid record."""

    name = policy_id = "careless"

    def __init__(self, failed: str) -> None:
        self._failed = failed

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        made = None if self._failed else invalid()
        action = start_action(state, partition, int(state.queue(partition)[0]))
        return Decision(action=action, source="rule", record=made, record_failed=self._failed)


@pytest.mark.parametrize(("failed", "kind"), [("ValueError: no queue", "made"), ("", "remembered")])
def test_decision_with_an_invalid_record_is_carried_out(tmp_path: Path, failed: str, kind: str) -> None:
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        started_with(journal, failed, kind)


def started_with(journal: Journal, failed: str, kind: str) -> None:
    broker = HandBroker(Careless(failed), journal)
    broker.says("n0", hello("n0"))
    for _ in range(3):
        broker.ask(submit())
    assert [state(broker, job) for job in (1, 2, 3)] == ["launching"] * 3
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert stats.records is not None
    assert stats.records.lost == {kind: 3}
    assert list(stats.records.troubles) == [kind]
    assert isinstance(broker.ask(Why(job=1)), Explanation)


def test_memory_skips_invalid_records() -> None:
    memory = RecordMemory([invalid(), record(1)])
    found = memory.last_record(5, ["shared"])
    assert found is not None
    assert found.number == 1


def test_store_that_starts_later_knows_the_current_policy(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        broker = HandBroker(load_scheduler("fifo-backfill"), journal)
        broker.says("n0", hello("n0", 4))
        jobs = [broker.ask(submit(4)), broker.ask(submit(1))]
        assert len(jobs) == 2
        log = RecordLog(tmp_path / "decisions")
        assert log.begins()
        log.add([], as_it_stands(broker.state))
        log.close()
        assert not log.begins()
        reader = StoreReader(tmp_path / "decisions")
        reader.refresh()
        now_s = broker.now_s
    timeline = reader.timeline
    assert [(node.num_gpus, node.changes[-1][1]) for node in timeline.nodes.values()] == [(4, "up")]
    assert [job.job for job in timeline.queue_at(now_s)] == ["2"]
    (running,) = timeline.running_at(now_s)
    assert (running.job.job, running.number, running.nodes, running.share_milli) == ("1", 1, ["n0"] * 4, 1000)


def test_restarted_broker_removes_old_rows_but_no_running_job(tmp_path: Path) -> None:
    """The rows have times of 1970, so that all of them are older than a day."""
    folder = tmp_path / "decisions"
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        broker = HandBroker(load_scheduler("fifo-backfill"), journal)
        with closing(RecordLog(folder, keep_days=1.0)) as log:
            log.begin_with(as_it_stands(broker.state))
            broker.says("n0", hello("n0", 4))
            broker.ask(submit(3))
            broker.ask(submit(4))
            for kept in broker.records:
                log.add(kept.records, kept.happened)
        again = HandBroker(load_scheduler("fifo-backfill"), journal)
        with closing(RecordLog(folder, keep_days=1.0)) as log:
            log.begin_with(as_it_stands(again.state))
            again.ask(submit(1))
            for kept in again.records:
                log.add(kept.records, kept.happened)
            log.flush()
            before = StoreReader(folder)
            before.refresh()
            log.step()
    after = StoreReader(folder)
    after.refresh()
    names = [path.name for path in segment_files(folder, "jobs")]
    assert names == ["jobs-000002.arrow"]
    assert before.numbers.tolist()[: -len(after)]
    assert before.numbers.tolist()[-len(after) :] == after.numbers.tolist()
    for reader in (before, after):
        timeline = reader.timeline
        assert [job.job for job in timeline.queue_at(again.now_s)] == ["2"]
        assert [one.job.job for one in timeline.running_at(again.now_s)] == ["1", "3"]
        levels = timeline.curves(np.array([again.now_s]))
        counts = [levels[name][0] for name in ("busy_gpus", "gpus", "waiting 2 to 8 GPUs")]
        assert counts == [4.0, 4.0, 1.0]
