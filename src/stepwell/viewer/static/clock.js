// Which step is to be seen when. A tick is a frame of the display; a step that is not ready is waited for.

const DISPLAY_HZ = 60;
const PAUSED_MS = 500; // a gap this long is a page that was hidden

// What was drawn and what was not, for whoever measures. A step that was due and was not drawn is dropped: a
// tick that found its step not ready is `late`, steps that a tick had to leap over are `skipped`.
export const stats = { ticks: 0, drawn: 0, late: 0, skipped: 0, seeks: [] };
Object.defineProperty(stats, "dropped", { get: () => stats.late + stats.skipped, enumerable: true });
if (typeof window !== "undefined") window.stepwellStats = stats;

export class Clock {
  // `show(step)` draws; `ready(step)` reports whether it can; `ended()` is called behind the last step.
  constructor({ show, ready, ended }) {
    Object.assign(this, { _show: show, _ready: ready, _ended: ended });
    this.step = 0;
    this.last = 0;
    this.fps = 30;
    this.playing = false;
    this._tick = this._tick.bind(this);
    this._seeking = null;
    this._dirty = false;
  }

  // Beyond the display's own rate only every nth step is shown.
  get stride() {
    return Math.max(1, Math.round(this.fps / DISPLAY_HZ));
  }

  play() {
    this.playing = true;
    this._anchor = null;
    this._request();
  }

  pause() {
    this.playing = false;
  }

  setRate(fps) {
    this.fps = fps;
    this._anchor = null;
  }

  seek(step) {
    this.step = Math.min(Math.max(0, Math.round(step)), this.last);
    this._anchor = null;
    this._seeking = performance.now();
    this.draw();
  }

  // Draw the current step with the next frame, when it is ready.
  draw() {
    this._dirty = true;
    this._request();
  }

  close() {
    this.playing = false;
    cancelAnimationFrame(this._handle);
    this._closed = true;
  }

  _request() {
    if (this._handle || this._closed) return;
    this._handle = requestAnimationFrame(this._tick);
  }

  _tick(time) {
    this._handle = 0;
    if (this.playing) {
      this._advance(time);
    } else if (this._dirty && this._ready(this.step)) {
      this._paint();
    }
    if (this.playing) this._request();
  }

  _advance(time) {
    if (this._anchor === null || time - this._time > PAUSED_MS) this._anchor = { time, step: this.step };
    this._time = time;
    stats.ticks += 1;
    const { stride } = this;
    const passed = ((time - this._anchor.time) * this.fps) / 1000 / stride;
    // Half a frame of slack on either side: the display's own jitter neither repeats nor leaps.
    let wanted = this._anchor.step + Math.floor(passed + 0.5) * stride;
    if (wanted > this.last) {
      if (this.step < this.last) wanted = this.last;
      else if (!this._dirty) return this._ended();
      else wanted = this.step;
    }
    if (wanted === this.step && !this._dirty) return;
    if (!this._ready(wanted)) {
      stats.late += 1;
      this._anchor = { time: time - (500 * stride) / this.fps, step: this.step };
      if (this._ready(this.step) && this._dirty) this._paint();
      return;
    }
    const leapt = Math.round((wanted - this.step) / stride) - 1;
    if (leapt > 0) stats.skipped += leapt;
    this.step = wanted;
    this._paint();
  }

  _paint() {
    this._dirty = false;
    stats.drawn += 1;
    this._show(this.step);
    const begun = this._seeking;
    if (begun === null) return;
    this._seeking = null;
    // By the next frame this one has been handed to the display.
    requestAnimationFrame(() => {
      stats.seeks.push(performance.now() - begun);
      if (stats.seeks.length > 1000) stats.seeks.shift();
    });
  }
}
