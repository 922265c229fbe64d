"""The tab «Decisions» in a real browser: drawn, clicked, searched, zoomed and updated."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rlsched as rs
from rlsched.board import views
from rlsched.board.comparing import MOST_PARTINGS, Partings, compare
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.cli.users.explain import explain
from rlsched.decide.actions import Start
from rlsched.decide.plans.plan_text import in_words
from rlsched.decide.registry import load_scheduler
from rlsched.decisions import story
from rlsched.decisions.candidates import candidates
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.schema import ForecastSeen, JobEvent, StoreInfo
from rlsched.decisions.store import DecisionStore
from rlsched.decisions.timeline import AttemptSeen
from rlsched.workload.synth import synthesize
from rlsched_agents.whatif.instead import instead
from tests.support.online.cluster import Cluster, all_up, until

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")
LAUNCH = "from rlsched.cli.traces.board import board; board()"
WAIT_MS = 60_000
JOB = "40"
ONLINE = ("--policy", "ppo", "--prediction", "running-mean")

REPLAY_MS = 240_000
"""A replay may have to compile kernels first."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replays of a trace with models, and their stores, with forecasts for `tuned`."""
    folder = tmp_path_factory.mktemp("tab")
    trace, spec = synthesize("helios", jobs=150, load=1.0, gpus=16, seed=2)
    rs.simulate(trace, spec, ["tuned", "fifo-backfill"], models=rs.Models(), records=folder)
    store = DecisionStore(folder / "tuned", StoreInfo(time="trace", of=""), held_s=0.0)
    store.add_events(forecasts(StoreReader(folder / "tuned")))
    store.flush()
    return folder


def forecasts(reader: StoreReader) -> list[ForecastSeen]:
    """Forecast ends of every second job: half, once and twice the true time; far less for each fifth job."""
    reader.refresh()
    found = []
    for job in [*reader.timeline.jobs.values()][::2]:
        seen_s = job.end_s - job.submit_s
        if math.isfinite(seen_s):
            said_s = seen_s / 100 if len(found) % 5 == 0 else seen_s
            quantiles = [said_s / 2, said_s, 2 * said_s]
            found.append(
                ForecastSeen(
                    time_s=job.end_s,
                    job=job.job,
                    num_gpus=job.num_gpus,
                    what="end",
                    said_s=job.submit_s,
                    low_s=quantiles[0],
                    median_s=quantiles[1],
                    high_s=quantiles[2] if len(found) % 7 else math.inf,
                    seen_s=seen_s,
                    raw=quantiles,
                    week=quantiles,
                )
            )
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address of a TensorBoard on the stores below a folder, started as by `rlsched board`."""
    out = folder.with_name("stdout")
    with out.open("w") as stdout:
        server = subprocess.Popen(
            [sys.executable, "-u", "-c", LAUNCH, str(folder), "--port", "0", "--host", "127.0.0.1"],
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )
    try:
        until(lambda: " at http" in out.read_text(), "TensorBoard starts")
        yield out.read_text().split(" at ")[1].split(" ")[0]
    finally:
        server.terminate()
        server.wait(timeout=60)


@contextmanager
def tab(address: str) -> Iterator[Any]:
    """The tab's own frame; the console must have no errors."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        outer = browser.new_page(viewport={"width": 1400, "height": 900})
        outer.set_default_timeout(WAIT_MS)
        wrong: list[str] = []
        outer.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        outer.on("pageerror", lambda error: wrong.append(str(error)))
        outer.goto(address + "#decisions")
        frame = outer.wait_for_selector("iframe").content_frame()
        frame.wait_for_function("document.querySelector('#note')?.textContent.includes('decisions,')")
        yield frame
        browser.close()
        assert wrong == []


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as found:
        yield found


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    with tab(address) as frame:
        yield frame


def choose(page: Any, run: str) -> None:
    page.locator("#run").select_option(run)
    page.wait_for_function("document.querySelector('#panel h2')?.textContent.startsWith('day')")


def colours(page: Any) -> int:
    """Number of colours in the chart; 1 means no chart."""
    return int(
        page.evaluate(
            """() => {
              const canvas = document.querySelector('#chart canvas');
              const shown = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
              const points = new Uint32Array(shown.data.buffer).filter((_, k) => k % 97 === 0);
              return new Set(points).size;
            }"""
        )
    )


def test_job_is_found_and_its_decision_is_that_of_the_store(page: Any, folder: Path) -> None:
    choose(page, "tuned")
    assert colours(page) > 30
    page.locator("#q").fill(JOB)
    page.locator("#q").press("Enter")
    page.wait_for_function(f"document.querySelector('#panel h2')?.textContent === 'Job {JOB}'")
    reader = StoreReader(folder / "tuned")
    reader.refresh()
    told = story.job_story(reader, story.job_of(reader, JOB))
    shown = page.locator("#panel").inner_text()
    for attempt in told["attempts"]:
        assert attempt["where"] in shown
        assert attempt["why"]["did"] in shown
        for plan in attempt["why"]["plans"]:
            assert plan["words"] in shown
        speeds = attempt["speed_frac"], attempt["predicted_speed_frac"]
        assert "{:.2f}, {:.2f} predicted".format(*speeds) in shown
        assert " kWh predicted" in shown


def test_clicks_keys_and_zoom(page: Any) -> None:
    choose(page, "fifo-backfill")
    box = page.locator("#chart canvas").bounding_box()
    page.locator("#chart canvas").click(position={"x": box["width"] / 2, "y": box["height"] - 60})
    page.wait_for_function("document.querySelector('#panel').textContent.includes('The queue, in its order')")
    page.locator("#chart").focus()
    page.locator("#chart").press(".")
    page.wait_for_function("document.querySelector('#panel h2')?.textContent.startsWith('Decision ')")
    first = page.locator("#panel h2").inner_text()
    page.locator("#chart").press(".")
    page.wait_for_function(f"document.querySelector('#panel h2')?.textContent !== '{first}'")
    before = page.locator("#chart canvas").screenshot()
    page.locator("#in").click()
    until(lambda: page.locator("#chart canvas").screenshot() != before, "the chart is zoomed")
    page.locator("#q").fill("no such job")
    page.locator("#q").press("Enter")
    page.wait_for_function("document.querySelector('#panel h2')?.textContent.startsWith('No job matches')")


def test_power_and_forecasts_are_below_the_gpus(page: Any, folder: Path) -> None:
    choose(page, "tuned")
    reader = StoreReader(folder / "tuned")
    reader.refresh()
    first_s, last_s = reader.timeline.first_s, reader.timeline.last_s
    shown = views.overview(reader, first_s, last_s)
    chart = page.locator("#chart canvas")

    def spot(at_s: float, panels: float, part: float = 0.0) -> dict[str, float]:
        """Where a time is, so many panels and such a part of a panel's scale above the axis.

        The chart may still change its size, for example when a line of text appears below it.
        """
        box = chart.bounding_box()
        tall = min(80.0, box["height"] / 8)  # of each of the four panels and the gaps between them
        x = 90 + (at_s - first_s) / (last_s - first_s) * (box["width"] - 98)
        return {"x": x, "y": box["height"] - 22 - panels * tall - part * (tall - 10)}

    def said_at(at_s: float, panels: float, part: float, wanted: str) -> list[str]:
        """The lines of the tooltip there, once it has this text. The mouse moves until it has."""
        deadline = time.monotonic() + 60.0
        while wanted not in page.locator("#tip").inner_text():
            assert time.monotonic() < deadline, page.locator("#tip").inner_text()
            chart.hover(position=spot(at_s, panels, part))
        return str(page.locator("#tip").inner_text()).splitlines()

    powers = shown["power"]["power_w"]
    most = int(np.argmax(powers))
    middle_s = float(np.mean(shown["at_s"][most : most + 2]))
    draw = f"jobs draw {powers[most] / 1000:.1f} kW"
    assert draw in said_at(middle_s, 1.5, 0.0, draw)[-1]

    count, held = shown["forecasts"]["count"], shown["forecasts"]["held"]
    assert 0 < held < count
    assert f"{held} of {count} forecasts came within 10 to 90 %." in page.locator("#note").inner_text()
    foreseen = shown["forecasts"]
    row = foreseen["within"].index(False)
    most_s = max(*foreseen["seen_s"], *(one for one in foreseen["high_s"] if math.isfinite(one)))
    part = math.log1p(foreseen["seen_s"][row]) / math.log1p(most_s)
    came_s, job = foreseen["time_s"][row], foreseen["job"][row]
    ends = f"job {job} ends: forecast "
    _, what, came = said_at(came_s, 0.0, part, ends)
    assert what.startswith(ends)
    assert came.startswith("came after ")
    chart.click(position=spot(came_s, 0.0, part))
    page.wait_for_function(f"document.querySelector('#panel h2')?.textContent === 'Job {job}'")


def test_two_runs_are_compared(page: Any, folder: Path) -> None:
    choose(page, "tuned")
    page.locator("#other").select_option("fifo-backfill")
    page.wait_for_function("document.querySelector('#panel h2')?.textContent === 'tuned and fifo-backfill'")
    readers = [StoreReader(folder / name) for name in ("tuned", "fifo-backfill")]
    for reader in readers:
        reader.refresh()
    found = compare(*readers)
    assert found["jobs"] == 150
    shown = page.locator("#panel").inner_text()
    assert "150 jobs started in both" in shown
    assert found["parting"]["this"]["did"] in shown
    assert found["parting"]["other"]["did"] in shown
    again = compare(readers[0], readers[0])
    assert (again["parting"], again["less"], again["more"]) == (None, [], [])


def test_every_difference_of_two_runs_is_listed_in_pages(page: Any, folder: Path) -> None:
    readers = [StoreReader(folder / name) for name in ("tuned", "fifo-backfill")]
    for reader in readers:
        reader.refresh()
    found = Partings(*readers)
    choose(page, "tuned")
    page.locator("#other").select_option("fifo-backfill")
    for first in range(0, len(found), MOST_PARTINGS):
        listed = found.page(first)["partings"]
        last = first + len(listed)
        counted = f"{first + 1} to {last} of {len(found)} times at which the runs differ"
        page.wait_for_function(f"document.querySelector('.partings')?.textContent.includes('{counted}')")
        rows = page.locator(".partings tbody tr:not([hidden])")
        assert rows.count() == len(listed)
        for k, one in enumerate(listed):
            shown = rows.nth(k).inner_text()
            assert one["when"] in shown
            assert ("same state" in shown) == one["same_state"]
            assert all(act["did"] in shown for act in (*one["this"], *one["other"]))
            assert ("Replay" in shown) == (one["worth"] is not None)
        later = page.locator(".partings").get_by_text("Later", exact=True)
        assert later.is_disabled() == (last == len(found))
        if last < len(found):
            later.click()
    page.locator(".partings").get_by_text("Earlier", exact=True).click()
    page.wait_for_function("!document.querySelector('.partings p').textContent.includes('Replay')")
    page.locator(".partings").get_by_text("Replay", exact=True).first.click()
    page.locator(".partings .instead button.replay").click()
    page.wait_for_function("document.querySelector('.partings .outcome .verdict')", timeout=REPLAY_MS)


def test_last_request_is_shown_whatever_the_order_of_answers(page: Any) -> None:
    """The selected run loads slowly; meanwhile its comparison is requested."""
    held: list[Any] = []
    page.page.route("**/overview?*", lambda route: held.append(route))
    page.locator("#run").select_option("tuned")
    page.locator("#other").select_option("fifo-backfill")
    heading = "document.querySelector('#panel h2')?.textContent"
    page.wait_for_function(f"{heading} === 'tuned and fifo-backfill'")
    assert len(held) == 1
    page.evaluate("document.querySelector('#note').textContent = ''")
    held[0].continue_()
    page.wait_for_function("document.querySelector('#note').textContent.includes('decisions,')")
    page.page.wait_for_timeout(500)  # an unwanted request would be shown by now
    assert page.evaluate(heading) == "tuned and fifo-backfill"


def other_course(folder: Path) -> tuple[dict[str, Any], str]:
    """A start by `tuned` for which another choice delays other jobs: its result, and its job."""
    reader = StoreReader(folder / "tuned")
    reader.refresh()
    for row in range(len(reader)):
        job = reader.cells(row)["job"]
        if reader.cells(row)["kind"] != "start" or len(reader.timeline.jobs[job].attempts) != 1:
            continue
        for one in candidates(reader.record(row)):
            if not one.taken:
                found = instead(reader, row, str(one.number), hours=24.0)
                if any(listed["job"] != job for listed in (*found["less"], *found["more"])):
                    return found, job
    raise AssertionError("no other choice changes anything for others")


def test_button_replays_from_a_decision_with_another_choice(page: Any, folder: Path) -> None:
    found, job = other_course(folder)
    choose(page, "tuned")
    page.locator("#q").fill(job)
    page.locator("#q").press("Enter")
    page.wait_for_function(f"document.querySelector('#panel h2')?.textContent === 'Job {job}'")
    page.locator(".instead button.replay").get_by_text(found["instead"], exact=True).first.click()
    page.wait_for_function("document.querySelector('.outcome progress')")
    page.wait_for_function("document.querySelector('.outcome .verdict')", timeout=REPLAY_MS)
    verdict = page.locator(".outcome .verdict").inner_text()
    counts = f"Of {found['jobs']} jobs {found['num_less']} wait less and {found['num_more']} more;"
    assert verdict.startswith(counts)
    shown = page.locator(".outcome").inner_text()
    for listed in (*found["less"], *found["more"]):
        assert f"job {listed['job']}" in shown
    assert "kWh" in shown
    other = next(one["job"] for one in (*found["less"], *found["more"]) if one["job"] != job)
    page.locator(".outcome table button.link").get_by_text(f"job {other}", exact=True).click()
    page.wait_for_function(f"document.querySelector('#panel h2')?.textContent === 'Job {other}'")


def test_replay_ends_when_another_decision_is_opened(page: Any, folder: Path) -> None:
    found, job = other_course(folder)
    choose(page, "tuned")
    for _ in range(2):  # the second replay may start: the first has ended
        page.locator("#q").fill(job)
        page.locator("#q").press("Enter")
        page.wait_for_function(f"document.querySelector('#panel h2')?.textContent === 'Job {job}'")
        page.locator(".instead button.replay").get_by_text(found["instead"], exact=True).first.click()
        page.wait_for_function("document.querySelector('.outcome progress')")
        page.locator("#q").fill("no such job")
        with page.page.expect_response(lambda answer: "stop=" in answer.url) as left:
            page.locator("#q").press("Enter")
        assert left.value.json()["error"] == "it was stopped"


def test_effect_of_a_difference_is_replayed_with_the_other_runs_choice(page: Any, folder: Path) -> None:
    readers = [StoreReader(folder / name) for name in ("tuned", "fifo-backfill")]
    for reader in readers:
        reader.refresh()
    worth = compare(*readers)["parting"]["worth"]
    assert worth is not None
    expected = instead(readers[0], worth["row"], str(worth["number"]), hours=24.0)
    choose(page, "tuned")
    page.locator("#other").select_option("fifo-backfill")
    page.wait_for_function("document.querySelector('#panel').textContent.includes('of this difference')")
    page.locator(".instead button.replay").last.click()
    page.wait_for_function("document.querySelector('.outcome .verdict')", timeout=REPLAY_MS)
    same = page.locator(".outcome .verdict").inner_text().startswith("No change")
    assert same == expected["same"]


def test_dark_mode_is_that_of_tensorboard(page: Any) -> None:
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.evaluate("document.body.classList.add('dark-mode')")
    page.wait_for_function(f"getComputedStyle(document.body).backgroundColor !== '{light}'")
    assert colours(page) > 30


def test_rows_added_to_a_followed_store_are_shown(page: Any, folder: Path) -> None:
    choose(page, "tuned")
    jobs = page.locator("#note").inner_text()
    page.locator("#live").check()
    store = DecisionStore(folder / "tuned", StoreInfo(time="trace", of=""), held_s=0.0)
    later_s = 1e8
    store.add_events([JobEvent(time_s=later_s, kind="submit", job="a-new-one", num_gpus=2.0)])
    store.flush()
    page.wait_for_function(f"document.querySelector('#note').textContent !== {jobs!r}")
    page.locator("#q").fill("a-new-one")
    page.locator("#q").press("Enter")
    page.wait_for_function("document.querySelector('#panel h2')?.textContent === 'Job a-new-one'")


def contested(folder: Path) -> tuple[StoreReader, str, int]:
    """A store, a job of it whose start was chosen among several plans, and the row of that start."""
    reader = StoreReader(folder)
    reader.refresh()
    for row in range(len(reader)):
        cells, record = reader.cells(row), reader.record(row)
        job = reader.timeline.jobs.get(cells["job"])
        if cells["kind"] == "start" and len(record.plans) > 1 and job is not None and len(job.attempts) == 1:
            return reader, job.job, row
    raise AssertionError("no start was contested")


def test_operators_question_is_answered_next_to_a_running_broker(tmp_path: Path) -> None:
    """Why was the job placed there, what else was possible, what would the rule have done, was it right?

    In two clicks of the tab and in one command, each part against the journal.
    """
    cluster = Cluster(tmp_path, nodes=["n0"], broker_options=ONLINE)
    directory = cluster.directory / "broker"
    try:
        with cluster.client() as client:
            all_up(client, 1)
            jobs = [
                client.submit(["sleep", str(seconds)], num_gpus=gpus, name=f"train-{gpus}")
                for gpus, seconds in ((4, 2.0), (3, 1.0), (2, 1.5), (1, 1.0), (2, 1.0))
            ]
            for one in jobs:
                assert client.wait(one).state == "completed"
            until(lambda: all_ended(directory / "decisions", len(jobs)), "the store is written")
            reader, job, row = contested(directory / "decisions")
            made = {one.number: one for one in redecide(journal_events(directory), load_scheduler("ppo"))}
            record = made[reader.record(row).number]  # from the journal's facts, not from the store
            assert isinstance(record.action, Start)
            info = client.job(int(job))
            parts = [
                f"n0[{','.join(map(str, info.gpus[0]))}]",  # where
                time.strftime("%F %T", time.localtime(record.now_s)),  # when
                *(in_words(plan, record.names.job) for plan in record.plans),  # what else was possible
            ]
            found = instead(reader, row, "rule", hours=24.0)
            asked = [job, "--instead", "rule", "--run", str(directory)]
            said = CliRunner().invoke(explain, asked, catch_exceptions=False).output
            for part in parts:
                assert part in said
            assert f"instead: {found['instead']}; then the same policy" in said
            assert ("no change: " if found["same"] else f"of {found['jobs']} jobs ") in said

            with served(directory) as address, tab(address) as page:
                shown = views.overview(reader, reader.timeline.first_s, reader.timeline.last_s)
                attempt = reader.timeline.jobs[job].attempts[0]
                page.locator("#chart canvas").click(position=spot_of(page, shown, attempt))  # click 1
                page.wait_for_function(f"document.querySelector('#panel h2')?.textContent === 'Job {job}'")
                panel = page.locator("#panel").inner_text()
                for part in (*parts, info.name):
                    assert part in panel
                page.locator(".instead button.replay").get_by_text(found["instead"], exact=True).click()  # 2
                page.wait_for_function("document.querySelector('.outcome .verdict')", timeout=REPLAY_MS)
                verdict = page.locator(".outcome .verdict").inner_text()
                assert verdict.startswith("No change: " if found["same"] else f"Of {found['jobs']} jobs ")

                page.locator("#live").check()  # a job that the running broker starts now appears
                later = client.submit(["true"], num_gpus=1, name="a-later-job")
                assert client.wait(later).state == "completed"
                page.wait_for_function(
                    f"document.querySelector('#note').textContent.includes('{len(jobs) + 1} jobs')"
                )
                page.locator("#q").fill("a-later-job")
                page.locator("#q").press("Enter")
                page.wait_for_function(f"document.querySelector('#panel h2')?.textContent === 'Job {later}'")
    finally:
        cluster.close()


def all_ended(folder: Path, jobs: int) -> bool:
    """Whether a store has the ends of this many jobs."""
    reader = StoreReader(folder)
    reader.refresh()
    return sum(bool(job.state) for job in reader.timeline.jobs.values()) == jobs


def spot_of(page: Any, shown: dict[str, Any], attempt: AttemptSeen) -> dict[str, float]:
    """Where the middle of an attempt's bar is in the chart that shows everything."""
    box = page.locator("#chart canvas").bounding_box()
    panels = 2 + bool(shown["power"]) + bool(shown["forecasts"]["count"])
    below = panels * (min(70.0, box["height"] / 2 / panels - 10) + 10) + 22
    row = next(node["row"] for node in shown["nodes"] if node["node"] == attempt.nodes[0]) + attempt.gpus[0]
    x = (attempt.start_s + attempt.end_s) / 2 - shown["first_s"]
    return {
        "x": 90 + x / (shown["last_s"] - shown["first_s"]) * (box["width"] - 98),
        "y": 4 + (row + 0.5) * (box["height"] - below - 4) / shown["rows"],
    }
