"""Predictions of the broker: made once, journalled, restored from the journal, independent of the future."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.entries import JobSubmitted, decode_entry, encode_entry
from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched.wire.messages import Cancel, Ended, PredictionReport, Stats, StatsReport
from rlsched.workload.predict import RunningMean
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.distribution import Forecast, point_and_spread
from rlsched.workload.predict.event_history import FEATURES, EventHistory
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.hedge import SIZES
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN
from rlsched.workload.predict.predictor import Predictor
from rlsched.workload.trace import Trace
from tests.support.broker.hand import LIMITS, draft, ended, hello, launched, run_one, submit
from tests.support.broker.hand_broker import HandBroker


def make(journal: Journal, prediction: str = HEDGE) -> HandBroker:
    return HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS, prediction=prediction)


def predictions(journal: Journal) -> list[JobSubmitted]:
    return [row.entry for row in journal.rows() if isinstance(row.entry, JobSubmitted)]


def predictions_of(broker: HandBroker) -> dict[int, tuple[float, float, str]]:
    """Prediction, spread and their source, by job."""
    jobs = broker.state.jobs.values()
    return {job.number: (job.spec.predicted_s, job.spec.spread, job.spec.predicted_by) for job in jobs}


def predictor_report(broker: HandBroker) -> PredictionReport:
    report = broker.ask(Stats())
    assert isinstance(report, StatsReport)
    assert report.prediction is not None
    return report.prediction


def weights(broker: HandBroker) -> list[list[float]]:
    found = predictor_report(broker).weights
    assert found is not None
    return [list(found[size].values()) for size in SIZES]


def with_history(journal: Journal) -> HandBroker:
    """Jobs of two kinds have ended; one job runs, one waits, one was lost, one cancelled, one rejected."""
    broker = make(journal)
    broker.says("n0", hello("n0"))
    for k in range(12):
        run_one(broker, 30.0 + k, name=f"probe-{k}", user="ann")
        run_one(broker, 9000.0 + 10 * k, name=f"train-{k}", user="bob", num_gpus=2)
    broker.ask(submit(name="train-99", user="bob", num_gpus=2))
    broker.ask(submit(name="lost", num_gpus=1))
    broker.says("n0", launched(25), launched(26))
    broker.ask(submit(num_gpus=9))
    broker.ask(submit(num_gpus=3, name="never"))
    broker.ask(Cancel(job=28))
    broker.ask(submit(num_gpus=4, name="waits"))
    return broker


def test_prediction_equals_that_of_trace_predict(journal: Journal) -> None:
    """`Predictor`, given the same facts, returns the prediction in the journal."""
    broker = make(journal)
    broker.says("n0", hello("n0"))
    own = Predictor("hedge")
    for k in range(6):
        number = run_one(broker, 600.0, name=f"probe-{k}", user="ann", time_limit_s=700.0)
        job = broker.state.jobs[number]
        facts = JobFacts(str(number), 1, "", "ann", f"probe-{k}", "true", 700.0)
        forecast: Forecast = own.predict(facts, job.submit_s)
        predicted_s, spread = point_and_spread(forecast.probabilities[None, :], np.array([700.0]))
        assert (job.spec.predicted_s, job.spec.spread) == (predicted_s[0], spread[0])
        assert job.spec.predicted_by == HEDGE
        assert job.attempt is not None
        assert job.end_s is not None
        own.observe_start(str(number), job.attempt.start_s)
        own.observe_end(str(number), job.end_s - job.attempt.start_s, job.end_s)


def test_equal_trace_is_predicted_alike(journal: Journal) -> None:
    """The broker's keys are the keys of a trace: its jobs are written as a trace and predicted."""
    broker = make(journal)
    broker.says("n0", hello("n0"))
    for k in range(14):
        who, net = ("ann", "bob")[k % 2], (5, 7)[k % 3 == 0]
        run_one(broker, 60.0 * net**2, name=f"net{net}_{k}", user=who, command=["train.py", "--seed", str(k)])
    jobs = list(broker.state.jobs.values())
    end_s = np.array([job.end_s for job in jobs], np.float64)
    start_s = np.array([job.attempt.start_s for job in jobs if job.attempt is not None])
    trace = Trace.from_columns(
        name="lived",
        job_id=[str(job.number) for job in jobs],
        submit_s=np.array([job.submit_s for job in jobs]),
        duration_s=end_s - start_s,
        num_gpus=[job.spec.num_gpus for job in jobs],
        user=[job.spec.user for job in jobs],
        job_name=[job.spec.name for job in jobs],
        extra={"x_command": [f"train.py --seed {k}" for k in range(len(jobs))]},
    )
    said = predict_at_submission(trace, end_s)
    np.testing.assert_allclose([job.spec.predicted_s for job in jobs], said.median_s, rtol=1e-9)
    assert said.median_s[-1] != said.median_s[-2]


def test_repeated_jobs_become_well_predicted(journal: Journal) -> None:
    broker = with_history(journal)
    kinds = {name: predictions_of(broker)[job] for name, job in (("first", 1), ("probe", 23), ("train", 25))}
    assert kinds["first"][0] > 5 * kinds["probe"][0]
    assert 9000 < kinds["train"][0] < 18_000
    assert kinds["train"][1] < 0.5 * kinds["first"][1]


def test_restart_restores_every_prediction_and_weight(journal: Journal) -> None:
    broker = with_history(journal)
    before, known = predictions_of(broker), weights(broker)
    again = make(journal)
    assert predictions_of(again) == before
    assert weights(again) == known
    assert predictor_report(again).last_jobs == predictor_report(broker).last_jobs
    broker.ask(submit(name="probe-100", user="ann"))
    later = make(journal)
    assert predictions_of(later)[30] == predictions_of(broker)[30]
    assert sum(len(entry.said) == 5 * 13 * 8 + 4 * len(FEATURES) for entry in predictions(journal)) == 30


def test_restart_does_not_call_the_models(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    before = predictions_of(with_history(journal))

    def never(*_: object) -> None:
        raise AssertionError("predicted again")

    monkeypatch.setattr(Predictor, "foresee", never)
    monkeypatch.setattr(Predictor, "expert_forecasts", never)
    monkeypatch.setattr(EventHistory, "submit", never)
    assert predictions_of(make(journal)) == before


def test_next_prediction_is_the_same_with_and_without_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of two brokers with the same history, one is restarted: both predict the same for the next job."""
    said = []
    for restarts in (False, True):
        journal = Journal(tmp_path_factory.mktemp("b") / "journal.sqlite")
        broker = with_history(journal)
        if restarts:
            broker = make(journal)
        broker.now_s = 500_000.0
        broker.ask(submit(name="train-7", user="bob", num_gpus=2))
        said.append(predictions_of(broker)[30])
        journal.close()
    assert said[0] == said[1]


@pytest.mark.parametrize("prediction", [HEDGE, RUNNING_MEAN])
def test_later_ends_change_no_earlier_prediction(
    prediction: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An end after a submission changes the prediction of the next submission only."""
    lives = []
    for run_s, code in ((40.0, 0), (70_000.0, 1)):
        journal = Journal(tmp_path_factory.mktemp("b") / "journal.sqlite")
        broker = make(journal, prediction)
        broker.says("n0", hello("n0"))
        for k in range(3):
            run_one(broker, 100.0, name=f"probe-{k}")
        broker.ask(submit(name="probe-8"))
        broker.says("n0", launched(4))
        broker.ask(submit(name="probe-9"))
        end = Ended(job=4, attempt=1, rank=0, exit_code=code)
        broker.says("n0", end, after_s=run_s)
        broker.ask(submit(name="probe-10"))
        lives.append(predictions_of(broker))
        journal.close()
    assert [lives[0][job] for job in range(1, 6)] == [lives[1][job] for job in range(1, 6)]
    assert lives[0][6] != lives[1][6]


def test_running_jobs_raise_the_prediction(journal: Journal) -> None:
    """Jobs with the same key that still run make the prediction of the next one longer."""
    broker = make(journal)
    broker.says("n0", hello("n0"))
    for k in range(4):
        run_one(broker, 40.0, name=f"x-{k}")
    for k in range(3):
        broker.ask(submit(name=f"x-{10 + k}"))
        broker.says("n0", launched(5 + k))
    broker.ask(submit(name="x-20"))
    broker.wait(80_000.0, "n0")
    broker.ask(submit(name="x-21"))
    assert predictions_of(broker)[9][0] > 1.3 * predictions_of(broker)[8][0]


def test_submissions_of_one_instant_are_predicted_as_if_one_by_one() -> None:
    together, apart = Predictions(HEDGE), Predictions(HEDGE)
    drafts = [msgspec.structs.replace(draft(k), num_gpus=1 + k % 2) for k in range(1, 6)]
    joint = together.predict(drafts, 7.0)
    single = [apart.predict([one], 7.0)[0] for one in drafts]
    assert [one.said for one in joint] == [one.said for one in single]
    assert [one.predicted_s for one in joint] == [one.predicted_s for one in single]


def test_batch_with_a_repeated_token_and_an_invalid_submission(journal: Journal) -> None:
    broker = make(journal)
    jobs = [submit(token=f"k{k}", name=f"a-{k}") for k in range(3)]
    batch = [jobs[0], jobs[1], jobs[0], submit(token="bad", num_gpus=0), Cancel(job=1), jobs[2]]
    replies = broker.batch([ClientAsked(b"p", k, message) for k, message in enumerate(batch)])
    said = [getattr(reply, "job", None) for reply in replies]
    assert said == [1, 2, 1, None, None, 3]
    assert [entry.token for entry in predictions(journal)] == ["k0", "k1", "k2"]
    assert broker.state.jobs[1].state == "cancelled"
    assert predictions_of(make(journal)) == predictions_of(broker)


def test_failed_prediction_affects_no_other_job(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The predictor raises after it has recorded some jobs of the batch; their numbers are used again."""
    broker, submits = make(journal), EventHistory.submit

    def fragile(history: EventHistory, job: JobFacts, now_s: float) -> object:
        if job.name == "poison":
            raise FloatingPointError(job.name)
        return submits(history, job, now_s)

    monkeypatch.setattr(EventHistory, "submit", fragile)
    jobs = [submit(name=name) for name in ("a-1", "a-2", "poison", "a-3")]
    replies = broker.batch([ClientAsked(b"p", k, message) for k, message in enumerate(jobs)])
    assert [getattr(reply, "job", None) for reply in replies] == [1, 2, None, 3]
    assert [entry.predicted_by for entry in predictions(journal)] == [HEDGE] * 3
    assert getattr(broker.ask(submit(name="a-4")), "job", None) == 4
    assert predictions_of(make(journal)) == predictions_of(broker)


def test_running_mean_is_that_of_the_simulator(journal: Journal) -> None:
    broker, own = make(journal, RUNNING_MEAN), RunningMean()
    broker.says("n0", hello("n0"))
    for seconds in (10.0, 500.0, 20.0):
        predicted_s, spread = own.predict("", 1)
        job = broker.state.jobs[run_one(broker, seconds)]
        assert (job.spec.predicted_s, job.spec.spread, job.spec.said) == (predicted_s, spread, b"")
        assert job.attempt is not None
        assert job.end_s is not None
        own.observe("", 1, job.end_s - job.attempt.start_s)
    report = predictor_report(broker)
    assert (report.model, report.note, report.ended) == (RUNNING_MEAN, "", 3)
    assert report.weights is None
    assert (report.fits, report.fitting, report.next_fit_jobs) == (None, None, None)


def test_journal_of_one_predictor_continues_with_the_other(journal: Journal) -> None:
    before = predictions_of(with_history(journal))
    mean = make(journal, RUNNING_MEAN)
    assert predictions_of(mean) == before
    assert predictor_report(mean).last_jobs.predicted is not None
    mean.ask(submit(name="probe-100", user="ann"))
    assert predictions_of(mean)[30][2] == RUNNING_MEAN
    hedge = make(journal)
    assert predictions_of(hedge) == predictions_of(mean)
    hedge.ask(submit(name="probe-101", user="ann"))
    assert predictions_of(hedge)[31][2] == HEDGE
    assert predictions_of(hedge)[31][0] < 0.2 * predictions_of(hedge)[1][0]


def test_entry_older_than_the_hedge_has_the_running_mean() -> None:
    (entry,) = Predictions(RUNNING_MEAN).predict([draft()], 0.0)
    old = msgspec.msgpack.decode(encode_entry(entry))
    del old["predicted_by"], old["said"]
    read = decode_entry(msgspec.msgpack.encode(old))
    assert isinstance(read, JobSubmitted)
    assert (read.predicted_by, read.said) == (RUNNING_MEAN, b"")
    hedge = Predictions(HEDGE)
    hedge.record_submission(read, 5.0)
    hedge.record_start(1, 6.0)
    hedge.record_run_time(read, 10.0, 16.0)
    assert hedge.recent.count == 1


# ---- the report ---------------------------------------------------------------------------------


def test_unknown_values_are_null(journal: Journal) -> None:
    report = msgspec.to_builtins(predictor_report(make(journal)))
    assert report["ended"] == 0
    assert report["last_jobs"] == report["last_week"] == {
        "jobs": 0, "since_s": None, "predicted": None, "running_mean": None,
    }  # fmt: skip
    assert (report["fitted_s"], report["fitted_jobs"], report["fit_error"]) == (None, None, None)
    assert "boosting is not fitted yet (0 of 200 jobs have ended)" in report["note"]
    assert report["weights"]["1"] == dict.fromkeys(report["weights"]["1"], 0.25)


def test_report_compares_with_the_running_mean(journal: Journal) -> None:
    report = predictor_report(with_history(journal))
    assert (report.model, report.ended, report.last_jobs.jobs, report.last_week.jobs) == (HEDGE, 24, 24, 24)
    ours, mean = report.last_jobs.predicted, report.last_jobs.running_mean
    assert ours is not None
    assert mean is not None
    assert ours.spearman_mean is not None
    assert mean.spearman_mean is not None
    assert ours.median_abs_ln < mean.median_abs_ln
    assert [row.than_s for row in ours.longer] == [600.0, 3600.0, 14400.0, 86400.0]
    assert ours.longer[3].auc is None
    assert ours.longer[0].auc is not None
    assert ours.longer[0].true_frac == 0.5


def test_tensorboard_curves_get_points_only_for_new_values(journal: Journal) -> None:
    broker = make(journal)
    predictions = broker.state.predictions
    assert predictions.curves(broker.now_s) == {}
    broker = with_history(Journal(journal.path.with_name("other.sqlite")))
    predictions = broker.state.predictions
    curves = predictions.curves(broker.now_s)
    assert {"prediction/median_abs_ln", "prediction/median_abs_ln_running_mean"} < set(curves)
    assert curves["prediction_weight/1_gpus/survival"] > 0
    assert predictions.curves(broker.now_s) == {}
    broker.journal.close()


def test_hedge_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsched.workload.predict.kinds.sklearn_installed", lambda: False)
    for kind in (HEDGE, None):
        with pytest.raises(InputError, match=r"needs scikit-learn.*\[predict\].*--prediction running-mean"):
            Predictions(kind)
    assert Predictions(RUNNING_MEAN).report(0.0).note == ""
    with pytest.raises(InputError, match="unknown --prediction 'magic'; known: running-mean, hedge"):
        Predictions("magic")


# ---- time of an end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported_s", "expected_s"),
    [(1100.0, 1100.0), (None, 9000.0), (float("nan"), 9000.0), (1.0, 1000.003), (1e12, 9000.0)],
)
def test_end_time_is_that_of_the_node_within_the_attempt(
    reported_s: float | None, expected_s: float, journal: Journal
) -> None:
    """The broker was down from 1,001 s to 9,000 s; clocks that disagree make no time go backwards."""
    broker = make(journal, RUNNING_MEAN)
    broker.says("n0", hello("n0"))
    broker.ask(submit())
    broker.says("n0", launched(1))
    job = broker.state.jobs[1]
    assert job.attempt is not None
    broker.now_s = 8999.999
    broker.says("n0", msgspec.structs.replace(ended(1), ended_s=reported_s))
    assert job.end_s == pytest.approx(max(expected_s, job.attempt.start_s), abs=1e-6)
    again = make(journal, RUNNING_MEAN).state.jobs[1]
    assert again.end_s == job.end_s
