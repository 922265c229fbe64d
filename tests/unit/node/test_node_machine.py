"""The node's state machine, without sockets, processes or clocks."""

from __future__ import annotations

import copy

import msgspec
import pytest

from rlsched.wire.messages import (
    AttemptKey,
    AttemptReport,
    Capabilities,
    Ended,
    EndedAck,
    FetchLog,
    GpuMemory,
    Heartbeat,
    Held,
    Hello,
    Holding,
    Kill,
    Launch,
    Launched,
    LaunchRefused,
    Leaving,
    OutputFailed,
    Refused,
    SayHello,
    Welcome,
)
from rlsched_node.link.attempts import FORGET_GRACE_S, HARD_KILL_AFTER_S
from rlsched_node.link.machine import (
    ENDED_REPEAT_S,
    HELLO_RETRY_S,
    MAX_LOG_BYTES,
    NodeMachine,
)
from rlsched_node.processes.attempt import LocalRank, Phase
from rlsched_node.processes.steps import (
    Acknowledge,
    Checked,
    Connected,
    CopyFailed,
    Disconnected,
    Effect,
    EndJobs,
    EndRank,
    Exited,
    GpusOut,
    HardKill,
    NodeTick,
    Note,
    Persist,
    Quit,
    Received,
    RecordEnded,
    Send,
    SendLog,
    Started,
    StartFailed,
    StartRank,
)
from tests.support.node_events import CLUSTER, HELLO, KEY, ended, launch, registered, running, silent, welcome


def test_hello_lists_running_and_unacknowledged_ended_attempts() -> None:
    machine = NodeMachine(
        HELLO,
        [
            LocalRank(AttemptKey(1, 1, 0, CLUSTER), (0,), Phase.RUNNING, 5),
            LocalRank(AttemptKey(2, 1, 0, CLUSTER), exit_code=3),
            LocalRank(AttemptKey(3, 1, 0, CLUSTER), exit_code=0, is_acknowledged=True),
        ],
    )
    [effect] = machine.handle(Connected(), 0.0)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Hello)
    assert effect.message.attempts == [
        AttemptReport(job=1, attempt=1, rank=0, state="running"),
        AttemptReport(job=2, attempt=1, rank=0, state="ended", exit_code=3),
    ]


def test_attempt_from_launch_to_acknowledged_end() -> None:
    machine = registered()
    running(machine, launch())
    assert machine.attempts.gpus_held == {0}
    assert silent(machine.handle(Exited(KEY, 3), 1.0)) == [ended(exit_code=3)]
    assert machine.attempts.gpus_held == set()
    assert not machine.attempts.is_drained
    assert machine.handle(Received(EndedAck(job=1, attempt=1, rank=0)), 1.0) == [Acknowledge(KEY)]
    assert machine.handle(Received(EndedAck(job=1, attempt=1, rank=0)), 1.0) == []
    assert machine.attempts.is_drained


def test_end_time_is_in_every_report() -> None:
    machine = registered()
    running(machine, launch())
    [effect] = silent(machine.handle(Exited(KEY, 3, "", 1234.5, 7.25), 1.0))
    assert effect == Send(Ended(job=1, attempt=1, rank=0, exit_code=3, ended_s=1234.5, ran_s=7.25))
    assert machine.handle(NodeTick(), 1.0 + ENDED_REPEAT_S) == [effect]
    [hello] = machine.handle(Received(SayHello()), 9.0)
    assert isinstance(hello, Send)
    assert isinstance(hello.message, Hello)
    assert [(report.ended_s, report.ran_s) for report in hello.message.attempts] == [(1234.5, 7.25)]


def test_end_is_repeated_until_acknowledged() -> None:
    machine = registered()
    running(machine, launch())
    machine.handle(Exited(KEY, 0), 1.0)
    assert machine.handle(NodeTick(), 1.1) == []
    assert machine.handle(NodeTick(), 1.0 + ENDED_REPEAT_S) == [ended()]
    assert machine.handle(NodeTick(), 1.1 + 2 * ENDED_REPEAT_S) == [ended()]
    machine.handle(Received(EndedAck(job=1, attempt=1, rank=0)), 6.0)
    assert machine.handle(NodeTick(), 9.0) == []


def test_second_launch_of_the_same_rank_starts_nothing() -> None:
    machine = registered()
    order = launch()
    assert machine.handle(Received(order), 0.0) == [StartRank(order)]
    assert machine.handle(Received(order), 0.0) == []
    machine.handle(Started(KEY, 77), 0.0)
    again = Send(Launched(job=1, attempt=1, rank=0, pid=77))
    assert machine.handle(Received(order), 0.0) == [again]
    machine.handle(Exited(KEY, 9), 0.0)
    machine.handle(Received(EndedAck(job=1, attempt=1, rank=0)), 0.0)
    assert machine.handle(Received(order), 0.0) == [ended(exit_code=9)]


@pytest.mark.parametrize(
    ("order", "line"),
    [
        (launch(2, gpus=[0]), "GPUs [0] are held by attempt 1.1.0"),
        (launch(2, gpus=[4]), "expected distinct GPUs from 0 to 3, got [4]"),
        (launch(2, gpus=[-1]), "expected distinct GPUs from 0 to 3, got [-1]"),
        (launch(2, gpus=[1, 1]), "expected distinct GPUs from 0 to 3, got [1, 1]"),
        (launch(2, rank=2, gpus=[1], num_ranks=2), "expected rank below num_ranks"),
    ],
)
def test_impossible_launch_is_refused_and_not_remembered(order: Launch, line: str) -> None:
    machine = registered()
    running(machine, launch())
    [effect] = machine.handle(Received(order), 0.0)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, LaunchRefused)
    assert line in effect.message.message
    assert len(machine.attempts.known) == 1


def test_failed_start_is_refused_and_frees_the_gpus() -> None:
    machine = registered()
    machine.handle(Received(launch()), 0.0)
    assert silent(machine.handle(StartFailed(KEY, "disk full"), 0.0)) == [
        Send(LaunchRefused(job=1, attempt=1, rank=0, message="disk full"))
    ]
    assert machine.attempts.gpus_held == set()
    assert machine.handle(Received(launch(attempt=2)), 0.0) == [StartRank(launch(attempt=2))]


def test_repeated_launch_is_refused_after_a_refusal() -> None:
    """The broker sent it twice and ended the attempt at the first refusal: the job runs elsewhere."""
    machine = registered()
    machine.handle(Received(launch()), 0.0)
    machine.handle(StartFailed(KEY, "disk full"), 0.0)
    assert machine.handle(Received(launch()), 0.1) == [
        Send(LaunchRefused(job=1, attempt=1, rank=0, message="disk full"))
    ]


def test_kill_ends_the_rank_and_a_hanging_shim_gets_sigkill() -> None:
    machine = registered()
    running(machine, launch())
    kill = Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=2.0)
    assert machine.handle(Received(kill), 1.0) == [EndRank(KEY, 2.0, "killed")]
    assert machine.handle(Received(kill), 1.5) == [], "a repeated SIGTERM changes no deadline"
    sooner = Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=0.0)
    assert machine.handle(Received(sooner), 1.5) == [EndRank(KEY, 0.0, "killed")]
    assert machine.next_tick_s() <= 1.5 + HARD_KILL_AFTER_S
    assert HardKill(KEY) in machine.handle(NodeTick(), 1.5 + HARD_KILL_AFTER_S)
    assert silent(machine.handle(Exited(KEY, 137, "killed"), 8.0)) == [ended(exit_code=137, reason="killed")]
    assert machine.handle(Received(kill), 8.0) == [ended(exit_code=137, reason="killed")]


def test_kill_of_an_unknown_attempt_blocks_its_later_launch() -> None:
    machine = registered()
    kill = Kill(epoch=1, job=1, attempt=1, rank=0)
    assert machine.handle(Received(kill), 0.0) == [
        RecordEnded(KEY, 143, "killed"),
        ended(exit_code=143, reason="killed"),
    ]
    assert machine.handle(Received(launch()), 0.0) == [ended(exit_code=143, reason="killed")]


def test_kill_during_a_failing_start_is_answered_with_an_end() -> None:
    machine = registered()
    machine.handle(Received(launch()), 0.0)
    machine.handle(Received(Kill(epoch=1, job=1, attempt=1, rank=0)), 0.0)
    assert silent(machine.handle(StartFailed(KEY, "no"), 0.0)) == [
        RecordEnded(KEY, 143, "killed"),
        ended(exit_code=143, reason="killed"),
    ]


def test_launch_waits_for_gpus_that_are_being_vacated() -> None:
    machine = registered()
    running(machine, launch(gpus=[0, 1]))
    machine.handle(Received(Kill(epoch=1, job=1, attempt=1, rank=0)), 0.0)
    order = launch(2, gpus=[1])
    assert machine.handle(Received(order), 0.0) == []
    assert machine.attempts.gpus_held == {0, 1}
    assert StartRank(order) in machine.handle(Exited(KEY, 143, "killed"), 1.0)
    assert machine.attempts.gpus_held == {1}


def test_waiting_launch_is_dropped_with_the_connection_and_can_be_repeated() -> None:
    machine = registered()
    running(machine, launch())
    machine.handle(Received(Kill(epoch=1, job=1, attempt=1, rank=0)), 0.0)
    machine.handle(Received(launch(2)), 0.0)
    machine.handle(Disconnected(), 0.0)
    machine.handle(Connected(), 0.0)
    machine.handle(welcome(1, 10.0), 0.0)
    assert [a.key.job for a in machine.attempts.known.values()] == [1]
    assert StartRank(launch(2)) not in machine.handle(Exited(KEY, 143), 1.0)
    assert machine.handle(Received(launch(2)), 2.0) == [StartRank(launch(2))]


def test_waiting_launch_can_be_killed() -> None:
    machine = registered()
    running(machine, launch())
    machine.handle(Received(Kill(epoch=1, job=1, attempt=1, rank=0)), 0.0)
    machine.handle(Received(launch(2)), 0.0)
    assert machine.handle(Received(Kill(epoch=1, job=2, attempt=1, rank=0)), 0.0) == [
        RecordEnded(AttemptKey(2, 1, 0, CLUSTER), 143, "killed"),
        ended(2, 143, "killed"),
    ]
    assert not any(isinstance(e, StartRank) for e in machine.handle(Exited(KEY, 143), 1.0))


def test_losing_the_broker_ends_no_job_and_the_next_hello_reports_all() -> None:
    machine = registered()
    running(machine, launch())
    running(machine, launch(2, gpus=[1]), pid=78)
    assert silent(machine.handle(Disconnected(), 1.0)) == []
    assert not machine.is_registered
    machine.handle(Exited(KEY, 0), 2.0)
    beats = [effect for effect in machine.handle(NodeTick(), 99.0) if isinstance(effect, Send)]
    assert not any(isinstance(beat.message, Heartbeat) for beat in beats)
    [hello] = machine.handle(Connected(), 100.0)
    assert isinstance(hello, Send)
    assert isinstance(hello.message, Hello)
    assert [(a.job, a.state) for a in hello.message.attempts] == [(1, "ended"), (2, "running")]
    effects = silent(machine.handle(welcome(2, 1.0), 100.1))
    assert effects == [Persist(CLUSTER, 2), Send(Launched(job=2, attempt=1, rank=0, pid=78)), ended()]


def test_unknown_connection_triggers_another_hello() -> None:
    machine = registered()
    [hello] = machine.handle(Received(SayHello()), 5.0)
    assert isinstance(hello, Send)
    assert isinstance(hello.message, Hello)
    assert not machine.is_registered


def test_orders_of_an_older_epoch_are_ignored() -> None:
    machine = registered()
    running(machine, launch())
    assert Persist(CLUSTER, 5) in machine.handle(welcome(5, 1.0), 0.0)
    assert silent(machine.handle(Received(launch(2, gpus=[1], epoch=4)), 0.0)) == []
    assert silent(machine.handle(Received(Kill(epoch=4, job=1, attempt=1, rank=0)), 0.0)) == []
    assert silent(machine.handle(Received(launch(2, gpus=[1], epoch=6)), 0.0)) == [
        Persist(CLUSTER, 6),
        StartRank(launch(2, gpus=[1], epoch=6)),
    ]


def test_broker_of_an_older_epoch_is_not_joined() -> None:
    machine = NodeMachine(Hello(name="n0", gpus=1, epoch=7, cluster=CLUSTER))
    machine.handle(Connected(), 0.0)
    [note] = machine.handle(welcome(6, 1.0), 0.0)
    assert isinstance(note, Note)
    assert "epoch 6" in note.line
    assert not machine.is_registered
    assert machine.handle(welcome(6, 1.0), 1.0) == [], "logged once"


def test_disowned_attempts_are_killed_without_a_report_and_never_restart() -> None:
    machine = registered(
        LocalRank(AttemptKey(1, 1, 0, CLUSTER), (0,), Phase.RUNNING, 5),
        LocalRank(AttemptKey(2, 1, 0, CLUSTER), exit_code=0),
    )
    disowning = Welcome(cluster=CLUSTER, epoch=1, heartbeat_s=1.0, forget=[(1, 1), (2, 1)])
    effects = silent(machine.handle(Received(disowning), 0.0))
    assert effects == [EndRank(KEY, FORGET_GRACE_S, "killed"), Acknowledge(AttemptKey(2, 1, 0, CLUSTER))]
    assert silent(machine.handle(Exited(KEY, 143, "killed"), 1.0)) == [Acknowledge(KEY)]
    [refusal] = machine.handle(Received(launch()), 2.0)
    assert isinstance(refusal, Send)
    assert isinstance(refusal.message, LaunchRefused)


def test_heartbeats_have_the_brokers_period() -> None:
    machine = NodeMachine(HELLO)
    machine.handle(Connected(), 0.0)
    machine.handle(welcome(1, 2.0), 0.0)
    assert machine.handle(NodeTick(), 1.9) == []
    assert machine.handle(NodeTick(), 2.0) == [Send(Heartbeat(name="n0"), 2)], "the hello was number 1"
    assert machine.handle(NodeTick(), 3.9) == []


def test_refused_hello_stops_the_node_and_a_later_refusal_does_not() -> None:
    machine = NodeMachine(HELLO)
    machine.handle(Connected(), 0.0)
    assert machine.handle(Received(Refused(message="no such node")), 0.0) == [Quit("no such node")]
    assert silent(registered().handle(Received(Refused(message="malformed")), 0.0)) == []


def test_ending_all_jobs_refuses_new_ones() -> None:
    machine = registered()
    running(machine, launch())
    assert machine.handle(EndJobs(3.0), 0.0) == [
        Send(Leaving(name="n0")),
        EndRank(KEY, 3.0, "node_stopped"),
    ]
    [refusal] = machine.handle(Received(launch(2, gpus=[1])), 0.0)
    assert isinstance(refusal, Send)
    assert isinstance(refusal.message, LaunchRefused)
    machine.handle(Exited(KEY, 143, "node_stopped"), 1.0)
    assert machine.attempts.is_idle
    assert not machine.attempts.is_drained


def test_log_requests_are_bounded() -> None:
    machine = registered()
    running(machine, launch())
    fetch = FetchLog(job=1, attempt=1, rank=0, offset=-5, max_bytes=1 << 30)
    assert machine.handle(Received(fetch, 42), 0.0) == [SendLog(KEY, 42, 0, MAX_LOG_BYTES, False)]
    unknown = FetchLog(job=9, attempt=1, rank=0, offset=0, max_bytes=10)
    assert machine.handle(Received(unknown, 43), 0.0) == [
        SendLog(AttemptKey(9, 1, 0, CLUSTER), 43, 0, 10, True)
    ]


# ---- brokers of other clusters, and older ones ----------------------------------------------------------

RUNS = LocalRank(KEY, (0,), Phase.RUNNING, 5)
OTHERS = {
    "an empty journal": Welcome(cluster="c2", epoch=1, heartbeat_s=1.0),
    "another cluster": Welcome(cluster="c2", epoch=99, heartbeat_s=1.0, forget=[(1, 1), (2, 1)]),
    "a lower epoch": Welcome(cluster=CLUSTER, epoch=6, heartbeat_s=1.0, forget=[(1, 1), (2, 1)]),
}


def met(*attempts: LocalRank, forgets_cluster: bool = False) -> NodeMachine:
    """A node of `CLUSTER` that is connected but has no welcome from a broker yet."""
    machine = NodeMachine(
        Hello(name="n0", gpus=4, cluster=CLUSTER, epoch=7),
        [own(attempt) for attempt in attempts],
        forgets_cluster=forgets_cluster,
    )
    machine.handle(Connected(), 0.0)
    return machine


def own(attempt: LocalRank) -> LocalRank:
    """An attempt of the node itself, a new object each time, as the machine changes it."""
    return copy.deepcopy(attempt)


def said_hello(effects: list[Effect]) -> list[Hello]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, Hello)]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_node_with_jobs_obeys_only_its_own_broker(other: Welcome) -> None:
    machine = met(RUNS, LocalRank(AttemptKey(2, 1, 0, CLUSTER), exit_code=9))
    [note] = machine.handle(Received(other), 0.0)
    assert isinstance(note, Note)
    assert machine.handle(Received(other), 1.0) == [], "logged once"
    assert not machine.is_registered
    for order in (Kill(epoch=99, job=1, attempt=1, rank=0), launch(3, gpus=[1], epoch=99)):
        assert silent(machine.handle(Received(order), 1.0)) == []
    assert machine.handle(Received(EndedAck(job=2, attempt=1, rank=0)), 1.0) == []
    assert machine.attempts.gpus_held == {0}
    [hello] = said_hello(machine.handle(NodeTick(), 1.0 + HELLO_RETRY_S))
    assert (hello.cluster, hello.epoch) == (CLUSTER, 7)
    assert [(one.job, one.state) for one in hello.attempts] == [(1, "running"), (2, "ended")]
    back = Welcome(cluster=CLUSTER, epoch=8, heartbeat_s=1.0)
    effects = silent(machine.handle(Received(back), 3.0))
    assert effects == [
        Persist(CLUSTER, 8),
        Send(Launched(job=1, attempt=1, rank=0, pid=5)),
        ended(2, 9),
    ], "its own broker is back"


def test_log_line_names_both_clusters_and_the_remedy() -> None:
    [note] = met(RUNS).handle(Received(OTHERS["an empty journal"]), 0.0)
    assert isinstance(note, Note)
    for word in ("cluster c2", "1 ranks of cluster c1", "rlsched node --forget-cluster"):
        assert word in note.line


def test_broker_of_another_cluster_gets_no_ends_of_this_cluster() -> None:
    machine = met(RUNS)
    machine.handle(Received(OTHERS["an empty journal"]), 0.0)
    assert silent(machine.handle(Exited(KEY, 3), 1.0)) == []
    [hello] = said_hello(machine.handle(NodeTick(), 1.0 + HELLO_RETRY_S))
    assert hello.attempts == [AttemptReport(job=1, attempt=1, rank=0, state="ended", exit_code=3)]


@pytest.mark.parametrize("kind", ["an empty journal", "another cluster"])
def test_idle_node_joins_and_keeps_unreported_ends(kind: str) -> None:
    other = OTHERS[kind]
    machine = met(LocalRank(AttemptKey(2, 1, 0, CLUSTER), exit_code=9))
    effects = silent(machine.handle(Received(other), 0.0))
    assert effects[0] == Persist("c2", other.epoch)
    [hello] = said_hello(effects)
    assert (hello.cluster, hello.attempts) == ("c2", []), "it registers as one of this cluster"
    assert silent(machine.handle(Received(other), 0.1)) == []
    assert machine.is_registered
    order = launch(2, gpus=[1], epoch=99)
    assert StartRank(order) in machine.handle(Received(order), 0.2), "another job with the same number"
    machine.handle(Exited(AttemptKey(2, 1, 0, "c2"), 0), 0.3)
    machine.handle(Received(EndedAck(job=2, attempt=1, rank=0)), 0.3)
    [hello] = said_hello(machine.handle(Received(Welcome(cluster=CLUSTER, epoch=8, heartbeat_s=1.0)), 0.4))
    assert [(one.job, one.exit_code) for one in hello.attempts] == [(2, 9)], "its own broker is back"


def test_idle_node_ignores_a_lower_epoch() -> None:
    machine = met()
    assert silent(machine.handle(Received(OTHERS["a lower epoch"]), 0.0)) == []
    assert not machine.is_registered


def test_node_joins_once_its_jobs_have_ended() -> None:
    machine = met(RUNS)
    other = OTHERS["an empty journal"]
    machine.handle(Received(other), 0.0)
    machine.handle(Exited(KEY, 0), 1.0)
    assert Persist("c2", 1) in machine.handle(Received(other), 2.0)
    machine.handle(Received(other), 2.1)
    assert machine.is_registered


def test_operator_can_make_a_node_end_its_jobs_and_join() -> None:
    machine = met(RUNS, LocalRank(AttemptKey(2, 1, 0, CLUSTER), exit_code=9), forgets_cluster=True)
    other = OTHERS["an empty journal"]
    effects = silent(machine.handle(Received(other), 0.0))
    assert effects[:3] == [
        Persist("c2", 1),
        EndRank(KEY, FORGET_GRACE_S, "killed"),
        Acknowledge(AttemptKey(2, 1, 0, CLUSTER)),
    ]
    assert [hello.cluster for hello in said_hello(effects)] == ["c2"]
    machine.handle(Received(other), 0.1)
    order = launch(2, gpus=[1])
    assert machine.handle(Received(order), 0.2) == [StartRank(order)], "another job with the same number"
    assert machine.handle(Received(launch(1)), 0.3) == [], "GPU 0 is still being vacated"
    assert silent(machine.handle(Exited(KEY, 143, "killed"), 1.0)) == [Acknowledge(KEY), StartRank(launch(1))]
    machine.handle(Started(AttemptKey(1, 1, 0, "c2"), 8), 1.1)
    third = Welcome(cluster="c3", epoch=1, heartbeat_s=1.0)
    machine.handle(Received(SayHello()), 2.0)
    assert silent(machine.handle(Received(third), 2.0)) == [], "only one cluster was allowed"


def test_node_without_its_state_keeps_running_jobs() -> None:
    machine = NodeMachine(Hello(name="n0", gpus=4), [own(RUNS)])
    machine.handle(Connected(), 0.0)
    assert silent(machine.handle(Received(OTHERS["an empty journal"]), 0.0)) == []
    assert machine.attempts.gpus_held == {0}


def test_orders_before_the_welcome_are_ignored() -> None:
    machine = NodeMachine(HELLO)
    machine.handle(Connected(), 0.0)
    assert silent(machine.handle(Received(launch()), 0.0)) == []
    assert machine.attempts.known == {}


def test_cluster_id_that_is_no_file_name_is_refused() -> None:
    machine = NodeMachine(HELLO)
    [quit_] = machine.handle(Received(Welcome(cluster="../../etc", epoch=1, heartbeat_s=1.0)), 0.0)
    assert isinstance(quit_, Quit)


def test_hello_is_sent_on_connection_and_repeated_until_the_welcome() -> None:
    machine = NodeMachine(HELLO)
    assert machine.handle(NodeTick(), 10.0) == []
    waiting = Note("no broker answers yet; retrying")
    assert machine.handle(NodeTick(), 10.0 + HELLO_RETRY_S) == [waiting, Send(HELLO, 1)]
    assert machine.handle(NodeTick(), 10.0 + 2 * HELLO_RETRY_S) == [Send(HELLO, 2)], "logged once"
    assert machine.handle(Connected(), 20.0) == [Send(HELLO, 3)]
    assert machine.handle(NodeTick(), 20.5) == []
    assert machine.handle(NodeTick(), 20.0 + HELLO_RETRY_S) == [Send(HELLO, 4)]
    machine.handle(welcome(), 22.0)
    assert Send(HELLO, 5) not in machine.handle(NodeTick(), 99.0)


# ---- health ---------------------------------------------------------------------------------------------


def test_node_registers_after_its_first_check() -> None:
    machine = NodeMachine(HELLO, is_checked=False)
    assert machine.handle(Connected(), 0.0) == []
    assert machine.handle(NodeTick(), HELLO_RETRY_S) == []
    assert machine.handle(Received(SayHello()), 2.0) == []
    *_, sent = machine.handle(Checked("no scratch"), 3.0)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Hello)
    assert sent.message.unhealthy == "no scratch"


def test_changed_health_is_sent_at_once() -> None:
    machine = NodeMachine(HELLO)
    machine.handle(Connected(), 0.0)
    machine.handle(Received(Welcome(epoch=1, cluster=CLUSTER, heartbeat_s=10.0)), 0.0)

    def beats(effects: list[Effect]) -> list[str]:
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
        return [message.unhealthy for message in sent if isinstance(message, Heartbeat)]

    assert beats(machine.handle(Checked("lost"), 1.0)) == ["lost"]
    assert beats(machine.handle(NodeTick(), 10.9)) == []
    assert beats(machine.handle(NodeTick(), 11.1)) == ["lost"]
    assert machine.handle(Checked("lost"), 12.0) == []
    assert beats(machine.handle(Checked(""), 12.0)) == [""]


def test_passed_first_check_sends_one_hello() -> None:
    machine = NodeMachine(HELLO)
    assert len(machine.handle(Connected(), 0.0)) == 1
    assert machine.handle(Checked(""), 0.0) == []


def test_power_and_clock_are_sent_only_to_brokers_that_request_them() -> None:
    """An older broker refuses a heartbeat with an unknown field: the node would be lost."""
    machine = NodeMachine(HELLO)
    machine.handle(Connected(), 0.0)
    machine.handle(welcome(), 0.0)
    assert not machine.tells_power
    assert not machine.tells_usage
    assert not machine.tells_clock
    newer = Welcome(
        cluster=CLUSTER, epoch=2, heartbeat_s=1.0, hears_power=True, hears_usage=True, hears_clock=True
    )
    machine.handle(Received(newer), 1.0)
    assert machine.tells_power
    assert machine.tells_clock
    assert machine.tells_usage
    machine.handle(Disconnected(), 2.0)
    machine.handle(Connected(), 3.0)
    machine.handle(welcome(2), 3.0)
    assert not machine.tells_power, "an older broker has taken over"
    assert not machine.tells_clock
    assert not machine.tells_usage


def test_gpus_out_of_service_are_reported_once_and_at_each_registration() -> None:
    held = [Holding(by="lost: GPU is lost", gpus=[1])]
    node = NodeMachine(HELLO)
    assert node.handle(GpusOut(held), 0.0) == [Note("GPU 1 gets no new jobs: lost: GPU is lost")]
    (hello,) = node.handle(Connected(), 0.0)
    assert isinstance(hello, Send)
    assert isinstance(hello.message, Hello)
    assert hello.message.held == held
    node.handle(welcome(), 0.1)
    assert node.handle(GpusOut(held), 0.2) == []
    assert node.handle(GpusOut([]), 0.3) == [Note("GPU 1 gets jobs again"), Send(Held(held=[]))]


def test_memory_of_gpus_is_reported_to_brokers_that_accept_it() -> None:
    can = Capabilities(tells_memory=True)
    machine = NodeMachine(msgspec.structs.replace(HELLO, capabilities=can))
    machine.handle(Connected(), 0.0)
    machine.handle(welcome(), 0.1)
    note = Note("GPU 1 has 6750 MiB of memory free for jobs")
    assert machine.handle(GpusOut([], {1: 6750}), 0.2) == [note], "an older broker"
    newer = Welcome(cluster=CLUSTER, epoch=1, heartbeat_s=1.0, hears_memory=True)
    assert Send(GpuMemory(usable_mib={1: 6750})) in machine.handle(Received(newer), 0.3)
    assert machine.handle(GpusOut([], {1: 6750}), 0.4) == []
    note = Note("GPU 1 has all its memory free for jobs")
    assert machine.handle(GpusOut([]), 0.5) == [note, Send(GpuMemory(usable_mib={}))]


def test_output_that_is_not_in_a_file_is_reported_and_again_to_the_next_broker() -> None:
    machine = registered()
    running(machine, launch())
    note = "--output /x: Permission denied"
    said = Send(OutputFailed(job=1, attempt=1, rank=0, message=note))
    assert said not in machine.handle(CopyFailed(KEY, note), 1.0), "a broker that does not know the message"
    machine.handle(Received(SayHello()), 2.0)
    knows = Welcome(epoch=1, cluster=CLUSTER, heartbeat_s=1.0, hears_output=True)
    assert said in machine.handle(Received(knows), 3.0)
    assert said in machine.handle(CopyFailed(KEY, note), 4.0)
