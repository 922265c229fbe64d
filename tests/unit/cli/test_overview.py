"""The screen of `rlsched top` as lines: it fits any terminal and shows GPUs, jobs and the next starts."""

from __future__ import annotations

import json
import math
import re
import time

import msgspec
import pytest
from rich.text import Text

from rlsched.cli.shared.selecting import selected
from rlsched.cli.users.overview.bars import Marks
from rlsched.cli.users.overview.overview_lines import overview, remaining_text
from rlsched.cli.users.overview.picture import Picture
from rlsched.terminal.layout import Column, shares, side_by_side, table, window
from rlsched.terminal.show import brief
from rlsched.wire.messages import (
    ForecastReport,
    ForecastScore,
    GpusReport,
    GuardReport,
    JobForecast,
    JobInfo,
    NodeInfo,
    PowerLimitReport,
    StatsReport,
)
from tests.support.listed import job

NOW_S = 10_000.0


def node(name: str, free: int, *, gpus: int = 4, state: str = "up", **more: object) -> NodeInfo:
    told = {"name": name, "gpus": gpus, "free_gpus": free, "state": state, "gpu_type": "h200", "vc": ""}
    return NodeInfo(**told, jobs=[], last_seen_s=NOW_S, **more)  # type: ignore[arg-type]


def runs(number: int, user: str, where: dict[str, list[int]], **more: object) -> JobInfo:
    gpus = sum(map(len, where.values()))
    told = {"user": user, "nodes": list(where), "gpus": list(where.values()), "num_gpus": gpus} | more
    return job(number, name=f"train-{number}", **{"start_s": NOW_S - 100.0, "predicted_s": 400.0, **told})


def waits(number: int, user: str, gpus: int, key: float | None, **more: object) -> JobInfo:
    told = {"state": "queued", "nodes": [], "gpus": [], "start_s": None, "submit_s": NOW_S - 7_400.0, **more}
    reason = f"Resources: needs {gpus} GPUs"
    return job(number, name="sweep", user=user, num_gpus=gpus, queue_key=key, reason=reason, **told)


STATS = StatsReport(
    policy="tuned", decisions={}, contested={}, queued=3, running=3, ended=1_204, uptime_s=7_200.0,
    ineligible={"Held": 1}, gpus={"h200": GpusReport(total=12, free=2, held=7, absent=3)}, fallback="qssf",
)  # fmt: skip
NODES = [node("n0", 0), node("n1", 1), node("n2", 0, state="down"), node("n10", 1)]
JOBS = [
    runs(1, "ada", {"n0": [0, 1], "n1": [0]}),
    runs(2, "bob", {"n0": [2, 3], "n1": [1]}, speed_frac=0.79, start_s=NOW_S - 500.0),
    runs(3, "ada", {"n10": [2]}, state="launching"),
    waits(4, "eve", 8, 30.0),
    waits(5, "ada", 2, 10.0, priority="high"),
    waits(6, "eve", 1, None),
]
CHOSEN = {"state": "queued", "user": None, "name": None, "vc": None}
PICTURE = Picture(at_s=NOW_S, stats=STATS, nodes=NODES, jobs=JOBS)


def page(picture: Picture = PICTURE, columns: int = 80, height: int | None = None, **more: int) -> list[str]:
    return [line.plain for line in overview(picture, columns, height, NOW_S, Marks(), **more)]


def test_shows_who_has_which_gpus_and_what_starts_next() -> None:
    text = page()
    assert text[0].startswith("rlsched top  3 queued (1 Held)  3 running  1,204 finished  policy tuned")
    assert text[1] == "h200: 7 of 12 GPUs held, 2 free, 3 absent"
    bars = " ".join(" ".join(text[3:5]).split())
    assert bars == "n0 aabb n1 ab·# n2 ×××× down n10 ·#a# USERS"
    users = text[text.index("USERS") + 1 : text.index("RUNNING 3")]
    assert " ".join(" ".join(users).split()) == (
        "a ada 4 GPUs, 1 waiting for 2 b bob 3 GPUs e eve 0 GPUs, 2 waiting for 9"
    )
    rows = [re.split(" {2,}", line.strip()) for line in text[text.index("RUNNING 3") + 1 :]]
    assert rows[1][:1] == ["1"]
    assert rows[1][3:] == ["3", "1m", "~5m", "n0[0-1] n1[0]"]
    assert rows[2][4:] == ["8m", "late", "79%", "n0[2-3] n1[1]"]
    assert rows[3][-1] == "launching n10[2]"
    queue = rows[rows.index(["QUEUE 3, in its order"]) + 2 :]
    assert [row[0] for row in queue] == ["5", "4", "6"], "in queue order, then jobs outside the queue"
    assert queue[0][3:] == ["2", "2h03m", "priority high; Resources: needs 2 GPUs"]


@pytest.mark.parametrize("columns", [80, 120])
def test_speed_is_the_predicted_one_and_the_observed_one_in_parentheses(columns: int) -> None:
    jobs = [
        runs(1, "ada", {"n0": [0]}, speed_frac=0.9, seen_speed_frac=0.7249, beside=["2"]),
        runs(2, "bob", {"n0": [0]}, speed_frac=1.0, seen_speed_frac=1.0, beside=["1"]),
        runs(3, "eve", {"n0": [1]}, speed_frac=0.88),
    ]
    text = page(Picture(NOW_S, STATS, NODES, jobs), columns)
    head, *rows = text[text.index("RUNNING 3") + 1 :][:4]
    end = head.index("speed (seen)") + len("speed (seen)")
    assert [row[end - 12 : end].strip() for row in rows] == ["90% (72%)", "100% (100%)", "88%"]


def test_array_waits_while_its_other_tasks_run() -> None:
    array = job(
        7,
        state="running",
        name="sweep",
        user="eve",
        num_gpus=2,
        tasks="3-9%2",
        num_tasks=10,
        nodes=[],
        gpus=[],
    )
    text = page(Picture(NOW_S, STATS, NODES, [*JOBS, array]))
    assert "RUNNING 3" in text
    queue = [line.split()[0] for line in text[text.index("QUEUE 4, in its order") + 2 :]]
    assert queue == ["5", "4", "6", "7_[3-9%2]"]
    assert [one.job for one in selected([array], CHOSEN, arrays_wait=True)] == [7]
    assert not selected([array], CHOSEN), "orders to waiting tasks do not change the running ones"


def test_foreign_and_missing_gpus_have_their_own_signs() -> None:
    held = Picture(
        at_s=NOW_S, stats=STATS, nodes=[node("big", 30, gpus=64)], jobs=[runs(1, "ada", {"big": [0]})]
    )
    assert "big a1 ·30 #33" in page(held)
    down = Picture(
        at_s=NOW_S,
        stats=STATS,
        nodes=[node("n0", 0, state="unreachable")],
        jobs=[runs(1, "ada", {"n0": [1]})],
    )
    assert "n0 ×a×× unreachable" in page(down)


@pytest.mark.parametrize("columns", [20, 40, 79, 80, 109, 110, 200])
def test_page_fits_the_terminal(columns: int) -> None:
    wide = [
        msgspec.structs.replace(one, name="a-long-name-" * 9, user="u" * 60, reason="why " * 90)
        for one in JOBS
    ]
    nodes = [node(f"gpu-node-{k:03}.cluster.example", 1, gpus=8) for k in range(40)]
    many = Picture(at_s=NOW_S, stats=STATS, nodes=nodes, jobs=wide * 20)
    for height in (1, 5, 10, 24, 50, None):
        lines = overview(many, columns, height, NOW_S, Marks(), chosen=5)
        assert all(line.cell_len <= columns for line in lines)
        assert all("\n" not in line.plain for line in lines)
        assert height is None or len(lines) <= height


def test_hidden_rows_are_counted_and_the_selected_job_is_shown() -> None:
    jobs = [waits(k, "ada", 1, float(k)) for k in range(1, 101)]
    crowd = Picture(at_s=NOW_S, stats=STATS, nodes=NODES * 20, jobs=[*JOBS[:3], *jobs])
    text = page(crowd, 80, 24, chosen=77)
    assert len(text) == 24
    assert any(line.startswith(">77") for line in text)
    assert re.search(r"… \d+ more nodes", "\n".join(text))
    assert text[-1].startswith("… 9")


def test_letters_of_users_do_not_change() -> None:
    marks = Marks()
    assert [marks.letter_of(user).plain for user in ("ada", "alan", "al", "aa")] == ["a", "l", "b", "c"]
    assert marks.letter_of("alan").plain == "l"
    assert marks.letter_of("").plain == "d"
    for k in range(100):
        marks.letter_of(f"user-{k}")
    assert marks.letter_of("ada").plain == "a"


def test_time_left_is_that_of_the_forecast_if_any() -> None:
    said = JobForecast(said_s=NOW_S, start_s=None, end_s=[NOW_S + 10.0, NOW_S + 7_500.0, None])
    assert remaining_text(runs(1, "ada", {"n0": [0]}, forecast=said), NOW_S) == "2h05m"
    never = msgspec.structs.replace(said, end_s=[None, None, None])
    assert remaining_text(runs(1, "ada", {"n0": [0]}, forecast=never), NOW_S) == ">7d"
    soon = JobForecast(said_s=NOW_S, start_s=[NOW_S, NOW_S + 90.0, NOW_S + 400.0], end_s=[None, None, None])
    picture = Picture(at_s=NOW_S, stats=STATS, nodes=[], jobs=[waits(1, "ada", 1, 1.0, forecast=soon)])
    assert "1.5m    Resources" in page(picture)[-1]
    assert "1.5m (0s-6.7m)" in page(picture, 120)[-1]


def test_energy_is_shown_if_measured_or_weighed() -> None:
    assert "kW" not in page()[1]
    drawn = Picture(at_s=NOW_S, stats=STATS, nodes=[node("n0", 1, power_w=1_206.0), node("n1", 1)], jobs=[])
    assert page(drawn)[1].endswith(" · 1.21 kW")
    weighed = msgspec.structs.replace(STATS, speed_energy=0.3, clocked=1)
    assert "energy counts 0.3: 1 of 3" in page(Picture(NOW_S, weighed, NODES, JOBS), 120)[1]


def test_power_limit_is_shown_with_the_clocks_and_the_jobs_that_wait() -> None:
    limit = PowerLimitReport(
        limit_w=120e3,
        until_s=math.inf,
        most_w=119_500.0,
        urgent_clock_frac=1.0,
        flexible_clock_frac=0.75,
        waiting=2,
    )

    def shown(limit: PowerLimitReport) -> str:
        stats = msgspec.structs.replace(STATS, power_limit=limit)
        return page(Picture(NOW_S, stats, NODES, JOBS), 400)[1]

    words = "power limit 120 kW; nodes and jobs draw up to 119.50 kW by the models, SM clocks up to 0.75 for "
    assert f"{words}jobs with slack, 2 jobs wait for power" in shown(limit)
    over = msgspec.structs.replace(limit, limit_w=119e3, urgent_clock_frac=0.5)
    assert "models, 0.50 kW too much, SM clocks up to 0.75 for jobs with slack and 0.50 for" in shown(over)
    free = msgspec.structs.replace(limit, limit_w=math.inf, flexible_clock_frac=1.0, waiting=0)
    assert shown(free).endswith("power limit: none now; nodes and jobs draw up to 119.50 kW by the models")
    at_s = time.mktime((2026, 11, 30, 14, 0, 0, 0, 0, -1))
    told = msgspec.structs.replace(limit, falls=((at_s, 80e3), (at_s + 60.0, 70e3)), soft=True)
    assert "soft power limit 120 kW, 80 kW from 2026-11-30 14:00 on; nodes and jobs draw" in shown(told)
    told = msgspec.structs.replace(free, falls=((at_s, 80e3),))
    assert "power limit: none now, 80 kW from 2026-11-30 14:00 on; nodes and jobs draw" in shown(told)


def test_deciding_fallback_is_a_line() -> None:
    guard = GuardReport(decided={}, now="late: the next 3 decisions")
    stats = msgspec.structs.replace(STATS, guard=guard)
    assert (
        page(Picture(NOW_S, stats, NODES, JOBS))[2] == "the fallback qssf decides: late: the next 3 decisions"
    )


def test_accuracy_of_forecasts_is_a_line_each_next_to_simple_rules() -> None:
    score = ForecastScore(
        what="start", size="all", jobs=1_200, covered_frac=0.784, loss_s=341.6,
        rules={"last": 905.0, "week": None, "list": 502.0},
    )  # fmt: skip
    scores = [
        score,
        msgspec.structs.replace(score, size="1"),
        msgspec.structs.replace(score, what="end-running", jobs=7),
    ]
    stats = msgspec.structs.replace(STATS, forecasts=ForecastReport(note="", scores=scores))
    lines = page(Picture(NOW_S, stats, NODES, JOBS), 120)
    assert lines[2] == "forecast starts: 78.4 % of 1,200 in 10 to 90 % · loss 342 s · last 905 · list 502"
    assert lines[3].startswith("forecast ends (running): 78.4 % of 7 in 10 to 90 % · ")
    assert len(lines) == len(page(columns=120)) + 2
    told = Picture(NOW_S, stats, NODES, JOBS).as_data()["broker"]["forecasts"]
    assert told["scores"][0]["rules"] == score.rules
    new = msgspec.structs.replace(STATS, forecasts=ForecastReport(note="no outcome yet"))
    assert len(page(Picture(NOW_S, new, NODES, JOBS))) == len(page())


def test_json_has_everything_except_predictors() -> None:
    told = json.loads(json.dumps(PICTURE.as_data()))
    assert set(told) == {"at_s", "broker", "power_w", "nodes", "running", "queue", "users"}
    assert [row["job"] for row in told["queue"]] == [5, 4, 6]
    assert told["nodes"][1]["held"] == [
        {"gpu": 0, "job": 1, "called": "1", "user": "ada"},
        {"gpu": 1, "job": 2, "called": "2", "user": "bob"},
    ]
    assert told["users"][0] == {"user": "ada", "gpus": 4, "running": 2, "waiting": 1, "wanted_gpus": 2}
    assert "prediction" not in told["broker"]


def test_escape_sequences_of_users_are_removed() -> None:
    evil = [msgspec.structs.replace(one, name="\x1b[2J", user="\x9b1m", reason="a\nb") for one in JOBS]
    text = "".join(page(Picture(NOW_S, STATS, [node("\x1b[H", 1)], evil)))
    assert not set("\x1b\x9b\n") & set(text)


# ---- the layout -------------------------------------------------------------------------------------------


def test_lines_are_divided_among_sections() -> None:
    assert shares([3, 10, 0, 10], 9) == [3, 3, 0, 3]
    assert shares([1, 2], 9) == [1, 2]
    assert shares([5], -1) == [0]
    assert [window(10, 4, at) for at in (None, 0, 5, 9)] == [(0, 4), (0, 4), (3, 7), (6, 10)]


def test_table_truncates_flexible_columns_first() -> None:
    columns = (Column("job", is_right=True), Column("name", shrinks=True), Column("reason"))
    rows = [["1", "n" * 30, "r" * 30], ["10", "m", ""]]
    assert [line.plain for line in table(columns, rows, 40)] == [
        "job  name              reason",
        "  1  nnnnnnnnnnnnnnn…  rrrrrrrrrrrrrrrr…",
        " 10  m",
    ]
    assert [line.cell_len for line in table(columns, rows, None)][1] == 3 + 2 + 30 + 2 + 30


def test_as_many_cells_as_fit_are_side_by_side() -> None:
    cells = [Text(word) for word in ("a", "bbb", "cc", "dddd")]
    assert [line.plain for line in side_by_side(cells, 10)] == ["a     bbb", "cc    dddd"]
    assert [line.plain for line in side_by_side([Text("abcdef")], 3)] == ["ab…"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0s"), (59.9, "59s"), (60.0, "1m"), (3_599.0, "59m"), (3_600.0, "1h00m"), (200_000.0, "2d07h")],
)
def test_durations_are_short(seconds: float, said: str) -> None:
    assert brief(seconds) == said
