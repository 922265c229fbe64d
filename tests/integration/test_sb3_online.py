"""`sb3:PATH` in a broker: a model of another library decides for real processes."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest
from stable_baselines3 import PPO

import rlsched as rs
from tests.support.online.cluster import Cluster, all_up, until


@pytest.mark.slow
def test_model_of_another_library_decides_online(tmp_path: Path) -> None:
    trace, spec = rs.synthesize("helios", jobs=1_500, load=1.0, gpus=32, seed=1)
    env = gymnasium.make("rlsched/Cluster-v0", trace=trace, cluster=spec)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, seed=3, device="cpu")
    model.save(tmp_path / "m.zip")
    options = ("--policy", f"sb3:{tmp_path / 'm.zip'}", "--decision-budget-ms", "5000")
    cluster = Cluster(tmp_path / "broker", broker_options=options)
    try:
        with cluster.client() as client:
            all_up(client)
            assert client.stats().fallback == "tuned"
            gate = tmp_path / "gate"
            first = client.submit(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done"], num_gpus=8)
            until(lambda: client.job(first).state == "running", "it runs")
            waiting = [client.submit(["true"], num_gpus=gpus) for gpus in (2, 3, 1, 4, 2)]
            gate.touch()
            ended = [client.wait(job) for job in waiting]
        assert {job.state for job in ended} == {"completed"}
        assert "rule" in {job.decided_by for job in ended}
    finally:
        cluster.close()
