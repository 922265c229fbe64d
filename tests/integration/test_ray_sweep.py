"""`evaluate --ray`, `train --ray`: a real Ray cluster of two workers gives the local results, and exits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import numpy as np
import pytest

from tests.support.ports import free_addresses, free_ports

pytest.importorskip("ray", reason="needs the extra `ray`")

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.dials.strategy import default_checkpoint
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.reading import read_records
from rlsched.errors import InputError, RlschedError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.dials.evolution import EvolutionConfig, Generation
from rlsched_agents.dials.judging import ALL_ZERO, Judge
from rlsched_agents.dials.lesson import DialRecipe, Lesson, PpoConfig, draw_windows
from rlsched_agents.dials.ray_windows import RayRunner
from rlsched_agents.dials.training import CONSTANTS, PPO_FILE, STATE_FILE, Training
from rlsched_agents.dials.verdict import PPO, Trained
from rlsched_agents.evaluate import ray_sweep
from rlsched_agents.evaluate.run import Task, replay_tasks
from rlsched_agents.evaluate.windows import window_of
from rlsched_agents.workers.ray_cluster import connected, is_transient
from rlsched_envs.sim.engine import predict_trace
from rlsched_envs.training.sources import Drawn, EpisodeSource
from tests.support.exited import has_exited

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = [str(ROOT / folder) for folder in (".", "envs", "agents", "node_daemon")]
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
head = {"num_cpus": 1, "ray_client_server_port": int(sys.argv[1]), "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
"""Two nodes on this machine until standard input closes; in a separate process, as Ray leaves files open."""
TIMES = ("wall_s", "decision_p50_us", "decision_p99_us")
POLICIES = """
import os, time
from pathlib import Path
from rlsched_agents.heuristics.random_choice import RandomChoice

class Odd(RandomChoice):
    def __init__(self, policy, seed):
        super().__init__(seed, policy.name)
        self._does = policy.settings.checkpoint
    def decide(self, state, partition, now_s, *, record=False):
        if self._does == "raises" and state.decisions > 5:
            raise ZeroDivisionError("nothing to\\ndivide by")
        if self._does == "dies":
            os._exit(3)
        if self._does == "slow":
            time.sleep(0.02)
        if self._does.startswith("/"):
            (Path(self._does) / str(os.getpid())).touch()
            time.sleep(600)
        return super().decide(state, partition, now_s, record=record)
"""


@dataclass
class Place:
    """A workload in files, an environment for commands, and a Ray cluster of two nodes with a CPU each."""

    folder: Path
    env: dict[str, str]
    gcs: str
    client: str
    mark: str

    def command(self, *arguments: str) -> list[str]:
        files = ("--trace", str(self.folder / "t.csv"), "--cluster", str(self.folder / "c.toml"))
        return [sys.executable, "-m", "rlsched", "evaluate", *files, *arguments]

    def evaluate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def report(self, *arguments: str) -> Any:
        path = self.folder / f"{uuid4()}.json"
        done = self.evaluate(*arguments, "--json", str(path))
        assert done.returncode == 0, done.stderr
        report = json.loads(path.read_text(encoding="utf-8"))
        for one in report["policies"].values():
            for name in TIMES:
                del one[name]
        return report

    def odd(self, name: str, does: str) -> str:
        """The file of a policy with this behaviour."""
        path = self.folder / f"{name}.toml"
        path.write_text(Policy(rule="odd", checkpoint=does).toml, encoding="utf-8")
        return str(path)

    def tasks(self, *policies: Policy) -> list[Task]:
        trace, spec = Trace.read(self.folder / "t.csv"), ClusterSpec.read(self.folder / "c.toml")
        window = window_of(trace, None, None)
        return replay_tasks(trace, spec, window, predict_trace(trace, spec), list(policies), [0])


def untimed(path: Path) -> list[DecisionRecord]:
    """Decision records without fields that differ between runs."""
    return [msgspec.structs.replace(record, took_us=0.0) for record in read_records(path)]


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)
    return found


def processes_with(mark: str) -> list[int]:
    """Processes with this text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def _remove_rays_handler() -> Iterator[None]:
    """`ray.init` leaves its own handler for SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("ray")
    trace, spec = synthesize("helios", jobs=150, load=1.0, gpus=16, seed=5)
    trace.write(folder / "t.csv")
    (folder / "c.toml").write_text(spec.to_toml(), encoding="utf-8")
    shutil.copytree(default_checkpoint(), folder / "other")
    odd = folder / "odd"
    (odd / "odd-0.dist-info").mkdir(parents=True)
    (odd / "odd.py").write_text(POLICIES, encoding="utf-8")
    (odd / "odd-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 0\n")
    (odd / "odd-0.dist-info" / "entry_points.txt").write_text("[rlsched.schedulers]\nodd = odd:Odd\n")
    mark = f"rlsched-{uuid4()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*SOURCES, str(odd)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RLSCHED_TEST_MARK", mark)
        patch.syspath_prepend(str(odd))
        (port,) = free_ports(1)
        command = [sys.executable, "-c", CLUSTER, str(port)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as cluster:
            assert cluster.stdout is not None
            address = next(line for line in cluster.stdout if line.startswith("address")).split()[1]
            env = {**os.environ, "COLUMNS": "200"}
            del env["RLSCHED_TEST_MARK"]
            yield Place(folder, env, address, f"ray://127.0.0.1:{port}", mark)
            cluster.communicate(timeout=60)
    wait_for(lambda: not processes_with(mark))


FLAGS = (
    *("--policy", "qssf-backfill", "--policy", "random", "--policy", "ppo:other"),
    *("--policy", "ppo", "--set", "share.max_jobs=2", "--seed", "0", "--seed", "1", "--records"),
)


class Here(NamedTuple):
    """A local evaluation."""

    report: Any
    stores: Path


@pytest.fixture(scope="module")
def here(place: Place) -> Here:
    stores = place.folder / "here"
    return Here(place.report(*FLAGS, str(stores), "--workers", "1"), stores)


def test_same_numbers_and_records_as_locally(place: Place, here: Here, tmp_path: Path) -> None:
    """Through the cluster's address: reports and records of rules and policies."""
    compare(place, here, tmp_path, place.gcs)


def test_same_numbers_through_ray_client(place: Place, here: Here, tmp_path: Path) -> None:
    """If Ray can start a client's server; on some machines that process exits at once."""
    alone = [sys.executable, "-c", "import sys, ray; ray.init(address=sys.argv[1])", place.client]
    for _ in range(3):
        tried = subprocess.run(alone, capture_output=True, text=True, timeout=240, check=False)
        if not is_transient(tried.stderr):
            break
    else:
        pytest.skip("Ray cannot start the server of a Ray Client on this machine")
    compare(place, here, tmp_path, place.client)


def test_only_transient_errors_of_ray_are_tried_again() -> None:
    zombie = "psutil.ZombieProcess: PID still exists but it's a zombie (pid=25190)"
    assert is_transient(f"Traceback\n{zombie}")
    assert is_transient("RuntimeError: Starting Ray client server failed. See the log")
    assert not is_transient("ConnectionError: ray client connection timeout")


def compare(place: Place, here: Here, there: Path, address: str) -> None:
    assert place.report(*FLAGS, str(there), "--ray", address) == here.report
    stores = sorted(path.name for path in here.stores.iterdir())
    assert stores == sorted(path.name for path in there.iterdir())
    assert {"random", "random.seed1", "ppo_other", "ppo_changed"} <= set(stores)
    for store in stores:
        one, two = untimed(here.stores / store), untimed(there / store)
        assert len(one) > 100
        assert one == two


def test_local_ray_of_two_workers_exits_afterwards(place: Place) -> None:
    mark = f"rlsched-{uuid4()}"
    place.env["RLSCHED_TEST_MARK"] = mark
    flags = ("--policy", "random", "--seed", "1", "--seed", "2")
    try:
        there = place.report(*flags, "--ray", "local", "--workers", "2")
        assert there == place.report(*flags, "--workers", "1")
    finally:
        del place.env["RLSCHED_TEST_MARK"]
    wait_for(lambda: not processes_with(mark), 20)


def test_workers_report_their_progress(place: Place) -> None:
    policies = [Policy(name="slow", rule="odd", checkpoint="slow"), Policy("random"), Policy("fifo")]
    said: dict[str, list[float]] = {policy.name: [] for policy in policies}
    outcomes = ray_sweep.run_on_ray(
        place.tasks(*policies), place.gcs, progress=lambda policy, _, done: said[policy].append(done)
    )
    assert [one.policy for one in outcomes] == policies
    assert said["slow"] == sorted(said["slow"])
    assert 0 < said["slow"][0] < 1
    assert [done[-1] for done in said.values()] == [1, 1, 1]
    table = outcomes[0].table
    assert table.start_s.flags.writeable, "its own memory, not the object store's"
    assert (table.start_s == outcomes[1].table.start_s).all(), "the same draws"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("raises", "raises seed 0 failed on the Ray cluster: Zero"),
        ("dies", "Crashed"),
    ],
)
def test_one_failure_ends_the_evaluation_with_one_line(
    place: Place, tmp_path: Path, policy: str, words: str
) -> None:
    sleeper, other = place.odd("sleeper", str(tmp_path)), place.odd(policy, policy)
    done = place.evaluate("--policy", sleeper, "--policy", other, "--ray", place.gcs)
    assert done.returncode == 1
    *told, line = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert not any(one.startswith(("error", "Traceback")) for one in told), "the rest shows the progress"
    wait_for(lambda: all(has_exited(int(path.name)) for path in tmp_path.iterdir()))


def test_interrupt_cancels_running_tasks(place: Place, tmp_path: Path) -> None:
    command = place.command(
        "--policy", place.odd("sleeper", str(tmp_path)), "--policy", "random", "--ray", place.gcs
    )
    with subprocess.Popen(
        command, env=place.env, cwd=place.folder, stderr=subprocess.PIPE, text=True
    ) as child:
        (sleeping,) = wait_for(lambda: list(tmp_path.iterdir()), 240.0)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "Traceback" not in stderr
    wait_for(lambda: has_exited(int(sleeping.name)))


def test_worker_with_other_code_refuses(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_sweep, "build_id", lambda: "rlsched 9.9 (abc)")
    with pytest.raises(RlschedError, match=r"runs other code .* rlsched 9.9 \(abc\) here; install the same"):
        ray_sweep.run_on_ray(place.tasks(Policy("random")), place.gcs)


def test_unreachable_addresses_are_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port, an invalid address, and a port on which another program listens."""
    with pytest.raises(InputError, match=r"no Ray cluster .* refused; start one with `ray start --head`"):
        ray_sweep.run_on_ray(place.tasks(Policy("random")), free_addresses(1)[0].removeprefix("tcp://"))
    with pytest.raises(InputError, match=r"expected local, auto, HOST:PORT"):
        ray_sweep.run_on_ray(place.tasks(Policy("random")), "nowhere")
    monkeypatch.setattr("rlsched_agents.workers.ray_cluster.CONNECT_TIMEOUT_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for scheme in ("", "ray://"):
            address = f"{scheme}127.0.0.1:{mute.getsockname()[1]}"
            with pytest.raises(InputError, match="no answer within 3 s"):
                ray_sweep.run_on_ray(place.tasks(Policy("random")), address)


def test_unwritable_records_are_refused_before_the_run(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = place.evaluate("--policy", "random", "--records", str(tmp_path / "file" / "x"), "--ray", place.gcs)
    assert done.returncode == 2
    assert [one for one in done.stderr.splitlines() if "rror" in one] == [done.stderr.splitlines()[-1]]
    assert "cannot write a store of decisions here" in done.stderr.splitlines()[-1]


DRAWN = Drawn(jobs=60, nodes_low=2, nodes_high=2)
STAGE = EvolutionConfig(generations=2, pairs=6)
RECIPE = DialRecipe(
    drawn=DRAWN,
    settings=("share.min_gain=0.4",),
    constants=msgspec.structs.replace(STAGE, columns=()),
    following=STAGE,
    ppo=PpoConfig(clusters=32, rollout_steps=8, rollouts=2, batch_size=64, epochs=1, width=16),
    scales=(1.0, 0.7),
)
LONG = "windows = 6\nconfirming = 6\nchoosing = 6\n[drawn]\njobs = 120\nnodes_low = 2\nnodes_high = 2\n"
"""Recipe with few windows and many generations."""


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    source = EpisodeSource.from_trace(*synthesize("helios", jobs=1500, load=0.95, gpus=64, seed=1))
    rng, policy = np.random.default_rng(0), Policy("tuned")
    parts = [draw_windows([source], count, RECIPE, policy, rng) for count in (8, 6, 6)]
    return Lesson(policy, (source,), DRAWN, *parts)


class StoppedError(Exception):
    """Ends a training run after a step."""


def trained(
    lesson: Lesson, folder: Path, ray: str = "", *, until: str = ""
) -> tuple[Trained | None, list[Any]]:
    """The result of a training run, here or on Ray, and its steps; None if the run ended in a stage `until`.

    The run continues from the state in the folder, if there is one.
    """
    steps = list[Any]()

    def tell(stage: str, generation: Generation) -> None:
        steps.append((stage, generation))
        if stage == until:
            raise StoppedError

    with connected(ray, None) if ray else nullcontext():
        training = Training(
            lesson,
            RECIPE,
            seed=3,
            state_file=folder / STATE_FILE,
            workers=None if ray else 1,
            make_runner=RayRunner if ray else None,
        )
        try:
            return training.run(tell, resume=(folder / STATE_FILE).exists()), steps
        except StoppedError:
            return None, steps


def state_of(folder: Path) -> tuple[bytes, dict[str, list[bytes]]]:
    """The saved state of a training run, without the padding in records."""
    with np.load(folder / PPO_FILE) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    fields = {
        name: [array[field].tobytes() for field in array.dtype.names or (...,)]
        for name, array in found.items()
    }
    return (folder / STATE_FILE).read_bytes(), fields


def test_training_on_ray_is_the_same_and_continues_here_and_there(
    place: Place, lesson: Lesson, tmp_path: Path
) -> None:
    here, there, mixed = (tmp_path / name for name in ("here", "there", "mixed"))
    expected, steps = trained(lesson, here)
    assert expected is not None
    assert len(expected.last.layers) == 3, "the last stage is PPO's network"
    assert trained(lesson, there, place.gcs) == (expected, steps)
    assert state_of(there) == state_of(here)
    assert trained(lesson, mixed, place.gcs, until=CONSTANTS) == (None, steps[:2])
    assert trained(lesson, mixed, until=PPO) == (None, steps[2:6])
    assert trained(lesson, mixed, place.gcs) == (expected, steps[6:])
    assert state_of(mixed) == state_of(here)


def test_windows_of_a_lost_worker_run_again(place: Place, lesson: Lesson) -> None:
    with Judge(lesson.teaching, workers=1) as judge:
        (expected,) = judge.run([ALL_ZERO])
    killed, done = list[int](), threading.Event()

    def kill() -> None:
        while not killed and not done.is_set():
            for pid in processes_with(place.mark):
                if not killed and is_running_windows(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill)
    with connected(place.gcs, None), Judge(lesson.teaching, make_runner=RayRunner) as judge:
        killer.start()
        try:
            for _ in range(100):
                found = judge.run([ALL_ZERO] * 20)
                assert all(one.energy_j.tobytes() == expected.energy_j.tobytes() for one in found)
                if killed:
                    break
        finally:
            done.set()
            killer.join()
    assert killed


def test_interrupted_training_stops_its_tasks(place: Place, tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(LONG, encoding="utf-8")
    words = ("--synthetic", "helios", "--recipe", str(tmp_path / "long.toml"), "--ray", place.gcs)
    out = ("--out", str(tmp_path / "mine"), "--logdir", str(tmp_path / "log"))
    command = [sys.executable, "-m", "rlsched", "train", *words, *out]

    def running() -> bool:
        return (tmp_path / "log" / STATE_FILE).exists()

    with subprocess.Popen(
        command, env=place.env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        wait_for(running, 300.0)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=120)
    assert child.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert f"windows run on the Ray cluster {place.gcs}, which has 2 CPUs" in stderr
    assert stderr.splitlines()[-1] == "stopped; continue with the same command and --resume"
    wait_for(lambda: not any(is_running_windows(pid) for pid in processes_with(place.mark)))


def is_running_windows(pid: int) -> bool:
    try:
        return b"run_on_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_training_refuses_workers_with_other_code(
    place: Place, lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsched_agents.dials.ray_windows.build_id", lambda: "rlsched 9.9 (abc)")
    with (
        connected(place.gcs, None),
        Judge(lesson.teaching, make_runner=RayRunner) as judge,
        pytest.raises(RlschedError, match=r"runs other code .* rlsched 9.9 \(abc\) here"),
    ):
        judge.run([ALL_ZERO])


def test_training_needs_a_cluster_that_answers(place: Place, tmp_path: Path) -> None:
    address = free_addresses(1)[0].removeprefix("tcp://")
    command = [
        sys.executable,
        "-m",
        "rlsched",
        "train",
        "--synthetic",
        "helios",
        "--out",
        str(tmp_path / "mine"),
    ]
    done = subprocess.run(
        [*command, "--ray", address], env=place.env, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: --ray {address}: no Ray cluster is reachable there: ")
