"""Histories of jobs, and decisions, as lines of text for a terminal."""

from __future__ import annotations

from typing import Any, Final

from rlsched.decide.plans.plan_text import span
from rlsched.wire.states import COMPLETED

MOST_LISTED: Final = 12
MOST_NODES: Final = 4
LEAST_S: Final = 0.5
"""Minimum change of a time, seconds, that is shown as a change."""


def job_lines(story: dict[str, Any]) -> list[str]:
    """Return a job's history (from `story.job_story`) as lines of text."""
    whose = " ".join(
        filter(None, (story["name"], f"of {story['user']}" if story["user"] else "", story["vc"]))
    )
    found = [f"job {story['job']}{f' ({whose})' if whose else ''}: {story['state']}"]
    if story["reason"]:
        found[0] += f", {story['reason']}"
    predicted = story["predicted_s"]
    foreseen = "" if predicted is None else f", predicted to run {span(predicted)}"
    submitted = story["submitted"] or "before this store begins"
    found.append(f"requests {_gpus(story)}; submitted {submitted}{foreseen}")
    for attempt in story["attempts"]:
        found += _attempt_lines(attempt, predicted)
    if "decision" in story:
        found.append(f"last decided about it at {story['decision']['when']}:")
        found += [f"  {line}" for line in decision_lines(story["decision"])]
    return found


def _attempt_lines(attempt: dict[str, Any], predicted_s: float | None) -> list[str]:
    waited = "" if attempt["waited_s"] is None else f" after {span(attempt['waited_s'])} in the queue"
    where = attempt["where"] or "no GPU"
    found = [f"attempt {attempt['number']}: started {attempt['started']}{waited}, on {where}"]
    if attempt["left"]:
        found.append(f"  it left {left_words(attempt['left'])} free")
    found += [
        f"  decision {one['number']} made room for it: {one['did']}, by {one['by']}"
        for one in attempt["made_room"]
    ]
    if attempt["why"] is not None:
        found += [f"  {line}" for line in decision_lines(attempt["why"])]
    shared = attempt["shared_with"]
    if shared:
        found.append(f"  shared its GPUs with job{'s' if len(shared) > 1 else ''} {', '.join(shared)}")
    seen = f"  {attempt['state']}" + (f" ({attempt['reason']})" if attempt["reason"] else "")
    seen += (
        f" after {span(attempt['run_s'])}"
        if attempt["end_s"] is not None
        else f" for {span(attempt['run_s'])} until the last record, of {attempt['seen_until']}"
    )
    if predicted_s and attempt["state"] == COMPLETED:
        seen += f", {attempt['run_s'] / predicted_s:.2f} times the prediction"
    found.append(seen + _speed(attempt) + _energy(attempt))
    if attempt["stopped_by"] is not None:
        stopped = attempt["stopped_by"]
        line = f"  stopped by decision {stopped['number']}: {stopped['did']}, by {stopped['by']}"
        gained = stopped["gained"]
        if gained:
            line += f"; its GPUs went to job{'s' if len(gained) > 1 else ''} {', '.join(gained)}"
        found.append(line)
    return found


def _speed(attempt: dict[str, Any]) -> str:
    """Return the measured and the predicted speed of an attempt as text.

    The text is "" if the speed is not measured, and the predicted speed is 1 or unknown.
    """
    speed, predicted = attempt["speed_frac"], attempt["predicted_speed_frac"]
    if speed is None:
        return "" if predicted is None or round(predicted, 2) == 1.0 else f", speed {predicted:.2f} predicted"
    return f", speed {speed:.2f}" + ("" if predicted is None else f" ({predicted:.2f} predicted)")


def _energy(attempt: dict[str, Any]) -> str:
    energy_kwh, predicted_kwh = attempt["energy_kwh"], attempt["predicted_energy_kwh"]
    if energy_kwh is None:
        return "" if predicted_kwh is None else f", {predicted_kwh:.3g} kWh predicted"
    return f", {energy_kwh:.3g} kWh" + ("" if predicted_kwh is None else f" ({predicted_kwh:.3g} predicted)")


def left_words(left: dict[str, tuple[int, int]]) -> str:
    """Return a text with the number of free GPUs of each node, for the first `MOST_NODES` nodes."""
    said = [f"{free} of {count} GPUs of {node}" for node, (free, count) in left.items()]
    return ", ".join([*said[:MOST_NODES], *(["..."] if len(said) > MOST_NODES else [])])


def decision_lines(one: dict[str, Any]) -> list[str]:
    """Return a decision (from `story.decision`) as lines of text."""
    met = one["met"]
    waiting = sum(int(value) for name, value in met.items() if name.startswith("waiting"))
    count = f"{waiting} waiting job{'' if waiting == 1 else 's'}"
    found = [
        f"decision {one['number']}: {one['did']}, by {one['by']}",
        f"it met {count}, {met['busy_gpus']:.4g} of {met['gpus']:g} GPUs in use",
    ]
    if one["guard"]:
        found.append(f"the guard stepped in: {one['guard']}")
    if one["plans"]:
        found.append(f"plans of job {one['turn']}:")
        found += [f"  {_numbered(plan)}" for plan in one["plans"]]
    if one["plans_failed"]:
        found.append(f"its plans could not be listed: {one['plans_failed']}")
    if one["prices"]:
        found.append(
            "prices then: " + ", ".join(f"{name} {value:g}" for name, value in one["prices"].items())
        )
    moved = one["price_change"]
    if moved is not None:
        queued = sum(int(value) for name, value in moved["met"].items() if name.startswith("waiting"))
        found.append(
            f"since decision {moved['number']} at {moved['when']}, with {queued} waiting and "
            f"{moved['met']['busy_gpus']:.4g} of {moved['met']['gpus']:g} GPUs in use; before: "
            + ", ".join(f"{name} {value:g}" for name, value in moved["before"].items())
        )
    return found


def _numbered(plan: dict[str, Any]) -> str:
    """Return the text of a plan, with its candidate number for `--instead`."""
    number = f"[{plan['candidate']}] " if plan["candidate"] else ""
    return f"{number}{plan['words']}" + (f" ({plan['outcome']})" if plan["outcome"] else "")


def moment_lines(moment: dict[str, Any]) -> list[str]:
    """Return the state at a time (from `story.moment`) as lines of text: the queue and the last decision."""
    found = [f"at {moment['when']}: {moment['num_waiting']} jobs waited, {moment['num_running']} ran"]
    if moment["outside"]:
        found[0] += f"; {moment['outside']}"
    if moment["waiting"]:
        found.append(f"the queue, {_order(moment)}:")
    for job in moment["waiting"][:MOST_LISTED]:
        name = f" {job['name']}" if job["name"] else ""
        foreseen = "" if job["predicted_s"] is None else f", predicted to run {span(job['predicted_s'])}"
        found.append(f"  job {job['job']}{name}: {_gpus(job)}, waited {span(job['waited_s'])}{foreseen}")
    left = moment["num_waiting"] - MOST_LISTED
    if left > 0:
        found.append(f"  and {left} more")
    if moment["decision"] is not None:
        found.append(f"the last decision, at {moment['decision']['when']}:")
        found += [f"  {line}" for line in decision_lines(moment["decision"])]
    return found


def _order(moment: dict[str, Any]) -> str:
    if not moment["num_in_order"]:
        return "the longest waiting first"
    if moment["num_in_order"] == moment["num_waiting"]:
        return "in its order"
    return f"in its order; after the first {moment['num_in_order']} the longest waiting first"


def instead_lines(found: dict[str, Any]) -> list[str]:
    """Return the result of a replay with another candidate in one decision, as lines of text."""
    until = f"until {found['until']}, when nothing is left" if found["whole"] else f"until {found['until']}"
    lines = [
        f"decision {found['number']}, {found['when']}: {found['did']}",
        f"instead: {found['instead']}; then the same policy, {until}",
    ]
    if found["by_predictions"]:
        lines.append(f"by predictions: the run time of {found['by_predictions']} jobs is not known yet")
    if found["same"]:
        return [*lines, f"no change: {found['jobs']} jobs start and end as they did"]
    lines.append(
        f"of {found['jobs']} jobs {found['num_less']} wait less and {found['num_more']} more; all together "
        f"they wait {change(found['other_waited_s'] - found['waited_s'])} "
        f"({span(found['other_waited_s'])} against {span(found['waited_s'])})"
    )
    for title, rows in (("less", found["less"]), ("more", found["more"])):
        if rows:
            lines.append(f"jobs that wait {title}, largest change first:")
            lines += [f"  {_waits(row)}" for row in rows]
    lines.append(f"jobs that end by then: {found['other_ended']} against {found['ended']}")
    if found["ended_in_both"]:
        lines.append(
            f"mean time from submission to end of the {found['ended_in_both']} that end in both: "
            f"{span(found['other_jct_mean_s'])} against {span(found['jct_mean_s'])}"
        )
    if found["energy_kwh"] is not None:
        more_kwh = found["other_energy_kwh"] - found["energy_kwh"]
        lines.append(
            f"energy: {abs(more_kwh):.3g} kWh {'less' if more_kwh < 0 else 'more'}, of "
            f"{found['energy_kwh']:.4g} kWh since the beginning"
        )
    return lines


def _gpus(job: dict[str, Any]) -> str:
    return f"{job['num_gpus']:g} GPU{'' if job['num_gpus'] == 1 else 's'}"


def _waits(row: dict[str, Any]) -> str:
    name = f" {row['name']}" if row["name"] else ""
    still = ", and still waits" if row["other_still_waits"] else ""
    return (
        f"job {row['job']}{name}: {_gpus(row)}, {change(row['change_s'])}: "
        f"{span(row['other_waited_s'])} against {span(row['waited_s'])}{still}"
    )


def change(seconds: float) -> str:
    """Return a change of a duration as text, such as `5 min less`; `as long` for changes below `LEAST_S`."""
    if abs(seconds) < LEAST_S:
        return "as long"
    return f"{span(abs(seconds))} {'less' if seconds < 0 else 'more'}"
