"""The node daemon's loop: passes events to the state machine, and performs the effects that it returns."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import zmq

from rlsched.errors import InputError, RlschedError
from rlsched.models.slice_name import is_slice
from rlsched.signals import END, on_signals
from rlsched.transport.dealer import broker_addresses, is_loopback, own_host
from rlsched.transport.keys import KeyPair
from rlsched.wire.messages import MPS, AttemptKey, Capabilities, Ended, Heartbeat, Hello, Launch, LogData
from rlsched_node.adopt import adopt_attempts
from rlsched_node.clocks import ClockLocks
from rlsched_node.config import NodeConfig
from rlsched_node.gpu.device import GpuError, GpuSet
from rlsched_node.home import NodeHome
from rlsched_node.isolation.accounts import AccountsAwayError
from rlsched_node.isolation.cgroup import Cgroups
from rlsched_node.isolation.limits import memory_for_jobs_mib, most_processes
from rlsched_node.isolation.user import JobUsers, OwnerError
from rlsched_node.lease_file import since_boot_s, write_renewed
from rlsched_node.link.link import BrokerLink
from rlsched_node.link.machine import NodeMachine
from rlsched_node.mishaps import Mishaps
from rlsched_node.mps.sharing import MpsSharing
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import LocalRank, Phase
from rlsched_node.processes.bounds import RankBounds, capabilities_of, least_memory_mib, minors_of
from rlsched_node.processes.cores import cores_of_machine
from rlsched_node.processes.health import Health, HealthCheck, OwnChecks
from rlsched_node.processes.launch import (
    LaunchError,
    Terms,
    rank_environment,
    refuse_on_full_disk,
    torch_memory_limit,
)
from rlsched_node.processes.leftovers import attempt_directory_of
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import (
    Acknowledge,
    Checked,
    ClocksLocked,
    Effect,
    EndJobs,
    EndRank,
    Event,
    Exited,
    GpusOut,
    HardKill,
    HoldClocks,
    Limited,
    LimitRank,
    NodeTick,
    Note,
    Persist,
    Quit,
    RecordEnded,
    RenewLease,
    ResetClocks,
    Send,
    SendLog,
    StartFailed,
    StartRank,
    Stopping,
    TryNext,
)
from rlsched_node.processes.store import AttemptStore
from rlsched_node.usage.watch import UsageWatch

CLEAN_EVERY_S = 86400.0
CLEAN_LOOK_S = 1.0
CLEAN_SLICE_S = 0.2
"""Maximum time for the removal of old output in one turn of the loop, seconds."""
END_JOBS_GRACE_S = 3.0
ACKNOWLEDGE_WAIT_S = 2.0
"""Maximum time to wait for the broker's acknowledgements after the node has ended its jobs, seconds."""
_POLL_WITHOUT_PIDFD_S = 0.05
_log = logging.getLogger("rlsched.node")


class NodeDaemon:
    """The daemon of one node. `run()` returns after a call of `stop()`, for example from a signal handler.

    Args:
        config: The node's options.
        gpus: The GPUs that the node offers.
        pair: The node's keys.
        broker_public: The broker's public key.
        home: The node's directory, which the caller has locked and closes later; None: the daemon locks and
            closes the directory itself.

    Raises:
        InputError: the directory is in use or belongs to another node, or jobs would run as root without
            permission.
    """

    def __init__(
        self,
        config: NodeConfig,
        gpus: GpuSet,
        pair: KeyPair,
        broker_public: bytes,
        home: NodeHome | None = None,
    ) -> None:
        self._config = config
        self._gpus = gpus
        self._users = JobUsers(
            config.run_as,
            allow_root=config.allow_root,
            as_owner=config.run_as_owner,
            accounts=config.accounts,
        )
        self._users.check_reachable(config.directory)
        has_mps = config.sharing == MPS
        self._environment = {  # a copy: `os.environ` decodes each name and value at each access
            name: value
            for name, value in os.environ.items()
            if not (has_mps and name.startswith("CUDA_MPS_"))  # for another control daemon
        }
        self._home, self._closes_home = home or NodeHome(config.directory, config.name), home is None
        self._store = AttemptStore(config.directory)
        self._terms = Terms(str(self._home.lease), config.max_output_mib)
        self._mishaps = Mishaps(_log)
        self._memory_mib = memory_for_jobs_mib()
        self._cgroups = Cgroups(str(config.directory.resolve()), self._memory_mib << 20)
        self._cores = cores_of_machine(gpus)
        self._bounds = RankBounds(
            self._cores,
            self._cgroups,
            gpus.count,
            self._memory_mib,
            most_processes() if config.max_processes is None else config.max_processes,
            functools.partial(minors_of, gpus),
            functools.partial(capabilities_of, gpus),
        )
        is_subreaper = shim.become_subreaper()
        check = _health_check(config)
        self._spared = check.pids if check is not None else set[int]()
        self._mps = MpsSharing(
            config.directory, enabled=has_mps, environment=self._environment, spared=self._spared
        )
        self._ranks = LiveRanks(
            self._store,
            self._mishaps,
            cgroups=self._cgroups,
            is_subreaper=is_subreaper,
            shims=Shims(forks=is_subreaper),
            spared=self._spared,
        )
        self._clocks = ClockLocks(config.directory, gpus)
        self._addresses = broker_addresses(config.broker)
        self._machine = NodeMachine(
            self._hello(),
            self._adopt(),
            is_checked=check is None,
            has_standby=len(self._addresses) > 1,
            forgets_cluster=config.forget_cluster,
        )
        self._usage = UsageWatch(
            gpus,
            config.gpu_type,
            self._store,
            config.directory,
            {attempt.key for attempt in self._machine.attempts.live},
            config.record_gpus,
            is_ours=self._is_ours,
        )
        self._health = Health(check, OwnChecks(self._usage.gpus, config.directory, config.min_free_mib))
        self._link = BrokerLink(self._addresses, pair, broker_public)
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._clean_at_s = 0.0
        self._stops = 0
        self._quit: str | None = None

    def _adopt(self) -> list[LocalRank]:
        """Adopt the attempts of an earlier daemon; unlock the clocks of jobs that have ended."""
        attempts = adopt_attempts(self._store, self._ranks)
        running = [attempt for attempt in attempts if attempt.phase is Phase.RUNNING]
        self._cgroups.clean({self._cgroups.cgroup_of(f"{one.key.cluster}.{one.key}").path for one in running})
        self._clocks.recover({gpu for attempt in running for gpu in attempt.gpus})
        used = []
        for attempt in running:
            attempt.sm_clock_mhz = attempt.asked_mhz = self._clocks.lowest_clock_mhz(attempt.gpus)
            directory = self._store.directories_of(attempt.key)
            record = directory.launch()
            if record is not None:
                self._bounds.adopt(attempt.key, record)
                used.append((attempt.key, str(directory.job_path), record))
        self._mps.adopt(used)
        return attempts

    def stop(self) -> None:
        """Stop the loop. This method may be called in a signal handler.

        If the daemon ends its jobs, it waits until they have ended. A second call kills the jobs immediately,
        and after a third call the daemon does not wait.
        """
        self._stops += 1
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    def run(self) -> None:
        """Serve until `stop()` is called.

        Raises:
            InputError: the broker refuses this node.
        """
        adopted = sum(attempt.phase is Phase.RUNNING for attempt in self._machine.attempts.known.values())
        _log.info(
            "node %s: %d %s GPUs, broker %s, directory %s, %d jobs adopted",
            self._config.name,
            self._gpus.count,
            self._gpus.kind,
            self._config.broker,
            self._config.directory,
            adopted,
        )
        _log.info("node %s: %s", self._config.name, self._users)
        if self._gpus.note:
            _log.info("node %s: %s", self._config.name, self._gpus.note)
        if self._cgroups.note:
            _log.info(
                "node %s has no control groups (%s): the daemon finds the processes of a job by their "
                "environment, session and parents, and can miss some if the job's shim is killed",
                self._config.name,
                self._cgroups.note,
            )
        if self._bounds.note:
            why = self._cgroups.note or self._cgroups.missing
            held = "; ".join(self._bounds.weaker)
            _log.info(
                "node %s cannot enforce all limits with control groups (%s): %s", self._config.name, why, held
            )
        if self._clocks_note:
            _log.info("node %s cannot set clocks: %s", self._config.name, self._clocks_note)
        try:
            self._serve(lambda: self._stops > 0 or self._quit is not None)
            if not self._config.end_jobs:
                self._feed(Stopping())
            if self._config.end_jobs and self._quit is None:
                self._end_jobs()
        finally:
            self._close()
        if self._quit is not None:
            raise InputError(f"the broker at {self._config.broker} refuses this node: {self._quit}")

    def _end_jobs(self) -> None:
        self._feed(EndJobs(END_JOBS_GRACE_S))
        self._serve(lambda: self._machine.attempts.is_idle or self._stops > 1)
        if not self._machine.attempts.is_idle:
            self._feed(EndJobs(0.0))
            self._serve(lambda: self._machine.attempts.is_idle or self._stops > 2)
        until_s = time.monotonic() + ACKNOWLEDGE_WAIT_S
        self._serve(
            lambda: (
                self._machine.attempts.is_drained
                or not self._machine.is_registered
                or self._stops > 1
                or time.monotonic() > until_s
            )
        )

    def _close(self) -> None:
        self._link.close()
        self._ranks.close()
        self._wake.close()
        self._waker.close()
        self._health.close()
        self._mps.close()
        if self._usage.close():
            self._gpus.close()
        if self._closes_home:
            self._home.close()

    def _serve(self, is_done: Callable[[], bool]) -> None:
        poller = self._poller()
        while not is_done():
            with self._mishaps.set_aside("renewing the connection"):
                self._link.look_around(self._machine.cluster, self._machine.epoch)
                if self._link.renew(self._machine.is_registered):
                    poller = self._poller()
            timeout_s = min(max(self._machine.next_tick_s() - since_boot_s(), 0.0), 1.0)
            if self._ranks.needs_polling:
                timeout_s = min(timeout_s, _POLL_WITHOUT_PIDFD_S)
            poller.poll(int(timeout_s * 1e3) + 1)
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(64)
            with self._mishaps.set_aside("checking the node's GPUs"):
                self._feed(self._gpus_out())
            with self._mishaps.set_aside("handling the broker's messages"):
                self._feed(*self._link.receive())
            with self._mishaps.set_aside("handling the ranks' events"):
                self._feed(*self._usage.add_usage(self._collect_events()))
            with self._mishaps.set_aside("checking the node's health"):
                unhealthy = self._health.news()
                if unhealthy is not None:
                    self._feed(Checked(unhealthy))
            self._feed(NodeTick())
            with self._mishaps.set_aside("removing old output"):
                self._clean()
            with self._mishaps.set_aside("following the GPUs"):
                self._usage.follow(self._machine.attempts.live)
                self._usage.mark_outside_mps(self._mps.follow(self._usage.on_gpus()))
                self._tell_usage()

    def _tell_usage(self) -> None:
        if self._machine.is_registered and self._machine.tells_usage:
            news = self._usage.news()
            if news is not None:
                self._link.send(news)

    def _collect_events(self) -> list[Event]:
        """Collect the events of the ranks, and free the resources of ended ranks."""
        events = [
            self._attributed(event) if isinstance(event, Exited) else event for event in self._ranks.collect()
        ]
        for event in events:
            if isinstance(event, Exited | StartFailed):
                self._release(event.key)
        return events

    def _attributed(self, event: Exited) -> Exited:
        """Return the event. If an MPS fault ended the rank, set this reason in the event and exit record."""
        found = self._mps.attribute(event)
        if found.reason != event.reason:
            with _log_os_errors(f"attempt {event.key}: the reason for its end is remembered in memory only"):
                self._store.directories_of(event.key).record_exit(found.exit_code, found.reason, found.ran_s)
        return found

    def _release(self, key: AttemptKey) -> None:
        """Free the resources of a rank that has ended or did not start."""
        self._bounds.release_limits(key)
        self._mps.release(key)

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        for source in (self._link.socket, self._link.monitor, self._ranks.fileno(), self._wake.fileno()):
            poller.register(source, zmq.POLLIN)
        return poller

    def _clean(self) -> None:
        """Remove old output once a day. The mtime of the file `cleaned` is the end of the last removal."""
        now_s, stamp = time.time(), self._config.directory / "cleaned"
        if now_s < self._clean_at_s:
            return
        if stamp.exists() and 0.0 <= now_s - stamp.stat().st_mtime < CLEAN_EVERY_S:
            self._clean_at_s = now_s + CLEAN_LOOK_S
            return
        until_s = time.monotonic() + CLEAN_SLICE_S
        removed, is_all = self._store.clean(now_s, self._config.keep_output_days * 86400.0, until_s)
        if is_all:
            stamp.touch(mode=0o600)
        self._clean_at_s = now_s + CLEAN_LOOK_S
        if removed:
            _log.info("removed the output of %d ranks that ended long ago", removed)

    def _feed(self, *new: Event) -> None:
        """Handle each event, and the further events that its effects cause. Log errors and continue."""
        for first in new:
            events = [first]
            while events:
                event = events.pop(0)
                effects: list[Effect] = []
                with self._mishaps.set_aside(type(event).__name__):
                    effects = self._machine.handle(event, since_boot_s())
                for effect in effects:
                    with self._mishaps.set_aside(type(effect).__name__):
                        events += self._perform(effect)

    def _perform(self, effect: Effect) -> Iterator[Event]:
        match effect:
            case Send(Hello() as hello, request):
                self._link.send(msgspec.structs.replace(hello, wall_s=time.time()), request)
            case Send(Heartbeat() as beat, request):
                power_w = self._health.power_w if self._machine.tells_power else None
                wall_s = time.time() if self._machine.tells_clock else None
                self._link.send(msgspec.structs.replace(beat, power_w=power_w, wall_s=wall_s), request)
            case Send(Ended() as ended, request) if not self._machine.tells_usage:
                self._link.send(msgspec.structs.replace(ended, usage=None), request)
            case Send(message, request):
                self._link.send(message, request)
            case StartRank(launch):
                yield from self._start(launch)
            case HoldClocks(key, gpus, mhz):
                yield self._hold_clocks(key, gpus, mhz)
            case LimitRank(key, limit_s):
                self._ranks.limit(key, limit_s)
                yield Limited(key, limit_s)
            case ResetClocks(gpus):
                self._clocks.reset(gpus)
            case EndRank(key, grace_s, reason):
                self._ranks.end(key, grace_s, reason)
            case HardKill(key):
                self._ranks.hard_kill(key)
            case SendLog(key, request, offset, max_bytes, is_over):
                data, start, is_all = self._store.directories_of(key).read_output(offset, max_bytes)
                self._link.send(LogData(data=data, offset=start, eof=is_over and is_all), request)
            case Persist(cluster, epoch):
                with _log_os_errors(f"epoch {epoch} is remembered in memory only"):
                    self._home.persist(cluster, epoch)
            case RenewLease(renewed_s):
                with _log_os_errors("ranks of jobs with --lost-after end when their time has run out"):
                    write_renewed(str(self._home.lease), renewed_s)
            case RecordEnded(key, exit_code, reason):
                with _log_os_errors(f"attempt {key} is remembered in memory only"):
                    self._store.directories_of(key).create_ended(exit_code, reason)
            case Acknowledge(key):
                with _log_os_errors(f"attempt {key} will be reported again after a restart"):
                    self._store.directories_of(key).acknowledge()
            case Note(line):
                _log.info("%s", line)
            case TryNext():
                self._link.try_next()
            case Quit(line):
                self._quit = line

    def _start(self, launch: Launch) -> Iterator[Event]:
        key = AttemptKey(launch.job, launch.attempt, launch.rank, self._machine.cluster)
        for event in self._start_rank(key, launch):
            if isinstance(event, StartFailed):
                self._release(key)
                yield self._gpus_out()  # the broker needs it for its next decision
            yield event

    def _gpus_out(self) -> GpusOut:
        outages = self._usage.gpus.outages
        return GpusOut(outages.holdings, outages.usable_mib)

    def _start_rank(self, key: AttemptKey, launch: Launch) -> Iterator[Event]:
        directory = self._store.directories_of(key)
        try:
            user = self._users.user_of(launch.person)
            refuse_on_full_disk(self._config.directory, self._config.min_free_mib)
            outages = self._usage.gpus.outages
            outages.refuse(self._gpus, launch.gpus)
            outages.refuse_short(
                self._gpus,
                launch.gpus,
                launch.gpu_memory_mib,
                are_shared=bool(launch.beside),
                is_told=self._machine.tells_memory,
            )
            outages.busy |= frozenset(launch.gpus)
            env = rank_environment(
                launch,
                gpus=self._gpus,
                directory=str(directory.job_path),
                is_local=all(map(is_loopback, self._addresses)),
                inherited=self._environment,
                passed=self._config.pass_env,
                user=user,
            )
            if launch.sm_clock_mhz:
                yield self._hold_clocks(key, launch.gpus, launch.sm_clock_mhz)
            limits = self._bounds.allocate_limits(key, launch)
            uuids = [_uuid(self._gpus, gpu) for gpu in launch.gpus]
            of_mps = self._mps.environment(key, launch, user, str(directory.job_path), uuids, env)
            if self._config.torch_memory_limit and not of_mps:
                env |= torch_memory_limit(launch, env, self._smallest_mib(launch.gpus))
            env |= of_mps
            terms = self._terms._replace(user=user, limits=limits, mps=self._mps.terms_of(key))
            self._ranks.start(key, launch, env, terms)
        except LaunchError as error:
            yield StartFailed(
                key, str(error), is_for_now=error.is_for_now, is_about_memory=error.is_about_memory
            )
        except AccountsAwayError as error:
            yield StartFailed(key, str(error), is_for_now=True)
        except OwnerError as error:
            yield StartFailed(key, str(error), is_about_owner=True)
        except RlschedError as error:
            yield StartFailed(key, str(error))
        except Exception as error:
            _log.exception("attempt %s cannot be started", key)
            yield StartFailed(key, f"{type(error).__name__}: {error}")

    def _smallest_mib(self, gpus: Sequence[int]) -> int:
        """Return the memory of the smallest of these GPUs, MiB; 0: unknown."""
        try:
            return min((self._gpus.memory_total_mib(gpu) or 0 for gpu in gpus), default=0)
        except GpuError:
            return 0

    def _hold_clocks(self, key: AttemptKey, gpus: Sequence[int], mhz: int) -> ClocksLocked:
        if mhz:
            return ClocksLocked(key, *self._clocks.lock(gpus, mhz))
        self._clocks.reset(gpus)
        return ClocksLocked(key, self._clocks.lowest_clock_mhz(gpus))

    def _is_ours(self, pid: int) -> bool:
        """Return whether a process belongs to a rank, to the health check or to MPS."""
        directory = attempt_directory_of(pid)
        if directory is not None and Path(directory).is_relative_to(self._store.attempts):
            return True
        with contextlib.suppress(OSError):
            if os.getsid(pid) in self._spared:
                return True
        return self._mps.is_ours(pid)

    def _hello(self) -> Hello:
        gpus, clocks = self._gpus, self._clocks.supported()
        self._clocks_note = clocks.note
        return Hello(
            name=self._config.name,
            gpus=gpus.count,
            gpu_type=self._config.gpu_type,
            gpu_uuids=[_uuid(gpus, gpu) for gpu in range(gpus.count)],
            cpus=self._cores.count,
            memory_mib=self._memory_mib,
            vc=self._config.vc,
            boot_id=shim.boot_id(),
            epoch=self._home.state.epoch,
            cluster=self._home.state.cluster,
            sm_clocks_mhz=clocks.sm_clocks_mhz,
            clocks_note=clocks.note,
            directory_id=self._home.state.directory_id,
            host=self._config.host or own_host(self._addresses[0]),
            notes=[note for note in (self._bounds.note, gpus.note) if note],
            capabilities=Capabilities(
                holds_to=self._bounds.holds_to,
                gpu_memory_mib=least_memory_mib(gpus),
                shares=not is_slice(self._config.gpu_type),
                sharing=MPS if self._config.sharing == MPS else "",
                lends="cores" in self._bounds.holds_to,
                limits_torch=self._config.torch_memory_limit,
                fences=True,
                tells_memory=self._gpus.kind == "nvml",
            ),
        )


def _uuid(gpus: GpuSet, gpu: int) -> str:
    """Return the UUID of a GPU; "" if it does not answer."""
    try:
        return gpus.uuid(gpu)
    except GpuError:
        return ""


def _health_check(config: NodeConfig) -> HealthCheck | None:
    if not config.health_check:
        return None
    return HealthCheck(config.health_check, config.health_check_every_s, config.health_check_timeout_s)


@contextlib.contextmanager
def _log_os_errors(consequence: str) -> Iterator[None]:
    """Log an OS error and its consequence, and continue: a full disk does not stop the daemon."""
    try:
        yield
    except OSError as error:
        _log.warning("%s: %s", error, consequence)


def run_until_signalled(daemon: NodeDaemon) -> None:
    """Run the daemon; SIGTERM, SIGINT and SIGHUP stop it."""
    with on_signals(lambda *_: daemon.stop(), (*END, signal.SIGHUP)):
        daemon.run()
