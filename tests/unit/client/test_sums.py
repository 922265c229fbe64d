"""Sums over ended jobs, by hand; the verbs that print them; times in everyday notation."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from rlsched.cli.shared import when
from rlsched.cli.shared.when import month_start_s, period_end_s, period_of, span_s, unix_s
from rlsched.cli.users.history import account, history
from rlsched.cli.users.history_tables import history_lines, print_sums
from rlsched.client.sums import Sums, percentile, sums
from rlsched.errors import InputError
from rlsched.wire.messages import (
    History,
    JobUsage,
    ListHistory,
    ListUsage,
    PastJob,
    Refused,
    Usage,
    UsedSpan,
)
from tests.support.broker.stub import Stub

HOUR = 3_600.0
JOBS = [
    JobUsage("ada", "", "v", 10.0, "completed", 2 * HOUR, 3.6e6, 10.0),
    JobUsage("ada", "", "v", 20.0, "failed", 1 * HOUR, None, 30.0),
    JobUsage("bob", "", "", 30.0, "completed", 4 * HOUR, None, 0.0),
    JobUsage("bob", "", "v", 110.0, "cancelled", 0.0, None, None),
    JobUsage("ada", "", "", 120.0, "rejected", 0.0, None, None),
]


def hundreds(period: str, when_s: float) -> str:
    return f"{period} {int(when_s // 100)}"


def hundreds_end(_period: str, when_s: float) -> float:
    return 100.0 * (when_s // 100 + 1)


def test_sums_by_hand() -> None:
    rows, total = sums(JOBS, ["user"], hundreds, hundreds_end)
    ada, bob = rows
    assert (ada.of, ada.jobs, ada.gpu_hours, ada.energy_kwh, ada.energy_jobs) == (("ada",), 3, 3.0, 1.0, 1)
    assert ada.wait_mean_s == 20.0
    assert ada.wait_p90_s == pytest.approx(28.0)
    assert ada.outcomes == {"completed": 1, "failed": 1, "cancelled": 0, "rejected": 1}
    assert (bob.energy_kwh, bob.wait_mean_s, bob.wait_p90_s) == (None, 0.0, 0.0)
    assert (total.of, total.jobs, total.gpu_hours) == (("all",), 5, 7.0)


BILLED = [
    JobUsage("ada", "", "v", 10.0, "completed", HOUR, 3.6e6, 0.0, 1.5, None, "EUR"),
    JobUsage("ada", "", "v", 20.0, "completed", HOUR, 3.6e6, 0.0, 2.25, None, "EUR"),
    JobUsage("ada", "", "v", 20.0, "completed", HOUR, 3.6e6, 0.0),
    JobUsage("bob", "", "v", 30.0, "completed", HOUR, 3.6e6, 0.0, None, 0.75, ""),
]


def test_sums_of_bills() -> None:
    (ada, bob), total = sums(BILLED, ["user"], hundreds, hundreds_end)
    assert (ada.cost, ada.cost_jobs, ada.currency, ada.carbon_kg, ada.carbon_jobs) == (
        3.75,
        2,
        "EUR",
        None,
        0,
    )
    assert (bob.cost, bob.cost_jobs, bob.currency, bob.carbon_kg, bob.carbon_jobs) == (None, 0, "", 0.75, 1)
    assert (total.cost, total.carbon_kg, total.energy_jobs) == (3.75, 0.75, 4)
    francs = msgspec.structs.replace(BILLED[0], currency="CHF")
    _, total = sums([*BILLED, francs], ["user"], hundreds, hundreds_end)
    assert (total.cost, total.cost_jobs, total.currency) == (None, 3, ""), "currencies are not added up"


def test_usage_of_an_older_broker_has_no_bill() -> None:
    old = ["ada", "", "v", 10.0, "completed", HOUR, 3.6e6, 0.0]
    assert msgspec.convert(old, JobUsage) == BILLED[2].__class__(*old)
    assert msgspec.convert([*old, 1.0, None, "EUR", 7, [], "later"], JobUsage).cost == 1.0


def test_groups_with_several_jobs_and_with_none_started() -> None:
    rows, _ = sums(JOBS, ["day", "vc"], hundreds, hundreds_end)
    assert [(row.of, row.jobs) for row in rows] == [
        (("day 0", ""), 1),
        (("day 0", "v"), 2),
        (("day 1", ""), 1),
        (("day 1", "v"), 1),
    ]
    assert (rows[2].wait_mean_s, rows[2].wait_p90_s) == (None, None)
    assert sums([], ["user"], hundreds, hundreds_end) == ([], Sums(
        of=("all",), jobs=0, gpu_hours=0.0, energy_kwh=None, energy_jobs=0, wait_mean_s=None,
        wait_p90_s=None, outcomes=dict.fromkeys(("completed", "failed", "cancelled", "rejected"), 0),
    ))  # fmt: skip


def test_percentiles_equal_those_of_numpy() -> None:
    chance = np.random.default_rng(1)
    for size in (1, 2, 3, 10, 101):
        values = np.sort(chance.exponential(size=size))
        assert percentile(values.tolist(), 0.9) == pytest.approx(float(np.percentile(values, 90)))


# ---- times ------------------------------------------------------------------------------------------------

NOW_S = 1_795_000_000.0


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    when._period.cache_clear()
    yield
    monkeypatch.undo()
    time.tzset()
    when._period.cache_clear()


@pytest.mark.usefixtures("berlin")
def test_times_are_local() -> None:
    assert unix_s("--since", "7d", NOW_S) == NOW_S - 7 * 86_400
    assert unix_s("--since", "30min", NOW_S) == NOW_S - 1_800
    assert unix_s("--since", "1.5h", NOW_S) == NOW_S - 5_400
    assert unix_s("--since", "2026-11-01", NOW_S) == 1_793_487_600.0  # midnight in Berlin, 23:00 UTC
    assert unix_s("--since", "2026-11-01T13:30", NOW_S) == 1_793_487_600.0 + 13.5 * HOUR
    assert unix_s("--since", "2026-11-01T00:00+00:00", NOW_S) == 1_793_487_600.0 + HOUR
    assert month_start_s(NOW_S) == 1_793_487_600.0
    assert span_s(None, "1d", NOW_S) == (None, NOW_S - 86_400)
    assert span_s("now-7days", "now", NOW_S) == (NOW_S - 7 * 86_400, None)
    assert span_s("now-1week", "now-2hours", NOW_S) == (NOW_S - 7 * 86_400, NOW_S - 7_200)


@pytest.mark.usefixtures("berlin")
def test_periods_are_local_and_the_hour_of_a_change_of_clocks_is_not_counted_twice() -> None:
    before_s = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()  # clocks change at 01:00 UTC
    assert period_of("month", before_s) == "2026-10"
    assert period_of("day", before_s) == "2026-10-25"
    assert period_of("hour", before_s) == "2026-10-25T02:00+0200"
    assert period_of("hour", before_s + HOUR) == "2026-10-25T02:00+0100"


def test_jobs_are_grouped_by_the_hour_in_which_they_ended() -> None:
    rows, total = sums(
        BILLED, ["hour", "user"], lambda period, when_s: f"{period} {int(when_s // 15)}", hundreds_end
    )
    assert [(row.of, row.cost) for row in rows] == [
        (("hour 0", "ada"), 1.5), (("hour 1", "ada"), 2.25), (("hour 2", "bob"), None),
    ]  # fmt: skip
    assert total.of == ("all", "all")


def test_use_counts_in_the_hours_in_which_it_was_used() -> None:
    """Two attempts from 50 to 250 and from 380 to 420; the price changed at 150. Hours of 100 s."""
    spans = [
        UsedSpan(50.0, 150.0, 200.0, 4.0, 8.0, 1.0),
        UsedSpan(150.0, 250.0, 200.0, 4.0, -2.0, 3.0),
        UsedSpan(380.0, 420.0, 80.0, None),
    ]
    job = JobUsage("ada", "", "v", 420.0, "completed", 480.0, 8.0, 5.0, 6.0, 4.0, "EUR", 1, spans)
    other = JobUsage("bob", "", "v", 120.0, "failed", 20.0, None, 5.0, None, None, "", 2,
                     [UsedSpan(100.0, 120.0, 20.0, None)])  # fmt: skip
    rows, total = sums([job, other], ["hour", "user"], hundreds, hundreds_end)
    assert [(row.of, row.jobs, row.gpu_hours * HOUR, row.cost, row.carbon_kg) for row in rows] == [
        (("hour 0", "ada"), 0, pytest.approx(100.0), pytest.approx(4.0), pytest.approx(0.5)),
        (("hour 1", "ada"), 0, pytest.approx(200.0), pytest.approx(3.0), pytest.approx(2.0)),
        (("hour 1", "bob"), 1, pytest.approx(20.0), None, None),
        (("hour 2", "ada"), 0, pytest.approx(100.0), pytest.approx(-1.0), pytest.approx(1.5)),
        (("hour 3", "ada"), 0, pytest.approx(40.0), None, None),
        (("hour 4", "ada"), 1, pytest.approx(40.0), None, None),
    ]
    assert [row.energy_kwh for row in rows[:3]] == [pytest.approx(2 / 3.6e6), pytest.approx(4 / 3.6e6), None]
    assert (rows[-1].cost_jobs, rows[-1].energy_jobs, rows[-1].outcomes["completed"]) == (1, 1, 1)
    assert (total.jobs, total.cost, total.carbon_kg) == (2, pytest.approx(6.0), pytest.approx(4.0))
    # 200 s only, at both ends in the middle of a part
    rows, total = sums([job, other], ["user"], hundreds, hundreds_end, 110.0, 390.0)
    assert [(row.of, row.jobs) for row in rows] == [(("ada",), 0), (("bob",), 1)]
    assert (rows[0].gpu_hours * HOUR, rows[0].cost) == (pytest.approx(300.0), pytest.approx(3.2 - 2.0))
    assert rows[1].gpu_hours * HOUR == pytest.approx(10.0)
    assert total.gpu_hours * HOUR == pytest.approx(310.0)


def test_unknown_bills_and_unfinished_jobs_in_hours() -> None:
    spans = [UsedSpan(50.0, 150.0, 100.0, 4.0, 8.0, 1.0), UsedSpan(150.0, 250.0, 100.0, 4.0, None, 3.0)]
    job = JobUsage("ada", "", "", math.inf, "running", 200.0, 8.0, 5.0, None, 4.0, "", 1, spans)
    rows, total = sums([job], ["month"], hundreds, hundreds_end)
    assert [(row.jobs, row.gpu_hours * HOUR, row.cost, row.carbon_kg) for row in rows] == [
        (0, pytest.approx(50.0), None, pytest.approx(0.5)),
        (0, pytest.approx(100.0), None, pytest.approx(2.0)),
        (0, pytest.approx(50.0), None, pytest.approx(1.5)),
    ]
    assert (total.jobs, total.outcomes, total.carbon_jobs) == (0, dict.fromkeys(total.outcomes, 0), 0)
    assert total.energy_kwh == pytest.approx(8.0 / 3.6e6)
    begun = JobUsage("ada", "", "", math.inf, "launching", 0.0, None, 5.0)
    assert sums([begun], ["user"], hundreds, hundreds_end)[0] == []


def test_attempts_of_an_earlier_version_count_at_the_end() -> None:
    spans = [UsedSpan(150.0, 250.0, 100.0, 4.0, 8.0, 1.0)]
    job = JobUsage("ada", "", "", 250.0, "completed", 160.0, 9.0, 5.0, 10.0, 1.5, "EUR", 1, spans)
    rows, total = sums([job], ["hour"], hundreds, hundreds_end)
    assert [(row.gpu_hours * HOUR, row.cost, row.carbon_kg) for row in rows] == [
        (pytest.approx(50.0), pytest.approx(4.0), pytest.approx(0.5)),
        (pytest.approx(110.0), pytest.approx(6.0), pytest.approx(1.0)),
    ]
    assert (total.energy_kwh, total.cost) == (pytest.approx(9.0 / 3.6e6), pytest.approx(10.0))


def test_hours_of_random_jobs_add_up_to_the_jobs() -> None:
    chance = np.random.default_rng(7)
    jobs = list[JobUsage]()
    for number in range(1, 201):
        edges = np.sort(chance.uniform(0.0, 5e5, 2 * chance.integers(1, 5)))
        spans = [
            UsedSpan(start_s, end_s, *chance.uniform(-1.0, 5.0, 4).tolist())
            for start_s, end_s in edges.reshape(-1, 2).tolist()
        ]
        wholes = [math.fsum(getattr(one, name) for one in spans) for name in UsedSpan.__struct_fields__[2:]]
        user = f"u{number % 3}"
        jobs.append(
            JobUsage(
                user, "", "", spans[-1].end_s, "completed", wholes[0], wholes[1], 0.0, *wholes[2:], "EUR",
                number, spans,
            )
        )  # fmt: skip
    by_user, total = sums(jobs, ["user"], period_of, period_end_s)
    for period in ("hour", "day", "month"):
        rows, again = sums(jobs, [period, "user"], period_of, period_end_s)
        for whole in (*by_user, total):
            parts = [row for row in rows if row.of[1] == whole.of[0]] or rows
            for name in ("jobs", "gpu_hours", "energy_kwh", "cost", "carbon_kg", "cost_jobs"):
                found = math.fsum(getattr(row, name) for row in parts)
                assert found == pytest.approx(getattr(whole, name), rel=1e-9)
        assert again.cost == pytest.approx(math.fsum(job.cost or 0.0 for job in jobs), rel=1e-9)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns"])
def test_periods_end_where_the_next_one_begins(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    when._period.cache_clear()
    try:
        for first_s in (1_774_500_000.0, 1_790_900_000.0, 1_798_500_000.0):  # changes of clocks, a new year
            for period in ("hour", "day", "month"):
                at_s = first_s + 123.4
                while at_s < first_s + 5 * 86_400.0:
                    end_s = period_end_s(period, at_s)
                    assert period_of(period, at_s) == period_of(period, end_s - 1e-3)
                    assert period_of(period, at_s) != period_of(period, end_s)
                    at_s = end_s
    finally:
        monkeypatch.undo()
        time.tzset()
        when._period.cache_clear()


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "1y", "2026-13-01", "yesterday", "9" * 9 + "w", "7d "])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--since '.*': expected an age .* or a time") as error:
        unix_s("--since", text, NOW_S)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("since", "until"), [("1d", "2d"), ("2030-01-01", None), ("1d", "1d")])
def test_empty_interval_is_refused(since: str, until: str | None) -> None:
    with pytest.raises(InputError, match=f"--since {since}: expected a time before"):
        span_s(since, until, NOW_S)


# ---- output -----------------------------------------------------------------------------------------------


def past(job: int, **more: object) -> PastJob:
    fields = {
        "job": job, "name": f"job-{job}", "user": "ada", "account": "", "vc": "", "state": "completed",
        "num_gpus": 2, "submit_s": 100.0, "start_s": 110.0, "end_s": 3_800.0, "wait_s": 10.0,
        "gpu_s": 7_380.0, "energy_j": None, "exit_code": 0, "reason": "", "nodes": "n0[0,1]",
        "gpu_types": "generic", "attempts": 1, "preemptions": 0,
    }  # fmt: skip
    return PastJob(**(fields | more))  # type: ignore[arg-type]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Stub, list[str], list[object]]]:
    """A broker with two jobs: options with which a command reaches it, and the queries that it received."""
    stub, questions = Stub(tmp_path), []

    def answer(question: object) -> object:
        questions.append(question)
        if isinstance(question, ListUsage):
            return Usage(jobs=[msgspec.structs.replace(job, end_s=time.time()) for job in JOBS])
        if isinstance(question, ListHistory):
            runs = past(2, name="=1+1", state="running", end_s=None, exit_code=None)
            return History(jobs=[runs, past(1, name="a\x1b[31m", reason="reason")])
        return Refused(message="what?")

    stub.script = answer  # type: ignore[assignment]
    yield stub, ["--broker", stub.address, "--keys", str(tmp_path)], questions
    stub.close()


def test_history_as_json_and_csv(asked: tuple[Stub, list[str], list[object]]) -> None:
    _, place, questions = asked
    done = CliRunner().invoke(history, ["--json", *place], catch_exceptions=False)
    rows = json.loads(done.stdout)
    assert [(row["job"], row["end_s"], row["energy_j"]) for row in rows] == [
        (1, 3_800.0, None),
        (2, None, None),
    ]
    assert isinstance(questions[0], ListHistory)
    assert questions[0].limit == 100
    since = ["--since", "1h", "--state", "failed", "--state", "running", "--name", "a*", "--user", "ada"]
    done = CliRunner().invoke(history, ["--csv", *since, *place], catch_exceptions=False)
    one, two = csv.DictReader(io.StringIO(done.stdout))
    assert (one["job"], one["name"], one["end_s"], one["energy_j"]) == ("1", r"a\x1b[31m", "3800.0", "")
    assert (two["name"], two["end_s"]) == ("'=1+1", "")
    question = questions[1]
    assert isinstance(question, ListHistory)
    assert (question.limit, question.states, question.name, question.user) == (
        None,
        ["failed", "running"],
        "a*",
        "ada",
    )
    assert question.since_s == pytest.approx(time.time() - HOUR, abs=60.0)


def test_account_as_json_and_csv(asked: tuple[Stub, list[str], list[object]]) -> None:
    _, place, questions = asked
    done = CliRunner().invoke(account, ["--json", "--by", "vc,user", *place], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert report["by"] == ["vc", "user"]
    assert [(row["vc"], row["user"], row["jobs"]) for row in report["rows"]] == [
        ("", "ada", 1),
        ("", "bob", 1),
        ("v", "ada", 2),
        ("v", "bob", 1),
    ]
    assert (report["total"]["jobs"], report["total"]["energy_kwh"]) == (5, 1.0)
    assert report["rows"][0]["energy_kwh"] is None
    assert isinstance(questions[0], ListUsage)
    assert questions[0].since_s == report["since_s"] == month_start_s(time.time())
    assert (questions[0].until_s, questions[0].states[-1]) == (None, "running"), "unfinished jobs too"
    done = CliRunner().invoke(account, ["--csv", *place], catch_exceptions=False)
    ada, bob = csv.DictReader(io.StringIO(done.stdout))
    assert (ada["user"], ada["gpu_hours"], ada["energy_kwh"], ada["failed"]) == ("ada", "3.0", "1.0", "1")
    assert (bob["energy_kwh"], bob["wait_p90_s"], bob["cancelled"]) == ("", "0.0", "1")
    assert (bob["cost"], bob["cost_jobs"], bob["currency"], bob["carbon_kg"]) == ("", "0", "", "")


def shown(width: int, print_it: object, *args: object, **named: object) -> str:
    out = io.StringIO()
    print_it(*args, console=Console(width=width, file=out, highlight=False), **named)  # type: ignore[operator]
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_fit_the_terminal(width: int) -> None:
    jobs = [past(1, reason="r " * 40, nodes="n0[0] " * 20), past(2, name="a\x1b[31m", wait_s=None)]
    text = "\n".join(line.plain for line in history_lines(jobs, width, NOW_S))
    assert len(text.splitlines()) == 3
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "1:01:30" in text
    assert time.strftime("%F %H:%M", time.localtime(3_800.0)) in text
    rows, total = sums(JOBS, ["user", "vc"], hundreds, hundreds_end)
    text = shown(width, print_sums, ["user", "vc"], rows, total, 0.0, NOW_S)
    assert max(map(len, text.splitlines())) <= width
    assert "GPU h" in text
    assert "kWh" in text
    assert text.splitlines()[-2].split()[:2] == ["all", "5"]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_have_the_known_bills(width: int) -> None:
    jobs = [past(1, cost=12.3, currency="EUR"), past(2, cost=-0.01, currency="EUR"), past(3)]
    text = "\n".join(line.plain for line in history_lines(jobs, width, NOW_S))
    assert "12.30 EUR" in text
    assert "-0.0100 EUR" in text
    assert "CO2e" not in text
    text = "\n".join(line.plain for line in history_lines([past(1, carbon_kg=0.0125)], width, NOW_S))
    assert "12.5 g" in text
    assert "cost" not in text
    rows, total = sums(BILLED, ["user"], hundreds, hundreds_end)
    text = shown(width, print_sums, ["user"], rows, total, 0.0, NOW_S)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("3.75 EUR") == 2
    assert text.count("0.75 kg") == 2


@pytest.mark.parametrize("width", [80, 100, 120])
def test_tables_by_hour_have_whole_figures(width: int) -> None:
    """Columns that do not fit are left out; hours and figures are never cut."""
    spans = [UsedSpan(HOUR * k, HOUR * (k + 1), 1e4, 3.3e7 * k, 0.123 * k, 0.456) for k in range(3)]
    job = JobUsage(
        "longest-username", "", "", 3 * HOUR, "completed", 3e4, 9.9e7, 5.0, 0.369, 1.368, "EUR", 1, spans
    )
    rows, total = sums([job], ["hour", "user"], period_of, period_end_s)
    text = shown(width, print_sums, ["hour", "user"], rows, total, 0.0, NOW_S)
    assert max(map(len, text.splitlines())) <= width
    for row in rows:
        assert row.of[0] in text
    assert text.count("0.46 kg") == 3
    assert [row for row in text.splitlines() if "0.25 EUR" in row and "18.33" in row]
    assert ("failed" in text, "wait mean" in text) == (width > 80, width > 100)


def test_empty_table_is_a_line_and_unknown_energy_has_no_column() -> None:
    assert "no jobs" in history_lines([], 100)[0].plain
    rows, total = sums(JOBS[1:], ["user"], hundreds, hundreds_end)
    text = shown(100, print_sums, ["user"], rows, total, 0.0, NOW_S)
    assert not [name for name in ("kWh", "cost", "CO2e") if name in text]
    assert "no job used GPUs or ended" in shown(100, print_sums, ["user"], [], total, 0.0, NOW_S)
