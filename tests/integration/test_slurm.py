"""A real Slurm whose jobs rlsched schedules: from the users' view, and with outages and errors.

Skipped by name without a Slurm: `apt-get install slurmctld slurmd slurm-client munge`, as root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.client.client import Client
from rlsched.cluster.spec import ClusterSpec
from tests.soak.slurm_gateway import OnSlurm, run
from tests.support.online.cluster import RLSCHED, until
from tests.support.online.real_slurm import RealSlurm, lacking

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lacking()), reason=lacking() or "there is a Slurm")]
USER = 1
"""`daemon`, an ordinary user for Slurm."""
SAVES = """\
import os, pathlib, signal, sys, time
place, leaves = pathlib.Path(sys.argv[1]), sys.argv[2]
def tell(line):
    with (place / "told").open("a") as told:
        print(line, round(time.time(), 2), file=told)
def save(number, _):
    name = signal.Signals(number).name
    tell(name)
    if not (place / "checkpoint").exists():
        time.sleep(1.0)  # writes it
        (place / "checkpoint").write_text(name)
    if name == leaves:
        tell("exits")
        sys.exit(3)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)
tell("starts" if not (place / "checkpoint").exists() else "resumes")
while not (place / "checkpoint").exists() or os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    time.sleep(0.05)
tell("done")
"""


@pytest.fixture
def system(slurm_folder: Path) -> Iterator[OnSlurm]:
    system = OnSlurm(slurm_folder, nodes=2, release_after_s=4.0)
    yield system
    system.close()


@pytest.fixture
def script(slurm_folder: Path) -> Path:
    path = slurm_folder / "sleep.sh"
    path.write_text("#!/bin/sh\nsleep $1\nexit ${2:-0}\n")
    path.chmod(0o755)
    return path


def state(system: OnSlurm, key: str) -> str:
    job = system.slurm.jobs().get(key)
    return job.state if job is not None else ""


def marks(system: OnSlurm, key: str) -> dict[str, str]:
    """Text of its AdminComment; a new job may not be listed yet."""
    until(lambda: key in system.slurm.jobs(), f"job {key} is listed")
    return system.slurm.jobs()[key].marks or {}


def probe(system: OnSlurm, script: Path) -> str:
    """Submit a short job and wait for some time."""
    key = system.slurm.sbatch("--gres=gpu:1", script=script, arguments=("0",))
    subprocess.run(["sleep", "0.5"], check=True)
    return key


def broker_states(client: Client) -> list[str]:
    return [job.state for job in client.jobs(finished=True)]


def engine(system: OnSlurm | None, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    place = ("--dir", str(system.stamps)) if system is not None else ()
    return subprocess.run(
        [*RLSCHED, "engine", "slurm", *place, *options],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60.0,
        check=False,
    )


def test_jobs_run_on_the_decided_gpus_despite_kill_9(slurm_folder: Path) -> None:
    system = OnSlurm(slurm_folder)
    try:
        outcome = run(system, count=40, kills=6, seed=7, timeout_s=240.0, saves=True)
        print(system.log("gateway"))
    finally:
        system.close()
    assert not outcome.wrong
    assert not outcome.codes
    assert not outcome.twice
    assert not outcome.lost
    assert outcome.right >= 30


def test_actions_of_users_are_respected(system: OnSlurm, script: Path) -> None:
    slurm = system.slurm

    def sbatch(*options: str, arguments: tuple[str, ...] = ("60",)) -> str:
        return slurm.sbatch(*options, script=script, arguments=arguments, uid=USER)

    def scontrol(*words: str) -> None:
        slurm.ask("scontrol", *words, uid=USER)

    with system.client() as client:
        first, second = sbatch("--gres=gpu:4"), sbatch("-N1", "--gpus=4")
        until(lambda: state(system, first) == state(system, second) == "RUNNING", "both nodes are full")
        held, waiting = sbatch("--gres=gpu:1", "-H"), sbatch("--gres=gpu:1")
        until(lambda: broker_states(client) == ["running", "running", "queued"], "a held job is not offered")
        shown = slurm.ask("squeue", "-h", "-j", waiting, "-o", "%T %r", uid=USER)
        assert shown.startswith("PENDING JobHeld")
        scontrol("hold", waiting)
        until(lambda: "cancelled" in broker_states(client), "a user's hold withdraws it")
        slurm.ask("scancel", first, uid=USER)
        until(lambda: state(system, first) == "CANCELLED", "it is cancelled")
        until(lambda: broker_states(client).count("cancelled") == 2, "scancel cancels the broker's job")
        scontrol("release", held)
        until(lambda: state(system, held) == "RUNNING", "a released job is decided")
        assert state(system, waiting) == "PENDING"
        scontrol("release", waiting)
        until(lambda: state(system, waiting) == "RUNNING", "the other one too")
        other = slurm.sbatch("-p", "other", "--gres=gpu:i0:1", script=script, arguments=("60",))
        assert subprocess.run(
            ["scontrol", "update", f"JobId={waiting}", "ReqNodeList=n1"],
            capture_output=True,
            check=False,
            user=USER,
        ).returncode, "a user does not place jobs"
        slurm.ask("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=fan")
        reasons = {}

        def is_drained() -> bool:
            reasons.update({node.name: node.reason for node in client.nodes()})
            return "fan" in reasons["n1"]

        until(is_drained, "a drain is the broker's too")
        assert state(system, other) == "PENDING", "its node is full"
        slurm.ask("scancel", second)
        until(lambda: state(system, other) == "RUNNING", "another partition's job starts")
        third = sbatch("--gres=gpu:4")
        fourth = sbatch("--gres=gpu:3", arguments=("0", "5"))
        until(lambda: state(system, fourth) == "FAILED", "the rest of a node is offered", 120.0)
        assert state(system, third) == "PENDING"
        left = sbatch("--gres=gpu:1", "-w", "n2")
        until(
            lambda: state(system, left) in ("PENDING", "RUNNING", "COMPLETED"),
            "an unsupported request is left to Slurm",
        )
        assert slurm.jobs()[left].marks == {"left": "req_nodes"}
        until(
            lambda: 5 in [job.exit_code for job in client.jobs(finished=True)], "exit codes are the job's own"
        )


def test_held_jobs_are_left_to_slurm_without_a_broker_and_taken_back(system: OnSlurm, script: Path) -> None:
    slurm = system.slurm

    def sbatch() -> str:
        return slurm.sbatch("--gres=gpu:4", script=script, arguments=("3",))

    jobs = [sbatch() for _ in range(4)]
    until(lambda: state(system, jobs[1]) == "RUNNING", "the first run")
    assert slurm.jobs()[jobs[3]].is_held
    system.kill("broker")
    until(lambda: all(state(system, job) == "COMPLETED" for job in jobs), "Slurm's own order runs the rest")
    assert marks(system, probe(system, script)) == {}, "new jobs are not held"
    system.start("broker")
    with system.client(timeout_s=30.0) as client:
        until(lambda: sum(node.state == "up" for node in client.nodes()) == 2, "nodes are back")
        until(lambda: "s" in marks(system, probe(system, script)), "new jobs are held again")
        until(lambda: all(job.is_over for job in slurm.jobs().values()), "all have ended")
        until(lambda: not client.jobs(), "in the broker too")


def test_released_jobs_are_taken_back_when_a_broker_decides_again(system: OnSlurm, script: Path) -> None:
    slurm = system.slurm

    def sbatch(seconds: str) -> str:
        return slurm.sbatch("--gres=gpu:2", script=script, arguments=(seconds, "3"))

    full = [sbatch("600") for _ in range(4)]
    until(lambda: all(state(system, key) == "RUNNING" for key in full), "both nodes are full")
    waiting = [sbatch("0") for _ in range(3)]
    with system.client() as client:
        until(lambda: len(client.jobs()) == 7, "all are offered")
    system.kill("broker")
    until(lambda: all(marks(system, key).get("left") == "released" for key in waiting), "no broker decides")
    system.start("broker")
    until(lambda: all("s" in marks(system, key) for key in waiting), "they are taken back", 60.0)
    assert all(slurm.jobs()[key].is_held for key in waiting)
    slurm.ask("scancel", full[2])
    until(lambda: all(state(system, key) == "FAILED" for key in waiting), "they are decided", 60.0)
    assert all("j" in marks(system, key) for key in waiting)
    with system.client() as client:
        until(lambda: len(client.jobs()) == 3, "the broker knows their ends")
        assert [job.exit_code for job in client.jobs(finished=True)].count(3) == 3
    slurm.ask("scancel", *full, check=False)


def test_release_and_remove_without_a_gateway_leave_no_held_job(system: OnSlurm, script: Path) -> None:
    slurm = system.slurm
    jobs = [slurm.sbatch("--gres=gpu:4", script=script, arguments=("2",)) for _ in range(4)]
    until(lambda: state(system, jobs[1]) == "RUNNING", "the first run")
    system.kill("gateway")
    busy = engine(system, "--release", "--release-after", "3600", "--partition", "gpu")
    assert (busy.returncode, busy.stdout) == (0, "")
    until(
        lambda: (
            "waiting jobs" in engine(system, "--release", "--release-after", "4", "--partition", "gpu").stdout
        ),
        "no broker decides for long enough",
    )
    until(lambda: all(state(system, job) == "COMPLETED" for job in jobs), "Slurm's own order runs the rest")
    system.start("gateway")
    until(lambda: "s" in marks(system, probe(system, script)), "new jobs are held again")
    last = [slurm.sbatch("--gres=gpu:4", script=script, arguments=("1",)) for _ in range(4)]
    system.kill("gateway")
    removed = engine(system, "--remove", "--partition", "gpu")
    assert removed.returncode == 0, removed.stderr
    until(lambda: all(state(system, job) == "COMPLETED" for job in last), "no held job is left")
    again = slurm.sbatch("--gres=gpu:1", script=script, arguments=("0",))
    assert marks(system, again) == {}


def test_holds_of_users_stay_on_jobs_that_are_slurms_own(system: OnSlurm, script: Path) -> None:
    slurm = system.slurm

    def sbatch(*options: str, seconds: str = "0") -> str:
        return slurm.sbatch(*options, script=script, arguments=(seconds,), uid=USER)

    def held() -> dict[str, bool]:
        return {key: job.is_held for key, job in slurm.jobs().items() if not job.is_over}

    full = [sbatch("--gres=gpu:4", seconds="8") for _ in range(2)]
    until(lambda: [state(system, key) for key in full] == ["RUNNING"] * 2, "both nodes are full")
    never = sbatch("--gres=gpu:1", "-w", "n2", "-H")
    odd = sbatch("-N2", "--gres=gpu:1")
    until(lambda: marks(system, odd).get("left") == "shape" and not held()[odd], "it is given back")
    slurm.ask("scontrol", "hold", odd, uid=USER)
    probe = sbatch("--gres=gpu:1")
    until(lambda: state(system, probe) == "COMPLETED", "the gateway goes on")
    assert held() == {never: True, odd: True}
    for key in (never, odd):
        slurm.ask("scontrol", "release", key, uid=USER)
        until(lambda key=key: state(system, key) == "COMPLETED", "its user has released it")  # type: ignore[misc]


def test_jobs_that_slurm_would_refuse_are_not_offered(system: OnSlurm, script: Path) -> None:
    slurm = system.slurm

    def sbatch(*options: str, seconds: str = "0") -> str:
        return slurm.sbatch("--gres=gpu:4", *options, script=script, arguments=(seconds,))

    slurm.ask("scontrol", "update", "NodeName=n2", "AvailableFeatures=fast", "ActiveFeatures=fast")
    slurm.ask("scontrol", "update", "PartitionName=gpu", "MaxTime=60")
    words = ("Reservation=night", "StartTime=now", "Duration=60", "Nodes=n2", "Users=root")
    with system.client() as client:
        whole = sbatch("--exclusive")
        own = {
            "features": sbatch("-C", "fast"),
            "exc_nodes": sbatch("-x", "n1"),
            "req_nodes": sbatch("-w", "n2"),
        }
        until(lambda: all(state(system, key) == "COMPLETED" for key in own.values()), "Slurm places its own")
        assert {why: marks(system, key) for why, key in own.items()} == {why: {"left": why} for why in own}
        assert all(slurm.jobs()[key].nodes == ["n2"] for key in own.values())
        until(lambda: state(system, whole) == "COMPLETED", "a whole node is decided")
        too_long, later = sbatch("-t", "90", seconds="60"), [sbatch() for _ in range(3)]
        until(lambda: all(state(system, key) == "COMPLETED" for key in later), "others go on")
        until(lambda: not client.jobs(), "a job blocked by a limit is not offered")
        assert (state(system, too_long), slurm.jobs()[too_long].is_held) == ("PENDING", True)
        slurm.ask("scancel", too_long)
        slurm.ask("scontrol", "create", *words)
        until(
            lambda: "reserved" in {node.name: node.reason for node in client.nodes()}["n2"], "it is reserved"
        )
        reserved = sbatch("--reservation=night")
        until(lambda: state(system, reserved) == "COMPLETED", "a reservation is Slurm's own")
        assert marks(system, reserved) == {"left": "reservation"}
    spec = system.directory / "cluster.toml"
    done = subprocess.run([*RLSCHED, "cluster", "import", "-o", str(spec)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ClusterSpec.read(spec).num_gpus == 8


def test_without_placement_slurm_starts_jobs_in_the_policys_order(slurm_folder: Path, script: Path) -> None:
    shortest_first = ("--policy", "qssf-backfill", "--prediction", "running-mean")
    ordered = ("--priority-only",)
    system = OnSlurm(
        slurm_folder, nodes=2, exact=False, broker_options=shortest_first, gateway_options=ordered
    )
    slurm = system.slurm

    def nice(key: str) -> int:
        return slurm.jobs()[key].nice

    def sbatch(gpus: int, *arguments: str) -> str:
        return slurm.sbatch(f"--gres=gpu:{gpus}", script=script, arguments=arguments)

    try:
        with system.client() as client:
            first = [sbatch(4, "8"), sbatch(4, "8", "3")]
            until(lambda: broker_states(client) == ["running"] * 2, "starts by Slurm reach the broker")
            large, small, middle = sbatch(4, "2"), sbatch(1, "2"), sbatch(2, "2")
            until(lambda: nice(small) < nice(middle) < nice(large) < 0, "they wait in the queue's order")
            assert not any(job.is_held for job in slurm.jobs().values())
            running = {job.nodes[0]: job.gpus[0] for job in client.jobs() if job.state == "running"}
            assert running == {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3]}
            system.kill_and_restart("gateway")
            until(lambda: state(system, first[1]) == "FAILED", "a job of before ends")
            until(
                lambda: 3 in [job.exit_code for job in client.jobs(finished=True)], "the broker receives it"
            )
            until(lambda: state(system, small) == "COMPLETED", "the small one runs")
            began = {key: slurm.jobs()[key].start_s for key in (small, middle, large)}
            assert max(began[small], began[middle]) <= began[large], "Slurm itself starts the large job first"
            until(lambda: not client.jobs(), "all have ended")
            states = broker_states(client)
            assert sorted(states) == ["completed"] * 4 + ["failed"], [job.reason for job in client.jobs(True)]
            last = [sbatch(4, "4") for _ in range(4)]
            until(lambda: nice(last[3]) < 0, "the last has a place")
        removed = engine(system, "--remove", "--partition", "gpu")
        assert removed.returncode == 0, removed.stderr
        assert system.running["gateway"].wait(20.0) == 0, "the gateway exits"
        left = [job for job in slurm.jobs().values() if job.state == "PENDING"]
        assert left
        assert [(job.nice, job.marks) for job in left] == [(0, None)] * len(left), "no trace is left"
    finally:
        system.close()


def test_srun_works_alone_and_in_scripts(system: OnSlurm, slurm_folder: Path) -> None:
    slurm, ran = system.slurm, slurm_folder / "ran"
    script = slurm_folder / "steps.sh"
    script.write_text(f'#!/bin/sh\nsrun sh -c "echo $SLURM_JOB_ID \\$CUDA_VISIBLE_DEVICES >> {ran}"\n')
    script.chmod(0o755)
    ran.touch()
    ran.chmod(0o666)

    def srun(*options: str) -> tuple[int, list[str]]:
        words = ["srun", *options, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 3"]
        done = subprocess.run(
            words, env=slurm.environment, capture_output=True, text=True, user=USER, cwd="/tmp", timeout=60.0
        )
        return done.returncode, done.stdout.split()

    assert srun("--gres=gpu:1") == (3, ["0"])
    assert srun("--gres=gpu:2") == (3, ["0,1"])
    assert srun("-N2", "--gres=gpu:4") == (3, ["0,1,2,3"] * 2)
    assert [(job.marks or {}).get("left") for job in slurm.jobs().values()] == [None, *["interactive"] * 2]
    forms = ("--gres=gpu:2", "--gpus=2", "--gpus-per-node=2")
    keys = [slurm.sbatch(form, script=script, uid=USER) for form in forms]
    until(lambda: all(state(system, key) == "COMPLETED" for key in keys), "all steps run")
    began = dict(line.split() for line in ran.read_text().splitlines())
    assert began == {key: (marks(system, key)["i"]).replace("+", ",") for key in keys}


def test_requeued_job_starts_on_other_gpus(system: OnSlurm, slurm_folder: Path) -> None:
    slurm, ran = system.slurm, slurm_folder / "ran"
    script = slurm_folder / "shown.sh"
    script.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID $CUDA_VISIBLE_DEVICES" >> {ran}\nsleep $1\n')
    script.chmod(0o755)
    full = slurm.sbatch("--gres=gpu:4", script=script, arguments=("60",))
    first = slurm.sbatch("--gres=gpu:2", script=script, arguments=("3",))
    until(lambda: state(system, first) == "RUNNING", "the first half is taken")
    moved = slurm.sbatch("--gres=gpu:2", script=script, arguments=("6",))
    until(lambda: state(system, first) == "COMPLETED", "the first half is free")
    slurm.ask("scontrol", "requeue", moved)
    until(lambda: state(system, moved) == "COMPLETED", "it has run again")
    assert slurm.jobs()[moved].restarts == 1
    with system.client() as client:
        until(lambda: len(client.jobs()) == 1, "the broker knows both ends")
        told = {tuple(job.gpus[0]) for job in client.jobs(finished=True) if job.attempt == 2}
    slurm.ask("scancel", full)
    began = [line.split()[1] for line in ran.read_text().splitlines() if line.split()[0] == moved]
    assert began == ["2,3", "0,1"]
    assert told == {(0, 1)}


@pytest.mark.parametrize("exact", [False, True], ids=["nodes", "gpus"])
def test_preempted_job_is_requeued_and_ends_later(slurm_folder: Path, script: Path, exact: bool) -> None:
    gittins = ("--policy", "gittins", "--prediction", "running-mean")
    system = OnSlurm(
        slurm_folder, nodes=2, exact=exact, broker_options=gittins, gateway_options=("--preempt",)
    )

    def sbatch(gpus: int, *options: str, arguments: tuple[str, ...]) -> str:
        return system.slurm.sbatch(f"--gres=gpu:{gpus}", *options, script=script, arguments=arguments)

    try:
        with system.client() as client:
            stays = sbatch(4, "--no-requeue", arguments=("20", "5"))
            yields = sbatch(4, "--requeue", arguments=("8", "3"))
            until(lambda: state(system, stays) == state(system, yields) == "RUNNING", "both nodes are full")
            short = [sbatch(2, "-t", "1", arguments=("1",)) for _ in range(2)]
            keys = (stays, yields, *short)
            until(
                lambda: all(state(system, key) in ("COMPLETED", "FAILED") for key in keys), "all have ended"
            )
            jobs = system.slurm.jobs()
            assert [jobs[key].restarts for key in keys] == [0, 1, 0, 0]
            assert [jobs[key].exit_code for key in keys] == [5, 3, 0, 0]
            assert max(jobs[key].end_s for key in short) <= jobs[yields].start_s
            assert jobs[short[0]].nodes == jobs[short[1]].nodes, "a job that must not be requeued goes on"
            until(lambda: not client.jobs(), "all have ended in the broker")
            told = {job.exit_code: job.preemptions for job in client.jobs(finished=True)}
            assert told == {5: 0, 3: 1, 0: 0}
    finally:
        system.close()


@pytest.mark.parametrize(
    ("lines", "leaves", "told"),
    [
        ("exec", "SIGTERM", ["SIGTERM", "exits"]),
        ("#SBATCH --signal=B:USR1@60\nexec", "SIGUSR1", ["SIGUSR1", "exits"]),
        ("#SBATCH -J a --signal=SIGUSR1\nsrun", "SIGTERM", ["SIGUSR1", "SIGTERM", "exits"]),
    ],
    ids=["SIGTERM", "signal to the script", "signal to the steps"],
)
def test_preempted_job_writes_a_checkpoint_and_resumes(
    slurm_folder: Path, script: Path, lines: str, leaves: str, told: list[str]
) -> None:
    gittins = ("--policy", "gittins", "--prediction", "running-mean", "--grace-s", "4")
    system = OnSlurm(slurm_folder, nodes=1, broker_options=gittins, gateway_options=("--preempt",))
    (slurm_folder / "saves.py").write_text(SAVES)
    saves = slurm_folder / "saves.sh"
    saves.write_text(f"#!/bin/sh\n#SBATCH --requeue\n{lines} {sys.executable} {slurm_folder}/saves.py $@\n")
    saves.chmod(0o755)

    def told_so_far() -> list[list[str]]:
        file = slurm_folder / "told"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    try:
        with system.client() as client:
            key = system.slurm.sbatch("--gres=gpu:4", script=saves, arguments=(str(slurm_folder), leaves))
            until(lambda: bool(told_so_far()), "it runs")
            short = system.slurm.sbatch("--gres=gpu:4", "-t", "1", script=script, arguments=("1",))
            until(lambda: len(told_so_far()) > 1, "it is preempted")
            if "SIGUSR1" in told:
                system.kill_and_restart("gateway")
            until(lambda: state(system, key) == state(system, short) == "COMPLETED", "both have ended", 90.0)
            jobs = system.slurm.jobs()
            assert [word for word, _ in told_so_far()] == ["starts", *told, "resumes", "done"]
            assert (jobs[key].restarts, jobs[short].restarts) == (1, 0)
            at_s = {word: float(time_s) for word, time_s in told_so_far()}
            if "SIGTERM" in told[1:]:
                assert at_s["SIGTERM"] - at_s["SIGUSR1"] >= 4.0, (
                    "the grace time, over a restart of the gateway"
                )
            assert at_s["exits"] <= jobs[short].start_s + 1.0
            until(lambda: not client.jobs(), "all have ended in the broker")
            assert sorted(job.preemptions for job in client.jobs(finished=True)) == [0, 1]
    finally:
        system.close()


def test_every_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = RealSlurm(tmp_path / "slurm", nodes=1)
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    stamps = ("--dir", str(tmp_path / "stamps"))
    here = ("--partition", "gpu", *stamps)
    try:
        said = {
            "Slurm absent": engine(None, *here, PATH=str(Path(RLSCHED[0]).parent)),
            "no controller": engine(None, *here, SLURM_CONF=str(tmp_path / "none.conf")),
            "no partition": engine(None, "--partition", "gpus", *stamps),
            "no plugin": engine(None, *here),
            "none named": engine(None, *stamps),
        }
        fake = tmp_path / "bin"
        fake.mkdir()
        (fake / "scontrol").write_text("#!/bin/sh\necho 'SLURM_VERSION           = 17.11.2'\n")
        (fake / "scontrol").chmod(0o755)
        said["unknown version"] = engine(None, *here, PATH=f"{fake}:{os.environ['PATH']}")
    finally:
        slurm.close()
    wanted = {
        "Slurm absent": "no Slurm here: squeue",
        "no controller": "is slurmctld up, and SLURM_CONF right?",
        "no partition": "partition 'gpus': expected gpu, other (this Slurm's partitions)",
        "no plugin": "JobSubmitPlugins of this Slurm cluster is (null): expected lua",
        "none named": "--partition: expected at least one",
        "unknown version": "Slurm 17.11.2: expected 21.08",
    }
    for case, line in wanted.items():
        done = said[case]
        assert done.returncode == 2, (case, done)
        assert line in done.stderr, (case, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, (case, done.stderr)


def test_job_starts_at_the_decided_clock(slurm_folder: Path, script: Path) -> None:
    frugal = ("--speed-energy", "0.9", "--policy", "easy")
    clocks = ("--sm-clocks-mhz", "1980,1395")
    system = OnSlurm(slurm_folder, nodes=2, broker_options=frugal, gateway_options=clocks)
    try:
        with system.client() as client:
            key = system.slurm.sbatch("--gres=gpu:1", script=script, arguments=("5",))
            until(lambda: state(system, key) == "RUNNING", "it runs")
            said = system.slurm.ask("scontrol", "show", "job", key)
            assert "TresFreq=gpu:1395" in said.replace("GPU", "gpu"), said
            until(lambda: [job.sm_clocks_mhz for job in client.jobs()] == [[1395]], "the broker receives it")
            assert 0.5 < (client.jobs()[0].sm_clock_frac or 0.0) < 1.0
    finally:
        system.close()
