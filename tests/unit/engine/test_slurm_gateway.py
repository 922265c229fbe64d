"""The gateway's state machine on a Slurm in memory."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsched.broker.machine.submissions import wrong
from rlsched.engine.attempts import FOREIGN_EXIT_CODE
from rlsched.engine.facts import Facts, marks_of
from rlsched.engine.fallback import release
from rlsched.engine.gateway import Gateway
from rlsched.engine.offers import PROOF_DIGITS, offer_secret
from rlsched.engine.ordering import spaced
from rlsched.engine.orders import REMOVED, submission
from rlsched.engine.partitions import empty, unlike
from rlsched.engine.reader import Reader
from rlsched.engine.steps import Ask, Say, Times
from rlsched.engine.writer import Writer
from rlsched.transport.keys import KeyPair
from rlsched.wire.messages import (
    Begin,
    Cancel,
    Ended,
    EndedAck,
    Heartbeat,
    Held,
    Hello,
    Holding,
    JobInfo,
    Jobs,
    Kill,
    Launch,
    Launched,
    LaunchRefused,
    Ok,
    Submit,
    Submitted,
    Welcome,
)
from tests.support.fake_slurm import FakeJob, FakeSlurm

TIMES = Times(start_s=10.0, repeat_s=1.0, ask_again_s=2.0, release_after_s=60.0)


class Bench:
    """A gateway, a Slurm, and a broker that sends the test's messages."""

    def __init__(self, nices: tuple[int, int] | None = None, sm_clocks_mhz: tuple[int, ...] = ()) -> None:
        self.slurm = FakeSlurm(("n1", "n2"), holds=nices is None)
        self.slurm.step(1000.0)
        self.nices, self.sm_clocks_mhz = nices, sm_clocks_mhz
        self.restart()
        self.asked: list[Ask] = []
        self.said: list[tuple[str, object]] = []

    def restart(self) -> None:
        self.gateway = Gateway(
            "slurm",
            "c",
            ("gpu",),
            Writer(self.slurm.obey),
            TIMES,
            secret=b"nobody's",
            nices=self.nices,
            sm_clocks_mhz=self.sm_clocks_mhz,
        )

    def poll(self, after_s: float = 1.0) -> None:
        self.slurm.step(self.slurm.now_s + after_s)
        self._take(self.gateway.handle_facts(self.slurm.facts()))

    def send(self, node: str, message: object) -> None:
        self._take(self.gateway.handle_message(node, message, self.slurm.now_s))  # type: ignore[arg-type]

    def _take(self, steps: list[Say | Ask]) -> None:
        self.asked += [step for step in steps if isinstance(step, Ask)]
        self.said += [(step.node, step.message) for step in steps if isinstance(step, Say)]

    def register(self) -> None:
        self.poll()
        for node in self.slurm.nodes:
            self.send(node, Welcome(epoch=1, cluster="b1", heartbeat_s=2.0))

    def submitted(self) -> list[Submit]:
        return [one.message for one in self.asked if isinstance(one.message, Submit)]

    def answer(self, job: int) -> None:
        ask = next(one for one in self.asked if isinstance(one.message, Submit))
        self._take(self.gateway.handle_answer(ask.about, Submitted(job=job), self.slurm.now_s))
        self.asked.remove(ask)

    def launch(
        self,
        key: str,
        *gpus: int,
        attempt: int = 1,
        nodes: tuple[str, ...] = ("n1",),
        sm_clock_mhz: int = 0,
        job: int = 17,
        person: str = "",
        offered: bool = True,
    ) -> None:
        if offered and self.gateway._desk.offered.get(key) is None:  # the broker has already answered
            self._take(self.gateway.handle_answer(("submit", key), Submitted(job=job), self.slurm.now_s))
        for rank, node in enumerate(nodes):
            order = Launch(
                epoch=1,
                job=job,
                person=person,
                attempt=attempt,
                rank=rank,
                num_ranks=len(nodes),
                nodes=list(nodes),
                gpus=list(gpus),
                command=["slurm", key, f"s{key}"],
                env={},
                cwd="",
                sm_clock_mhz=sm_clock_mhz,
            )
            self.send(node, order)

    def of(self, kind: type) -> list[object]:
        return [message for _, message in self.said if isinstance(message, kind)]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.register()
    return bench


def test_held_job_is_offered_and_started_on_the_decided_node(bench: Bench) -> None:
    key = bench.slurm.sbatch(2, runs_s=5.0, code=3)
    bench.poll()
    (offer,) = bench.submitted()
    said, _, proof = offer.token.rpartition("-")
    assert (said, offer.num_gpus, offer.vc, offer.lost_after_s) == ("slurm-c-1-s1-0", 2, "gpu", 0.0)
    assert len(proof) == PROOF_DIGITS
    bench.answer(17)
    bench.launch(key, 1, 3)
    assert len([line for line in bench.slurm.lines if "ReqNodeList" in line]) == 1, (
        "one write sets its placement"
    )
    bench.poll()
    bench.poll(6.0)
    bench.poll()
    assert bench.of(Launched)
    assert bench.slurm.jobs[key].starts[0][:2] == (["n1"], [1, 3])
    assert [(one.exit_code, one.reason) for one in bench.of(Ended)][:1] == [(3, "")]  # type: ignore[attr-defined]


def test_job_starts_at_the_decided_clock() -> None:
    bench = Bench(sm_clocks_mhz=(1980, 1395))
    bench.register()
    hello = next(message for _, message in bench.said if isinstance(message, Hello))
    assert (hello.sm_clocks_mhz, hello.capabilities.clocks, hello.clocks_note) == ([1980, 1395], True, "")
    key = bench.slurm.sbatch(2, runs_s=5.0)
    bench.poll()
    bench.answer(17)
    bench.launch(key, 1, 3, sm_clock_mhz=1395)
    bench.poll()
    assert " TresFreq=gpu:1395" in next(line for line in bench.slurm.lines if "ReqNodeList=n1" in line)
    (launched,) = bench.of(Launched)
    assert isinstance(launched, Launched)
    assert launched.sm_clock_mhz == 1395
    bench.restart()  # the fields written to the job have it too
    bench.said.clear()
    bench.register()
    report = next(one for _, one in bench.said if isinstance(one, Hello)).attempts
    assert [(one.state, one.sm_clock_mhz) for one in report] == [("running", 1395)]


def test_job_left_to_slurm_has_its_clocks_restored() -> None:
    bench = Bench(sm_clocks_mhz=(1980, 1395))
    bench.register()
    key = bench.slurm.sbatch(1)
    bench.slurm.why["n1"] = "down"
    bench.poll()
    bench.launch(key, 0, sm_clock_mhz=1395)
    for _ in range(14):  # it does not start, and is held again
        bench.poll()
    for _ in range(4):  # and no broker decides any more
        bench.poll(30.0)
    assert "left=released" in bench.slurm.jobs[key].comment
    (left,) = [line for line in bench.slurm.lines if "left=released" in line]
    assert " TresFreq=gpu:high" in left


def test_gang_gets_the_same_gpus_on_every_node_or_is_refused(bench: Bench) -> None:
    key = bench.slurm.sbatch(4, nodes=2)
    bench.poll()
    assert bench.submitted()[0].num_gpus == 8
    bench.launch(key, 0, 1, 2, 3, nodes=("n1", "n2"))
    bench.poll()
    assert bench.slurm.jobs[key].on == ["n1", "n2"]


def test_foreign_gpus_are_reported_before_the_jobs_that_could_get_them(bench: Bench) -> None:
    first, other = bench.slurm.sbatch(4), bench.slurm.sbatch(1)
    bench.poll()
    bench.launch(first, 0, 1, 2, 3)
    bench.poll()
    bench.slurm.scancel(first)
    foreign = bench.slurm.jobs[other]
    foreign.comment, foreign.state, foreign.on, foreign.wanted_gpus = "", "RUNNING", ["n1"], [0]
    foreign.runs_s = 60.0
    third = bench.slurm.sbatch(4)
    steps = bench.gateway.handle_facts(bench.slurm.facts())
    words = [type(step.message) for step in steps]
    assert words.index(Held) < words.index(Ended) < words.index(Submit)
    assert [step.message.command[1] for step in steps if isinstance(step.message, Submit)] == [third]


def test_job_that_slurm_does_not_start_is_held_again_and_refused(bench: Bench) -> None:
    key = bench.slurm.sbatch(1)
    bench.slurm.why["n1"] = "down"
    bench.poll()
    bench.launch(key, 0)
    for _ in range(14):
        bench.poll()
    (refused, *_) = bench.of(LaunchRefused)
    assert refused.is_for_now  # type: ignore[attr-defined]
    assert bench.slurm.jobs[key].is_held


def test_job_blocked_by_a_slurm_limit_is_offered_later(bench: Bench) -> None:
    key = bench.slurm.sbatch(1)
    bench.poll()
    bench.answer(17)
    bench.slurm.why["n1"], bench.slurm.limits[key] = "down", "QOSMaxGRESPerUser"
    bench.launch(key, 0)
    for _ in range(4):
        bench.poll()
    assert {one.reason for one in bench.of(Ended)} == {"node_stopped"}  # type: ignore[attr-defined]
    assert bench.slurm.jobs[key].is_held
    bench.poll()
    assert Cancel(job=17) in [one.message for one in bench.asked]
    bench.said.clear()
    bench.launch(key, 2, attempt=2)
    bench.send("n1", Kill(epoch=1, job=17, attempt=2, rank=0))
    assert {one.reason for one in bench.of(Ended)} == {"node_stopped", "killed"}  # type: ignore[attr-defined]
    for _ in range(8):
        bench.poll()
    assert bench.submitted() == []
    assert bench.slurm.jobs[key].state == "PENDING", "a pending order does not cancel the user's job"
    bench.send("n1", EndedAck(job=17, attempt=1, rank=0))
    ask = next(one for one in bench.asked if isinstance(one.message, Cancel))
    bench._take(bench.gateway.handle_answer(ask.about, Ok(), bench.slurm.now_s))
    bench.poll(60.0)
    bench.poll()
    assert [one.token.rpartition("-")[0] for one in bench.submitted()] == ["slurm-c-1-s1-1"]


def test_job_never_gets_more_gpus_than_requested(bench: Bench) -> None:
    """Slurm adds GPUs by type to the earlier request, which is removed before a second placement."""
    key = bench.slurm.sbatch(1, runs_s=100.0)
    bench.poll()
    bench.launch(key, 0)
    bench.poll()
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0, again=True))
    bench.poll()
    assert bench.slurm.jobs[key].state == "PENDING"
    bench.launch(key, 2, attempt=2)
    assert bench.slurm.jobs[key].request == "", "the next poll shows that it is removed"
    assert bench.slurm.jobs[key].is_held
    bench.poll()
    bench.poll()
    assert [gpus for _, gpus, _ in bench.slurm.jobs[key].starts] == [[0], [2]]


def test_requeued_job_starts_two_seconds_later_at_the_earliest(bench: Bench) -> None:
    key = bench.slurm.sbatch(1, runs_s=100.0)
    bench.poll()
    bench.launch(key, 0)
    bench.poll()
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0, again=True))
    requeued_s = bench.slurm.now_s
    bench.poll(0.2)
    bench.launch(key, 0, attempt=2)
    for _ in range(15):
        bench.poll(0.2)
    first, second = bench.slurm.jobs[key].starts
    assert first[:2] == second[:2]
    assert requeued_s + 2.0 <= second[2] <= requeued_s + 2.5


def test_job_whose_request_slurm_keeps_is_left_to_slurm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = bench.slurm.sbatch(1, runs_s=100.0)
    bench.poll()
    bench.launch(key, 0)
    bench.poll()
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0, again=True))
    bench.poll()
    monkeypatch.setattr(Writer, "clear", lambda *_: None)
    bench.launch(key, 2, attempt=2)
    for _ in range(5):
        bench.poll(5.0)
    assert "left=placed" in bench.slurm.jobs[key].comment
    assert bench.slurm.jobs[key].request == "gres:gpu:i0:1", "its earlier GPUs, not more"


def test_job_is_never_released_without_its_gpus(bench: Bench) -> None:
    key = bench.slurm.sbatch(2, runs_s=100.0)
    bench.poll()
    bench.launch(key, 0, 1)
    bench.poll()
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0, again=True))
    bench.poll()
    bench.launch(key, 2, 3, attempt=2)
    assert bench.slurm.jobs[key].request == ""
    bench.restart()  # between the removal of the request and the next one
    for _ in range(4):
        bench.poll(30.0)  # no broker
    assert (bench.slurm.jobs[key].request, bench.slurm.jobs[key].is_held) == ("gres:gpu:2", False)
    bench.slurm.obey([f"update JobId={key} Priority=0 TresPerNode="])  # of the killed gateway, late
    assert bench.slurm.jobs[key].is_held
    bench.poll()
    bench.poll()
    assert (bench.slurm.jobs[key].request, bench.slurm.jobs[key].is_held) == ("gres:gpu:2", False)


def test_user_cannot_control_slurm_jobs_of_others_by_naming_them(bench: Bench) -> None:
    waits, runs = bench.slurm.sbatch(1, runs_s=60.0), bench.slurm.sbatch(1, runs_s=60.0)
    bench.poll()
    bench.answer(17)
    bench.launch(runs, 0, person="ada")
    bench.poll()
    bench.poll()
    assert bench.slurm.jobs[runs].state == "RUNNING"
    for number, key in ((21, waits), (22, runs)):
        bench.launch(key, 2, job=number, person="eve")
        bench.poll()
        ends = [one for one in bench.of(Ended) if one.job == number]  # type: ignore[attr-defined]
        assert {(one.exit_code, one.reason) for one in ends} == {(FOREIGN_EXIT_CODE, "")}  # type: ignore[attr-defined]
        bench.send("n1", Kill(epoch=1, job=number, attempt=1, rank=0))
        bench.poll()
    assert [bench.slurm.jobs[key].state for key in (waits, runs)] == ["PENDING", "RUNNING"]
    assert bench.slurm.jobs[waits].is_held


def test_user_cannot_jump_the_queue_by_naming_their_own_slurm_job_twice(bench: Bench) -> None:
    """Ada submits the command of her Slurm job to the broker too, but short and with one GPU."""
    key = bench.slurm.sbatch(4, runs_s=60.0)
    bench.poll()
    bench.launch(key, 0, job=99, person="ada", offered=False)
    bench.poll()
    assert bench.slurm.jobs[key].is_held, "the broker has not yet sent the job's number"
    assert not bench.of(Ended)
    bench.answer(17)
    (end,) = bench.of(Ended)
    assert (end.job, end.exit_code) == (99, FOREIGN_EXIT_CODE)  # type: ignore[attr-defined]
    assert not bench.of(LaunchRefused), "a node that refuses is drained for a time"
    bench.poll()
    bench.launch(key, 0, 1, 2, 3, person="ada")
    bench.poll()
    bench.poll()
    assert bench.slurm.jobs[key].starts[0][:2] == (["n1"], [0, 1, 2, 3])
    tell = Launch(
        epoch=1, job=98, attempt=1, rank=0, num_ranks=1, nodes=["n1"], gpus=[0], command=["sleep", "9"],
        env={}, cwd="",
    )  # fmt: skip
    bench.send("n1", tell)
    assert [(one.job, one.exit_code) for one in bench.of(Ended)][-1:] == [(98, FOREIGN_EXIT_CODE)]  # type: ignore[attr-defined]


def test_order_that_precedes_the_answer_waits_for_it(bench: Bench) -> None:
    key = bench.slurm.sbatch(1, runs_s=60.0)
    bench.poll()
    bench.launch(key, 3, offered=False)
    assert bench.slurm.jobs[key].is_held
    bench.answer(17)
    assert not bench.slurm.jobs[key].is_held, "at once"
    bench.poll()
    assert bench.slurm.jobs[key].starts[0][1] == [3]


def test_tokens_are_the_same_after_a_restart_and_secret(bench: Bench) -> None:
    bench.slurm.sbatch(1)
    bench.poll()
    (first,) = bench.submitted()
    bench.restart()
    bench.asked.clear()
    bench.register()
    bench.poll()
    assert [one.token for one in bench.submitted()][-1] == first.token
    pair = KeyPair(b"public", b"secret")
    assert offer_secret(pair) == offer_secret(KeyPair(b"other", b"secret")) != offer_secret(KeyPair(b"", b""))
    bench.gateway = Gateway(
        "slurm", "c", ("gpu",), Writer(bench.slurm.obey), TIMES, secret=offer_secret(pair)
    )
    bench.asked.clear()
    bench.register()
    bench.poll()
    assert first.token not in [one.token for one in bench.submitted()]


def test_kill_before_the_launch_prevents_the_start(bench: Bench) -> None:
    key = bench.slurm.sbatch(1)
    bench.poll()
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0))
    bench.launch(key, 0)
    bench.poll()
    assert bench.slurm.jobs[key].starts == []
    assert len(bench.of(Ended)) == 2


def test_scancel_and_holds_of_users_withdraw_the_offer(bench: Bench) -> None:
    keys = [bench.slurm.sbatch(1) for _ in range(2)]
    bench.poll()
    bench.answer(1)
    bench.answer(2)
    bench.slurm.scancel(keys[0])
    bench.slurm.jobs[keys[1]].is_held_by_user = True
    bench.poll()
    assert [one.message for one in bench.asked if isinstance(one.message, Cancel)] == [
        Cancel(job=1),
        Cancel(job=2),
    ]
    assert "o=1" in bench.slurm.jobs[keys[1]].comment, "it is offered with another token later"


def test_foreign_gpus_are_reported(bench: Bench) -> None:
    key = bench.slurm.sbatch(2, runs_s=9.0)
    job = bench.slurm.jobs[key]
    job.comment, job.is_held, job.wanted, job.wanted_gpus = "", False, ["n2"], [0, 3]
    bench.poll()
    assert [one.gpus for one in bench.of(Held)[-1].held] == [[0, 3]]  # type: ignore[attr-defined]
    bench.poll(10.0)
    assert bench.of(Held)[-1].held == []  # type: ignore[attr-defined]


def test_unacknowledged_messages_are_repeated(bench: Bench) -> None:
    key = bench.slurm.sbatch(1, runs_s=60.0)
    bench.poll()
    bench.answer(17)
    bench.launch(key, 0)
    bench.poll()
    bench.poll()
    before = {kind: bench.of(kind) for kind in (Launched, Held, Heartbeat)}
    bench.said.clear()
    bench._take(bench.gateway.say_again(bench.slurm.now_s))
    assert bench.of(Launched) == before[Launched][-1:]
    assert {node for node, message in bench.said if isinstance(message, Held)} == {"n1", "n2"}
    assert {node for node, message in bench.said if isinstance(message, Heartbeat)} == {"n1", "n2"}


def test_job_with_any_name_is_offered() -> None:
    facts = FakeSlurm()
    facts.sbatch(1)
    (job,) = facts.facts().jobs.values()
    odd = msgspec.structs.replace(job, name="a\tb\x1b[31m" + "c" * 300)
    offer = submission(odd, "slurm-c-1-s1-0", "s1", 1, preempts=False)
    assert wrong(offer) == ""
    assert offer.name.startswith(r"a\tb\x1b[31mc")


def test_nodes_of_a_partition_are_equal() -> None:
    facts = FakeSlurm(("n1", "n2", "n3")).facts()
    assert unlike(facts, ("gpu",), "hand over") == []
    nodes = dict(facts.nodes)
    nodes["n2"] = msgspec.structs.replace(nodes["n2"], gpus=2)
    nodes["n3"] = msgspec.structs.replace(nodes["n3"], partitions=["gpu", "big"])
    odd = msgspec.structs.replace(facts, nodes=nodes)
    assert unlike(odd, ("gpu", "big"), "hand over") == [
        "node n2: 2 GPUs, and n1 of the same partition gpu has 4: "
        "hand over partitions of nodes that are alike",
        "node n3: it is in partitions gpu and big: hand over one of them",
    ]
    (line,) = empty(odd, ("gpu", "cpu"))
    assert line.startswith("partition cpu: no node with a GPU in it")


def test_unreachable_slurm_is_reported_and_no_offer_withdrawn(bench: Bench) -> None:
    bench.slurm.sbatch(1)
    bench.poll()
    bench.answer(17)
    for second in range(30):
        bench._take(bench.gateway.cannot_look("no answer", bench.slurm.now_s + second))
    beats = bench.of(Heartbeat)[-2:]
    assert all(beat.engine_away and beat.unhealthy for beat in beats)  # type: ignore[attr-defined]
    assert not [one for one in bench.asked if isinstance(one.message, Cancel)]


def test_restarted_gateway_reports_running_jobs(bench: Bench) -> None:
    key = bench.slurm.sbatch(1, runs_s=100.0)
    bench.poll()
    bench.launch(key, 2)
    bench.poll()
    bench.gateway = Gateway("slurm", "c", ("gpu",), Writer(bench.slurm.obey), TIMES)
    bench.said.clear()
    bench.poll()
    reports = {hello.name: hello.attempts for hello in bench.of(Hello)}  # type: ignore[attr-defined]
    assert [(one.job, one.attempt, one.state) for one in reports["n1"]] == [(17, 1, "running")]
    assert reports["n2"] == []


@pytest.mark.parametrize(("job", "code"), [(17, 0), (18, FOREIGN_EXIT_CODE)])
def test_job_that_ended_in_an_earlier_attempt_ends_the_next_one_after_a_restart(
    bench: Bench, job: int, code: int
) -> None:
    """The restarted gateway does not offer the job again, because it is not held."""
    key = bench.slurm.sbatch(1, runs_s=1.0)
    bench.poll()
    bench.launch(key, 2)
    for _ in range(5):
        bench.poll()
    assert bench.slurm.jobs[key].state == "COMPLETED"
    bench.restart()
    bench.poll()
    for node in bench.slurm.nodes:
        bench.send(node, Welcome(epoch=1, cluster="b1", heartbeat_s=2.0, forget=[(17, 1)]))
    bench.said.clear()
    bench.launch(key, 3, attempt=2, job=job, offered=False)
    bench.poll()
    ended = {(one.job, one.attempt, one.exit_code) for one in bench.of(Ended)}  # type: ignore[attr-defined]
    assert ended == {(job, 2, code)}


def test_held_jobs_are_left_to_slurm_without_a_broker(bench: Bench) -> None:
    key = bench.slurm.sbatch(1)
    bench.poll()
    for _ in range(4):
        bench.poll(30.0)
    assert not bench.slurm.jobs[key].is_held
    assert "left=released" in bench.slurm.jobs[key].comment


def test_user_s_hold_of_a_job_that_is_slurm_s_own_stays(bench: Bench) -> None:
    never, given_back = bench.slurm.sbatch(1), bench.slurm.sbatch(1)
    bench.slurm.jobs[never].comment = "rlsched:left=features"  # by job_submit.lua, of `sbatch --hold`
    bench.slurm.jobs[given_back].comment = "rlsched:g=1;n=1;left=shape"
    bench.slurm.jobs[given_back].is_held_by_user = True
    bench.poll()
    assert [bench.slurm.jobs[key].is_held for key in (never, given_back)] == [True, True]
    bench.slurm.jobs[given_back].is_held_by_user = False
    bench.poll()
    assert [bench.slurm.jobs[key].is_held for key in (never, given_back)] == [True, False]


def test_released_jobs_are_taken_back_by_a_broker(bench: Bench) -> None:
    key, held = bench.slurm.sbatch(1, runs_s=5.0), bench.slurm.sbatch(1)
    bench.poll()
    bench.answer(17)
    for _ in range(4):
        bench.poll(30.0)
    assert [bench.slurm.jobs[one].is_held for one in (key, held)] == [False, False]
    bench.slurm.jobs[held].is_held_by_user = True
    bench.asked.clear()
    bench.gateway.heard_of_broker(bench.slurm.now_s)
    bench.poll()
    bench.poll(5.0)
    assert [bench.slurm.jobs[one].is_held for one in (key, held)] == [True, False]
    marks = marks_of(bench.slurm.jobs[key].comment)
    assert marks is not None
    assert (marks["s"], marks["o"], "left" in marks) == (f"s{key}", "1", False)
    ask = next(one for one in bench.asked if one.message == Cancel(job=17))
    bench._take(bench.gateway.handle_answer(ask.about, Ok(), bench.slurm.now_s))
    bench.poll()
    assert bench.submitted()[-1].token.rpartition("-")[0] == "slurm-c-1-s1-1"
    bench.launch(key, 2, job=18)
    bench.poll()
    bench.poll()
    assert [gpus for _, gpus, _ in bench.slurm.jobs[key].starts] == [[2]]


def test_job_that_is_still_queued_at_the_broker_keeps_its_offer(bench: Bench) -> None:
    key = bench.slurm.sbatch(1)
    bench.poll()
    (offer,) = bench.submitted()
    released = FakeReader(bench.slurm)
    assert release(released, Writer(bench.slurm.obey), 0.0) == 1  # by --release, while the gateway is dead
    assert not bench.slurm.jobs[key].is_held
    bench.restart()
    bench.register()
    bench.poll()
    assert bench.slurm.jobs[key].is_held
    bench.asked.clear()
    bench.poll()
    assert [one.token for one in bench.submitted()] == [offer.token]
    assert release(released, Writer(bench.slurm.obey), 0.0, why=REMOVED) == 1
    bench.poll()
    assert not bench.slurm.jobs[key].is_held, "a removal is final"


class FakeReader(Reader):
    """Facts of a Slurm in memory."""

    def __init__(self, slurm: FakeSlurm) -> None:
        super().__init__(("gpu",))
        self.slurm = slurm

    def facts(self) -> Facts:
        return self.slurm.facts()


def queued(job: int, key: float) -> JobInfo:
    return JobInfo(
        job=job,
        name="job",
        user="ada",
        vc="gpu",
        state="queued",
        num_gpus=1,
        attempt=0,
        submit_s=0.0,
        predicted_s=1.0,
        start_s=None,
        end_s=None,
        exit_code=None,
        nodes=[],
        gpus=[],
        decided_by="",
        reason="",
        queue_key=key,
    )


def test_without_placement_jobs_get_nice_values_and_starts_are_reported() -> None:
    bench = Bench(nices=(-60_000, -1_000))
    bench.register()
    bench.slurm.sbatch(4, runs_s=50.0)
    bench.slurm.sbatch(4, runs_s=5.0, code=3)
    large, small, middle, own = (bench.slurm.sbatch(gpus, runs_s=5.0) for gpus in (4, 1, 2, 1))
    jobs = bench.slurm.jobs
    jobs[own].comment, jobs[small].nice = "a site's own", 5
    bench.poll()
    assert marks_of(jobs[small].comment) == {"g": "1", "s": f"{1004:x}", "v": "5"}
    bench.poll()
    assert [one.num_gpus for one in bench.submitted()] == [4, 4, 4, 1, 2]
    for job in range(1, 6):
        bench.answer(job)
    keys = {3: 9.0, 4: 2.0, 5: 5.0}
    listed = Jobs(jobs=[queued(job, key) for job, key in keys.items()])
    bench._take(bench.gateway.handle_answer(("jobs", ""), listed, bench.slurm.now_s))
    bench.poll()
    assert -60_000 <= jobs[small].nice < jobs[middle].nice < jobs[large].nice <= -1_000
    assert (jobs[own].comment, jobs[own].nice) == ("a site's own", 0)
    begun = [one.message for one in bench.asked if isinstance(one.message, Begin)]
    assert begun == [Begin(job=job, nodes=[f"n{job}"], gpus=[[0, 1, 2, 3]]) for job in (1, 2)]
    assert bench.of(Held)[-1].held == [], "the jobs that the broker receives are not foreign"  # type: ignore[attr-defined]
    order = Launch(
        epoch=1,
        job=2,
        attempt=1,
        rank=0,
        num_ranks=1,
        nodes=["n2"],
        gpus=[0, 1, 2, 3],
        command=["slurm", "2", f"{1002:x}"],
        env={},
        cwd="",
    )
    bench.send("n2", order)
    assert bench.of(Launched)
    bench.restart()
    bench.said.clear()
    bench.poll()
    assert [hello.attempts[0].job for hello in bench.of(Hello) if hello.attempts] == [2]  # type: ignore[attr-defined]
    bench.poll(6.0)
    assert [(one.exit_code, one.reason) for one in bench.of(Ended)] == [(3, "")]  # type: ignore[attr-defined]
    assert not [line for line in bench.slurm.lines if not line.startswith("update")], "no job is held"


@given(
    order=st.lists(st.none() | st.integers(-60_000, -1_000), max_size=60),
    low=st.just(-60_000),
    high=st.just(-1_000),
)
def test_nice_values_ascend_and_few_change(order: list[int | None], low: int, high: int) -> None:
    found = spaced(order, low, high)
    assert len(found) == len(order)
    assert all(before < after for before, after in pairwise(found))
    assert all(low <= nice <= high for nice in found)
    if all(nice is not None for nice in order) and all(a < b for a, b in pairwise(order)):  # type: ignore[operator]
        assert found == order, "values in order stay"


@pytest.mark.parametrize("has_started", [False, True])
def test_kill_between_two_polls_cancels_no_job_that_may_have_started(bench: Bench, has_started: bool) -> None:
    """The poll before the release shows the job as held, and proves nothing."""
    key = bench.slurm.sbatch(2, runs_s=50.0)
    bench.poll()
    bench.launch(key, 0, 1)
    if has_started:
        bench.slurm.step(bench.slurm.now_s + 0.1)
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0, again=True))
    assert not bench.of(Ended), "not known yet"
    for _ in range(4):
        bench.poll()
    assert bench.slurm.jobs[key].is_held
    assert bench.of(Ended)
    bench.launch(key, 2, 3, attempt=2)
    for _ in range(4):
        bench.poll()
    marks, starts = marks_of(bench.slurm.jobs[key].comment), bench.slurm.jobs[key].starts
    assert marks is not None
    assert "left" not in marks
    assert [one for one in bench.of(Launched) if one.attempt == 2]  # type: ignore[attr-defined]
    assert [gpus for _, gpus, _ in starts] == [*([[0, 1]] * has_started), [2, 3]]


def test_run_counts_only_for_the_attempt_in_its_marks(bench: Bench) -> None:
    """Writes of a killed gateway can arrive late: its `scontrol` outlives it."""
    key = bench.slurm.sbatch(2, runs_s=50.0)
    bench.poll()
    bench.slurm.loses = 2
    bench.launch(key, 0, 1)
    bench.restart()
    bench.register()
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0, again=True))
    bench.slurm.obey(
        [
            f"update JobId={key} AdminComment=rlsched:g=2;n=1;s=s{key};x=1;j=17.1;r=0;c=b1;w=n1;t=1;i=0+1 "
            "ReqNodeList=n1 TresPerNode=gres:gpu:i0:1,gres:gpu:i1:1",
            f"release {key}",
        ]
    )
    bench.slurm.step(bench.slurm.now_s + 0.1)
    bench.said.clear()
    bench.launch(key, 2, 3, attempt=2)
    for _ in range(5):
        bench.poll()
    job = bench.slurm.jobs[key]
    assert (job.state, job.restarts, job.starts[0][1]) == ("RUNNING", 0, [0, 1]), "it keeps running"
    assert not bench.of(Launched), "not as the attempt with other GPUs"
    assert [(one.attempt, one.reason) for one in bench.of(Ended)][:1] == [(2, "cancelled")]  # type: ignore[attr-defined]
    assert Held(held=[Holding(by=f"Slurm's job {key} of ada", gpus=[0, 1], until_s=job.start_s + 50.0)]) in (
        bench.of(Held)
    )


def started(bench: Bench, signal: str = "B:USR1") -> FakeJob:
    """A running job whose script has `--signal`, as attempt 1 of the broker's job 17."""
    key = bench.slurm.sbatch(1, runs_s=1e6)
    job = bench.slurm.jobs[key]
    job.comment += f";u={signal}" if signal else ""
    bench.poll()
    bench.launch(key, 0)
    bench.poll()
    bench.poll()
    assert job.state == "RUNNING"
    return job


def preempt(bench: Bench, grace_s: float = 20.0) -> None:
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0, grace_s=grace_s, again=True))


def ends(bench: Bench) -> list[tuple[int, str]]:
    return list(dict.fromkeys((one.exit_code, one.reason) for one in bench.of(Ended)))  # type: ignore[attr-defined]


def test_job_gets_its_own_signal_and_the_grace_time_before_its_requeue(bench: Bench) -> None:
    job = started(bench)
    preempt(bench)
    assert job.signals == ["B:USR1"]
    for _ in range(9):
        bench.poll(2.0)
        preempt(bench)
    assert (job.signals, job.state) == (["B:USR1"], "RUNNING"), "a repeated order changes nothing"
    assert not ends(bench)
    bench.poll(2.0)
    assert (job.state, job.is_held) == ("PENDING", True)
    bench.poll()
    assert ends(bench) == [(143, "killed")]
    bench.send("n1", EndedAck(job=17, attempt=1, rank=0))
    bench.launch(job.key, 0, attempt=2)
    for _ in range(3):
        bench.poll()
    assert (job.state, len(job.starts)) == ("RUNNING", 2)
    bench.send("n1", Kill(epoch=1, job=17, attempt=2, rank=0, grace_s=20.0, again=True))
    assert job.signals == ["B:USR1"] * 2, "once per attempt"


@pytest.mark.parametrize(("signal", "grace_s"), [("", 20.0), ("USR1", 0.0)])
def test_job_without_a_signal_or_a_grace_time_is_requeued_immediately(signal: str, grace_s: float) -> None:
    bench = Bench()
    bench.register()
    job = started(bench, signal)
    preempt(bench, grace_s)
    assert (job.signals, job.state) == ([], "PENDING")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (138, "PENDING"), (1, "PENDING")])
def test_job_that_ends_in_the_grace_time_is_requeued_unless_it_succeeded(
    code: int, state: str, restarts: bool
) -> None:
    bench = Bench()
    bench.register()
    job = started(bench)
    job.code_at_signal = code
    preempt(bench)
    bench.slurm.step(bench.slurm.now_s + 0.5)
    if restarts:  # and the broker has not repeated its order
        bench.restart()
        bench.register()
    for _ in range(4):
        bench.poll()
    assert (job.state, job.signals) == (state, ["B:USR1"])
    assert ends(bench) == [(0, "") if code == 0 else (143, "killed")]


def test_restart_in_the_grace_time_neither_repeats_the_signal_nor_ends_the_time(bench: Bench) -> None:
    job = started(bench)
    preempt(bench)
    bench.restart()
    bench.register()
    bench.poll(10.0)
    preempt(bench)
    bench.poll()
    assert (job.state, job.signals) == ("RUNNING", ["B:USR1"])
    bench.poll(10.0)
    assert (job.state, job.signals) == ("PENDING", ["B:USR1"])


def test_lost_signal_is_repeated(bench: Bench) -> None:
    job = started(bench)
    bench.slurm.loses = 2
    preempt(bench)
    assert job.signals == []
    for _ in range(3):
        bench.poll(2.0)
    assert (job.signals, job.state) == (["B:USR1"], "RUNNING")
    bench.poll(14.0)
    assert job.state == "PENDING", "the grace time begins with the order"


def test_job_that_requeues_itself_in_the_grace_time_waits_for_the_broker(bench: Bench) -> None:
    job = started(bench)
    preempt(bench)
    job.state, job.is_held, job.on, job.restarts = "PENDING", False, [], 1
    job.depends = True  # Slurm delays its start
    bench.poll()
    assert job.is_held
    bench.poll()
    assert ends(bench) == [(143, "killed")]


def test_cancelled_job_in_its_grace_time_is_not_requeued(bench: Bench) -> None:
    job = started(bench)
    preempt(bench)
    bench.send("n1", Kill(epoch=1, job=17, attempt=1, rank=0))
    bench.poll()
    assert (job.state, job.signals) == ("CANCELLED", ["B:USR1"])
    assert ends(bench) == [(143, "killed")]


def test_job_that_completes_before_its_requeue_does_not_run_again(bench: Bench) -> None:
    job = started(bench, signal="")
    job.runs_s, job.code = 0.0, 0
    bench.slurm.step(bench.slurm.now_s)  # no poll has shown this
    preempt(bench)
    bench.poll()
    assert (job.state, job.restarts) == ("COMPLETED", 0)
    assert ends(bench) == [(0, "")]


def test_ended_jobs_are_forgotten(bench: Bench) -> None:
    desk = bench.gateway._desk
    for number in range(20):
        key = bench.slurm.sbatch(1, runs_s=0.5)
        bench.poll()
        bench.launch(key, 0, job=100 + number)
        bench.send("n1", Kill(epoch=1, job=200 + number, attempt=1, rank=0))  # an unknown job
        desk.withdrawn.add(300 + number)
        bench.poll()
        bench.poll(2.0)
        bench.send("n1", EndedAck(job=100 + number, attempt=1, rank=0))
    assert {len(desk.forgotten), len(desk.dead), len(desk.withdrawn)} == {20}
    for _ in range(2):  # jobs that Slurm lists or the broker has are kept
        bench.poll(20.0)
        bench._take(
            bench.gateway.handle_answer(("jobs", ""), Jobs(jobs=[info(219), info(319)]), bench.slurm.now_s)
        )
    assert len(desk.forgotten) == 20
    assert ([key.job for key in desk.dead], desk.withdrawn) == ([219], {319})
    bench.slurm.jobs.clear()
    bench.poll(20.0)
    bench._take(bench.gateway.handle_answer(("jobs", ""), Jobs(jobs=[]), bench.slurm.now_s))
    assert (desk.forgotten, desk.dead, desk.withdrawn) == (set(), set(), set())


def info(job: int) -> JobInfo:
    return JobInfo(
        job=job, name="", user="ada", vc="gpu", state="running", num_gpus=1, attempt=1, submit_s=0.0,
        predicted_s=None, start_s=None, end_s=None, exit_code=None, nodes=[], gpus=[], decided_by="",
        reason="",
    )  # fmt: skip
