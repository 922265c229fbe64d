"""Attacks of a job on its own records and on its shim, and their effect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlsched_node.adopt import adopt_attempts
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import Phase
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.steps import Exited
from rlsched_node.processes.store import OUTPUT_GONE, AttemptStore, LaunchRecord
from tests.support.online.ranks import KEY, collect, output, start

VANISHED = Exited(KEY, 137, "vanished")
FORGED = json.dumps({"exit_code": 0, "reason": "", "ended_s": 1.0})


@pytest.mark.parametrize("target", ["$RLSCHED_ATTEMPT_DIR", "$(dirname $(dirname $RLSCHED_ATTEMPT_DIR))"])
def test_job_that_removes_its_directory_harms_only_itself(
    ranks: LiveRanks, store: AttemptStore, target: str
) -> None:
    directory = start(ranks, store, "sh", "-c", f"echo out; rm -rf {target}; exit 3")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 3)
    assert output(directory) == "out\n", "its output has another name"
    assert not directory.job_path.exists()
    (directory.path / "output.log").unlink()
    assert directory.read_output(0, 99) == (OUTPUT_GONE, 0, True)
    assert directory.read_output(-9, 99) == (OUTPUT_GONE, 0, True)
    assert directory.read_output(9, 99) == (b"", 9, True)
    again = KEY._replace(job=2)
    start(ranks, store, "true", key=again)
    assert collect(ranks, Exited)[-1] == Exited(again, 0)


@pytest.mark.parametrize("place", ["$RLSCHED_ATTEMPT_DIR", "/proc/$PPID/cwd"])
def test_forged_end_is_ignored(ranks: LiveRanks, store: AttemptStore, place: str) -> None:
    """Also in the daemon's own directory: the shim reports the end to its daemon on a pipe."""
    directory = start(ranks, store, "sh", "-c", f"printf '%s' '{FORGED}' > {place}/exit; kill -9 $PPID")
    assert collect(ranks, Exited)[-1] == VANISHED
    record = directory.exit()
    assert record is not None
    assert (record.exit_code, record.reason) == (137, "vanished"), "nor by the next daemon"


def test_daemon_gets_the_end_of_a_rank_whose_records_were_removed(
    ranks: LiveRanks, store: AttemptStore
) -> None:
    start(ranks, store, "sh", "-c", f"rm -rf {store.records}; exit 3")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 3)


@pytest.mark.parametrize(
    "text",
    [
        '{"exit_code": 99999999999999999999999}',
        '{"exit_code": -9223372036854775808}',
        '{"exit_code": 256}',
        '{"exit_code": 1, "reason": "time_limit"}',
        '{"exit_code": 1, "reason": "node_stopped"}',
        '{"exit_code": 1, "reason": "because"}',
        '{"exit_code": 1, "reason": "\\ud800"}',
        '{"exit_code": 1, "ended_s": 1e400}',
        '{"exit_code": 1, "ended_s": -1}',
        '{"exit_code": 1, "ran_s": -1}',
        '{"exit_code": 1, "ran_s": 1e300}',
        "[]",
        "\udcff\udcfe",
        "",
    ],
)
def test_invalid_records_count_as_vanished(store: AttemptStore, ranks: LiveRanks, text: str) -> None:
    directory = store.directories_of(KEY)
    directory.create(LaunchRecord(gpus=[1], command=["true"], env={}, cwd="/"))
    assert directory.abandon()
    (directory.path / "exit").write_bytes(os.fsencode(text))
    [attempt] = adopt_attempts(store, ranks)
    assert (attempt.phase, attempt.exit_code, attempt.reason) == (Phase.ENDED, 137, "vanished")


def test_unreadable_attempt_is_skipped_and_others_adopted(store: AttemptStore, ranks: LiveRanks) -> None:
    ended = store.directories_of(KEY)
    ended.create_ended(143, "killed")
    broken = store.directories_of(KEY._replace(job=2))
    broken.create(LaunchRecord(gpus=[1], command=["true"], env={}, cwd="/"))
    assert broken.abandon()
    shutil.rmtree(broken.path / "exit.tmp", ignore_errors=True)
    (broken.path / "exit").mkdir()
    (broken.path / "exit" / "file").touch()
    assert [attempt.key for attempt in adopt_attempts(store, ranks)] == [KEY]


def test_rank_of_an_older_daemon_without_a_records_directory_keeps_running(tmp_path: Path) -> None:
    """That daemon wrote all records into the job's directory, and its shim still does."""
    path = tmp_path / "attempts" / "c1" / "1.1.0"
    path.mkdir(parents=True)
    (path / "output.log").write_bytes(b"old\n")
    (path / "launch.json").write_text('{"gpus":[1],"command":["x"],"env":{},"cwd":"/","time_limit_s":null}')
    with subprocess.Popen(["sleep", "300"]) as old_shim:
        who = {"pid": old_shim.pid, "start_ticks": shim.start_ticks(old_shim.pid), "boot_id": shim.boot_id()}
        (path / "pid").write_text(json.dumps(who))
        store = AttemptStore(tmp_path)
        ranks = LiveRanks(store)
        [attempt] = adopt_attempts(store, ranks)
        assert (attempt.phase, attempt.gpus) == (Phase.RUNNING, (1,))
        ranks.end(KEY, 1.0, "killed")
        assert json.loads((path / "kill").read_text())["reason"] == "killed"
        (path / "exit").write_text('{"exit_code": 6, "reason": "killed", "ended_s": 1e9}')
    assert [event for event in ranks.collect() if isinstance(event, Exited)] == [
        Exited(KEY, 6, "killed", 1e9)
    ]
    ranks.close()
    directory = AttemptStore(tmp_path).directories_of(KEY)
    assert directory.read_output(0, 9) == (b"old\n", 0, True)
    directory.acknowledge()
    assert list(AttemptStore(tmp_path).scan()) == [KEY], "no other process"
    directory.remove()
    assert list(AttemptStore(tmp_path).scan()) == []
    assert not path.exists()
