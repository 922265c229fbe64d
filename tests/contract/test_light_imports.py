"""Modules that must not be imported by a broker that serves `ppo`, and by a submission."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import Submitted
from tests.support.broker.stub import Stub

TRAINING = (
    "torch",
    "gymnasium",
    "stable_baselines3",
    "sb3_contrib",
    "tensorboard",
    "pandas",
    "matplotlib",
    "pyarrow",
    "sklearn",
    "joblib",
    "PIL",
    "ray",
    "onnxruntime",
    "scipy.linalg",
    "scipy.stats",
    "rich",
    "rlsched_envs",
    "rlsched_agents",
)
SERVING = tuple(name for name in TRAINING if name != "pyarrow")  # a broker writes a store of decisions
BROKER = """
import os
from pathlib import Path
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.cli.main import run
assert run(["broker", "--help"]) == 0
home = Path(os.environ["RLSCHED_HOME"])
settings = BrokerSettings(address="tcp://127.0.0.1:0", directory=home / "broker", keys=home, policy="ppo")
Broker(settings).close()
"""


def test_serving_imports_only_modules_that_it_uses(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{BROKER}\nimport sys\nprint('MODULES', *sys.modules)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RLSCHED_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    imported = set(done.stdout.rpartition("MODULES")[2].split())
    assert "rlsched.decide.dials.strategy" in imported
    assert not imported & set(SERVING)


SUBMISSION = (
    "import sys\nfrom rlsched.cli.main import run\n"
    "assert run(['submit', '--broker', sys.argv[1], '--', 'true']) == 0\n"
    "print('MODULES', *sys.modules)"
)
MESSAGES = (
    *("client", "envelope", "forecasts", "history", "join"),
    *("node", "orders", "predictions", "replies", "report", "usage"),
)
"""Modules of `rlsched.wire.messages` that a submission must not import."""
NOT_FOR_A_SUBMISSION = (
    *("asyncio", "dataclasses", "difflib", "getpass", "importlib.metadata", "logging", "shlex", "shutil"),
    *("pathlib", "signal", "socket", "tomllib", "urllib.parse"),
    *("numpy", "rich", "zmq.utils.monitor"),
    *("rlsched.transport.access", "rlsched.transport.roles", "rlsched.client.array_text"),
    *("rlsched.client.following", "rlsched.cli.users.dry_run", "rlsched.cli.shared.job_number"),
    *(
        "rlsched.cli.users.output",
        "rlsched.cli.shared.policies",
        "rlsched.cli.shared.serving_options",
        "rlsched.terminal.show",
    ),
    *(
        "rlsched.cli.shared.when",
        "rlsched.logs",
        "rlsched.settings",
        "rlsched.signals",
        "rlsched.terminal.visible",
    ),
    *(f"rlsched.wire.messages.{name}" for name in MESSAGES),
)


def test_submission_imports_only_modules_that_it_uses(tmp_path: Path) -> None:
    KeyHome(tmp_path).client()  # the first submission of a user makes a key, and imports more for that
    stub = Stub(tmp_path)
    stub.script = lambda _: Submitted(job=1)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SUBMISSION, stub.address],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RLSCHED_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        stub.close()
    assert done.returncode == 0, done.stdout + done.stderr
    said, _, modules = done.stdout.partition("MODULES")
    assert said == "job 1\n"
    imported = set(modules.split())
    assert "rlsched.wire.messages.basic" in imported
    assert sorted(imported & set(NOT_FOR_A_SUBMISSION)) == []
