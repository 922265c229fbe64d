"""A cluster unlike a policy's training clusters is logged once, and shown in `rlsched status`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.cli.main import run
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.drift import Familiar
from tests.support.online.cluster import Cluster, until

SAID = "was not trained on such a cluster: partition shared has 4 GPUs, trained on 32 to 64"


@pytest.mark.slow
def test_it_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    still = Strategy.from_layers(np.zeros((NUM_DIALS, NUM_COLUMNS + 1)))
    familiar = Familiar(columns={"waiting_jobs": (0.0, 1.0)}, gpus=(32, 64))
    msgspec.structs.replace(still, familiar=familiar).write(tmp_path / "mine.json")
    (tmp_path / "mine.toml").write_text('base = "tuned"\ndials = "mine.json"\n', encoding="utf-8")
    options = ("--policy", str(tmp_path / "mine.toml"), "--prediction", "running-mean")
    cluster = Cluster(tmp_path, nodes=("n0",), broker_options=options)
    try:
        until(lambda: SAID in cluster.log("broker"), "it is said")
        assert run(["status", "--broker", cluster.address, "--keys", str(cluster.keys)]) == 0
        assert cluster.log("broker").count("was not trained") == 1
    finally:
        cluster.close()
    assert "differs from training: partition shared has 4 GPUs" in capsys.readouterr().out
