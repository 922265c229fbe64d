"""Loss and saving by a lower SM clock, observed from the GPU time of jobs without co-tenants."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.base.profiles import Estimate, WorkloadProfile, signature_of
from rlsched.broker.journal.journal import Journal
from rlsched.broker.state.job_requests import runs_as
from rlsched.decide.registry import load_scheduler
from rlsched.models.at_clock import busy_at, clock_bound_of, relative_time, time_of_busy
from rlsched.models.catalogue import load_catalogue
from rlsched.models.gpu_types import GPU_FIGURES
from rlsched.models.power import power_at_clock
from rlsched.wire.messages import Ended, Explanation, Metered, RankMetered, RankUsage, Why
from rlsched_node.gpu.device import Tenant
from rlsched_node.gpu.simulated import SimulatedGpus
from tests.support.broker.hand import LIMITS, draft, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed

CLOCKS = list(range(1980, 200, -15))
FULL, RHO = 0.5, 0.6


def make(journal: Journal) -> HandBroker:
    broker = HandBroker(load_scheduler("tuned"), journal, limits=LIMITS)
    can = msgspec.structs.replace(hello("n0", 1), gpu_type="V100", sm_clocks_mhz=CLOCKS)
    broker.says("n0", can)
    return broker


def begin(broker: HandBroker, speed_energy: float) -> tuple[int, float]:
    """Start a job on the only GPU; returns its number, and its clock of the highest."""
    broker.ask(submit(speed_energy=speed_energy))
    job = len(broker.state.jobs)
    broker.says("n0", launched(job))
    attempt = broker.state.jobs[job].active
    assert attempt is not None
    return job, attempt.sm_clock_frac


def run(broker: HandBroker, speed_energy: float, util_frac: float | None = None) -> float:
    """A job that runs for a minute; returns its clock. `util_frac`: None: as a job of this `RHO`."""
    job, x = begin(broker, speed_energy)
    busy = busy_at(FULL, relative_time(RHO, x)) if util_frac is None else util_frac
    watts = power_at_clock("V100", 150.0, relative_time(RHO, x), x)
    usage = RankUsage(measured_s=60, gpu_milli=round(busy * 1000), energy_mj=round(60e3 * watts))
    broker.says("n0", Ended(job=job, attempt=1, rank=0, exit_code=0, usage=usage), after_s=60.0)
    return x


def test_clock_bound_share_follows_from_the_gpu_time_at_two_clocks() -> None:
    for x in (0.6, 0.75, 0.9):
        time = relative_time(RHO, x)
        assert time_of_busy(FULL, busy_at(FULL, time)) == pytest.approx(time)
        assert clock_bound_of(time, x) == pytest.approx(RHO)
    assert time_of_busy(0.5, 0.4) == 1.0


def test_profiles_learn_the_clock_bound_share(journal: Journal) -> None:
    broker = make(journal)
    assert run(broker, 1.0) < 1.0
    user = broker.state.jobs[1].spec.user
    known = broker.state.profiles
    assert known.figure(signature_of(user, ["true"]), "V100", "clock_bound") is None, (
        "no attempt at full clock"
    )
    assert run(broker, 0.0) == 1.0
    assert known.figure(signature_of(user, ["true"]), "V100", "clock_bound") is None
    for _ in range(3):
        assert run(broker, 1.0) < 1.0
    found = known.figure(signature_of(user, ["true"]), "V100", "clock_bound")
    assert found is not None
    assert (found.value, found.count, found.status) == (pytest.approx(RHO, abs=0.02), 3, "learnt")
    again = replayed(journal).profiles.figure(signature_of(user, ["true"]), "V100", "clock_bound")
    assert again == found


def test_busy_gpus_teach_nothing_about_clocks(journal: Journal) -> None:
    broker = make(journal)
    run(broker, 0.0, util_frac=0.95)
    run(broker, 1.0, util_frac=0.96)
    user = broker.state.jobs[1].spec.user
    assert broker.state.profiles.figure(signature_of(user, ["true"]), "V100", "clock_bound") is None


def test_job_runs_as_the_workload_of_its_observed_clock_bound_share() -> None:
    catalogue = load_catalogue()
    traits = catalogue.traits(["V100"])[1:, 0]
    util = float(traits["util_frac"][0])
    for rho in (0.05, 0.95):
        profile = WorkloadProfile(util_frac=Estimate(util, 0.1, 4), clock_bound=Estimate(rho, 0.1, 4))
        number = runs_as(msgspec.structs.replace(draft(), profiles={"V100": profile}))
        off = abs(traits["util_frac"] - util) + abs(traits["clock_bound"] - rho)
        assert off[number - 1] == pytest.approx(off.min(), abs=1e-9)


def test_why_shows_predicted_and_observed_loss_and_saving(journal: Journal) -> None:
    broker = make(journal)
    run(broker, 0.0)
    job, x = begin(broker, 1.0)
    time = relative_time(RHO, x)
    watts = power_at_clock("V100", 150.0, time, x)
    for second in range(10, 70, 10):
        usage = RankUsage(measured_s=10, gpu_milli=round(1000 * busy_at(FULL, time)))
        broker.wait(10.0, "n0")
        ranks = [RankMetered(job=job, attempt=1, rank=0, usage=usage, energy_mj=round(1e3 * watts * second))]
        broker.says("n0", Metered(ranks=ranks))
    reply = broker.ask(Why(job=job))
    assert isinstance(reply, Explanation)
    (line,) = [one for one in reply.details if "its clock is predicted to cost" in one]
    full_w = GPU_FIGURES["V100"]["static_w"].value + 150.0
    seen_loss, seen_saving = (float(one.split("seen ")[1].split(" %")[0]) for one in line.split(";"))
    assert seen_loss == pytest.approx(100 * (1.0 - 1.0 / time), abs=1.0)
    assert seen_saving == pytest.approx(100 * (1.0 - watts * time / full_w), abs=1.5)


def test_simulated_gpus_have_shorter_pauses_at_a_lower_clock() -> None:
    gpus = SimulatedGpus(1, gpu_type="V100")
    gpus.follow({0: [Tenant(1)]})
    full = gpus.utilisation_frac(0)
    gpus.lock_sm_clock(0, 1500)
    row = load_catalogue().traits(["V100"])[0, 0]
    time = relative_time(float(row["clock_bound"]), 1500 / 1980)
    assert gpus.utilisation_frac(0) == pytest.approx(busy_at(full, time))
