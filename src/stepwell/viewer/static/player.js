// An episode player: pictures, time line, controls, keys. Two episodes can be played side by side, in step.
//
//   const player = new Player(element, source, { fps: 30, episodes, onChange });
//   await player.load("run-7", { step: 100, beside: "run-8" });
//   player.addEventListener("step" | "state" | "error", …)

import { Clock } from "./clock.js";
import { Screen } from "./screen.js";
import { Scrubber } from "./scrubber.js";
import { Controls } from "./controls.js";

export { httpSource } from "./chunks.js";
export { stats } from "./clock.js";

export const RATES = [1, 2, 5, 10, 15, 30, 60, 120, 240, 600];
const AHEAD_S = 2.5; // of playing
const AROUND = 24; // steps that are fetched when it stands still
const COLOURS = ["--sp-first", "--sp-second"];
const GROWS_MS = 1000; // how often a run that is being recorded is asked for more
const FAR_MS = 150; // without movement until more than a glance is fetched

export class Player extends EventTarget {
  // `options.near(key)` gives {previous, next, position, count}: the episodes around one, where there are others.
  constructor(element, source, options = {}) {
    super();
    this.element = element;
    this._source = source;
    this._options = options;
    element.classList.add("sp-player");
    element.replaceChildren();
    this._screens = [];
    this._places = element.appendChild(div("sp-screens"));
    this._notice = element.appendChild(div("sp-notice"));
    this._notice.setAttribute("role", "alert");
    const bar = element.appendChild(div("sp-transport"));
    this._scrubber = new Scrubber(bar.appendChild(div("")), {
      label: "Step",
      seek: (step, { done }) => this._scrub(step, done),
    });
    this._controls = new Controls(bar.appendChild(div("sp-controls")), this, RATES, options);
    this._clock = new Clock({
      show: (step) => this._show(step),
      ready: (step) => this._screens.every((screen) => screen.ready(step)),
      ended: () => this._end(),
    });
    this.loop = false;
    this.setRate(options.fps ?? 30);
    this._keys = (event) => this._controls.onKey(event);
    document.addEventListener("keydown", this._keys);
    this._theme = new MutationObserver(() => this._recolour());
    this._theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  get step() {
    return this._clock.step;
  }

  get last() {
    return this._clock.last;
  }

  get playing() {
    return this._clock.playing;
  }

  get fps() {
    return this._clock.fps;
  }

  get keys() {
    return this._screens.map((screen) => screen.steps?.key);
  }

  // Show an episode, or two. Resolves when it is known what they are; the first picture follows.
  async load(key, { step = 0, beside = null, play = false } = {}) {
    const turn = (this._turn = (this._turn ?? 0) + 1);
    const wanted = beside === null || beside === undefined || beside === "" ? [key] : [key, beside];
    clearTimeout(this._growing);
    this._clock.pause();
    this._setScreens(wanted.length);
    this._tell("");
    const found = await Promise.allSettled(wanted.map((each, i) => this._screens[i].load(this._source, each)));
    if (turn !== this._turn) return;
    const [error, other] = found.map((each) => each.reason);
    if (error) return this._fail(error);
    if (other) {
      this._setScreens(1); // the first one can be seen without it
      this._tell(other.message, true);
    }
    this._loaded(step);
    if (play) this.play();
    this._nearing = this._findNear(key);
  }

  seek(step) {
    this._clock.seek(step);
    this._focus(this._clock.playing ? this._ahead() : AROUND);
    this._moved();
  }

  play() {
    if (this._clock.last === 0) return;
    if (this.step >= this.last) this.seek(0);
    this._clock.play();
    this._focus(this._ahead());
    this._changed();
  }

  pause() {
    this._clock.pause();
    this._changed();
    this._moved();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  setRate(fps) {
    this._clock.setRate(Math.min(Math.max(fps, 0.1), 6000));
    this._changed();
  }

  // The next faster or slower of the usual rates.
  changeRate(by) {
    const nearest = RATES.findIndex((rate) => rate >= this.fps);
    this.setRate(RATES[Math.min(Math.max((nearest < 0 ? RATES.length : nearest) + by, 0), RATES.length - 1)]);
  }

  setLoop(loop) {
    this.loop = loop;
    this._changed();
  }

  // The next or previous episode of the list, if there is one.
  async go(by) {
    await this._nearing;
    const key = by < 0 ? this._near?.previous : this._near?.next;
    if (key === null || key === undefined) return;
    await this.load(key, { beside: this.keys[1], play: this.playing });
  }

  // A sentence over the picture, for a while.
  tell(sentence, forMs) {
    this._tell(sentence, true);
    clearTimeout(this._telling);
    this._telling = setTimeout(() => this._tell(""), forMs);
  }

  destroy() {
    this._turn = -1;
    clearTimeout(this._telling);
    this._clock.close();
    this._scrubber.close();
    this._controls.close();
    clearTimeout(this._growing);
    clearTimeout(this._resting);
    for (const screen of this._screens) screen.close();
    document.removeEventListener("keydown", this._keys);
    this._theme.disconnect();
    this.element.replaceChildren();
  }

  _setScreens(count) {
    this._places.classList.toggle("sp-pair", count > 1);
    for (const screen of this._screens.splice(count)) {
      screen.close();
      screen.element.remove();
    }
    while (this._screens.length < count) {
      const place = this._places.appendChild(document.createElement("section"));
      const made = new Screen(place, COLOURS[this._screens.length], {
        onready: (step) => this._arrived(made, step),
        onerror: (error) => this._fail(error, true),
      });
      this._screens.push(made);
    }
  }

  _loaded(step) {
    this._showLength();
    this._clock.seek(step);
    this._focus(AROUND);
    this._changed();
    this._moved();
    this._growing = setTimeout(() => this._grow(), GROWS_MS);
  }

  _showLength() {
    const abouts = this._screens.map((screen) => screen.about);
    const steps = Math.max(...abouts.map((about) => about.steps));
    this._clock.last = Math.max(0, steps - 1);
    this._scrubber.show(
      abouts.map((about, i) => ({ curve: about.curve, colour: COLOURS[i] })),
      Math.max(1, steps),
    );
    this.element.classList.toggle("sp-has-none", steps === 0);
  }

  // A run that is being recorded has more steps by and by.
  async _grow() {
    const turn = this._turn;
    const growing = this._screens.filter((screen) => screen.about?.live);
    if (growing.length === 0) return;
    for (const screen of growing) {
      try {
        const about = await this._source.run(screen.steps.key);
        if (turn !== this._turn) return;
        if (about.steps === screen.about.steps && about.live) continue;
        const atEnd = this.step >= this.last && !this.playing;
        screen.grow(about);
        this._showLength();
        if (atEnd && about.live) this.seek(this.last);
      } catch {
        // asked again in a moment
      }
    }
    if (turn === this._turn) this._growing = setTimeout(() => this._grow(), GROWS_MS);
  }

  async _findNear(key) {
    if (!this._options.near) return;
    const turn = this._turn;
    let found = null;
    try {
      found = await this._options.near(key);
    } catch {
      // a filter that cannot be answered leaves the episode without neighbours
    }
    if (turn !== this._turn) return;
    this._near = found;
    this._changed();
  }

  _ahead() {
    return Math.ceil(this.fps * AHEAD_S) + this._clock.stride;
  }

  _focus(ahead) {
    for (const screen of this._screens) {
      if (screen.steps) screen.steps.focus(Math.min(this.step, screen.last), this._clock.stride, ahead);
    }
  }

  // A chunk, or the pictures of a step.
  _arrived(screen, step) {
    if (!this.playing && (step === undefined || step === Math.min(this.step, screen.last))) this._clock.draw();
    if (!this._notice.classList.contains("sp-calm")) this._tell("");
    this._showRanges();
  }

  _showRanges() {
    if (this._rangesTimer) return;
    this._rangesTimer = setTimeout(() => {
      this._rangesTimer = 0;
      const found = this._screens.filter((screen) => screen.steps).map((screen) => screen.steps.ranges());
      this._scrubber.ranges = {
        loaded: found.length === 1 ? found[0].loaded : [],
        damaged: found.flatMap((each) => each.damaged),
      };
    }, 250);
  }

  _show(step) {
    for (const screen of this._screens) screen.show(step);
    this._scrubber.step = step;
    this._controls.showStep(step);
    if (this.playing) this._focus(this._ahead());
    this.dispatchEvent(new CustomEvent("step", { detail: { step } }));
  }

  _scrub(step, done) {
    if (!done && this._resume === undefined) {
      this._resume = this.playing;
      this._clock.pause();
    }
    clearTimeout(this._resting);
    this._clock.seek(step);
    this._focus(0);
    this._scrubber.step = step;
    this._controls.showStep(step);
    this._resting = setTimeout(() => this._focus(AROUND), done ? 0 : FAR_MS);
    if (!done) return;
    const resume = this._resume;
    this._resume = undefined;
    if (resume) this.play();
    this._moved();
  }

  _end() {
    if (this.loop) {
      this.seek(0);
      this._clock.play();
    } else {
      this.pause();
    }
  }

  _fail(error, again = false) {
    this._tell(again ? `${error.message}; trying again` : error.message);
    this.dispatchEvent(new CustomEvent("error", { detail: { message: error.message } }));
  }

  _tell(sentence, calm = false) {
    if (this._notice.textContent === sentence) return;
    this._notice.textContent = sentence;
    this._notice.classList.toggle("sp-calm", calm);
    this._notice.classList.toggle("sp-shown", Boolean(sentence));
  }

  _changed() {
    this._controls?.show({
      playing: this.playing, fps: this.fps, loop: this.loop, last: this.last, near: this._near ?? null,
      keys: this._screens.map((screen) => screen.about?.title ?? ""),
    });
    const { playing, fps } = this;
    this.dispatchEvent(new CustomEvent("state", { detail: { playing, fps, keys: this.keys } }));
  }

  // The step stands still, or something else than the clock moved it.
  _moved() {
    this._scrubber.step = this.step;
    this._controls.showStep(this.step);
    this._scrubber.announce(`step ${this.step} of ${this.last}`);
    this.dispatchEvent(new CustomEvent("rest", { detail: { step: this.step, keys: this.keys } }));
  }

  _recolour() {
    this._scrubber.redraw();
    for (const screen of this._screens) screen.recolour();
  }
}

function div(name) {
  const made = document.createElement("div");
  if (name) made.className = name;
  return made;
}
