// The panel next to the chart: a moment with its queue, a decision with its plans, a job with its story.
import {span} from "./asking.js";
import {insteadPart} from "./instead.js";
import {decisionLink, fact, jobLink, make, number, table} from "./parts.js";
import {partingsPart} from "./partings.js";

export function showError(panel, text) { panel.replaceChildren(make("p", {className: "error", role: "alert"}, text)); }

export function showMoment(panel, one) {
  const met = one.met, parts = new Set(one.waiting.map((job) => job.partition).filter(Boolean)).size > 1;
  const rows = one.waiting.map((job) => ({cells: [...(parts ? [job.partition] : []),
    jobLink(job.job), job.name || job.user, String(job.num_gpus), span(job.waited_s), span(job.predicted_s)]}));
  const order = !one.num_in_order ? "the longest waiting first" : one.num_in_order < one.num_waiting
    ? `in its order; after the first ${one.num_in_order} the longest waiting first` : "in its order";
  panel.replaceChildren(
    make("h2", {}, one.when || "the beginning"),
    make("p", {}, `${one.num_waiting} jobs wait, ${one.num_running} run; ${number(met.busy_gpus, 1)} of ${met.gpus} GPUs in use.`),
    one.decision ? make("section", {}, make("h3", {}, "The last decision by then"), ...decisionParts(one.decision)) : "",
    rows.length ? table([...(parts ? ["partition"] : []), "waiting", "name", "GPUs", "waited", "predicted"], rows, `The queue, ${order}`) : make("p", {}, "No job waits."),
    one.num_waiting > rows.length ? make("p", {}, `and ${one.num_waiting - rows.length} more`) : "");
}

export function showDecision(panel, one) { panel.replaceChildren(make("h2", {}, `Decision ${one.number}`), ...decisionParts(one)); }

function decisionParts(one) {
  const waiting = Object.entries(one.met).filter(([name]) => name.startsWith("waiting")).reduce((sum, [, value]) => sum + value, 0);
  const compared = one.plans.some((plan) => plan.worth !== null && plan.open);
  return [
    make("p", {className: "did"}, one.did),
    make("p", {className: "steps"}, decisionLink(Math.max(0, one.row - 1), "previous"), " ", decisionLink(one.row + 1, "next")),
    make("dl", {}, fact("when", one.when), fact("decision", String(one.number)), fact("by", one.by), fact("guard", one.guard),
      fact("partition", one.partition),
      fact("it met", `${waiting} waiting jobs, ${number(one.met.busy_gpus, 1)} of ${one.met.gpus} GPUs in use`),
      fact("prices then", Object.entries(one.prices).map(([name, value]) => `${name} ${value}`).join(", ")),
      fact("prices since", one.price_change ? make("span", {}, decisionLink(one.price_change.row, `decision ${one.price_change.number}`),
        `, ${one.price_change.when}; before: ${Object.entries(one.price_change.before).map(([name, value]) => `${name} ${value}`).join(", ")}`) : ""),
      fact("took", `${(one.took_us / 1000).toFixed(2)} ms`)),
    one.plans.length ? table(["plan", "outcome", compared ? "worth" : "", "speed", "run time", "power"],
      one.plans.map((plan) => ({mark: plan.chosen ? "taken" : plan.open ? "" : "shut", cells: [
        plan.words, plan.outcome, plan.worth === null || !plan.open ? "" : number(plan.worth), plan.open ? number(plan.speed_frac) : "",
        plan.open && plan.how !== "later" ? span(plan.run_s) : "", plan.open && plan.power_w ? `${plan.power_w.toFixed(0)} W` : ""]})),
      `Plans of job ${one.turn}`) : "",
    one.plans_failed ? make("p", {}, `Its plans could not be listed: ${one.plans_failed}`) : "",
    insteadPart(one),
    one.turn ? make("p", {}, jobLink(one.turn), one.job && one.job !== one.turn ? make("span", {}, " for ", jobLink(one.job)) : "") : "",
  ];
}

export function showJob(panel, job) {
  const parts = [make("h2", {}, `Job ${job.job}`),
    make("dl", {}, fact("name", job.name), fact("user", job.user), fact("virtual cluster", job.vc), fact("GPUs", String(job.num_gpus)),
      fact("submitted", job.submitted), fact("predicted to run", span(job.predicted_s)), fact("state", job.state + (job.reason ? `: ${job.reason}` : "")))];
  for (const one of job.attempts) {
    const ratio = job.predicted_s && one.state === "completed" ? `, ${number(one.run_s / job.predicted_s)} times the prediction` : "";
    parts.push(make("section", {}, make("h3", {}, `Attempt ${one.number}: ${one.started}`),
      make("dl", {}, fact("waited", span(one.waited_s)), fact("on", one.where || "no GPU"),
        fact("left free", leftFree(one.left)),
        fact("made room", one.made_room.length ? make("span", {}, ...one.made_room.flatMap((other) => [decisionLink(other.row, `decision ${other.number}`), `: ${other.did} `])) : ""),
        fact("share", one.share_milli < 1000 ? number(one.share_milli / 1000) : ""), fact("clock", one.sm_clock_frac < 1 ? number(one.sm_clock_frac) : ""),
        fact("shared with", one.shared_with.length ? make("span", {}, ...one.shared_with.flatMap((other) => [jobLink(other), " "])) : ""),
        fact(one.end_s === null ? "runs for" : "ran", span(one.run_s) + ratio), fact("then", one.state + (one.reason ? `: ${one.reason}` : "")),
        fact("speed", one.speed_frac === null && number(one.predicted_speed_frac) === "1.00" ? "" : predictedToo(one.speed_frac, one.predicted_speed_frac, (speed) => number(speed))),
        fact("energy", predictedToo(one.energy_kwh, one.predicted_energy_kwh, (kwh) => `${kwh.toPrecision(3)} kWh`))),
      one.why ? make("div", {}, make("h4", {}, "Why there"), ...decisionParts(one.why)) : make("p", {}, "The decision that started it is no longer kept."),
      one.stopped_by ? make("div", {}, make("h4", {}, "Why it was stopped"),
        one.stopped_by.gained.length ? make("p", {}, "Its GPUs went to ", ...one.stopped_by.gained.flatMap((other) => [jobLink(other), " "])) : "", ...decisionParts(one.stopped_by)) : ""));
  }
  if (job.decision) parts.push(make("section", {}, make("h3", {}, "The last decision about it"), ...decisionParts(job.decision)));
  panel.replaceChildren(...parts.filter(Boolean));
}

// A text with a value and its prediction, either of which can be unknown (null).
function predictedToo(value, predicted, text) {
  return [value === null ? "" : text(value), predicted === null ? "" : `${text(predicted)} predicted`].filter(Boolean).join(", ");
}

// A text with the free GPUs of each of an attempt's first nodes, just after the attempt's start.
function leftFree(left) {
  const nodes = Object.entries(left), said = nodes.slice(0, 4).map(([node, [free, count]]) => `${free} of ${count} GPUs of ${node}`);
  return said.join(", ") + (nodes.length > 4 ? ", ..." : "");
}

export function showFound(panel, found, text) {
  panel.replaceChildren(make("h2", {}, found.length ? `Jobs that match «${text}»` : `No job matches «${text}»`),
    found.length ? table(["job", "name", "user", "GPUs", "state", "where"], found.map((job) => ({cells: [
      jobLink(job.job, job.start_s), job.name, job.user, String(job.num_gpus), job.state, job.where]}))) : "");
}

export function showComparison(panel, found, run, other) {
  const rows = (jobs) => jobs.map((job) => ({cells: [jobLink(job.job, job.start_s), job.name, String(job.num_gpus), span(job.waited_s), span(job.other_waited_s)]}));
  const heads = ["job", "name", "GPUs", `waits in ${run}`, `in ${other}`];
  const ratio = found.other_waited_mean_s ? ` (${number(found.waited_mean_s / found.other_waited_mean_s)} of it)` : "";
  const parting = found.parting;
  panel.replaceChildren(
    make("h2", {}, `${run} and ${other}`),
    make("p", {}, `${found.jobs} jobs started in both. They wait ${span(found.waited_mean_s)} on average here, ${span(found.other_waited_mean_s)} there${ratio}.`),
    found.less.length ? table(heads, rows(found.less), "Jobs that wait less here, largest change first") : "",
    found.more.length ? table(heads, rows(found.more), "Jobs that wait more here, largest change first") : "",
    parting ? make("section", {}, make("h3", {}, "First difference"),
      make("h4", {}, run), ...(parting.this ? decisionParts(parting.this) : [make("p", {}, "nothing more")]),
      make("h4", {}, other), ...(parting.other ? [make("p", {className: "did"}, parting.other.did), make("p", {}, `${parting.other.when}, by ${parting.other.by}`)] : [make("p", {}, "nothing more")]),
      ...worthParts(parting.worth, other))
      : make("p", {}, "They start and stop the same jobs at the same times."),
    parting ? partingsPart(run, other) : "");
}

// A button that replays this run with the other run's choice, to show what the difference is worth.
function worthParts(worth, other) {
  if (!worth) return [];
  const part = insteadPart({row: worth.row, candidates: [{number: worth.number, words: `${other}'s choice: ${worth.words}`, taken: false}]});
  return [make("h3", {}, "Value of this difference"), part];
}
