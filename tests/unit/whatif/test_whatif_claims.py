"""Results of policies on the last fifth: against the site's rule, by group, on fewer nodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlsched.cli.main import run
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched_agents.evaluate.metrics import queue_s
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from rlsched_agents.whatif.capacity import fewer, sleep
from rlsched_agents.whatif.groups import JobGroup
from rlsched_agents.whatif.job_history import JobHistory
from rlsched_agents.whatif.results import Under, WhatIf, best_of, verdict
from rlsched_agents.whatif.run_whatif import WhatifQuestion, run_whatif
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from tests.support.sim.histories import easy_history


def quiet(what: str, done: float) -> None:
    """Progress without output."""


@pytest.fixture(scope="module")
def found() -> WhatIf:
    trace, spec = easy_history(6000, 0.95, 64)
    policies = [Policy("qssf-backfill"), Policy("fifo"), Policy("sjf-backfill")]
    return run_whatif(JobHistory(trace, spec, "normal", 0), WhatifQuestion(policies), quiet)


def test_policies_are_compared_with_the_rule_of_the_site(found: WhatIf) -> None:
    assert (found.grade, found.refused, found.fits[0].rule) == ("A", "", "easy-limits")
    assert found.site is not None
    assert found.site.against is None
    short, fifo, bound = found.policies
    assert short.ratio is not None
    assert short.ratio.ratio == pytest.approx(short.wait_s / found.site.wait_s)
    assert fifo.ratio is not None
    assert fifo.ratio.ratio > 1.0
    assert bound.oracle
    assert found.best in ("qssf-backfill", "")
    assert found.best == best_of(found.policies)


def test_groups_hold_every_job_once(found: WhatIf) -> None:
    one = found.policies[0]
    assert one.against is not None
    sizes = [group for group in one.groups if group.kind == "size"]
    assert sum(group.jobs for group in sizes) == one.against.jobs
    total = sum(group.jobs * group.wait_s for group in sizes)
    assert total / one.against.jobs == pytest.approx(one.wait_s)
    assert {group.kind for group in one.groups} == {"size", "user"}


def replay(trace_of: JobTable, spec: ClusterSpec) -> JobTable:
    rule = Policy("fifo-backfill").rule
    return Engine(trace_of.trace, spec, order=rule.order).run_rule(rule)


def test_smallest_cluster_is_the_smallest() -> None:
    trace, spec = easy_history(1500, 0.7, 128)
    rule = Policy("fifo-backfill").rule
    full = Engine(trace, spec, order=rule.order).run_rule(rule)
    everyone = np.ones(len(trace), dtype=np.bool_)
    allowed_s = 2.0 * float(queue_s(full).mean()) + 600.0
    spared = fewer(spec, lambda one: replay(full, one), everyone, allowed_s, lambda _: None)
    assert spared is not None
    assert spared.wait_s <= allowed_s
    assert spared.gpus_spared == spec.num_gpus - 8 * spared.nodes > 0
    one_less = ClusterSpec.uniform(spared.nodes - 1)
    wait_s = np.nan_to_num(queue_s(replay(full, one_less)), nan=np.inf)
    assert float(wait_s.mean()) > allowed_s
    assert fewer(spec, lambda one: replay(full, one), everyone, -1.0, lambda _: None) is None


def test_unused_nodes_could_sleep() -> None:
    trace, _ = easy_history(500, 0.7, 64)
    rule = Policy("fifo-backfill").rule
    since_s = float(trace.submit_s[len(trace) // 2])
    found = [
        sleep(Engine(trace, ClusterSpec.uniform(nodes), order=rule.order).run_rule(rule), since_s)
        for nodes in (8, 24)
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].asleep < 8 < found[1].asleep < 24


def under(name: str, ratio: Ratio | None, *groups: JobGroup) -> Under:
    against = None
    if ratio is not None:
        against = Comparison(jobs=9, jct_mean_ratio=None, queue_mean_ratio=ratio, wins_frac=0, losses_frac=0)
    wait_s = 3600.0 * (ratio.ratio if ratio else 1.0)
    return Under(
        policy=name,
        toml="",
        oracle=name == "srtf",
        wait_s=wait_s,
        jct_s=9e3,
        against=against,
        groups=list(groups),
        energy_kwh=None,
    )


def test_verdict_claims_only_the_shown_result() -> None:
    site = under("easy-limits", None)
    sure, unsure = under("tuned", Ratio(0.5, 0.4, 0.6)), under("easy", Ratio(0.4, 0.1, 1.2))
    bound = under("srtf", Ratio(0.1, 0.1, 0.2))
    assert best_of([unsure, bound]) == ""
    assert best_of([unsure, sure, bound]) == "tuned"
    said = verdict(site, [sure, unsure], "tuned", 12, "B", None)
    assert said == (
        "tuned: jobs would have waited 50% [40%, 60%] less than under easy-limits, 30.0 min instead of "
        "1.0 h on average (fidelity B)"
    )
    assert verdict(site, [unsure], "", 12, "B", None).startswith("keep what you have: no policy is shown")
    assert verdict(site, [unsure], "", 9, "B", None).startswith("no result: the last fifth has")


def test_verdict_names_the_slower_jobs() -> None:
    longer = JobGroup(
        kind="size",
        name="33-64",
        jobs=9,
        site_wait_s=60.0,
        wait_s=120.0,
        ratio=Ratio(2, 1.5, 3),
        waits="longer",
    )
    one = under("tuned", Ratio(0.5, 0.4, 0.6), longer)
    said = verdict(under("fifo", None), [one], "tuned", 12, "A", None)
    assert "longer would wait jobs of 33-64 GPUs (2.0 min instead of 1.0 min)" in said


def test_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    trace, spec = easy_history(1500, 0.9, 64)
    trace.write(tmp_path / "h.csv")
    spec.write(tmp_path / "c.toml")
    files = [str(tmp_path / "h.csv"), "--cluster", str(tmp_path / "c.toml")]
    page = tmp_path / "h.html"
    asked = ["--policy", "easy", "--set", "reserve_after=1h", "--html", str(page), "--quiet"]
    assert run(["whatif", *files, *asked]) == 0
    text = capsys.readouterr().out
    assert "easy-limits (the site's rule)" in text
    assert "easy* by size" in text
    assert "<h2" in page.read_text()
    assert "Who gains and who loses" in page.read_text()
    assert run(["whatif", *files, "--policy", "qssf-backfill", "--json", "--quiet"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["grade"] == "A"
    assert said["verdict"] in text or said["policies"][0]["policy"] == "qssf-backfill"


def test_energy_is_reported_with_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, spec = easy_history(600, 0.9, 64)
    trace.write(tmp_path / "h.csv")
    spec.write(tmp_path / "c.toml")
    asked = ["whatif", str(tmp_path / "h.csv"), "--cluster", str(tmp_path / "c.toml"), "--policy", "easy"]
    assert run([*asked, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["site"]["energy_kwh"] is None
    assert run([*asked, "--models", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    measured = trace.submit_s >= found["since_s"]
    gpu_hours = float(trace.duration_s[measured] @ trace.num_gpus[measured]) / 3600.0
    energies_kwh = [found["site"]["energy_kwh"], found["policies"][0]["energy_kwh"]]
    assert all(0.05 < energy_kwh / gpu_hours < 0.7 for energy_kwh in energies_kwh), "kW per busy GPU"


def test_verb_claims_nothing_about_another_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, spec = easy_history(1500, 0.9, 64)
    trace.write(tmp_path / "h.csv")
    ClusterSpec.uniform(spec.num_nodes + 2).write(tmp_path / "c.toml")
    files = [str(tmp_path / "h.csv"), "--cluster", str(tmp_path / "c.toml")]
    assert run(["whatif", *files, "--quiet", "--json"]) == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["grade"], found["site"], found["policies"]) == ("D", None, [])
    assert said.err.count("\n") == 1
    assert "no rule explains the recorded waits" in said.err
    assert run(["whatif", files[0], "--quiet"]) == 2
    assert "the normal form does not describe nodes" in capsys.readouterr().err
    assert run(["whatif", *files, "--policy", "pack"]) == 2
    assert "add --models" in capsys.readouterr().err
