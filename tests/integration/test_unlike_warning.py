"""A cluster unlike a policy's training clusters is logged once, and shown in `rlsched status`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.decide.drift import Familiar
from rlsched_agents.runtime.card import Card
from rlsched_agents.runtime.checkpoint import save_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from tests.support.online.cluster import Cluster, until

SAID = "was not trained on such a cluster: partition shared has 4 GPUs, trained on 32 to 64"


@pytest.mark.slow
def test_it_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = NetworkConfig(width=8, critic_width=4)
    card = Card(
        name="mine", created="", rlsched_version="0", schema_hash="", network=network, timesteps=1,
        seeds=(0,), familiar=Familiar(columns={"queue_log": (0.0, 1.0)}, gpus=(32, 64)),
    )  # fmt: skip
    save_checkpoint(tmp_path / "mine.zip", card, initial_weights(network, 0))
    options = ("--policy", f"ppo:{tmp_path / 'mine.zip'}", "--prediction", "running-mean")
    cluster = Cluster(tmp_path, nodes=("n0",), broker_options=options)
    try:
        until(lambda: SAID in cluster.log("broker"), "it is said")
        assert run(["status", "--broker", cluster.address, "--keys", str(cluster.keys)]) == 0
        assert cluster.log("broker").count("was not trained") == 1
    finally:
        cluster.close()
    assert "differs from training: partition shared has 4 GPUs" in capsys.readouterr().out
