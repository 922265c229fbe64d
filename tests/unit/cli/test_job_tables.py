"""Tables of jobs and nodes, in a pipe and on a narrow terminal."""

from __future__ import annotations

import pytest

from rlsched.cli.shared.job_tables import clock, job_lines, node_lines
from rlsched.terminal.show import folded, print_lines
from rlsched.wire.messages import NodeInfo
from tests.support.listed import job


def test_pipe_gets_whole_columns(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "needs 8 GPUs, 2 free"
    print_lines(
        lambda width: job_lines(
            [job(1), job(2, state="queued", nodes=[], gpus=[], reason=reason)], width, 3670.0
        )
    )
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["job", "name", "user", "vc", "gpus", "state", "time", "where", "by", "reason"]
    assert first.split()[-4:] == ["1:01:00", "gpu-node-1[0,1,2,3]", "gpu-node-2[0,1,2,3]", "policy"]
    assert second.rstrip().endswith(reason)
    assert "resnet-50-imagenet" in first


def test_long_name_hides_no_column_on_a_narrow_terminal() -> None:
    where = {"nodes": ["n0", "n1"], "gpus": [[0, 1, 2, 3], [0, 1, 2, 3]]}
    jobs = [
        job(1, name="a-name-that-is-longer-than-any-column-should-be", state="launching", **where),
        job(2, state="queued", nodes=[], gpus=[], decided_by="", reason="needs 8 GPUs, 2 free"),
        job(3, decided_by="automatic", **where),
    ]
    told = "\n".join(line.plain for line in job_lines(jobs, 80, 3670.0))
    header, *rows = [" ".join(line.split()) for line in told.splitlines()]
    assert header == "job name gpus state time by where, reason"
    assert rows == [
        "1 a-name-that-i… 8 launching 1:01:00 policy n0[0,1,2,3] n1[0,1,2,3]",
        "2 resnet-50-ima… 8 queued 1:01:10 needs 8 GPUs, 2 free",
        "3 resnet-50-ima… 8 running 1:01:00 automatic n0[0,1,2,3] n1[0,1,2,3]",
    ]
    assert max(map(len, told.splitlines())) <= 80


def test_narrow_terminal_shows_users_if_there_are_several() -> None:
    told = "\n".join(line.plain for line in job_lines([job(1), job(2, user="grace")], 80, 20.0))
    assert "ada" in told
    assert "grace" in told


def test_drained_node_is_shown_as_drained(capsys: pytest.CaptureFixture[str]) -> None:
    node = NodeInfo(
        name="n0", state="drained", gpus=4, free_gpus=0, gpu_type="h200", vc="", jobs=[3, 4], last_seen_s=0.0
    )
    print_lines(lambda width: node_lines([node], width))
    assert capsys.readouterr().out.splitlines()[1].split() == ["n0", "drained", "4", "0", "h200", "3", "4"]


def test_note_of_a_node_is_shown_in_any_state(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"gpus": 4, "free_gpus": 4, "gpu_type": "h200", "vc": "", "jobs": [], "last_seen_s": 0.0}
    up = NodeInfo(name="n0", state="up", notes=["no control groups"], **told)  # type: ignore[arg-type]
    sick = NodeInfo(name="n1", state="drained", reason="no scratch", notes=["no control groups"], **told)  # type: ignore[arg-type]
    print_lines(lambda width: node_lines([up, sick], width))
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [" ".join(line.split()[5:]) for line in lines] == [
        "no control groups",
        "no scratch; no control groups",
    ]


def test_empty_list_shows_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(lambda width: job_lines([], width))
    print_lines(lambda width: node_lines([], width))
    told = capsys.readouterr().out
    assert "rlsched queue --all" in told
    assert "rlsched node --name n0" in told


def test_lower_clock_is_shown_next_to_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        job(1, sm_clock_frac=0.79, sm_clocks_mhz=[1560, 1560]),
        job(2, sm_clock_frac=0.79, sm_clocks_mhz=[1560, 0]),
        job(3, sm_clock_frac=1.0, sm_clocks_mhz=[0, 0]),
        job(4, state="queued", nodes=[], gpus=[], sm_clock_frac=0.79, sm_clocks_mhz=[0, 0]),
    ]
    print_lines(lambda width: job_lines(jobs, width, 3670.0))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]]
    assert "gpu-node-2[0,1,2,3] 1560 MHz policy" in lines[0]
    assert "gpu-node-2[0,1,2,3] 1560 MHz/79% clock policy" in lines[1]
    assert "MHz" not in lines[2] + lines[3]
    assert "clock" not in lines[2] + lines[3]


def test_nodes_show_whether_their_clocks_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"state": "up", "gpus": 4, "free_gpus": 4, "gpu_type": "h200", "vc": "", "jobs": []}
    nodes = [
        NodeInfo(name="n0", last_seen_s=0.0, max_sm_clock_mhz=1980, **told),  # type: ignore[arg-type]
        NodeInfo(name="n1", last_seen_s=0.0, clocks_note="not root", **told),  # type: ignore[arg-type]
    ]
    print_lines(lambda width: node_lines(nodes, width))
    header, first, second = capsys.readouterr().out.splitlines()
    assert "SM clock" in header
    assert first.split()[5:] == ["up", "to", "1980", "MHz"]
    assert second.split()[5:] == ["fixed"]


def test_escape_sequences_of_users_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    told = job(1, name="a\x1b[2Jb", user="e\nve", vc="\x9b1m", reason="\u202eno")
    print_lines(lambda width: job_lines([told], width, 9.0))
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    for part in (r"a\x1b[2Jb", r"e\nve", r"\x9b1m", r"\u202eno"):
        assert part in shown
    assert not set("\x1b\x9b\u202e") & set(shown)


def test_narrow_table_has_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        job(
            k,
            user=f"user-{k}",
            vc=f"vc-{k}",
            state="queued",
            nodes=[],
            gpus=[],
            decided_by="",
            reason="why " * 40,
        )
        for k in range(3)
    ]
    for width in (60, 80, 99, 100, 120):
        lines = [line.plain for line in job_lines(jobs, width, 9.0)]
        assert len(lines) == 4
        assert max(map(len, lines)) <= width
        assert all(line.endswith("…") for line in lines[1:])
    node = NodeInfo(
        name="n0", state="down", gpus=4, free_gpus=0, gpu_type="h200", vc="", jobs=list(range(90)),
        last_seen_s=0.0, reason="why " * 40,
    )  # fmt: skip
    lines = [line.plain for line in node_lines([node], 80)]
    assert max(map(len, lines)) <= 80
    print_lines(lambda width: node_lines([node], width))
    assert " 89 " in capsys.readouterr().out, "a pipe gets all of them"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0:00:00"), (3_661.0, "1:01:01"), (86_399.0, "23:59:59"), (183_600.0, "2d 03:00:00")],
)
def test_durations_have_two_units(seconds: float, said: str) -> None:
    assert clock(seconds) == said


def test_sentence_wraps_between_words_and_keeps_its_columns() -> None:
    path = "/a/path-that-is/longer-than-the-screen"
    assert folded("  starts in 10 s, ends later", 20, 2) == "  starts in 10 s,\n    ends later"
    assert folded("fifo  first come, first served", 20, 6) == "fifo  first come,\n      first served"
    assert folded(f"store: {path}", 20, 2).split() == ["store:", path]
    assert folded("", 20, 2) == ""
