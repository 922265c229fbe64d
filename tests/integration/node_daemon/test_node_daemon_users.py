"""`rlsched node` as a process: as whom jobs run, and what they see of the daemon's environment."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.node_daemon.processes import DEADLINE_S, FakeBroker, Node, until

OPTIONS = ("--gpus", "4", "--simulated")
NOBODY = pwd.getpwnam("nobody")
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where others may enter, which is not so below `tmp_path`."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory) / "home"
        assert tmp_path.exists()


def test_a_job_does_not_see_the_daemons_environment(
    broker: FakeBroker, start_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("SITE", "here")
    start_node(*OPTIONS, "--pass-env", "SITE")
    broker.greet()
    broker.launch("env")
    assert broker.end_of(1).exit_code == 0
    lines = broker.log(1).data.decode().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert "AWS_SECRET_ACCESS_KEY" not in names
    assert {"PATH", "CUDA_VISIBLE_DEVICES", "RLSCHED_JOB"} <= names
    assert "SITE=here" in lines


@root_alone
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "this node would run every job as root: give --run-as USER, or --allow-root"),
        (("--run-as", "root"), "this node would run every job as root: give --run-as USER, or --allow-root"),
        (("--run-as", "no-such-user"), "there is no user 'no-such-user' on this machine"),
    ],
)
def test_a_node_that_is_root_says_as_whom_jobs_run(
    broker: FakeBroker,
    start_node: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    line: str,
) -> None:
    assert broker.port
    monkeypatch.delenv("RLSCHED_ALLOW_ROOT")
    node = start_node(*OPTIONS, *options)
    assert node.process.wait(DEADLINE_S) == 2
    assert line in node.log
    assert len(node.log.splitlines()) == 1


@root_alone
def test_a_directory_that_the_user_cannot_reach_is_one_line(
    broker: FakeBroker, start_node: Callable[..., Node], home: Path
) -> None:
    assert broker.port
    home.chmod(0o700)
    node = start_node(*OPTIONS, "--run-as", "nobody")
    assert node.process.wait(DEADLINE_S) == 2
    assert f"nobody cannot enter {home}" in node.log


@root_alone
def test_jobs_of_another_user_cannot_touch_what_watches_them(
    broker: FakeBroker, start_node: Callable[..., Node], home: Path
) -> None:
    home.chmod(0o711)
    (home / "nodes").mkdir(mode=0o711, exist_ok=True)
    node = start_node(*OPTIONS, "--run-as", "nobody")
    broker.greet()
    script = (
        "id -u; id -G; echo $HOME $USER; cat $RLSCHED_ATTEMPT_DIR/output.log | head -1; "
        "touch $RLSCHED_ATTEMPT_DIR/mine && echo wrote; "
        f"ls {node.directory}/records; cat {home}/node-n0.key; kill -9 $PPID; exit 3"
    )
    broker.launch("sh", "-c", script)
    assert broker.end_of(1).exit_code == 3
    lines = broker.log(1).data.decode().splitlines()
    assert lines[0] == str(NOBODY.pw_uid)
    assert "0" not in lines[1].split(), "no group of root's is left"
    assert lines[2:5] == [f"{NOBODY.pw_dir} nobody", str(NOBODY.pw_uid), "wrote"]
    assert sum("ermission denied" in line or "not permitted" in line for line in lines[5:]) == 3
    mine = (node.directory / "attempts" / "c1" / "1.1.0" / "mine").stat()
    assert (mine.st_uid, stat.S_IMODE((node.directory / "records").stat().st_mode)) == (NOBODY.pw_uid, 0o700)
    broker.launch("sleep", "300", job=2, limit_s=0.1)
    assert broker.end_of(2).exit_code == 124
    until(lambda: (node.directory / "records" / "c1" / "2.1.0" / "acknowledged").exists())
