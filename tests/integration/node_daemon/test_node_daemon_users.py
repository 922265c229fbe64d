"""`rlsched node` as a process: accounts of jobs, and their view of the daemon's environment."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.wire.messages import Kill, LaunchRefused
from rlsched_node.mps.control import find_processes
from tests.support import fake_mps
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node, until

OPTIONS = ("--gpus", "4", "--simulated")
ACCOUNT = pwd.getpwnam("nobody")
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory that other users may enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory) / "home"
        assert tmp_path.exists()


def test_job_does_not_see_the_daemons_environment(
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
        ((), "this node would run every job as root: give --run-as USER, --run-as-owner"),
        (("--run-as", "root"), "this node would run every job as root: give --run-as USER, --run-as-owner"),
        (("--run-as", "no-such-user"), "there is no user 'no-such-user' on this machine"),
    ],
)
def test_node_run_by_root_must_name_the_account_of_jobs(
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
def test_directory_that_the_user_cannot_reach_is_one_line(
    broker: FakeBroker, start_node: Callable[..., Node], home: Path
) -> None:
    assert broker.port
    home.chmod(0o700)
    node = start_node(*OPTIONS, "--run-as", "nobody")
    assert node.process.wait(DEADLINE_S) == 2
    assert f"nobody cannot enter {home}" in node.log  # prose: quoted


@root_alone
def test_jobs_of_another_user_cannot_touch_their_shim(
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
    assert lines[0] == str(ACCOUNT.pw_uid)
    assert "0" not in lines[1].split(), "no group of root is left"
    assert lines[2:5] == [f"{ACCOUNT.pw_dir} nobody", str(ACCOUNT.pw_uid), "wrote"]
    assert sum("ermission denied" in line or "not permitted" in line for line in lines[5:]) == 3
    mine = (node.directory / "attempts" / "c1" / "1.1.0" / "mine").stat()
    assert (mine.st_uid, stat.S_IMODE((node.directory / "records").stat().st_mode)) == (
        ACCOUNT.pw_uid,
        0o700,
    )
    broker.launch("sleep", "300", job=2, limit_s=0.1)
    assert broker.end_of(2).exit_code == 124
    until(lambda: (node.directory / "records" / "c1" / "2.1.0" / "acknowledged").exists())


# ---- jobs as their users --------------------------------------------------------------------------------

ACCOUNTS = {"ada": "games", "bob": "nobody"}


@pytest.fixture
def owners(
    home: Path, broker: FakeBroker, start_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> Node:
    """A node that runs jobs of ada and bob as accounts of this machine."""
    monkeypatch.delenv("RLSCHED_ALLOW_ROOT")
    users = home / "users.toml"
    users.write_text("".join(f'{person} = "{account}"\n' for person, account in ACCOUNTS.items()))
    home.chmod(0o711)
    (home / "nodes").mkdir(mode=0o711, exist_ok=True)
    umask = os.umask(0o077)
    node = start_node(*OPTIONS, "--run-as-owner", "--users", str(users))
    os.umask(umask)
    broker.greet()
    return node


def lines_of(broker: FakeBroker, job: int) -> list[str]:
    broker.end_of(job)
    return broker.log(job).data.decode().splitlines()


@root_alone
def test_job_runs_as_its_user_with_a_login_environment(
    broker: FakeBroker, owners: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/root")
    games = pwd.getpwnam("games")
    groups = " ".join(map(str, os.getgrouplist("games", games.pw_gid)))
    script = "id -u; id -G; umask; echo $HOME $USER $LOGNAME $SHELL; cat /proc/self/oom_score_adj; "
    broker.launch("sh", "-c", script + "touch $RLSCHED_ATTEMPT_DIR/mine", person="ada")
    lines = lines_of(broker, 1)
    assert lines[:3] == [str(games.pw_uid), groups, "0022"]
    assert lines[3] == f"{games.pw_dir} games games {games.pw_shell}"
    assert int(lines[4]) >= 0
    job = owners.directory / "attempts" / "c1" / "1.1.0"
    for path, mode in ((job, 0o700), (job / "output.log", 0o600)):
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (games.pw_uid, mode)
    assert "each job runs as the account of its owner" in owners.log


@root_alone
def test_working_directory_is_entered_as_the_user(broker: FakeBroker, owners: Node, tmp_path: Path) -> None:
    assert owners.directory
    broker.launch("pwd", cwd=str(tmp_path), person="ada")
    assert broker.end_of(1).exit_code == 126
    assert "cannot enter the working directory" in broker.log(1).data.decode()


@root_alone
def test_jobs_of_two_users_cannot_touch_each_other_or_the_daemon(broker: FakeBroker, owners: Node) -> None:
    """Bob attempts every known attack from a job on the same node."""
    gate = owners.directory.parent.parent / "gate"
    os.mkfifo(gate)
    gate.chmod(0o644)
    hold = f"echo secret of ada; read line < {gate}; echo done"
    broker.launch("sh", "-c", hold, gpus=[0], person="ada")
    records = owners.directory / "records" / "c1" / "1.1.0"
    until(lambda: (records / "pid").exists() and "secret" in owners.output_of(1))
    shim_pid = msgspec.json.decode((records / "pid").read_bytes())["pid"]
    script = f"""
    ada={owners.directory}/attempts/c1/1.1.0
    cat $ada/output.log; ls $ada; rm -rf $ada; ln -s /etc $ada/link
    for pid in {shim_pid} {owners.process.pid} $PPID $(pgrep -u games); do
        kill -9 $pid; kill -STOP $pid; cat /proc/$pid/environ; head -c 1 /proc/$pid/mem; ls /proc/$pid/fd
    done
    cd {owners.directory}
    ls records; ls .; cat records/c1/1.1.0/launch.json; echo 1 > records/c1/1.1.0/exit; cat lease lock
    for name in lease lock state.json clocks.json mine; do echo x > $name; done
    mv $RLSCHED_ATTEMPT_DIR ../mine; ln -sfn /etc $RLSCHED_ATTEMPT_DIR
    rm $RLSCHED_ATTEMPT_DIR/output.log; ln -s /etc/hostname $RLSCHED_ATTEMPT_DIR/output.log
    mkdir $RLSCHED_ATTEMPT_DIR/below; ln -s /etc $RLSCHED_ATTEMPT_DIR/below/etc
    ln -s {owners.directory}/lease $RLSCHED_ATTEMPT_DIR/exit.tmp; echo here
    """
    before = Path("/etc/hostname").stat()
    broker.launch("sh", "-c", script, job=2, gpus=[1], person="bob")
    said = "\n".join(lines_of(broker, 2))
    assert said.endswith("here")
    assert "secret" not in said
    assert said.count("not permitted") >= 2 * 4, "each of daemon, both shims and the other job, twice"
    files = [path for path in owners.directory.iterdir() if path.is_file()]
    open_to_others = [path for path in files if path.stat().st_mode & 0o077]
    assert open_to_others == [], "a file that can be opened can be locked"
    assert "launch.json" not in said.replace("records/c1/1.1.0/launch.json", "")
    assert (records / "exit").exists() is False
    assert owners.process.poll() is None
    after = Path("/etc/hostname").stat()
    assert (after.st_uid, after.st_mode, after.st_size) == (before.st_uid, before.st_mode, before.st_size)
    assert not (owners.directory / "mine").exists()
    gate.write_text("on\n")
    assert lines_of(broker, 1) == ["secret of ada", "done"]
    assert broker.log(2).data.decode().endswith("here\n"), "its output, not the target of a link"


@root_alone
def test_restarted_daemon_adopts_jobs_of_all_users(
    broker: FakeBroker, owners: Node, start_node: Callable[..., Node], home: Path
) -> None:
    gate = home / "gate"
    os.mkfifo(gate)
    gate.chmod(0o644)
    broker.launch("sh", "-c", f"read line < {gate}; id -u; exit 4", person="ada")
    until(lambda: (owners.directory / "records" / "c1" / "1.1.0" / "pid").exists())
    owners.process.kill()
    owners.process.wait(DEADLINE_S)
    start_node(*OPTIONS, "--run-as-owner")
    assert [report.state for report in broker.greet().attempts] == ["running"]
    gate.write_text("on\n")
    assert broker.end_of(1).exit_code == 4
    assert broker.log(1).data.decode() == f"{pwd.getpwnam('games').pw_uid}\n"


@root_alone
@pytest.mark.parametrize(
    ("person", "line"),
    [
        ("eve", "eve has no account on this node"),
        ("daemon", "'daemon' is a system account on this node"),
        ("root", "root would be root on this node"),
        ("", "the broker did not send the job's owner"),
    ],
)
def test_user_who_may_not_run_jobs_is_refused(
    broker: FakeBroker, owners: Node, person: str, line: str
) -> None:
    broker.launch("true", person=person)
    refused = broker.receive(LaunchRefused)
    assert line in refused.message
    assert refused.is_about_owner
    assert not list((owners.directory / "records").glob("*/*"))


@root_alone
def test_contradicting_options_are_refused_at_once(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    assert broker.port
    node = start_node(*OPTIONS, "--run-as-owner", "--run-as", "games")
    assert node.process.wait(DEADLINE_S) == 2
    assert "--run-as and --run-as-owner exclude each other" in node.log
    assert len(node.log.splitlines()) == 1


# ---- MPS ------------------------------------------------------------------------------------------------


@root_alone
@pytest.mark.skipif(
    not Path(fake_mps.PUBLIC_PYTHON).exists(), reason=f"needs {fake_mps.PUBLIC_PYTHON} for other accounts"
)
def test_each_account_has_its_own_control_daemon_that_outlives_the_node_daemon(
    home: Path, broker: FakeBroker, start_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = home.parent / "bin"
    fake_mps.install(programs, fake_mps.PUBLIC_PYTHON)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.delenv("RLSCHED_ALLOW_ROOT")
    users = home / "users.toml"
    users.write_text("".join(f'{person} = "{account}"\n' for person, account in ACCOUNTS.items()))
    home.chmod(0o711)
    (home / "nodes").mkdir(mode=0o711, exist_ok=True)
    options = (*OPTIONS, "--run-as-owner", "--users", str(users), "--sharing", "mps")
    node = start_node(*options)
    broker.greet()
    uids = {job: pwd.getpwnam(ACCOUNTS[person]).pw_uid for job, person in ((1, "ada"), (2, "bob"))}
    root = node.directory / "mps"
    pipes, pids, controls = {}, {}, {}
    for job, person in ((1, "ada"), (2, "bob")):
        others = "".join(f"ls {path}; " for path in (*pipes.values(), root))
        script = "trap '' TERM; echo up $CUDA_MPS_PIPE_DIRECTORY $$; while :; do sleep 1; done"
        command = ("mps-client", "sh", "-c", others + script)
        broker.launch(*command, job=job, person=person, shares=True, beside=tuple(pipes))
        output = node.directory / "attempts" / "c1" / f"{job}.1.0" / "output.log"
        until(lambda output=output: output.exists() and "\nup" in output.read_text())
        lines = output.read_text().splitlines()
        assert len(lines) == job + 1, lines
        assert all("ermission denied" in line for line in lines[:-1]), lines
        _, where, pid = lines[-1].split()
        pipes[job], pids[job] = Path(where), int(pid)
        controls[job] = find_processes(pipes[job]).control
        assert Path(f"/proc/{controls[job]}").stat().st_uid == uids[job]
        for path in (pipes[job], pipes[job].with_name("log")):
            assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (uids[job], 0o700)
        for path in (pipes[job].parent, root):
            assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (0, 0o711)
    assert pipes[1] != pipes[2], "a server has one account"

    node.process.kill()
    node.process.wait(DEADLINE_S)
    os.kill(pids[1], 9)
    node = start_node(*options)
    broker.greet()
    until(lambda: not pipes[1].parent.exists())
    assert find_processes(pipes[1]) == (0, frozenset()), "no job needs it"
    assert find_processes(pipes[2]).control == controls[2], "adopted"
    broker.send(Kill(epoch=1, job=2, attempt=1, rank=0, grace_s=0.1))
    assert broker.end_of(2).exit_code == 137
    until(lambda: not any(root.iterdir()))
    assert find_processes(pipes[2]) == (0, frozenset())
    assert "SIGKILL before MPS ended the GPU work" not in node.output_of(2)
