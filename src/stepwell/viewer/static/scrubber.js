// The time line: rewards as bars, returns as a line, and a cursor. Only the cursor moves while playing.

const PAD = 10; // pixels at both ends, so that the handle is whole
const LINES = ["return", "score", "value"]; // which curve is the line, the first that is there

export class Scrubber {
  // `seek(step, {done})` is called while it is dragged, and with `done` at last.
  constructor(element, { seek, label }) {
    element.classList.add("sp-scrubber");
    element.tabIndex = 0;
    element.setAttribute("role", "slider");
    element.setAttribute("aria-label", label);
    element.setAttribute("aria-valuemin", "0");
    this._element = element;
    this._seek = seek;
    this._canvas = element.appendChild(document.createElement("canvas"));
    this._played = part(element, "sp-played");
    this._hover = part(element, "sp-hover");
    this._cursor = part(element, "sp-cursor");
    this._tip = part(this._hover, "sp-tip");
    this._curves = [];
    this._ranges = { loaded: [], damaged: [] };
    this._length = 1;
    this._step = 0;
    this._observer = new ResizeObserver(() => this.redraw());
    this._observer.observe(element);
    this._listen();
  }

  // One or two episodes: {curve, colour} each.
  show(curves, length) {
    this._curves = curves;
    this._length = Math.max(1, length);
    this._element.setAttribute("aria-valuemax", String(this._length - 1));
    this._element.classList.toggle("sp-empty", !curves.some(({ curve }) => lineOf(curve) || curve?.reward));
    this.redraw();
  }

  set step(step) {
    this._step = step;
    const x = this._x(step);
    this._cursor.style.transform = `translateX(${x}px)`;
    this._played.style.transform = `scaleX(${x / Math.max(this._width ?? 1, 1)})`;
  }

  // For those who cannot see it; not for every frame.
  announce(text) {
    this._element.setAttribute("aria-valuenow", String(this._step));
    this._element.setAttribute("aria-valuetext", text);
  }

  set ranges(ranges) {
    const key = JSON.stringify(ranges);
    if (key === this._rangesKey) return;
    this._rangesKey = key;
    this._ranges = ranges;
    this.redraw();
  }

  redraw() {
    this._width = this._element.clientWidth;
    const height = this._element.clientHeight;
    if (!this._width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    this._canvas.width = Math.round(this._width * ratio);
    this._canvas.height = Math.round(height * ratio);
    const context = this._canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(this._element);
    const colour = (name) => style.getPropertyValue(name).trim();
    for (const each of this._curves) this._drawReward(context, each, height, colour);
    for (const each of this._curves) this._drawLine(context, each, height, colour);
    context.fillStyle = colour("--sp-loaded");
    for (const [from, to] of this._ranges.loaded) this._strip(context, from, to, height - 3, 3);
    context.fillStyle = colour("--sp-bad");
    for (const [from, to] of this._ranges.damaged) this._strip(context, from, to, height - 6, 6);
    this.step = this._step;
  }

  close() {
    this._observer.disconnect();
  }

  _strip(context, from, to, y, height) {
    const [left, right] = [this._x(from), this._x(Math.min(to, this._length - 1))];
    context.fillRect(left, y, Math.max(right - left, 1), height);
  }

  _drawReward(context, { curve, colour: name }, height, colour) {
    const reward = curve?.reward;
    if (!reward?.x.length) return;
    const most = extreme(reward);
    if (!most || isConstant(reward)) return;
    const [middle, room] = [Math.round(height * 0.62), height * 0.32];
    context.fillStyle = colour(name);
    context.globalAlpha = 0.45;
    const width = Math.max(1, (this._width - 2 * PAD) / Math.max(reward.x.length, 1) - 0.5);
    reward.x.forEach((step, i) => {
      for (const value of new Set([reward.min[i], reward.max[i]])) {
        if (!value) continue;
        const size = Math.max(2, (Math.abs(value) / most) * room);
        context.fillRect(this._x(step) - width / 2, value > 0 ? middle - size : middle, width, size);
      }
    });
    context.globalAlpha = 1;
    context.fillStyle = colour("--sp-line");
    context.fillRect(PAD, middle, this._width - 2 * PAD, 1);
  }

  _drawLine(context, { curve, colour: name }, height, colour) {
    const line = lineOf(curve);
    if (!line?.x.length) return;
    const finite = [...line.min, ...line.max].filter(Number.isFinite);
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    if (!(high > low)) return;
    const y = (value) => height - 10 - ((value - low) / (high - low)) * (height - 20);
    const points = [];
    line.x.forEach((step, i) => {
      if (!Number.isFinite(line.max[i])) return;
      points.push([this._x(step), y(line.min[i])]);
      if (line.max[i] !== line.min[i]) points.push([this._x(step), y(line.max[i])]);
    });
    context.beginPath();
    points.forEach(([x, at], i) => (i ? context.lineTo(x, at) : context.moveTo(x, at)));
    context.strokeStyle = colour(name);
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.stroke();
    if (this._curves.length > 1) return;
    context.lineTo(points.at(-1)[0], height);
    context.lineTo(points[0][0], height);
    context.globalAlpha = 0.1;
    context.fillStyle = colour(name);
    context.fill();
    context.globalAlpha = 1;
  }

  _x(step) {
    const room = (this._width ?? 0) - 2 * PAD;
    return PAD + (this._length > 1 ? (step / (this._length - 1)) * room : 0);
  }

  _stepAt(event) {
    const box = this._element.getBoundingClientRect();
    const share = (event.clientX - box.left - PAD) / Math.max(box.width - 2 * PAD, 1);
    return Math.round(Math.min(Math.max(share, 0), 1) * (this._length - 1));
  }

  _listen() {
    const element = this._element;
    element.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      element.setPointerCapture(event.pointerId);
      this._held = true;
      this._seek(this._stepAt(event), { done: false });
      event.preventDefault();
      element.focus({ preventScroll: true });
    });
    element.addEventListener("pointermove", (event) => {
      const step = this._stepAt(event);
      this._hover.style.transform = `translateX(${this._x(step)}px)`;
      this._hover.classList.toggle("sp-at-end", step > this._length / 2);
      this._tip.textContent = step.toLocaleString("en-US");
      if (this._held) this._seek(step, { done: false });
    });
    const release = (event) => {
      if (!this._held) return;
      this._held = false;
      this._seek(this._stepAt(event), { done: true });
    };
    element.addEventListener("pointerup", release);
    element.addEventListener("pointercancel", release);
  }
}

function lineOf(curve) {
  const name = LINES.find((each) => curve?.[each]);
  return name && curve[name];
}

function extreme(curve) {
  return curve.max.reduce((most, value, i) => Math.max(most, Math.abs(value ?? 0), Math.abs(curve.min[i] ?? 0)), 0);
}

function isConstant(curve) {
  return curve.x.length > 1 && curve.max.every((value, i) => value === curve.max[0] && curve.min[i] === value);
}

function part(element, name) {
  const made = element.appendChild(document.createElement("div"));
  made.className = name;
  return made;
}
