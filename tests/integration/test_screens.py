"""Screens of 80 columns in a real terminal: no wrapped line, no flicker, and the terminal is restored."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.client.client import Client
from tests.support.online.cluster import RLSCHED, Cluster, all_up, until
from tests.support.online.screen import COLUMNS, LINES, NEEDS_TMUX, Screen

pytestmark = [pytest.mark.slow, NEEDS_TMUX]

OPTIONS = ("--policy", "fifo-backfill", "--prediction", "running-mean", "--forecaster", "none")
STAYS = ["sh", "-c", "echo here; sleep 600"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("screens"), broker_options=OPTIONS)
    with cluster.client() as client:
        all_up(client)
    yield cluster
    cluster.close()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """Jobs that run and wait; all are cancelled afterwards."""
    with cluster.client() as client:
        for user in ("ada", "eve"):
            client.submit(STAYS, num_gpus=4, user=user, name=f"{user}-trains-something-large")
        for gpus in (1, 4, 8):
            client.submit(STAYS, num_gpus=gpus, user="bob", name="waits")
        until(lambda: sum(job.state == "running" for job in client.jobs()) == 2, "two run")
        yield client
        for job in client.jobs():
            client.cancel(job.job)
        until(lambda: not client.jobs(), "all have ended")


@pytest.fixture
def screen(cluster: Cluster, tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path, {"RLSCHED_HOME": str(cluster.keys), "RLSCHED_BROKER": cluster.address})
    yield screen
    screen.close()


@pytest.mark.usefixtures("client")
def test_top_shows_the_cluster_and_restores_the_terminal(screen: Screen) -> None:
    before = screen.modes()
    for leave in ("q", "C-c"):
        screen.type("rlsched top --every 0.2")
        shown = screen.until(r"QUEUE 3")
        assert re.search(r"n0 (aaaa|eeee)  n1 (aaaa|eeee)", shown), shown
        assert re.search(r"(?m)^ \d+ +ada-trains-some… +ada +4 +\d+s .*100% +n\d\[0-3\]", shown), shown
        assert re.search(r"(?m)^ \d+ +waits +bob +8 +\d+s .*Resources: needs 8 GPUs, 0 free", shown), shown
        assert "why" in shown.splitlines()[-1]
        assert screen.wraps() == []
        assert screen.state() == ("1", "0")
        screen.keys(leave)
        until(lambda: screen.state() == ("0", "1"), "it is the shell's again")
    assert screen.modes() == before


@pytest.mark.usefixtures("client")
def test_signal_restores_the_terminal_and_a_stopped_screen_resumes(screen: Screen, tmp_path: Path) -> None:
    before = screen.modes()
    for number in (signal.SIGTERM, signal.SIGHUP):
        screen.type(f"sh -c 'echo $$ > {tmp_path}/pid; exec rlsched top'; echo left $?")
        screen.until("QUEUE 3")
        os.kill(int((tmp_path / "pid").read_text()), number)
        screen.until(f"left {128 + number}")
        assert screen.state() == ("0", "1")
        screen.run("true")
    screen.type("rlsched top")
    screen.until("QUEUE 3")
    screen.keys("C-z")
    until(lambda: screen.state() == ("0", "1"), "it is the shell's for now")
    screen.type("fg")
    screen.until("QUEUE 3")
    assert screen.state() == ("1", "0")
    screen.keys("q")
    until(lambda: screen.state() == ("0", "1"), "it is the shell's again")
    assert screen.modes() == before


def test_unchanged_lines_are_not_redrawn(screen: Screen, client: Client) -> None:
    before = len(screen.written())
    screen.type("rlsched top --every 0.2")
    screen.until("QUEUE 3")
    waiting = client.jobs()[-1].job
    client.hold(waiting)
    screen.until(r"\(1 Held\)")
    client.release(waiting)
    screen.until(r"top  3 queued  ")
    drawn = screen.written()[before:].decode()
    assert drawn.count("\x1b[?1049h") == drawn.count("\x1b[2J") == 1, "the screen was cleared once"
    assert drawn.count("USERS") == drawn.count("RUNNING 2") == 1, "an unchanged line is written once"
    assert drawn.count("(1 Held)") == 1, "a changed line is written once per change"
    assert "\x1b[J" not in drawn
    screen.keys("q")


def test_keys_open_why_and_logs_and_cancel_after_confirmation(screen: Screen, client: Client) -> None:
    first = client.jobs()[0]
    screen.type("rlsched top --every 0.2")
    screen.until("QUEUE 3")
    screen.keys("c")
    screen.until("choose a job with the arrow keys first")
    screen.keys("Down")
    screen.until(rf"(?m)^>{first.job} ")
    screen.keys("w")
    screen.until(rf"why: job {first.job} [^$]*- running on n\d\[0,1,2,3\]")
    screen.keys("q", "l")
    screen.until(rf"output: job {first.job} [^$]*\nhere\n")
    screen.keys("q", "c")
    screen.until(rf"cancel job {first.job} \({first.name}\)\? y: yes")
    screen.keys("n", "Down", "Up", "c")
    screen.until(r"cancel job")
    assert client.job(first.job).state == "running"
    screen.keys("y")
    screen.until(rf"job {first.job} \({first.name}\): cancelled")
    until(lambda: client.job(first.job).state == "cancelled", "it has ended")
    assert screen.wraps() == []
    screen.keys("q")


@pytest.mark.usefixtures("client")
def test_resize_redraws_the_screen(screen: Screen) -> None:
    screen.type("rlsched top --every 0.2")
    screen.until("QUEUE 3")
    screen.resize(COLUMNS + 40, 12)
    screen.until(r"(?s)\Arlsched top.*cancel  q quit\s*\Z")
    assert len(screen.text().splitlines()) <= 12
    screen.resize(60, LINES)
    shown = screen.until(r"(?s)waits.*q quit\s*\Z")
    assert max(map(len, shown.splitlines())) <= 60
    screen.keys("q")


@pytest.mark.usefixtures("client")
def test_unreachable_broker_is_a_line_and_the_screen_recovers(screen: Screen, cluster: Cluster) -> None:
    screen.type("rlsched top --every 0.2 --timeout-s 2")
    screen.until("QUEUE 3")
    cluster.kill("broker")
    shown = screen.until(r"no broker answers at \S+")
    assert "QUEUE 3" in shown, "the last data stays"
    assert screen.wraps() == []
    screen.keys("Down")
    screen.until(r"(?m)^>")
    cluster.start("broker")
    shown = screen.until(r"(?s)\A(?!.*(no broker|not answered)).*up \d+ s.*RUNNING 2")
    assert "QUEUE 3" in shown
    screen.keys("q")
    until(lambda: screen.state() == ("0", "1"), "it is the shell's again")


@pytest.mark.usefixtures("client")
def test_lists_have_one_line_per_row_and_are_watched_without_flicker(screen: Screen) -> None:
    assert re.search(r"(?m)^ *\d+ ada-trains-so\S*… ada ", screen.run("rlsched queue"))
    for line in ("nodes", "history --since 1d", "queue --all", "top --once", "queue -t R"):
        assert "ended" in screen.run(f"rlsched {line}")
        assert screen.wraps() == [], line
    before = len(screen.written())
    screen.type("rlsched queue --watch 0.2 --sort -num_gpus")
    screen.until(r"rlsched queue, every 0.2 s\s+job name")
    screen.until(r"0:00:\d\d")
    drawn = screen.written()[before:].decode()
    assert drawn.count("\x1b[2J") == 1
    assert screen.wraps() == []
    screen.keys("q")
    until(lambda: screen.state() == ("0", "1"), "it is the shell's again")


def test_run_shows_states_and_output(screen: Screen, client: Client) -> None:
    for job in client.jobs():
        client.cancel(job.job)
    shown = screen.run(
        "rlsched run -N 2 --gpus-per-node 4 -- sh -c 'echo rank $RLSCHED_RANK; sleep 1; exit 3'"
    )
    for line in (r"job \d+ running on n\d\[0-3\] n\d\[0-3\]", "0: rank 0", "1: rank 1", "ended 3"):
        assert re.search(rf"(?m)^{line}$", shown), shown
    assert screen.wraps() == []


def test_train_has_bars_and_a_verdict_that_fit(screen: Screen, tmp_path: Path) -> None:
    asked = f"--synthetic helios --recipe smoke --workers 1 --out {tmp_path}/mine.toml"
    before = len(screen.written())
    shown = screen.run(f"rlsched train {asked}", patience_s=300.0)
    assert re.search(r"(?m)^ *following +confirm +\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]", shown), shown
    assert "ended 0" in shown
    assert screen.wraps() == []
    drawn = screen.written()[before:].decode(errors="replace")
    assert "constants" in drawn
    assert "\x1b[?1049h" not in drawn
    assert screen.state() == ("0", "1"), "the bars restored the cursor"


@pytest.mark.usefixtures("client")
def test_colours_are_only_for_terminals(screen: Screen, cluster: Cluster) -> None:
    colours = r"\x1b\[[0-9;]*3[1-7]"
    screen.type("rlsched top")
    screen.until("QUEUE 3")
    assert re.search(colours, screen.text("-e"))
    screen.keys("q")
    until(lambda: screen.state() == ("0", "1"), "it is the shell's again")
    screen.type("NO_COLOR=1 rlsched top")
    screen.until("QUEUE 3")
    assert not re.search(colours, screen.text("-e"))
    screen.keys("q")
    for verb in ("top", "queue", "nodes", "history"):
        done = subprocess.run(
            [*RLSCHED, verb, "--broker", cluster.address, "--keys", str(cluster.keys)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "\x1b" not in done.stdout
        assert ("n0[0" if verb == "top" else "n0") in done.stdout
        assert "…" not in done.stdout or verb == "top", "a pipe gets whole columns"
