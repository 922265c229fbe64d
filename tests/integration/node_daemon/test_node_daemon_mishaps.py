"""`rlsched node` as a process: nothing that goes wrong with one event ends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rlsched.broker.keys import KeyHome
from rlsched.wire.messages import Heartbeat, LaunchRefused, SayHello
from tests.integration.node_daemon.processes import DEADLINE_S, FakeBroker, Node, until

FAULTY = """
import logging, sys
from pathlib import Path
from rlsched.broker.keys import KeyHome
from rlsched_node.daemon import NodeConfig, NodeDaemon, run_until_signalled
from rlsched_node.gpu.simulated import SimulatedGpus

class Faulty(SimulatedGpus):
    '''A driver that answers with what nobody foresaw.'''

    def foreign_processes(self, gpu, is_ours):
        raise ZeroDivisionError(gpu)

    def follow(self, busy):
        raise KeyError('busy')

home = KeyHome(Path(sys.argv[1]))
config = NodeConfig(name="n0", broker=sys.argv[2], directory=Path(sys.argv[1]) / "n0")
logging.basicConfig(level=logging.INFO)
run_until_signalled(NodeDaemon(config, Faulty(4), home.node("n0"), home.broker_public()))
"""


def test_an_effect_that_raises_is_told_once_and_set_aside(broker: FakeBroker, home: Path) -> None:
    KeyHome(home).node("n0")
    log = home / "faulty.log"
    with log.open("wb") as out:
        node = subprocess.Popen(
            [sys.executable, "-c", FAULTY, str(home), broker.address], stdout=out, stderr=out
        )
    try:
        broker.greet()
        for job in (1, 2):
            broker.launch("true", job=job, gpus=[1])
            refused = broker.receive(LaunchRefused, lambda refused, job=job: refused.job == job)
            assert "ZeroDivisionError" in refused.message
        for _ in range(3):
            broker.receive(Heartbeat)
    finally:
        node.terminate()
        assert node.wait(DEADLINE_S) == 0
    said = log.read_text()
    assert said.count("following the GPUs is set aside") == 1, "and not at every turn"
    assert "Traceback" in said


def test_what_cannot_be_written_is_remembered_in_memory(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.greet()
    broker.receive(Heartbeat)
    in_the_way = node.directory / "state.json.tmp"
    in_the_way.mkdir()
    broker.epoch = 7
    broker.send(SayHello())
    broker.greet()
    until(lambda: "epoch 7 is remembered in memory alone" in node.log)
    broker.launch("sh", "-c", "rm -rf $(dirname $(dirname $RLSCHED_ATTEMPT_DIR)); exit 3")
    assert broker.end_of(1).exit_code == 3
    broker.launch("sh", "-c", "echo still here", job=2)
    assert broker.end_of(2).exit_code == 0
    assert broker.log(2).data == b"still here\n"
    broker.send(SayHello())
    assert broker.greet().epoch == 7
