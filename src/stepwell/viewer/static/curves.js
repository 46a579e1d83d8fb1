// Vectors of steps: as lines over the steps around where they are short, as bars where they are long.

const LINES = 12;
const HUES = [214, 28, 152, 340, 268, 48, 190, 0, 96, 300, 236, 172];

export class CurvePainter {
  // `width` values a step; lines go over `steps` of them, what is to come is pale.
  constructor(canvas, width, steps) {
    this._canvas = canvas;
    this._context = canvas.getContext("2d");
    this._width = width;
    this._steps = steps;
    this._low = Infinity;
    this._high = -Infinity;
  }

  resize(width, height, ratio) {
    this._canvas.width = Math.max(1, Math.round(width * ratio));
    this._canvas.height = Math.max(1, Math.round(height * ratio));
    this._ratio = ratio;
  }

  // `valuesOf(step)` gives an array or undefined.
  draw(step, count, valuesOf, colours) {
    const values = valuesOf(step);
    const context = this._context;
    const ratio = this._ratio ?? 1;
    const [width, height] = [this._canvas.width / ratio, this._canvas.height / ratio];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (this._width <= LINES) this._lines(context, width, height, step, count, valuesOf, values, colours);
    else this._bars(context, width, height, values, colours);
  }

  _lines(context, width, height, step, count, valuesOf, values, colours) {
    const room = Math.max(2, Math.min(this._steps, count));
    const first = Math.max(0, Math.min(step - (room >> 1), count - room));
    const found = [];
    for (let each = first; each < first + room; each++) found.push(valuesOf(each));
    for (const each of found) this._see(each);
    const large = width > 400;
    const [right, top, bottom] = [width - (large ? 104 : 72), large ? 24 : 8, height - (large ? 24 : 8)];
    const x = (each) => 6 + ((each - first) / (room - 1)) * (right - 12);
    this._axis(context, right, top, bottom, colours);
    context.lineWidth = large ? 2 : 1.5;
    context.lineJoin = "round";
    const now = x(step);
    for (const [from, to, alpha] of [[0, now, 1], [now, right, 0.25]]) {
      context.save();
      context.beginPath();
      context.rect(from, 0, to - from, height);
      context.clip();
      context.globalAlpha = alpha;
      for (let i = 0; i < this._width; i++) this._line(context, found, i, first, x, top, bottom, colours);
      context.restore();
    }
    context.fillStyle = colours.muted;
    context.fillRect(Math.round(now), 0, 1, height);
    if (values === undefined) return;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const line = Math.min(large ? 22 : 20, (bottom - top) / this._width);
    context.font = `${Math.min(large ? 14 : 12, line - 1)}px Roboto, system-ui, sans-serif`;
    for (let i = 0; i < this._width; i++) {
      const y = top + line * (i + 0.5);
      context.fillStyle = hue(i, colours.dark);
      context.fillRect(right + 8, y - 5, 3, 10);
      context.fillStyle = colours.ink;
      context.fillText(short(Number(values[i])), right + 18, y);
    }
    if (!large) return;
    context.fillStyle = colours.muted;
    context.fillText(short(this._high), 6, 10);
    context.fillText(short(this._low), 6, height - 9);
  }

  _line(context, found, i, first, x, top, bottom, colours) {
    context.strokeStyle = hue(i, colours.dark);
    context.beginPath();
    let pen = false;
    for (let at = 0; at < found.length; at++) {
      const value = found[at] === undefined ? NaN : Number(found[at][i]);
      if (!Number.isFinite(value)) {
        pen = false;
        continue;
      }
      const y = this._y(value, top, bottom);
      if (pen) context.lineTo(x(first + at), y);
      else context.moveTo(x(first + at), y);
      pen = true;
    }
    context.stroke();
  }

  _bars(context, width, height, values, colours) {
    if (values === undefined) return;
    this._see(values);
    const [top, bottom] = [8, height - 8];
    this._axis(context, width - 2, top, bottom, colours);
    const zero = this._y(Math.min(Math.max(0, this._low), this._high), top, bottom);
    const each = (width - 6) / values.length;
    context.fillStyle = colours.accent;
    for (let i = 0; i < values.length; i++) {
      const value = Number(values[i]);
      if (!Number.isFinite(value)) continue;
      const y = this._y(value, top, bottom);
      context.fillRect(4 + i * each, Math.min(y, zero), Math.max(each - (each > 3 ? 1 : 0), 0.5), Math.max(1, Math.abs(y - zero)));
    }
  }

  _axis(context, right, top, bottom, colours) {
    if (!(this._low <= this._high)) return;
    context.fillStyle = colours.line;
    const zero = this._low <= 0 && this._high >= 0 ? this._y(0, top, bottom) : bottom;
    context.fillRect(4, Math.round(zero), right - 4, 1);
  }

  _see(values) {
    if (values === undefined) return;
    for (let i = 0; i < values.length; i++) {
      const value = Number(values[i]);
      if (value < this._low) this._low = value;
      if (value > this._high && value < Infinity) this._high = value;
    }
    if (this._low === -Infinity) this._low = -1;
  }

  _y(value, top, bottom) {
    const span = this._high - this._low;
    return span > 0 ? bottom - ((value - this._low) / span) * (bottom - top) : (top + bottom) / 2;
  }
}

function hue(i, dark) {
  return `hsl(${HUES[i % HUES.length]} ${dark ? "75% 68%" : "70% 42%"})`;
}

// A number in a few digits that stand still while it changes.
export function short(value) {
  if (value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return String(value).replace("-", "−");
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return value.toExponential(2).replaceAll("-", "−");
  return value.toFixed(size >= 1000 ? 1 : size >= 10 ? 2 : 3).replace("-", "−");
}
