"""`rlsched cluster import`: nodes of a Slurm 22.05.8 as a cluster, downtimes as events, from commands or as
text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.from_slurm.downtimes import downtimes
from rlsched.from_slurm.nodes import imported
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.trace import Trace
from rlsched_envs.sim.node_events import read_node_events

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "slurm"
ORIGIN = "2024-03-01 00:00:00"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def test_nodes_of_scontrol() -> None:
    found = imported(sample("nodes.txt"), "lab", "nodes.txt")
    groups = [
        (one.count, one.gpus, one.gpu_type, one.cpus, one.memory_mib, one.vc) for one in found.cluster.nodes
    ]
    assert groups == [
        (2, 4, "generic", 64, 64000, "vision"),
        (2, 8, "a100", 62, 512000, None),
        (1, 0, "generic", 64, 64000, "cpu"),
    ]
    assert found.names == {"n1": "n0", "n2": "n1", "a1": "n2", "a2": "n3", "c1": "n4"}
    assert found.notes == (
        "2 nodes are shared by debug and speech: they serve jobs of every partition here",
        "2 nodes are down or drained now: they are counted; --events says when they were away",
        "1 nodes of state FUTURE are left out",
        "2 nodes do not say the type of their GPUs: generic",
    )


def test_sinfo_and_one_line_per_node_agree() -> None:
    found = imported(sample("nodes.txt"), "lab", "nodes.txt")
    lines = "\n".join(" ".join(record.split()) for record in sample("nodes.txt").split("\n\n"))
    assert imported(lines, "lab", "nodes.txt") == found
    of_sinfo = imported(sample("sinfo.txt"), "lab", "sinfo.txt")
    assert of_sinfo.cluster == found.cluster
    assert of_sinfo.names == found.names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got nothing"),
        ("hello\n", "line 1: expected the output of `scontrol show node`"),
        ("n1|gpu|64|1000|(null)|idle\n", "none of its 1 nodes has a GPU"),
        ("n1|gpu|64|1000|gpu:a100:many|idle\n", "line 1: Gres: expected gpu:TYPE:COUNT"),
        ("n1|gpu|64|lots|gpu:8|idle\n", "line 1: memory: expected a whole number"),
        ("n1|gpu|64|1000|gpu:a100:65|idle\n", "expected at most 64 GPUs in a node, got 65"),
    ],
)
def test_invalid_list_of_nodes(text: str, said: str) -> None:
    with pytest.raises(InputError, match=r"n\.txt") as error:
        imported(text, "lab", "n.txt")
    assert said in str(error.value)


def test_downtimes_count_from_the_trace_and_close() -> None:
    names = imported(sample("nodes.txt"), "lab", "nodes.txt").names
    clock = TimeParser()
    origin_s = clock.read(ORIGIN, "")
    assert origin_s is not None
    found = downtimes(sample("events.txt"), names, origin_s, clock, "events.txt")
    assert found.changes == [
        (0.0, "n0", "drain"),
        (36000.0, "n0", "down"),
        (39600.0, "n0", "up"),
        (43200.0, "n3", "drain"),
    ]
    assert found.skipped == {
        "of the whole cluster": 1,
        "over before the trace begins": 1,
        "state IDLE~+POWERED_DOWN": 1,
        "of a node that is not in the cluster": 1,
    }


def test_cluster_file_with_its_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.toml"
    files = [str(SAMPLES / "nodes.txt"), "--events", str(SAMPLES / "events.txt"), "--origin", ORIGIN]
    assert run(["cluster", "import", *files, "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    spec = ClusterSpec.read(out)
    assert (said["nodes"], said["gpus"], said["vcs"]) == (5, 24, ["cpu", "vision"])
    assert (spec.name, spec.num_nodes, spec.num_gpus) == ("c", 5, 24)
    events = read_node_events(spec.node_events, spec)
    assert [(one.time_s, one.node) for one in events] == [(0, 0), (36000, 0), (39600, 0), (43200, 3)]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_downtimes_count_from_the_origin_of_a_trace(
    zone: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace has the time with its offset or as written; given a zone, both commands agree."""
    origin = TimeParser(zone).instant(TimeParser(zone).read(ORIGIN, "") or 0.0)
    trace = Trace.from_columns(name="t", submit_s=[0.0], duration_s=[1.0], num_gpus=[1.0], origin=origin)
    trace.write(tmp_path / "t.csv.gz")
    how = [str(SAMPLES / "nodes.txt"), "--events", str(SAMPLES / "events.txt")]
    how += ["--timezone", zone] if zone else []
    written = []
    for said in (ORIGIN, str(tmp_path / "t.csv.gz")):
        assert run(["cluster", "import", *how, "--origin", said, "-o", str(tmp_path / "c.toml")]) == 0
        written.append((tmp_path / "c.events.csv").read_text())
    assert written[0] == written[1]
    replace(trace, origin=None).write(tmp_path / "t.csv")
    capsys.readouterr()
    how += ["--origin", str(tmp_path / "t.csv"), "-o", str(tmp_path / "d.toml")]
    assert run(["cluster", "import", *how]) == 2
    said = "this trace has no column `origin`; give the wall-clock time at which its times are 0"
    assert capsys.readouterr().err == f"error: --origin {tmp_path / 't.csv'}: {said}\n"


def on_path(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of that name with this script, before any other of that name."""
    command = folder / name
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_scontrol_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(
        tmp_path, "scontrol", f'test "$*" = "show node --oneliner" && cat {SAMPLES}/nodes.txt', monkeypatch
    )
    assert run(["cluster", "import", "-o", str(tmp_path / "c.toml")]) == 0
    assert ClusterSpec.read(tmp_path / "c.toml").num_gpus == 24


def test_missing_output_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["-o", str(tmp_path / "c.toml")]
    on_path(tmp_path, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1", monkeypatch)
    assert run(["cluster", "import", *out]) == 2
    assert "scontrol failed: Unable to contact slurm controller; run it" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert run(["cluster", "import", *out]) == 2
    assert "scontrol: no such command on this machine" in capsys.readouterr().err
    assert run(["cluster", "import", str(SAMPLES / "nodes.txt"), "--events", "e.txt", *out]) == 2
    assert "expected --events and --origin together" in capsys.readouterr().err
    assert not (tmp_path / "c.toml").exists()


def test_sacct_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = SAMPLES.parent / "sacct" / "jobs.txt"
    body = (
        f'case "$*" in *"--starttime 2024-03-01T00:00:00 --endtime 2024-04-01T00:00:00"*) cat {jobs};; esac'
    )
    on_path(tmp_path, "sacct", body, monkeypatch)
    span = ["--since", "2024-03-01", "--until", "2024-04-01"]
    asked, read = tmp_path / "asked.csv", tmp_path / "read.csv"
    assert run(["trace", "convert", "--from", "sacct", *span, str(asked)]) == 0
    assert run(["trace", "convert", "--from", "sacct", str(jobs), str(read)]) == 0
    assert asked.read_bytes() == read.read_bytes()
    for wrong, said in (
        (["--since", "90d", str(asked)], "add --from sacct"),
        (["--from", "sacct", "--since", "90d", str(jobs), str(asked)], "expected only OUT"),
        (["--from", "sacct", "--since", "soon", str(asked)], "--since 'soon': expected an age"),
        (
            ["--from", "sacct", "--until", "1d", str(jobs), str(asked)],
            "--until: use it together with --since",
        ),
    ):
        capsys.readouterr()
        assert run(["trace", "convert", *wrong]) == 2
        assert said in capsys.readouterr().err
