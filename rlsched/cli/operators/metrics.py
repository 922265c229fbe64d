"""`rlsched metrics`: serves the broker's metrics to Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import BrokerAt, asking, shown
from rlsched.cli.shared.serving_options import LOG_FORMAT
from rlsched.errors import InputError
from rlsched.logs import LogFormat, set_up

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from rlsched.wire.messages import DriftReport, StatsReport, Timing


@click.command()
@shown(
    "--listen",
    default="127.0.0.1:9461",
    metavar="HOST:PORT",
    help="Address to listen on; all clients that can reach it can read the metrics.",
)
@LOG_FORMAT
@click.option(
    "--once",
    is_flag=True,
    help="Print the metrics once and exit, for the textfile collector of node_exporter.",
)
@asking
def metrics(listen: str, log_format: LogFormat, once: bool, at: BrokerAt) -> None:
    """Serve the broker's metrics to Prometheus, until Ctrl-C.

    Runs as a separate process with a user's key, so that a slow scrape delays no decision. If no broker
    answers, `rlsched_up` is 0.

    \b
    Example:
      rlsched metrics
      rlsched metrics --once > /var/lib/node_exporter/rlsched.prom
    """
    import threading

    from prometheus_client import CollectorRegistry, generate_latest, start_http_server

    announce = set_up(log_format, level=logging.WARNING)
    host, port = _host_and_port(listen)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(BrokerFigures(at))
    if once:
        click.echo(generate_latest(registry), nl=False)
        return
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise InputError(f"--listen {listen}: cannot listen here: {error.strerror or error}") from error
    announce(f"rlsched metrics ready at http://{host}:{server.server_port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.shutdown()


class BrokerFigures:
    """Collector for `prometheus_client`, which requests the broker's statistics at every scrape."""

    def __init__(self, at: BrokerAt) -> None:
        self._at = at

    def describe(self) -> list[Metric]:
        """Return an empty list: the metrics are not known before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics; if the broker does not answer, only `rlsched_up`."""
        from rlsched.errors import RlschedError

        try:
            with self._at.client() as client:
                report = client.stats()
        except RlschedError:
            yield _gauge("up", "Whether the broker answers.", 0.0)
            return
        yield _gauge("up", "Whether the broker answers.", 1.0)
        yield from figures(report)


def figures(report: StatsReport) -> Iterator[Metric]:
    """Yield the metrics in a broker's statistics."""
    named = {"version": report.version, "policy": report.policy, "fallback": report.fallback}
    yield _gauges(
        "info", "Version of the broker, its policy and fallback.", list(named), [(list(named.values()), 1.0)]
    )
    yield _gauge("uptime_seconds", "Time since this broker started.", report.uptime_s)
    yield _gauge("epoch", "Number of brokers started on this journal.", report.epoch)
    live = [(["queued"], report.queued), (["running"], report.running)]
    yield _gauges("jobs", "Jobs that have not finished.", ["state"], live)
    yield _gauge("sharing_jobs", "Running jobs that share their GPUs.", report.sharing)
    yield _gauge(
        "slow_sharing_jobs",
        "Jobs slower than permitted or predicted next to their co-tenants, for 45 s.",
        report.slow_sharing,
    )
    yield _gauge("lent_cores", "Idle CPU cores that are lent to running jobs.", report.lent_cpus)
    kept_out = [([reason], count) for reason, count in {"Quota": 0, **report.ineligible}.items()]
    yield _gauges("ineligible_jobs", "Queued jobs that the policy does not see.", ["reason"], kept_out)
    yield _counters("jobs_over", "Finished jobs.", "state", report.outcomes)
    yield _gauge("queued_gpus", "GPUs that waiting jobs request.", report.queued_gpus)
    yield _gauge("oldest_queued_seconds", "Wait of the oldest queued job.", report.oldest_queued_s)
    nodes = [([state], count) for state, count in report.nodes.items()]
    yield _gauges("nodes", "Nodes.", ["state"], nodes)
    yield _gauge("nodes_unhealthy", "Nodes whose own health checks fail.", report.unhealthy_nodes)
    yield _gauge(
        "gpus_out_of_service", "GPUs that are lost, or in use by foreign processes.", report.gpus_out
    )
    yield _counter("health_failures", "Times a node's checks began to fail.", report.health_failures)
    gpus = [
        ([kind, state], getattr(of_kind, state))
        for kind, of_kind in report.gpus.items()
        for state in ("free", "held", "absent")
    ]
    yield _gauges("gpus", "GPUs: free, held by jobs, or on absent nodes.", ["gpu_type", "state"], gpus)
    if report.power_w is not None:
        yield _gauge("power_watts", "Power of the GPUs of all nodes that report it.", report.power_w)
    if report.energy_day_j is not None:
        words = "Energy of these GPUs since midnight, with jobs and without."
        yield _gauge("energy_today_joules", words, report.energy_day_j)
    for name, (figure, words, scale) in _USED.items():
        if figure in report.used:
            yield _gauge(name, words, report.used[figure] * scale)
    if report.price is not None:
        yield _gauge("energy_price", "Price or carbon intensity of electricity.", report.price.price)
        yield _gauge("energy_price_ratio", "The price relative to its mean.", report.price.ratio)
        yield _gauge("deferred_jobs", "Jobs that wait for a lower price.", report.price.deferred)
        yield _gauge("deferred_gpus", "GPUs that these jobs request.", report.price.deferred_gpus)
        if report.price.waiting_since_s is not None:
            words = "Time since which the first of these jobs waits, Unix seconds."
            yield _gauge("deferred_since_seconds", words, report.price.waiting_since_s)
    if report.power_limit is not None:
        limit = report.power_limit
        yield _gauge("power_limit_watts", "Power limit of the cluster; infinite: none now.", limit.limit_w)
        yield _gauge("power_most_watts", "Most power of nodes and running jobs by the models.", limit.most_w)
        yield _gauge("power_waiting_jobs", "Jobs that wait until the power limit leaves room.", limit.waiting)
        for at_s, limit_w in limit.falls[:1]:
            yield _gauge("power_limit_next_watts", "Next announced, lower power limit.", limit_w)
            yield _gauge("power_limit_next_seconds", "Time from which it applies, Unix seconds.", at_s)
    yield _counters("decisions", "Decisions, by deciding rule or policy.", "source", report.decisions)
    for name, timing in report.timings.items():
        yield _histogram(f"{name}_seconds", _TIMED.get(name, name), timing)
    yield _counters("connections", "Handshakes, and refused or dropped messages.", "kind", report.connections)
    if report.guard is not None:
        yield _counters("guard", "Interventions of the guard.", "kind", report.guard.decided)
        yield _gauge("guard_active", "Whether the fallback decides now.", float(bool(report.guard.now)))
        if report.guard.drift is not None:
            yield from _drift(report.guard.drift)
    if report.journal is not None:
        yield _gauge("journal_bytes", "Size of the journal.", report.journal.size_bytes)
        if report.journal.free_bytes is not None:
            yield _gauge("journal_free_bytes", "Free space on the journal's disk.", report.journal.free_bytes)
    if report.records is not None:
        yield _counters("records_lost", "Lost decision records.", "kind", report.records.lost)
    recent = report.prediction.last_jobs.predicted if report.prediction else None
    if recent is not None:
        yield _gauge(
            "prediction_covered_ratio", "Share of jobs inside their 10 to 90 % interval.", recent.covered_frac
        )


def _drift(drift: DriftReport) -> Iterator[Metric]:
    """Yield metrics that compare the current inputs of the policy with its inputs in training."""
    yield _gauge("drift_watched", "Whether the policy's card has ranges.", float(not drift.note))
    yield _gauge("drift_active", "Whether the fallback decides because of drift.", float(drift.active))
    yield _gauge("drift_unlike", "Ways in which the cluster differs from training.", len(drift.unlike))
    outside = [([one.column], one.share_frac) for one in drift.outside]
    yield _gauges(
        "drift_outside_ratio", "Share of checks with this column out of its range.", ["column"], outside
    )


_USED = {
    "measured_gpus": ("gpus", "GPUs of running jobs whose use is measured.", 1.0),
    "busy_gpus": ("gpus_busy", "GPUs of these at work, weighted by time.", 1.0),
    "used_gpu_memory_bytes": ("gpu_memory_mib", "Memory that running jobs use on measured GPUs.", 1048576.0),
    "busy_cores": ("cores", "CPU cores that running jobs keep busy.", 1.0),
    "used_memory_bytes": ("memory_mib", "Resident memory of running jobs.", 1048576.0),
}


_TIMED = {
    "decision": "Time from the state to the action.",
    "commit": "Time to force a batch to disk.",
    "turn": "Time of a turn of the broker's loop, without queries.",
}


def _gauge(name: str, words: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"rlsched_{name}", words, value=value)


def _gauges(
    name: str, words: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"rlsched_{name}", words, labels=labels)
    for labelled, value in values:
        family.add_metric(labelled, value)
    return family


def _counters(name: str, words: str, label: str, values: Mapping[str, int]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"rlsched_{name}", words, labels=(label,))
    for labelled, value in values.items():
        family.add_metric((labelled,), value)
    return family


def _counter(name: str, words: str, value: int) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"rlsched_{name}", words, value=value)


def _histogram(name: str, words: str, timing: Timing) -> Metric:
    from itertools import accumulate

    from prometheus_client.core import HistogramMetricFamily

    bounds = [*(f"{bound:g}" for bound in timing.bounds_s), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(timing.counts)), strict=True))
    return HistogramMetricFamily(f"rlsched_{name}", words, buckets=buckets, sum_value=timing.sum_s)


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise InputError(f"--listen {listen!r}: expected HOST:PORT, such as 127.0.0.1:9461")
    return host.strip("[]"), int(port)
