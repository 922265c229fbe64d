// Every difference between two runs: pages of a table, and a replay for each row.
import {ask, span} from "./asking.js";
import {insteadPart} from "./instead.js";
import {decisionLink, jobLink, make} from "./parts.js";

const HEADS = (run, other) => ["time", run, other, "start", "value"];

export function partingsPart(run, other) {
  const place = make("section", {className: "partings"});
  load(place, run, other, 0);
  return place;
}

async function load(place, run, other, first) {
  let found;
  try {
    found = await ask("partings", {run, other, first});
  } catch (error) {
    place.replaceChildren(make("p", {className: "error", role: "alert"}, error.message));
    return;
  }
  const size = found.partings.length;
  const turn = (text, to, open) => { const one = make("button", {disabled: !open}, text); one.onclick = () => load(place, run, other, to); return one; };
  place.replaceChildren(
    make("h3", {}, "Every difference"),
    make("p", {}, size ? `${first + 1} to ${first + size} of ${found.count} times at which the runs differ ` : "none",
      turn("Earlier", Math.max(0, first - found.most), first > 0), " ", turn("Later", first + size, first + size < found.count)),
    make("div", {className: "table"}, make("table", {},
      make("thead", {}, make("tr", {}, ...HEADS(run, other).map((head) => make("th", {scope: "col"}, head)))),
      make("tbody", {}, ...found.partings.flatMap((one) => rowsOf(one, run, other))))));
}

function rowsOf(one, run, other) {
  const below = make("tr", {hidden: true}, make("td", {colSpan: HEADS(run, other).length}));
  const row = make("tr", {},
    make("td", {}, one.when, one.same_state ? " (same state)" : ""),
    make("td", {}, ...acts(one.this, one.this_count, (act) => decisionLink(act.row, act.did))),
    make("td", {}, ...acts(one.other, one.other_count, (act) => act.did)),
    make("td", {}, ...moved(one, run, other)),
    make("td", {}, one.worth ? valueButton(one.worth, other, below) : "no such plan"));
  return [row, below];
}

function acts(list, count, show) {
  if (!count) return ["-"];
  return [...list.map((act) => make("div", {}, show(act))), count > list.length ? `and ${count - list.length} more` : ""].filter(Boolean);
}

// The jobs that start earlier or later in the shown run than in the other run.
function moved(one, run, other) {
  const line = (job, here, there) => make("div", {}, jobLink(job, here), here === there ? ": at the same time" : `: ${span(Math.abs(there - here))} ${here < there ? "earlier" : "later"} in ${run} than in ${other}`);
  const pairs = new Map();
  for (const act of one.this) if (act.elsewhere_s !== null) pairs.set(act.job, [one.time_s, act.elsewhere_s]);
  for (const act of one.other) if (act.elsewhere_s !== null && !pairs.has(act.job)) pairs.set(act.job, [act.elsewhere_s, one.time_s]);
  return [...pairs].map(([job, [here, there]]) => line(job, here, there));
}

// A button that opens the replay of this run with the other run's choice.
function valueButton(worth, other, below) {
  const open = make("button", {title: "Replay this run from here with the choice of the other run"}, "Replay");
  open.onclick = () => {
    below.hidden = !below.hidden;
    if (!below.hidden) below.firstChild.replaceChildren(insteadPart({row: worth.row, candidates: [{number: worth.number, words: `${other}'s choice: ${worth.words}`, taken: false}]}));
  };
  return open;
}
