"""State of the node's ranks, from the launch order to the acknowledged end.

The module starts no processes and reads no clocks. Orders are idempotent while the daemon runs. A later
daemon knows only the ranks that are recorded on disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from rlsched.wire.messages import AttemptKey, Launch, LaunchRefused
from rlsched_node.processes.attempt import (
    EXIT_KILLED,
    LocalRank,
    Phase,
    launch_refused,
    simulated_workload,
)
from rlsched_node.processes.steps import (
    Acknowledge,
    ClocksLocked,
    Effect,
    EndRank,
    Exited,
    HardKill,
    HoldClocks,
    LimitRank,
    Note,
    RecordEnded,
    ResetClocks,
    Send,
    StartFailed,
    StartRank,
)

FORGET_GRACE_S = 5.0
HARD_KILL_AFTER_S = 5.0
"""The daemon itself kills the processes of a rank this time after the rank's grace period, seconds."""


class NodeAttempts:
    """All ranks that wait, run or have ended on this node.

    Args:
        num_gpus: Number of GPUs of this node.
        attempts: Attempts that an earlier daemon left.

    Attributes:
        known: Every rank that this node has started or was ordered to end, so that no rank starts twice. The
            exit report of another cluster's rank is kept until a broker of that cluster acknowledges it.
        tells_limits: The broker accepts reports of time limits.
        tells_output: The broker accepts reports that output could not be copied to the job's output file.
    """

    def __init__(self, num_gpus: int, attempts: Iterable[LocalRank] = ()) -> None:
        self._num_gpus, self.tells_limits, self.tells_output = num_gpus, False, False
        self.known: dict[AttemptKey, LocalRank] = {}
        self._open: dict[AttemptKey, LocalRank] = {}  # ranks in `known` without an acknowledged end
        for attempt in attempts:
            self._add(attempt)
        self._refused: dict[AttemptKey, LaunchRefused] = {}  # a repeated order gets the same answer

    @property
    def gpus_held(self) -> set[int]:
        """Indices of the GPUs that running and starting ranks use."""
        return {gpu for attempt in self._open.values() if attempt.is_live for gpu in attempt.gpus}

    @property
    def live(self) -> list[LocalRank]:
        """Ranks that run or are being started."""
        return [attempt for attempt in self._open.values() if attempt.is_live]

    @property
    def is_drained(self) -> bool:
        """Whether no rank runs and the broker has acknowledged every end."""
        return not self._open

    @property
    def is_idle(self) -> bool:
        """Whether no rank runs."""
        return not any(attempt.is_live for attempt in self._open.values())

    @property
    def is_launching(self) -> bool:
        """Whether a rank is being started."""
        return any(attempt.phase is Phase.LAUNCHING for attempt in self._open.values())

    @property
    def hard_kill_times_s(self) -> list[float]:
        """Times, seconds since boot, at which the daemon kills ranks whose shims have failed to end them."""
        live = [attempt for attempt in self._open.values() if attempt.is_live]
        return [attempt.hard_kill_at_s for attempt in live if attempt.hard_kill_at_s is not None]

    def of_cluster(self, cluster: str) -> list[LocalRank]:
        """Return a cluster's ranks without an acknowledged end."""
        return [attempt for attempt in self._open.values() if attempt.key.cluster == cluster]

    # ---- orders -------------------------------------------------------------------------------------

    def launch(self, key: AttemptKey, launch: Launch, *, is_stopping: bool = False) -> Iterator[Effect]:
        """Start a rank, or refuse it. The rank waits while another rank on one of its GPUs is being ended."""
        known = self.known.get(key)
        if known is not None:
            if known.is_forgotten:
                yield Send(launch_refused(key, "the broker has disowned this attempt before"))
            elif known.phase is Phase.ENDED:
                yield Send(known.end_report())
            elif known.phase is Phase.RUNNING:
                yield Send(known.launched(tells_limit=self.tells_limits))
            return
        if key in self._refused:
            yield Send(self._refused[key])
            return
        objection = "this node is being stopped" if is_stopping else self._objection(launch, key.cluster)
        if objection:
            yield self._refuse(key, objection)
            return
        attempt = LocalRank(
            key,
            tuple(launch.gpus),
            Phase.WAITING,
            launch=launch,
            asked_mhz=launch.sm_clock_mhz,
            workload=simulated_workload(launch),
        )
        self._add(attempt)
        yield from self._start_waiting()

    def kill(self, key: AttemptKey, grace_s: float, now_s: float) -> Iterator[Effect]:
        """End a rank, or record that it must not start."""
        attempt = self.known.get(key) or self._add(LocalRank(key, phase=Phase.WAITING))
        if attempt.is_live:
            yield from self._end(attempt, grace_s, "killed", now_s)
        elif attempt.phase is Phase.WAITING:
            yield from self._end_unstarted(attempt)
        else:
            yield Send(attempt.end_report())

    def hold_clock(self, key: AttemptKey, mhz: int) -> Iterator[Effect]:
        """Set the SM clock of a rank, MHz; 0: unlock it. The clock of a waiting rank is set at its start."""
        attempt = self.known.get(key)
        if attempt is None:
            return
        attempt.asked_mhz = mhz
        if attempt.is_live:
            yield from self._clock(attempt.gpus)

    def limit_time(self, key: AttemptKey, limit_s: float) -> Iterator[Effect]:
        """Change a rank's time limit, seconds; infinite: no limit. A waiting rank starts with this limit."""
        attempt = self.known.get(key)
        if attempt is None or attempt.is_forgotten:
            return
        if attempt.launch is not None:
            attempt.launch = msgspec.structs.replace(
                attempt.launch, time_limit_s=None if limit_s == math.inf else limit_s
            )
        elif attempt.phase is Phase.ENDED:
            yield Send(attempt.end_report())
        elif attempt.limit_s is not None:
            if attempt.limit_s == limit_s:
                yield Send(attempt.time_limited())
            else:
                yield LimitRank(key, limit_s)

    def forget(self, attempt: LocalRank, now_s: float) -> Iterator[Effect]:
        """End a rank that the broker has disowned (`Welcome.forget`). Its end is not reported."""
        attempt.is_forgotten = True
        if attempt.is_live:
            yield Note(f"attempt {attempt.key} is ended: the broker has disowned it")
            yield from self._end(attempt, FORGET_GRACE_S, "killed", now_s)
        elif attempt.phase is Phase.ENDED:
            yield from self._acknowledge(attempt)

    def running_for_others(self, cluster: str) -> list[LocalRank]:
        """Return the live ranks of clusters other than `cluster`, except ranks that a broker has disowned."""
        live = (attempt for attempt in self._open.values() if attempt.is_live and not attempt.is_forgotten)
        return [attempt for attempt in live if attempt.key.cluster != cluster]

    def forget_others(self, cluster: str, now_s: float) -> Iterator[Effect]:
        """End the ranks of all clusters except `cluster`, and drop their exit reports."""
        for attempt in list(self._open.values()):
            if not attempt.is_forgotten and attempt.key.cluster != cluster:
                yield from self.forget(attempt, now_s)

    def end_all(self, grace_s: float, now_s: float) -> Iterator[Effect]:
        """End all ranks, because the node is being stopped together with its jobs."""
        self.drop_waiting()
        for attempt in self._open.values():
            if attempt.is_live:
                yield from self._end(attempt, grace_s, "node_stopped", now_s)

    def drop_waiting(self) -> None:
        """Drop waiting ranks. The broker sends valid orders again."""
        for attempt in [a for a in self._open.values() if a.phase is Phase.WAITING]:
            self._drop(attempt)

    def unacknowledged(self, key: AttemptKey) -> LocalRank | None:
        """Return an ended rank if its end is not acknowledged, else None."""
        attempt = self.known.get(key)
        ended = attempt is not None and attempt.phase is Phase.ENDED and not attempt.is_acknowledged
        return attempt if ended else None

    def record_acked_end(self, key: AttemptKey) -> Iterator[Effect]:
        """Record that the broker has written the end of a rank to its journal."""
        attempt = self.unacknowledged(key)
        if attempt is not None:
            yield from self._acknowledge(attempt)

    # ---- processes ----------------------------------------------------------------------------------

    def record_start(self, key: AttemptKey, pid: int) -> Iterator[Effect]:
        """Record and report that a rank runs, because its shim has claimed the attempt."""
        attempt = self.known[key]
        attempt.phase, attempt.pid = Phase.RUNNING, pid
        yield Note(f"attempt {key} runs as process {pid} on GPUs {list(attempt.gpus)}")
        yield Send(attempt.launched(tells_limit=self.tells_limits))

    def start_failed(self, failed: StartFailed) -> Iterator[Effect]:
        """Report that a rank could not be started; the daemon has removed its files and processes."""
        attempt = self.known[failed.key]
        yield Note(f"attempt {failed.key} cannot be started: {failed.message}")
        yield from self._reset_clocks(attempt)
        if attempt.is_ending:
            yield from self._end_unstarted(attempt)
        else:
            self._drop(attempt)
            yield self._refuse(
                failed.key,
                failed.message,
                is_for_now=failed.is_for_now,
                is_about_owner=failed.is_about_owner,
                is_about_memory=failed.is_about_memory,
            )
        yield from self._start_waiting()

    def record_exit(self, exited: Exited) -> Iterator[Effect]:
        """Record and report the end of a rank."""
        attempt = self.known[exited.key]
        exit_code, reason = exited.exit_code, exited.reason
        attempt.phase, attempt.exit_code, attempt.reason = Phase.ENDED, exit_code, reason
        attempt.ended_s, attempt.ran_s, attempt.usage = exited.ended_s, exited.ran_s, exited.usage
        attempt.hard_kill_at_s = None
        yield from self._reset_clocks(attempt)
        yield Note(f"attempt {attempt.key} ended with exit code {exit_code}{reason and f' ({reason})'}")
        if attempt.is_forgotten:
            yield from self._acknowledge(attempt)
        else:
            yield Send(attempt.end_report())
        yield from self._start_waiting()

    def clocks_locked(self, locked: ClocksLocked) -> Iterator[Effect]:
        """Record and report the outcome of a clock order."""
        attempt = self.known[locked.key]
        attempt.sm_clock_mhz, attempt.clock_note = locked.mhz, locked.note
        if locked.note:
            yield Note(f"attempt {attempt.key} runs at {_clock_words(locked.mhz)}: {locked.note}")
        if attempt.phase is Phase.RUNNING:
            yield Send(attempt.clock_held())

    def record_copy_failure(self, key: AttemptKey, note: str) -> Iterator[Effect]:
        """Record and report that the output of a rank could not be copied to the job's output file."""
        attempt = self.known[key]
        attempt.output_note = note
        yield Note(f"attempt {key}: {note}")
        if self.tells_output and not attempt.is_forgotten:
            yield Send(attempt.output_failed())

    def record_limit(self, key: AttemptKey, limit_s: float) -> Iterator[Effect]:
        """Record and report that a shim enforces a new time limit."""
        attempt = self.known[key]
        attempt.limit_s = limit_s
        yield Note(f"attempt {key} has a time limit of {limit_s:g} s now")
        yield Send(attempt.time_limited())

    def hard_kills(self, now_s: float) -> Iterator[Effect]:
        """Kill each rank that its shim has not ended by the rank's `hard_kill_at_s`."""
        for attempt in self._open.values():
            if attempt.is_live and attempt.hard_kill_at_s is not None and now_s >= attempt.hard_kill_at_s:
                attempt.hard_kill_at_s = now_s + HARD_KILL_AFTER_S
                yield HardKill(attempt.key)

    # ---- shared by orders and processes -------------------------------------------------------------

    def _refuse(self, key: AttemptKey, message: str, **kinds: bool) -> Effect:
        """Refuse a launch. While the daemon runs, a repeated order for this attempt gets the same answer."""
        self._refused[key] = launch_refused(key, message, **kinds)
        return Send(self._refused[key])

    def _objection(self, launch: Launch, cluster: str) -> str:
        """Return why the node must refuse a launch order; "" if it can accept the order."""
        if not 0 <= launch.rank < launch.num_ranks == len(launch.nodes):
            return (
                f"expected rank below num_ranks and a node for each rank, got rank {launch.rank} "
                f"of {launch.num_ranks} on {len(launch.nodes)} nodes"
            )
        if not launch.command:
            return "expected a command, got an empty one"
        unknown = [gpu for gpu in launch.gpus if not 0 <= gpu < self._num_gpus]
        if unknown or len(set(launch.gpus)) != len(launch.gpus):
            return f"expected distinct GPUs from 0 to {self._num_gpus - 1}, got {launch.gpus}"
        for attempt in self._open.values():
            taken = sorted(set(attempt.gpus) & set(launch.gpus))
            if attempt.key.job in launch.beside and attempt.key.cluster == cluster:
                continue
            if taken and (attempt.phase is Phase.WAITING or (attempt.is_live and not attempt.is_ending)):
                return f"GPUs {taken} are held by attempt {attempt.key}"
        return ""

    def _start_waiting(self) -> Iterator[Effect]:
        """Start each waiting rank, unless another rank on one of its GPUs is being ended."""
        left = {gpu for attempt in self.live if attempt.is_ending for gpu in attempt.gpus}
        for attempt in self._open.values():
            if attempt.phase is Phase.WAITING and left.isdisjoint(attempt.gpus):
                assert attempt.launch is not None
                launch, attempt.launch = attempt.launch, None
                others = self._tenants(attempt.gpus)
                joint_mhz = _joint_mhz([attempt, *others])
                launch = msgspec.structs.replace(launch, sm_clock_mhz=joint_mhz)
                if others and joint_mhz != others[0].sm_clock_mhz:
                    yield from self._clock(attempt.gpus, joint_mhz)
                attempt.limit_s = math.inf if launch.time_limit_s is None else launch.time_limit_s
                attempt.phase = Phase.LAUNCHING
                yield StartRank(launch)

    def _end(self, attempt: LocalRank, grace_s: float, reason: str, now_s: float) -> Iterator[Effect]:
        hard_kill_at_s = now_s + grace_s + HARD_KILL_AFTER_S
        if attempt.hard_kill_at_s is None or hard_kill_at_s < attempt.hard_kill_at_s:
            attempt.hard_kill_at_s = hard_kill_at_s
            yield EndRank(attempt.key, grace_s, reason)

    def _end_unstarted(self, attempt: LocalRank) -> Iterator[Effect]:
        attempt.phase, attempt.launch, attempt.gpus = Phase.ENDED, None, ()
        attempt.exit_code, attempt.reason = EXIT_KILLED, "killed"
        yield RecordEnded(attempt.key, EXIT_KILLED, "killed")
        yield Send(attempt.end_report())

    def _tenants(self, gpus: Iterable[int]) -> list[LocalRank]:
        """Return the ranks that run on any of these GPUs."""
        return [attempt for attempt in self.live if not set(gpus).isdisjoint(attempt.gpus)]

    def _clock(self, gpus: Sequence[int], mhz: int | None = None) -> Iterator[Effect]:
        """Lock GPUs to a clock, MHz; None: the joint clock (`_joint_mhz`) of the ranks on these GPUs."""
        tenants = self._tenants(gpus)
        mhz = _joint_mhz(tenants) if mhz is None else mhz
        for attempt in tenants:
            yield HoldClocks(attempt.key, attempt.gpus, mhz)

    def _reset_clocks(self, attempt: LocalRank) -> Iterator[Effect]:
        """Lock an ended attempt's GPUs to the joint clock of their remaining ranks, or unlock them."""
        others = [one for one in self._tenants(attempt.gpus) if one is not attempt]
        if others:
            attempt.sm_clock_mhz = 0
            if any(one.sm_clock_mhz != _joint_mhz(others) for one in others):
                yield from self._clock(others[0].gpus, _joint_mhz(others))
        elif attempt.sm_clock_mhz:
            attempt.sm_clock_mhz = 0
            yield ResetClocks(attempt.gpus)

    def _add(self, attempt: LocalRank) -> LocalRank:
        self.known[attempt.key] = attempt
        if not attempt.is_acknowledged:
            self._open[attempt.key] = attempt
        return attempt

    def _drop(self, attempt: LocalRank) -> None:
        del self.known[attempt.key], self._open[attempt.key]

    def _acknowledge(self, attempt: LocalRank) -> Iterator[Effect]:
        attempt.is_acknowledged = True
        del self._open[attempt.key]
        yield Acknowledge(attempt.key)


def _joint_mhz(tenants: Sequence[LocalRank]) -> int:
    """Return the clock for ranks on the same GPUs, MHz: the highest of their ordered clocks.

    0: no clock is ordered for one of the ranks.
    """
    asked = [attempt.asked_mhz for attempt in tenants]
    return max(asked, default=0) if all(asked) else 0


def _clock_words(mhz: int) -> str:
    return f"{mhz} MHz" if mhz else "the clock that its GPUs choose"
