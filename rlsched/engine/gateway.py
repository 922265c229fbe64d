"""The state machine between a Slurm cluster and the broker. It uses no socket, process or clock.

The gateway handles facts (Slurm's jobs and nodes at one time) and messages from the broker. It returns
messages to the broker, and changes jobs in Slurm through a `Writer`. Any write to Slurm can be lost: the next
facts show the loss, and the gateway repeats the write.

The gateway has no storage of its own. After a restart, everything is read from Slurm. A job's AdminComment
contains its stamp (submission time and a count, from job_submit.lua) and the attempt that the broker ordered.
A token, computed from Slurm's job ID, the stamp and the gateway's secret, identifies a job to the broker. The
gateway runs only broker jobs that it has offered itself.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager

from rlsched.engine.attempts import SlurmAttempts
from rlsched.engine.desk import Desk
from rlsched.engine.facts import Facts
from rlsched.engine.nodes import SlurmNodes
from rlsched.engine.offers import Offers
from rlsched.engine.ordering import Ordering
from rlsched.engine.silence import Silence
from rlsched.engine.steps import Ask, Say, Times
from rlsched.engine.writer import Writer
from rlsched.wire.messages import (
    BrokerToNode,
    EndedAck,
    FetchLog,
    Hello,
    HoldClock,
    Kill,
    Launch,
    LogData,
    Refused,
    SayHello,
    Welcome,
)

_log = logging.getLogger("rlsched.engine")


class Gateway:
    """A gateway between Slurm and broker. Each handler returns the messages to send.

    Args:
        name: Name of the gateway's key; the tokens of offers begin with this name.
        cluster: Slurm's ClusterName.
        partitions: Partitions that the broker schedules.
        writer: Sends all writes to Slurm.
        times: Time-outs and intervals of the gateway; None: the defaults.
        preempts: Whether jobs that Slurm can requeue are offered as preemptible.
        sm_clocks_mhz: SM clocks that Slurm can set on all GPUs, MHz, highest first.
        secret: Key from which the tokens of offers are computed, so that users cannot guess them; must be the
            same after a restart.
        nices: (lowest, highest) nice of jobs, if jobs are not held and Slurm places them. None: jobs are
            held, and the broker places them.

    Attributes:
        nodes: Registers the nodes with the broker.
    """

    def __init__(
        self,
        name: str,
        cluster: str,
        partitions: tuple[str, ...],
        writer: Writer,
        times: Times | None = None,
        *,
        preempts: bool = False,
        secret: bytes = b"",
        nices: tuple[int, int] | None = None,
        sm_clocks_mhz: tuple[int, ...] = (),
    ) -> None:
        places = nices is None
        desk = Desk(
            name,
            cluster,
            partitions,
            writer,
            times or Times(),
            preempts=preempts,
            places=places,
            secret=secret,
            sm_clocks_mhz=sm_clocks_mhz if places else (),
        )
        self._ordering = Ordering(desk, nices) if nices is not None else None
        self._desk, self.nodes = desk, SlurmNodes(desk)
        self._offers, self._attempts, self._silence = Offers(desk), SlurmAttempts(desk), Silence(desk)

    @property
    def cluster(self) -> str:
        """Slurm's ClusterName."""
        return self._desk.cluster

    @property
    def is_away(self) -> bool:
        """Whether Slurm failed to answer the last query."""
        return self._desk.is_away

    # ---- inputs -----------------------------------------------------------------------------------

    def handle_facts(self, facts: Facts) -> list[Say | Ask]:
        """Handle new facts from Slurm."""
        self._desk.facts, self._desk.is_away = facts, False
        cleared_s = self._desk.cleared_s
        self._desk.cleared_s = {key: at_s for key, at_s in cleared_s.items() if facts.now_s <= at_s}
        self._attempts.adopt(facts)
        self._attempts.follow(facts.now_s)
        self._silence.look_up(facts)
        if self._ordering is not None:
            self._ordering.update_order(facts, self._offers, is_deciding=not self._silence.has_released)
        self._offers.update_offers(facts)
        if self._desk.places and self._desk.registered and self._silence.is_deciding(facts.now_s):
            self._offers.take_back(facts)
        said, self._desk.out = self._desk.out, []
        self.nodes.report_changes(facts)  # GPUs in use by others are reported before the jobs are offered
        self._desk.out += said
        if self._ordering is not None:
            self._ordering.begin(facts, self._offers)
        self._silence.release_if_silent(facts)
        return self._done(facts.now_s)

    def cannot_look(self, why: str, now_s: float) -> list[Say | Ask]:
        """Handle a failed query of Slurm. Until the next facts, no job is started or reported as lost."""
        if not self._desk.is_away:
            _log.warning("Slurm does not answer: %s", why)
            self.nodes.beat_at_once()
        self._desk.is_away = True
        return self._done(now_s)

    def tick(self, now_s: float) -> list[Say | Ask]:
        """Do the work that is due at this time between two queries of Slurm."""
        return self._done(now_s)

    def say_again(self, now_s: float) -> list[Say | Ask]:
        """Send `Launched` messages and reports about nodes again, because some may have been lost."""
        self._attempts.say_again()
        if self._desk.facts is not None:
            self.nodes.report_changes(self._desk.facts, again=True)
        return self._done(now_s)

    def handle_message(self, node: str, message: BrokerToNode, now_s: float) -> list[Say | Ask]:
        """Handle a message that the broker has sent to a node."""
        match message:
            case Welcome():
                self._welcome(node, message, now_s)
            case SayHello():
                self.nodes.say_hello_again(node)
            case Refused():
                _log.warning("the broker rejected the registration of node %s: %s", node, message.message)
            case Launch() | Kill() if message.epoch < self._desk.epoch or node not in self._desk.registered:
                _log.warning(
                    "ignored an order: its epoch %d is old, or node %s is not registered", message.epoch, node
                )
            case Launch():
                self._attempts.launch(node, message, now_s)
            case Kill():
                self._attempts.kill(node, message, now_s)
            case EndedAck():
                self._attempts.record_ack(message)
            case FetchLog():
                self._desk.queue_message(node, LogData(data=b"", offset=message.offset, eof=True))
            case HoldClock():
                pass
        return self._done(now_s, beats=False)

    def handle_answer(self, about: tuple[str, str], answer: object, now_s: float) -> list[Say | Ask]:
        """Handle the broker's answer to an `Ask`."""
        self._silence.note_message(now_s)
        if self._ordering is not None and about[0] == "begin" and isinstance(answer, Refused):
            self._ordering.handle_refusal(about[1], answer.message, self._offers)
        self._offers.handle_offer_answer(about, answer, now_s)
        if about[0] == "submit":
            self._attempts.adopt_offered(about[1], now_s)
        return self._done(now_s, beats=False)

    def heard_of_broker(self, now_s: float) -> None:
        """Record that the broker has sent a message."""
        self._silence.note_message(now_s)

    def writing_together(self) -> AbstractContextManager[None]:
        """Collect the writes of the messages handled in this context, and send them to Slurm together."""
        return self._desk.writer.together()

    # ---- outputs ----------------------------------------------------------------------------------

    def is_deciding(self, now_s: float) -> bool:
        """Return whether a broker has sent a message recently."""
        return self._silence.is_deciding(now_s)

    @property
    def decided_s(self) -> float:
        """Time of the broker's last message, Unix seconds."""
        return self._silence.decided_s

    def is_exact(self, facts: Facts) -> bool:
        """Return whether each GPU of a node has its own GRES type. Only then can the broker choose GPUs."""
        return self.nodes.is_exact(facts)

    def hellos(self) -> list[Hello]:
        """Return the registration messages of all nodes."""
        return self.nodes.hellos()

    def _welcome(self, node: str, welcome: Welcome, now_s: float) -> None:
        if self._desk.identity not in ("", welcome.cluster):
            _log.warning(
                "the broker has another journal than before: offering waiting jobs again, leaving running "
                "jobs to Slurm"
            )
            self._desk.attempts.clear()
            self._offers.clear()
            self._desk.forgotten.clear()
        self.nodes.welcome(node, welcome)
        self._silence.note_message(now_s)

    def _done(self, now_s: float, *, beats: bool = True) -> list[Say | Ask]:
        if beats and self._desk.facts is not None:
            self.nodes.greet(now_s)
            self.nodes.beat(now_s)
            self._offers.look_round(now_s)
        self._desk.writer.flush()
        out, self._desk.out = self._desk.out, []
        return out
