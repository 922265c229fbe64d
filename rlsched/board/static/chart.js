// The chart: a row for each GPU, bars for attempts, and below them the curves, on one axis.
import {clockTime, span} from "./asking.js";
import {Curves} from "./curves.js";

const LEFT = 90, RIGHT = 8, TOP = 4, AXIS = 22, LOAD_MS = 150;
const STEPS = [1, 5, 15, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2419200];

export class Chart {
  constructor(box, on) {
    this.box = box; this.on = on; this.by = "job"; this.clock = "trace";
    this.curves = new Curves(this);
    this.canvas = box.querySelector("canvas"); this.tip = box.querySelector("#tip");
    this.pen = this.canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(box);
    this.canvas.onpointerdown = (event) => this.grab(event);
    this.canvas.onpointermove = (event) => this.hover(event);
    this.canvas.onpointerleave = () => { this.tip.hidden = true; };
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
    box.onkeydown = (event) => this.key(event);
  }

  show(data) {
    this.data = data;
    if (this.from === undefined) { this.from = data.first_s; this.to = data.last_s; }
    this.lanes();
    this.draw();
  }

  range() { return [this.from, this.to]; }

  everything(load = true) {
    const {first_s, last_s} = this.data;
    this.from = first_s; this.to = last_s > first_s ? last_s : first_s + 1;
    if (load) this.later(); else this.draw();
  }

  zoom(by, around = (this.from + this.to) / 2) { this.move(around - (around - this.from) * by, around + (this.to - around) * by); }

  move(from, to) { if (to - from >= 0.05) { this.from = from; this.to = to; this.later(); } }

  include(at) {
    const width = this.to - this.from;
    if (at < this.from || at > this.to) this.move(at - width / 2, at + width / 2);
  }

  later() {
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.on.range(this.from, this.to), LOAD_MS);
  }

  colourBy(what) { this.by = what; this.draw(); }
  cursor(at, row) { this.here = at; this.row = row; this.draw(); }
  mark(job, at) { this.marked = job; if (at !== undefined) this.here = at; this.draw(); }

  // Offset of a share of a GPU within its row: next to the shares that are in use already.
  lanes() {
    const {bars, rows} = this.data, active = Array.from({length: rows}, () => []);
    this.offset = bars.rows.map((runs, k) => {
      const start = bars.start_s[k], share = bars.share_milli[k] / 1000;
      if (share > 0.999 || !runs.length) return 0;
      const there = active[runs[0]].filter((one) => one.end > start);
      let at = 0;
      for (const one of there.sort((a, b) => a.at - b.at)) if (at + share > one.at + 0.001 && at < one.at + one.share) at = one.at + one.share;
      for (let r = 0; r < runs.length; r += 2)
        for (let g = runs[r]; g < runs[r] + runs[r + 1]; g++) {
          active[g] = active[g].filter((one) => one.end > start);
          active[g].push({end: bars.end_s[k], at, share});
        }
      return Math.min(at, Math.max(0, 1 - share));
    });
  }

  x(at) { return LEFT + (at - this.from) / (this.to - this.from) * (this.width - LEFT - RIGHT); }
  time(x) { return this.from + (x - LEFT) / (this.width - LEFT - RIGHT) * (this.to - this.from); }

  draw() {
    if (!this.data) return;
    const scale = window.devicePixelRatio || 1, {clientWidth: width, clientHeight: height} = this.box;
    if (!width || !height) return;
    Object.assign(this, {width, height});
    this.canvas.width = width * scale; this.canvas.height = height * scale;
    this.canvas.style.width = `${width}px`; this.canvas.style.height = `${height}px`;
    const style = getComputedStyle(document.documentElement);
    this.ink = Object.fromEntries(["ink", "muted", "grid", "paper", "c1", "c2", "c3", "warn"].map((n) => [n, style.getPropertyValue(`--${n}`).trim()]));
    this.dark = document.documentElement.classList.contains("dark");
    const pen = this.pen;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    this.left = LEFT; this.right = width - RIGHT;
    this.bottom = height - AXIS - this.curves.fit(height);
    this.rowHeight = (this.bottom - TOP) / Math.max(1, this.data.rows);
    this.drawNodes(); this.drawBars(); this.drawAxis(); this.curves.draw(this.bottom); this.drawCursor();
  }

  y(row) { return TOP + row * this.rowHeight; }

  drawNodes() {
    const pen = this.pen, space = this.rowHeight;
    let written = -20;
    for (const node of this.data.nodes) {
      const y = this.y(node.row), tall = node.gpus * space;
      pen.strokeStyle = this.ink.grid; pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(this.width - RIGHT, y); pen.stroke();
      if (y + tall / 2 - written >= 13) {
        pen.fillStyle = this.ink.muted; pen.textAlign = "right"; pen.textBaseline = "middle";
        pen.fillText(node.node.slice(0, 14), LEFT - 6, y + tall / 2); written = y + tall / 2;
      }
      for (const one of node.spans) {
        pen.fillStyle = this.ink.muted; pen.globalAlpha = one.state === "drained" ? 0.2 : 0.4;
        pen.fillRect(this.x(one.from_s), y, this.x(one.to_s) - this.x(one.from_s), tall); pen.globalAlpha = 1;
      }
    }
  }

  colour(job, light = 0) {
    const one = this.data.jobs[job], text = String(one[this.by] || "-");
    let hash = 2166136261;
    for (let k = 0; k < text.length; k++) hash = Math.imul(hash ^ text.charCodeAt(k), 16777619);
    hash = Math.imul(hash ^ (hash >>> 15), 2246822519); hash ^= hash >>> 13;
    const hue = (hash >>> 0) % 360, lightness = (this.dark ? 42 : 62) + ((hash >>> 9) % 5) * 3 + light;
    return `hsl(${hue} 55% ${lightness}%)`;
  }

  drawBars() {
    const pen = this.pen, {bars, jobs} = this.data;
    pen.save(); pen.beginPath(); pen.rect(LEFT, TOP, this.width - LEFT - RIGHT, this.bottom - TOP); pen.clip();
    for (let k = 0; k < bars.job.length; k++) {
      const x = this.x(bars.start_s[k]), wide = Math.max(this.x(bars.end_s[k]) - x, 0.7);
      if (x > this.width || x + wide < LEFT) continue;
      const share = bars.share_milli[k] / 1000, slow = bars.clock_frac[k] < 0.999, marked = jobs[bars.job[k]].job === this.marked;
      pen.fillStyle = this.colour(bars.job[k]);
      for (let r = 0; r < bars.rows[k].length; r += 2) {
        const [first, count] = [bars.rows[k][r], bars.rows[k][r + 1]];
        const parts = share > 0.999 ? [[this.y(first), count * this.rowHeight]]
          : Array.from({length: count}, (_, g) => [this.y(first + g) + this.offset[k] * this.rowHeight, share * this.rowHeight]);
        for (const [y, tall] of parts) {
          pen.fillRect(x, y, wide, tall - (tall > 3 ? 0.6 : 0));
          if (slow && wide > 3) this.hatch(x, y, wide, tall);
          if (marked) { pen.strokeStyle = this.ink.ink; pen.lineWidth = 1.5; pen.strokeRect(x, y, wide, tall); pen.lineWidth = 1; }
        }
        if (wide > 40 && this.rowHeight * count * share > 11) {
          pen.fillStyle = this.ink.ink; pen.textAlign = "left"; pen.textBaseline = "middle";
          pen.fillText(jobs[bars.job[k]].job, Math.max(x, LEFT) + 4, parts[0][0] + Math.min(parts[0][1] / 2, 12), wide - 6);
          pen.fillStyle = this.colour(bars.job[k]);
        }
      }
    }
    pen.restore();
  }

  hatch(x, y, wide, tall) {
    const pen = this.pen;
    pen.save(); pen.beginPath(); pen.rect(x, y, wide, tall); pen.clip();
    pen.strokeStyle = this.ink.ink; pen.globalAlpha = 0.35; pen.beginPath();
    for (let d = Math.max(x, LEFT) - tall; d < Math.min(x + wide, this.width); d += 6) { pen.moveTo(d, y + tall); pen.lineTo(d + tall, y); }
    pen.stroke(); pen.restore();
  }

  drawAxis() {
    const pen = this.pen, span_s = this.to - this.from, room = Math.max(2, Math.floor((this.width - LEFT) / 110));
    const step = STEPS.find((one) => span_s / one <= room) || STEPS.at(-1);
    pen.fillStyle = this.ink.muted; pen.strokeStyle = this.ink.grid; pen.textAlign = "center"; pen.textBaseline = "top";
    const zone = this.clock === "unix" ? new Date(this.from * 1000).getTimezoneOffset() * 60 : 0;
    for (let at = Math.ceil((this.from - zone) / step) * step + zone; at <= this.to; at += step) {
      const x = this.x(at);
      pen.beginPath(); pen.moveTo(x, TOP); pen.lineTo(x, this.height - AXIS); pen.stroke();
      pen.fillText(clockTime(at, this.clock, step), x, this.height - AXIS + 5);
    }
  }

  drawCursor() {
    if (this.here === undefined || this.here < this.from || this.here > this.to) return;
    const pen = this.pen, x = this.x(this.here);
    pen.strokeStyle = this.ink.warn; pen.beginPath(); pen.moveTo(x, TOP); pen.lineTo(x, this.height - AXIS); pen.stroke();
  }

  barAt(x, y) {
    if (x < LEFT || y > this.bottom) return -1;
    const {bars} = this.data, at = this.time(x), row = (y - TOP) / this.rowHeight, slack = 2 * (this.to - this.from) / this.width;
    for (let k = bars.job.length - 1; k >= 0; k--) {
      if (bars.start_s[k] > at + slack || bars.end_s[k] < at - slack) continue;
      const share = bars.share_milli[k] / 1000;
      for (let r = 0; r < bars.rows[k].length; r += 2) {
        const inside = row - bars.rows[k][r];
        if (inside < 0 || inside >= bars.rows[k][r + 1]) continue;
        const part = inside % 1;
        if (share > 0.999 || (part >= this.offset[k] && part <= this.offset[k] + share)) return k;
      }
    }
    return -1;
  }

  spot(event) { const box = this.canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; }

  hover(event) {
    if (!this.data || this.dragged) return;
    const [x, y] = this.spot(event), k = this.barAt(x, y);
    this.tip.hidden = x < LEFT;
    if (this.tip.hidden) return;
    const {bars, jobs} = this.data, lines = [clockTime(this.time(x), this.clock, 1)];
    if (k >= 0) {
      const job = jobs[bars.job[k]];
      lines.push(`job ${job.job}${job.name ? ` ${job.name}` : ""}${job.user ? `, ${job.user}` : ""}: ${job.num_gpus} GPUs`);
      lines.push(`${bars.running[k] ? "running for" : "ran"} ${span(bars.end_s[k] - bars.start_s[k])}`
        + (bars.share_milli[k] < 999 ? `, share ${(bars.share_milli[k] / 1000).toFixed(2)}` : "")
        + (bars.clock_frac[k] < 0.999 ? `, clock ${bars.clock_frac[k].toFixed(2)}` : ""));
    } else if (y > this.bottom) lines.push(...this.curves.words(this.time(x), this.curves.forecastAt(x, y)));
    this.tip.textContent = lines.join("\n");
    this.tip.style.left = `${Math.min(x + 12, this.width - 240)}px`; this.tip.style.top = `${Math.min(y + 12, this.height - 60)}px`;
  }

  grab(event) {
    const [x0, y0] = this.spot(event), [from, to] = [this.from, this.to];
    this.dragged = false;
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.onpointermove = (moved) => {
      const [x] = this.spot(moved);
      if (Math.abs(x - x0) > 3) this.dragged = true;
      const by = (x0 - x) / (this.width - LEFT - RIGHT) * (to - from);
      if (this.dragged) this.move(from + by, to + by);
    };
    this.canvas.onpointerup = () => {
      this.canvas.onpointermove = (moved) => this.hover(moved);
      this.canvas.onpointerup = null;
      if (!this.dragged && x0 >= LEFT) {
        const k = this.barAt(x0, y0), at = this.time(x0), foreseen = this.curves.forecastAt(x0, y0);
        if (k >= 0) this.on.bar(this.data.jobs[this.data.bars.job[k]].job, at);
        else if (foreseen >= 0) this.on.bar(this.data.forecasts.job[foreseen], at);
        else this.on.moment(at);
      }
      this.dragged = false;
    };
  }

  wheel(event) {
    event.preventDefault();
    const [x] = this.spot(event);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = (event.deltaX || event.deltaY) / this.width * (this.to - this.from);
      this.move(this.from + by, this.to + by);
    } else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(Math.max(x, LEFT)));
  }

  key(event) {
    const width = this.to - this.from;
    const keys = {
      ArrowLeft: () => this.move(this.from - width / 8, this.to - width / 8), ArrowRight: () => this.move(this.from + width / 8, this.to + width / 8),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.everything(),
      ",": () => this.step(-1), ".": () => this.step(1),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }

  step(by) {
    const {row, time_s} = this.data.marks;
    if (!row.length) return;
    let at = row.indexOf(this.row);
    if (at < 0) { at = time_s.findIndex((one) => one >= (this.here ?? this.from)); at = at < 0 ? row.length : at; at = by > 0 ? at - 1 : at; }
    const next = row[Math.min(Math.max(at + by, 0), row.length - 1)];
    if (next !== undefined) this.on.decision(next);
  }
}
