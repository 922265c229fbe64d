"""Profiles of jobs as `why` shows them: figures by origin, speeds and scaling learnt from run times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.profiles import MOST_SPEED_SD, Profiles, learnt_speeds
from rlsched.broker.journal.journal import Journal
from rlsched.broker.state.job_requests import MOST_FOR_SPEED, nearest_workload
from rlsched.cli.shared.job_tables import explanation_as_data
from rlsched.decide.registry import load_scheduler
from rlsched.models.catalogue import load_catalogue
from rlsched.models.learning import Observed
from rlsched.wire.messages import (
    Capabilities,
    Ended,
    Explanation,
    Metered,
    ProfileFigure,
    RankMetered,
    RankUsage,
    Why,
)
from tests.support.broker.hand import LIMITS, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed

NAMED = "a2c-b64"
TRAIN = ["python", "train.py"]
USAGE = RankUsage(measured_s=60, gpu_milli=310, gpu_memory_mib=4_000, cpu_milli=2_000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HandBroker]:
    """A broker that shares GPUs, with a node of V100 and one of H100."""
    journal = Journal(tmp_path / "journal.sqlite")
    made = HandBroker(load_scheduler("pack"), journal, limits=LIMITS, shares=True)
    for name, gpu_type, mib in (("n0", "V100", 16_160), ("n1", "H100", 81_559)):
        can = Capabilities(shares=True, gpu_memory_mib=mib, fences=True)
        made.says(name, msgspec.structs.replace(hello(name, 1), gpu_type=gpu_type, capabilities=can))
    yield made
    journal.close()


def start(broker: HandBroker, node: str, **facts: object) -> int:
    """Start a job on a node; returns its number."""
    gpu_type = broker.state.nodes[node].spec.gpu_type
    broker.ask(submit(gpu_types=[gpu_type], **facts))  # type: ignore[arg-type]
    number = len(broker.state.jobs)
    broker.says(node, launched(number))
    return number


def run(broker: HandBroker, node: str, seconds: float, usage: RankUsage = USAGE) -> None:
    number = start(broker, node, command=TRAIN)
    for _ in range(round(seconds / 10.0)):
        broker.wait(10.0, "n0", "n1")
    broker.says(node, Ended(job=number, attempt=1, rank=0, exit_code=0, usage=usage))


def profile(broker: HandBroker, job: int) -> dict[str, ProfileFigure]:
    """Figures of a job by field; speeds by `speed` and GPU type."""
    said = broker.ask(Why(job=job))
    assert isinstance(said, Explanation)
    assert explanation_as_data(said)["profile"] == msgspec.to_builtins(said.profile)
    return {f"{one.field} {one.gpu_type}" if one.field == "speed" else one.field: one for one in said.profile}


def test_figures_come_from_the_most_certain_origin(broker: HandBroker) -> None:
    unnamed, named = start(broker, "n0"), start(broker, "n1", workload=NAMED)
    catalogue = load_catalogue()
    found = profile(broker, unnamed)
    assert {one.status for one in found.values()} == {"median"}
    assert found["util_frac"].value == catalogue.traits(["V100"])["util_frac"][0, 0]
    found = profile(broker, named)
    assert {found[field].status for field in ("util_frac", "memory_mib", "clock_bound", "speed V100")} == {
        "named"
    }
    assert found["util_frac"].source == f"workload {NAMED}"
    assert found["speed V100"].value == 1.0
    assert found["speed H100"].value == catalogue.traits(["H100"])["speed"][catalogue.number(NAMED), 0]
    broker.says("n1", Metered(ranks=[RankMetered(job=named, attempt=1, rank=0, usage=USAGE)]))
    found = profile(broker, named)
    assert (found["util_frac"].status, found["util_frac"].seen) == ("named", 0.31)
    assert (found["cores_each"].seen, found["memory_mib"].seen) == (2.0, 4_000.0)
    usage = msgspec.structs.replace(USAGE, gpu_memory_mib=30_000)
    for _ in range(2):
        broker.says("n1", Metered(ranks=[RankMetered(job=named, attempt=1, rank=0, usage=usage)]))
    broker.wait(1.0, "n0", "n1")
    memory = profile(broker, named)["memory_mib"]
    assert (memory.status, memory.value) == ("measured", 30_208.0)


def test_learnt_figures_have_attempts_and_the_rest_is_of_the_nearest_workload(broker: HandBroker) -> None:
    for _ in range(3):
        run(broker, "n0", 30.0)
    job = start(broker, "n0", command=TRAIN)
    found = profile(broker, job)
    util = found["util_frac"]
    assert (util.status, util.count, util.source) == ("learnt", 3, "3 earlier attempts")
    assert util.value == pytest.approx(0.31)
    assert util.spread == pytest.approx(0.1 / math.sqrt(3.0) * math.sqrt(1.0 + 1.0 / 3.0))
    assert found["clock_bound"].status == "estimated"
    assert found["clock_bound"].source.endswith("nearest to the learnt figures")


def test_why_says_with_what_a_job_without_earlier_attempts_counts(broker: HandBroker) -> None:
    job = start(broker, "n1", workload=NAMED, gpu_memory_mib=6_000)
    said = broker.ask(Why(job=job))
    assert isinstance(said, Explanation)
    util = load_catalogue().traits(["H100"])["util_frac"][load_catalogue().number(NAMED), 0]
    assert (
        f"no earlier attempt of its command is known; it counts with GPU {100 * util:.0f} % "
        f"(workload {NAMED}) and GPU memory 5.9 GiB (requested)" in said.details
    )


def test_speeds_of_gpu_types_are_learnt_from_run_times(broker: HandBroker) -> None:
    for _ in range(3):
        run(broker, "n0", 120.0)
        run(broker, "n1", 30.0)
    job = start(broker, "n0", command=TRAIN)
    found = profile(broker, job)
    assert found["speed V100"].status == "estimated", "run times give a ratio only"
    assert found["speed H100"].status == "learnt"
    assert found["speed H100"].value == pytest.approx(4.0, rel=0.01)
    assert found["speed H100"].spread <= MOST_SPEED_SD
    profiles = broker.state.jobs[job].spec.profiles
    traits = load_catalogue().traits(["V100", "H100"])[1:]
    off = np.abs(np.log(traits["speed"][:, 1] / traits["speed"][:, 0] / 4.0))
    without = {name: msgspec.structs.replace(one, run_s=None) for name, one in profiles.items()}
    nearer, before = nearest_workload(profiles) - 1, nearest_workload(without) - 1
    utils = traits["util_frac"][:, 0]
    assert off[nearer] <= off[before]
    assert abs(utils[nearer] - 0.31) <= abs(utils[before] - 0.31) + MOST_FOR_SPEED
    assert nearer == int(np.argmin(np.abs(utils - 0.31) + np.minimum(off, MOST_FOR_SPEED)))


def test_run_times_that_differ_much_teach_no_speed(broker: HandBroker) -> None:
    for seconds in (30.0, 300.0, 900.0):
        run(broker, "n0", seconds)
        run(broker, "n1", seconds / 3.0)
    found = profile(broker, start(broker, "n0", command=TRAIN))
    assert found["speed H100"].status == "estimated"


def test_run_times_by_number_of_gpus_are_learnt_and_shown(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        broker = HandBroker(load_scheduler("pack"), journal, limits=LIMITS)
        broker.says("n0", msgspec.structs.replace(hello("n0", 4), gpu_type="V100"))
        for num_gpus, seconds in ((1, 120.0), (1, 120.0), (1, 120.0), (4, 40.0), (4, 40.0), (4, 40.0)):
            broker.ask(submit(num_gpus, command=TRAIN))
            number = len(broker.state.jobs)
            broker.says("n0", launched(number))
            broker.says("n0", Ended(job=number, attempt=1, rank=0, exit_code=0, usage=USAGE), after_s=seconds)
        broker.ask(submit(2, command=TRAIN))
        said = broker.ask(Why(job=7))
        assert isinstance(said, Explanation)
        rows = [one for one in said.profile if one.field == "scaling"]
        assert [(one.num_gpus, one.status, one.count) for one in rows] == [
            (1, "learnt", 3),
            (4, "learnt", 3),
        ]
        assert [one.value for one in rows] == [1.0, pytest.approx(3.0, rel=0.01)]
        assert rows[1].source == "run times of 3 and 3 completed jobs"
        assert (
            "its speed by run times of its command on V100, relative to 1 GPU: 3.00 with 4 GPUs"
            in said.details
        )
        assert replayed(journal).profiles.kept_profiles() == broker.state.profiles.kept_profiles()


def test_factors_of_sharing_are_learnt_from_co_tenants(broker: HandBroker) -> None:
    job = start(broker, "n1", workload=NAMED)
    before = profile(broker, job)["sensitivity"]
    for _ in range(4):
        broker.state.models.observe(Observed(NAMED, NAMED, "H100", 0.5))
    found = profile(broker, job)["sensitivity"]
    assert before.status != "learnt"
    assert (found.status, found.count) == ("learnt", 4)
    assert found.value > before.value, "it is slowed down more than modelled"
    assert found.spread < before.spread


def test_certainty_of_a_fading_mean_has_a_limit() -> None:
    """200 run times of one distribution on each type show no speed: the latest 40 count."""
    rng = np.random.default_rng(1)
    profiles = Profiles()
    for gpu_type in ("V100", "H100"):
        for run_s in np.exp(rng.normal(6.0, 1.2, 200)).tolist():
            profiles.observe(("u", "train"), gpu_type, {"run_s": run_s})
    assert learnt_speeds(profiles.profiles_of(("u", "train"))) == {}
