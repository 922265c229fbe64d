// The panels below the GPUs, on their axis: the queue, GPUs in use, power, and forecasts against outcomes.
import {span} from "./asking.js";

const MOST_TALL = 70, GAP = 10, NEAR = 8;
const QUEUE = ["waiting up to 1 GPU", "waiting 2 to 8 GPUs", "waiting more than 8"];
const WHAT = {start: ["starts", "c1"], end: ["ends", "c2"], "end-running": ["ends (running)", "c3"]};

export class Curves {
  constructor(chart) { this.chart = chart; }

  // Height of all panels: power and forecasts are shown only if there is something to draw.
  fit(height) {
    const {power, forecasts} = this.chart.data;
    this.panels = [() => this.queue(), () => this.gpus()];
    if (power) this.panels.push(() => this.power());
    if (forecasts.count) this.panels.push(() => this.forecasts());
    this.tall = Math.min(MOST_TALL, height / 2 / this.panels.length - GAP);
    return this.panels.length * (this.tall + GAP);
  }

  draw(top) {
    this.spots = [];
    this.panels.forEach((draw, k) => { this.top = top + GAP + k * (this.tall + GAP); draw(); });
  }

  queue() {
    const {curves, at_s} = this.chart.data, stack = QUEUE.map((name) => curves[name]);
    const most = Math.max(1, ...at_s.map((_, k) => stack.reduce((sum, one) => sum + one[k], 0)));
    let below = at_s.map(() => 0);
    stack.forEach((values, k) => {
      const above = below.map((value, i) => value + values[i]);
      this.area(below, above, most, `c${k + 1}`); below = above;
    });
    this.name("jobs waiting", String(Math.round(most)));
    this.legend([["up to 1 GPU", "c1"], ["2 to 8", "c2"], ["more", "c3"]]);
  }

  gpus() {
    const {curves, at_s} = this.chart.data, most = Math.max(1, ...curves.gpus);
    this.area(at_s.map(() => 0), curves.busy_gpus.map((one, k) => Math.min(one, curves.gpus[k])), most, "c1");
    this.name("GPUs in use", String(Math.round(most)));
  }

  power() {
    const {power, curves, at_s} = this.chart.data, most = Math.max(1, ...power.power_w), nothing = at_s.map(() => 0);
    const lacks = at_s.map((_, k) => curves.busy_gpus[k] - power.measured_gpus[k] > 0.01);
    if (lacks.some(Boolean)) this.area(nothing, lacks.map((one) => one ? most : 0), most, "grid");
    this.area(nothing, power.power_w, most, "c2");
    this.name("power of jobs", watts(most));
    if (lacks.some(Boolean)) this.legend([["not known for all jobs", "grid"]]);
  }

  // Each forecast is at the time of its outcome: a line from 10 to 90 %, a spot at the outcome; log scale.
  forecasts() {
    const {chart} = this, {pen, ink} = chart, one = chart.data.forecasts;
    const most = Math.max(60, ...one.seen_s, ...one.high_s.filter((high) => high !== null));
    const y = (seconds) => this.top + this.tall * (1 - Math.log1p(Math.min(seconds ?? most, most)) / Math.log1p(most));
    pen.save(); pen.beginPath(); pen.rect(chart.left, this.top, chart.right - chart.left, this.tall); pen.clip();
    one.time_s.forEach((at, k) => {
      const x = chart.x(at), colour = ink[WHAT[one.what[k]][1]];
      pen.strokeStyle = colour; pen.globalAlpha = 0.45; pen.lineWidth = 2;
      pen.beginPath(); pen.moveTo(x, y(one.low_s[k])); pen.lineTo(x, y(one.high_s[k])); pen.stroke();
      pen.globalAlpha = 1; pen.lineWidth = 1; pen.fillStyle = one.within[k] ? colour : ink.warn;
      const size = one.within[k] ? 4 : 6;
      pen.fillRect(x - size / 2, y(one.seen_s[k]) - size / 2, size, size);
      this.spots.push([x, y(one.seen_s[k]), k]);
    });
    pen.restore();
    this.name("forecasts", span(most));
    this.legend([...Object.values(WHAT), ["came outside 10 to 90 %", "warn"]]);
  }

  area(below, above, most, colour) {
    const {chart} = this, {pen, data: {at_s}} = chart, y = (value) => this.top + this.tall * (1 - value / most);
    pen.save(); pen.beginPath(); pen.rect(chart.left, this.top, chart.right - chart.left, this.tall); pen.clip();
    pen.fillStyle = chart.ink[colour]; pen.globalAlpha = 0.75; pen.beginPath();
    at_s.forEach((at, k) => { if (k) pen.lineTo(chart.x(at), y(above[k - 1])); pen.lineTo(chart.x(at), y(above[k])); });
    for (let k = at_s.length - 1; k >= 0; k--) { pen.lineTo(chart.x(at_s[k]), y(below[k])); if (k) pen.lineTo(chart.x(at_s[k]), y(below[k - 1])); }
    pen.fill(); pen.restore();
  }

  name(text, most) {
    const {chart, top, tall} = this, {pen, ink, left, right} = chart;
    pen.strokeStyle = ink.grid; pen.strokeRect(left, top, right - left, tall);
    pen.fillStyle = ink.muted; pen.textAlign = "right"; pen.textBaseline = "middle";
    pen.fillText(text, left - 6, top + tall / 2, left - 8); pen.fillText(most, left - 6, top + 6); pen.fillText("0", left - 6, top + tall - 5);
  }

  legend(names) {
    const {pen, ink, left} = this.chart;
    pen.textAlign = "left"; pen.textBaseline = "middle";
    let x = left + 8;
    for (const [name, colour] of names) {
      pen.fillStyle = ink[colour]; pen.fillRect(x, this.top + 5, 9, 9);
      pen.fillStyle = ink.muted; pen.fillText(name, x + 13, this.top + 10);
      x += pen.measureText(name).width + 28;
    }
  }

  // The forecast under the pointer, -1: none.
  forecastAt(x, y) {
    const far = ([a, b]) => Math.hypot(a - x, b - y);
    const nearest = this.spots.reduce((best, one) => far(one) < far(best) ? one : best, [Infinity, Infinity, -1]);
    return far(nearest) <= NEAR ? nearest[2] : -1;
  }

  // The values at a time, as text; `k` is the forecast under the pointer.
  words(at, k) {
    const {curves, at_s, power, forecasts} = this.chart.data;
    if (k >= 0) {
      const within = [forecasts.low_s[k], forecasts.high_s[k]].map((one) => one === null ? "beyond the horizon" : span(one));
      return [`job ${forecasts.job[k]} ${WHAT[forecasts.what[k]][0]}: forecast ${within.join(" to ")}`,
        `came after ${span(forecasts.seen_s[k])}`];
    }
    const here = Math.min(Math.max(at_s.findLastIndex((one) => one <= at), 0), at_s.length - 1);
    const waiting = QUEUE.reduce((sum, name) => sum + curves[name][here], 0);
    const busy = Math.min(curves.busy_gpus[here], curves.gpus[here]);
    const lines = [`${waiting} jobs wait, ${Number(busy.toFixed(1))} of ${curves.gpus[here]} GPUs in use`];
    if (power) {
      const measured = power.measured_gpus[here], all = curves.busy_gpus[here] - measured <= 0.01;
      if (measured > 0 || all) lines.push(`jobs draw ${watts(power.power_w[here])}${all ? "" : `, as far as known: for ${Number(measured.toFixed(1))} GPUs`}`);
    }
    return lines;
  }
}

const watts = (value) => value >= 1000 ? `${(value / 1000).toFixed(1)} kW` : `${Math.round(value)} W`;
