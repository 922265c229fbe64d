"""The decision board: known numbers are read back from the event file."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from rlsched.board.convert import draw_run
from rlsched.board.reader import read_runs
from rlsched.board.summarise import summarise
from rlsched.board.writer import DecisionWriter
from rlsched.cli.traces.board import board
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.record import DecisionRecord, Names, PlanSeen, Source
from rlsched.decisions.decision_text import done, ranked_plans
from rlsched.decisions.schema import StoreInfo
from rlsched.decisions.store import DecisionStore
from rlsched.errors import InputError

START = Start(seq=7, gpus=(0, 1))


def make_record(
    number: int = 0,
    *,
    source: Source = "policy",
    action: Action = START,
    took_us: float = 100.0,
    guard: str = "",
) -> DecisionRecord:
    return DecisionRecord(
        source=source,
        policy_id="p",
        state_digest="d",
        number=number,
        now_s=60.0 * number,
        partition="shared",
        action=action,
        took_us=took_us,
        guard=guard,
        names=Names(jobs={7: "24", 9: "26"}),
    )


def test_summary_of_four_decisions() -> None:
    records = [
        make_record(0, took_us=100.0),
        make_record(1, took_us=200.0, action=Wait()),
        make_record(2, took_us=300.0, source="automatic"),
        make_record(3, took_us=400.0, source="guard", guard="late"),
    ]
    scalars = summarise(records).scalars
    assert {tag: scalars[tag] for tag in scalars if tag.endswith("_count")} == {
        "decisions/source_policy_count": 2,
        "decisions/source_rule_count": 0,
        "decisions/source_guard_count": 1,
        "decisions/source_engine_count": 0,
        "decisions/source_automatic_count": 1,
        "decisions/kind_start_count": 3,
        "decisions/kind_wait_count": 1,
        "decisions/guard_stepped_in_count": 1,
    }
    assert scalars["time/decision_p50_us"] == pytest.approx(250.0)
    assert scalars["time/decision_p99_us"] == pytest.approx(397.0)


def test_summary_omits_unknown_figures() -> None:
    summary = summarise([make_record(action=Wait(), took_us=math.nan)])
    unknown = ("start_sm_clock", "open_plans", "time/", "decision_us")
    assert not [tag for tag in [*summary.scalars, *summary.histograms] if any(one in tag for one in unknown)]


def test_actions_are_shown_with_job_names() -> None:
    assert done(make_record(0, action=Wait())) == "wait"
    assert done(make_record(0)) == "start job 24 on 2 GPUs"
    assert done(make_record(action=Preempt(seq=7, moved_for=9))) == "preempt job 24 for job 26"
    assert done(make_record(action=Preempt(seq=7))) == "preempt job 24"


def test_record_without_names_marks_its_numbers_as_internal() -> None:
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(make_record(0)))
    del old["names"]
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=DecisionRecord)
    assert done(record) == "start internal job 7 on 2 GPUs"


def test_clocks_are_shown_with_the_gpus() -> None:
    slow = make_record(0, action=Start(seq=7, gpus=(0, 1), sm_clock_frac=0.62))
    assert done(slow) == "start job 24 on 2 GPUs, clock 0.62"
    scalars = summarise([slow, make_record(2)]).scalars
    assert scalars["decisions/start_sm_clock_mean_frac"] == pytest.approx((0.62 + 1.0) / 2)


def test_start_of_a_rule_shows_its_plan_and_the_open_ones() -> None:
    plans = [
        PlanSeen(how="free", chosen=True, node="n2", gpu_type="A100", run_s=60.0, worth=1.2),
        PlanSeen(how="free", node="n0", gpu_type="V100", run_s=90.0, worth=0.9),
        PlanSeen(how="share", verdict="GPU memory does not suffice", share_with=3, gpu_type="A100"),
        PlanSeen(how="later"),
    ]
    record = msgspec.structs.replace(make_record(source="rule"), turn=7, plans=plans)
    assert done(record) == "start job 24 on 2 GPUs: node n2 (A100), predicted to run 1 min"
    told = [(words, what) for _, words, what in ranked_plans(record)]
    assert told[1] == ("node n0 (V100), predicted to run 1 min 30 s", "worth 0.90")
    assert told[-1][1] == "not open: GPU memory does not suffice"
    assert summarise([record]).scalars["decisions/open_plans_mean_count"] == 3.0


def test_writer_and_reader_agree(tmp_path: Path) -> None:
    with DecisionWriter(tmp_path / "ppo", window=3) as writer:
        for number in range(7):
            writer.add(make_record(number, took_us=float(number)))
    writer.close()
    run = read_runs(tmp_path)["ppo"]
    assert run.scalars["decisions/source_policy_count"] == [(3, 3.0), (6, 3.0), (7, 1.0)]
    assert run.scalars["time/decision_p50_us"] == [(3, 1.0), (6, 4.0), (7, 6.0)]
    assert run.histograms["distribution/decision_us"] == [3, 6, 7]
    assert run.texts == {}, "decisions are in the store"


def test_steps_continue_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    for numbers in (range(3), range(3, 5)):
        with DecisionWriter(tmp_path) as writer:
            for number in numbers:
                writer.add(make_record(number))
    assert read_runs(tmp_path)["."].scalars["decisions/kind_start_count"] == [(3, 3.0), (5, 2.0)]


def test_files_of_one_second_are_read_in_the_order_of_their_creation(tmp_path: Path) -> None:
    for number in range(12):
        with DecisionWriter(tmp_path) as writer:
            writer.add(make_record(number))
    steps = [step for step, _ in read_runs(tmp_path)["."].scalars["decisions/kind_start_count"]]
    assert steps == sorted(steps)
    assert len(steps) == 12


def test_flush_without_new_records_writes_nothing(tmp_path: Path) -> None:
    with DecisionWriter(tmp_path, window=100) as writer:
        writer.add(make_record())
        writer.flush()
        writer.flush()
    assert len(read_runs(tmp_path)["."].scalars["time/decision_p50_us"]) == 1


def test_store_becomes_a_run_and_is_replaced(tmp_path: Path) -> None:
    store = DecisionStore(tmp_path / "ppo", StoreInfo(time="trace", of="ppo"))
    store.add_decisions([make_record(k) for k in range(3)])
    store.flush()
    for _ in range(2):
        assert draw_run(tmp_path / "ppo", tmp_path / "log" / "ppo") == 3
    runs = read_runs(tmp_path / "log")
    assert runs["ppo"].scalars["decisions/source_policy_count"] == [(3, 3.0)]


def test_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder"):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(InputError, match="found none"):
        read_runs(tmp_path)
    with pytest.raises(InputError, match="expected a store of decisions"):
        draw_run(tmp_path, tmp_path / "log")


def test_summary_command(tmp_path: Path) -> None:
    with DecisionWriter(tmp_path) as writer:
        writer.add(make_record())
    shown = CliRunner().invoke(board, [str(tmp_path), "--summary"])
    assert shown.exit_code == 0
    assert "time/decision_p50_us" in shown.output
    as_json = json.loads(CliRunner().invoke(board, [str(tmp_path), "--summary", "--json"]).output)
    assert as_json["."]["decisions/kind_start_count"] == {"points": 1, "last_step": 1, "last": 1.0}


def test_no_tag_is_both_curve_and_histogram() -> None:
    summary = summarise([make_record()])
    assert not summary.scalars.keys() & summary.histograms.keys()
    assert len(summary.histograms) == 1


def test_no_torch_no_tensorflow() -> None:
    program = (
        "import sys, tempfile; from rlsched.board.writer import DecisionWriter;"
        "DecisionWriter(tempfile.mkdtemp()).close();"
        "import rlsched.board.reader;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'tensorflow', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
