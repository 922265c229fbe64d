// Alternatives of a decision: buttons that replay the run with another candidate, and the result.
import {span} from "./asking.js";
import {fact, jobLink, make, table} from "./parts.js";

const LOOK_MS = 400;
const HOURS = [6, 24, 72, 168, 720];
let running = null;  // the replay that this page has started: {ticket}

async function call(method, query) {
  const url = new URL("../instead", import.meta.url);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const headers = method === "POST" ? {"X-Rlsched-Replay": "1"} : {};
  const answer = await fetch(url, {method, headers, keepalive: "stop" in query});
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || `replay: ${answer.status}`);
  return found;
}

// A section with a button for each candidate of a decision that was not taken.
export function insteadPart(one) {
  const others = (one.candidates || []).filter((other) => !other.taken);
  if (!others.length) return "";
  const hours = make("select", {ariaLabel: "hours to compare"}, ...HOURS.map((h) => new Option(h < 48 ? `${h} hours` : `${h / 24} days`, h, h === 24, h === 24)));
  const outcome = make("div", {className: "outcome", role: "status"});
  outcome.setAttribute("aria-live", "polite");
  const place = make("section", {className: "instead"},
    make("h4", {}, "What else would have happened"),
    make("label", {}, "replay the next ", hours, " with"),
    make("ul", {}, ...others.map((other) => make("li", {}, button(one, other, hours, outcome)))),
    outcome);
  return place;
}

function button(one, other, hours, outcome) {
  const made = make("button", {className: "replay", title: "Replay from this decision with this choice instead"}, other.words);
  made.onclick = () => replay({row: one.row, candidate: other.number, hours: hours.value}, other.words, outcome);
  return made;
}

// The run of the page at the time of the click: `follow` gives it.
let currentRun = () => "";
export function follow(run) {
  currentRun = run;
  window.addEventListener("pagehide", leave);
}

function leave() {
  if (running) call("POST", {stop: running.ticket}).catch(() => {});
  running = null;
}

async function replay(asked, words, outcome) {
  leave();
  outcome.replaceChildren(make("p", {}, "Starting ..."));
  try {
    let seen = await call("POST", {run: currentRun(), ...asked});
    running = {ticket: seen.ticket};
    while (seen.state === "running") {
      outcome.replaceChildren(progress(seen, outcome));
      await new Promise((done) => setTimeout(done, LOOK_MS));
      if (!running || running.ticket !== seen.ticket) return;
      if (!outcome.isConnected) { leave(); return; }
      seen = await call("GET", {ticket: seen.ticket});
    }
    running = null;
    outcome.replaceChildren(...(seen.state === "done" ? outcomeParts(seen.found, words) : [failure(seen.error)]));
  } catch (error) {
    running = null;
    outcome.replaceChildren(failure(error.message));
  }
}

const failure = (text) => make("p", {className: "error", role: "alert"}, text);

function progress(seen, outcome) {
  const stop = make("button", {}, "Stop");
  stop.onclick = () => { leave(); outcome.replaceChildren(make("p", {}, "Stopped.")); };
  const took = Math.round(seen.took_s || 0);
  const bar = make("progress", {max: seen.limit_s, value: Math.min(took, seen.limit_s), ariaLabel: "time of the replay"});
  return make("p", {}, bar, ` replaying for ${took} s, at most about ${seen.limit_s} s `, stop);
}

const change = (seconds) => Math.abs(seconds) < 0.5 ? "as long" : `${span(Math.abs(seconds))} ${seconds < 0 ? "less" : "more"}`;

function energy(was, other) {
  if (was === null) return "";
  return `${Math.abs(other - was).toPrecision(3)} kWh ${other < was ? "less" : "more"}, of ${was.toPrecision(4)} kWh since the beginning`;
}

function outcomeParts(found, words) {
  const until = found.whole ? `${found.until}, when nothing is left` : found.until;
  const head = [make("h4", {}, `Instead: ${words}`),
    make("p", {}, `Then the same policy, until ${until}.`),
    found.by_predictions ? make("p", {}, `By predictions: the run time of ${found.by_predictions} jobs is not known yet.`) : ""];
  if (found.same) return [...head, make("p", {className: "verdict"}, `No change: ${found.jobs} jobs start and end as they did.`)].filter(Boolean);
  const rows = (jobs) => jobs.map((job) => ({cells: [jobLink(job.job, job.start_s), job.name, String(job.num_gpus), change(job.change_s),
    span(job.waited_s), span(job.other_waited_s) + (job.other_still_waits ? ", and still waits" : "")]}));
  const heads = ["job", "name", "GPUs", "waits", "as it was", "instead"];
  const pair = (was, other, write) => was === null ? "" : `${write(other)} instead of ${write(was)}`;
  return [...head,
    make("p", {className: "verdict"}, `Of ${found.jobs} jobs ${found.num_less} wait less and ${found.num_more} more; all together they wait ${change(found.other_waited_s - found.waited_s)}.`),
    found.less.length ? table(heads, rows(found.less), "Jobs that wait less, largest change first") : "",
    found.more.length ? table(heads, rows(found.more), "Jobs that wait more, largest change first") : "",
    make("dl", {}, fact("jobs that end by then", pair(found.ended, found.other_ended, String)),
      fact("mean time to the end", pair(found.jct_mean_s, found.other_jct_mean_s, span)),
      fact("energy", energy(found.energy_kwh, found.other_energy_kwh)))].filter(Boolean);
}
