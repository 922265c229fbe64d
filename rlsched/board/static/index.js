// The tab «Decisions» of TensorBoard: its page, and its reactions to keys, clicks and the clock.
import {Chart} from "./chart.js";
import {ask} from "./asking.js";
import {follow} from "./instead.js";
import {showComparison, showDecision, showError, showFound, showJob, showMoment} from "./panel.js";

const POLL_MS = 5000;

const PAGE = `
  <header>
    <label>Run <select id="run"></select></label>
    <label>Colour <select id="colour">
      <option value="job">job</option><option value="user">user</option><option value="vc">virtual cluster</option>
    </select></label>
    <label>Compare with <select id="other"></select></label>
    <form id="search" role="search"><label>Find <input id="q" type="search" placeholder="job, name, user"></label></form>
    <span class="buttons">
      <button id="in" title="Zoom in (+)">+</button><button id="out" title="Zoom out (-)">&minus;</button>
      <button id="all" title="Show everything (0)">All</button>
    </span>
    <label><input type="checkbox" id="live"> follow</label>
    <span id="note" role="status" aria-live="polite"></span>
  </header>
  <main>
    <div id="chart" tabindex="0" role="application"
      aria-label="GPUs over time. Arrow keys move, plus and minus zoom, comma and full stop step through decisions.">
      <canvas></canvas><div id="tip" hidden></div>
    </div>
    <aside id="panel" aria-live="polite" tabindex="-1"></aside>
  </main>`;

class Tab {
  constructor(root) {
    root.innerHTML = PAGE;
    this.root = root;
    this.at = (id) => root.querySelector("#" + id);
    this.panel = this.at("panel");
    this.turn = 0;  // only the answer to the last request is shown
    this.chart = new Chart(this.at("chart"), {
      range: (from, to) => this.load(from, to),
      bar: (job, at) => this.job(job, at),
      moment: (at) => this.moment(at),
      decision: (row) => this.decision(row),
    });
    this.at("run").onchange = () => this.choose(this.at("run").value);
    this.at("colour").onchange = () => this.chart.colourBy(this.at("colour").value);
    this.at("other").onchange = () => this.compare(this.at("other").value);
    this.at("in").onclick = () => this.chart.zoom(0.5);
    this.at("out").onclick = () => this.chart.zoom(2);
    this.at("all").onclick = () => this.chart.everything();
    this.at("search").onsubmit = (event) => { event.preventDefault(); this.find(this.at("q").value.trim()); };
    follow(() => this.run);
    this.panel.onclick = (event) => this.clicked(event);
    setInterval(() => this.poll(), POLL_MS);
  }

  async begin() {
    await this.runs();
    if (this.known.length) await this.choose(this.known[0].run);
    else this.say("No store of decisions below the log folder yet.");
  }

  async runs() {
    this.known = await ask("runs", {});
    const chosen = this.at("run").value;
    this.at("run").replaceChildren(...this.known.map((one) => {
      const option = new Option(one.error ? `${one.run} (cannot be read)` : `${one.run}: ${one.of}`, one.run);
      option.disabled = Boolean(one.error);
      return option;
    }));
    if (this.known.some((one) => one.run === chosen)) this.at("run").value = chosen;
    const broken = this.known.find((one) => one.error);
    if (broken) this.say(broken.error);
  }

  async choose(run) {
    const turn = ++this.turn;
    this.run = run;
    this.info = this.known.find((one) => one.run === run);
    if (this.info.decisions === undefined) {  // an earlier part of a large store: a request opens it
      await ask("search", {run, q: "-"});
      await this.runs();
      this.info = this.known.find((one) => one.run === run);
    }
    this.at("run").value = run;
    this.chart.clock = this.info.time;
    const others = this.known.filter((one) => one.run !== run && !one.error && one.time === this.info.time);
    this.at("other").replaceChildren(new Option("no other run", ""), ...others.map((one) => new Option(one.run, one.run)));
    await this.load();
    if (this.run !== run) return;
    this.chart.everything(false);
    if (turn === this.turn) await this.moment(this.data.last_s);
  }

  async load(from, to) {
    const span = from === undefined ? {} : {from, to};
    const run = this.run;
    try {
      const data = await ask("overview", {run, ...span});
      if (this.run !== run) return;
      this.data = data;
    } catch (error) { this.say(error.message); return; }
    this.chart.show(this.data);
    const cut = this.info.cut_short.length ? ` ${this.info.cut_short.join(", ")}: the end is incomplete.` : "";
    const left = this.data.omitted ? ` ${this.data.omitted} short attempts are left out: zoom in.` : "";
    const {count, held} = this.data.forecasts;
    const forecasts = count ? ` ${held} of ${count} forecasts came within 10 to 90 %.` : "";
    this.say(`${this.info.decisions} decisions, ${this.info.jobs} jobs.${forecasts}${left}${cut}`);
  }

  async poll() {
    if (!this.at("live").checked || !this.run || document.hidden) return;
    const before = this.info.last_s;
    await this.runs();
    this.info = this.known.find((one) => one.run === this.run) || this.info;
    if (this.info.last_s !== before) {
      const [from, to] = this.chart.range();
      const follows = to >= before;
      const moved = follows ? this.info.last_s - to : 0;
      this.chart.move(from + moved, to + moved);
    }
  }

  async tell(path, query, show) {
    const turn = ++this.turn;
    try {
      const found = await ask(path, {run: this.run, ...query});
      if (turn === this.turn) show(this.panel, found, this);
    } catch (error) { if (turn === this.turn) showError(this.panel, error.message); }
  }

  job(job, at) { this.chart.mark(job, at); return this.tell("job", {job}, showJob); }
  moment(at) { this.chart.cursor(at); return this.tell("moment", {at}, showMoment); }
  decision(row) {
    return this.tell("decision", {row}, (panel, one) => { this.chart.cursor(one.time_s, row); showDecision(panel, one); });
  }

  compare(other) {
    if (other) return this.tell("compare", {other}, (panel, found) => showComparison(panel, found, this.run, other));
    return this.moment(this.data.last_s);
  }

  find(text) {
    if (text) this.tell("search", {q: text}, (panel, found) => {
      if (found.length === 1) { this.chart.include(found[0].start_s); this.job(found[0].job); }
      else showFound(panel, found, text);
    });
  }

  clicked(event) {
    const link = event.target.closest("[data-job],[data-row],[data-at]");
    if (!link) return;
    if (link.dataset.job !== undefined) {
      if (link.dataset.start) this.chart.include(Number(link.dataset.start));
      this.job(link.dataset.job);
    } else if (link.dataset.row !== undefined) this.decision(Number(link.dataset.row));
    else { this.chart.include(Number(link.dataset.at)); this.moment(Number(link.dataset.at)); }
  }

  say(text) { this.at("note").textContent = text; }
}

function dark() {
  try {
    return window.parent.document.body.classList.contains("dark-mode");
  } catch { return false; }
}

export async function render() {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("./style.css", import.meta.url).href;
  document.head.append(style);
  const theme = () => document.documentElement.classList.toggle("dark", dark());
  theme();
  try {
    new MutationObserver(theme).observe(window.parent.document.body, {attributes: true, attributeFilter: ["class"]});
  } catch { /* a standalone page has no frame */ }
  await new Promise((done) => { style.onload = style.onerror = done; });
  const tab = new Tab(document.body);
  new MutationObserver(() => tab.chart.draw()).observe(document.documentElement, {attributeFilter: ["class"]});
  await tab.begin();
}
