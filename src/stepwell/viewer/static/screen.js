// One episode on the screen: the picture, what the agent did and got, and what else was recorded.

import { Steps } from "./chunks.js";
import { BoardPainter, BranchBars, formatValue, highestOf, scoreOf, tilesOf } from "./boards.js";
import { CurvePainter, short } from "./curves.js";

const PICTURES = ["image", "planes"];
const SHOWN_FIRST = ["action", "reward", "return", "score", "value"];
const NOT_LISTED = ["run_id", "step_index", "run_idx", "step_idx", "row_id"]; // what every row of a run has, or the step itself
const TIME = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)[.\d]*(?:\+00:00|Z)?$/; // as lists of runs show it, too
const SMALL = 3; // pictures beside the large one

export class Screen {
  constructor(element, colour, { onready, onerror }) {
    this.element = element;
    this.colour = colour;
    this._on = { onready, onerror };
    element.classList.add("sp-screen");
    element.replaceChildren();
    this.steps = null;
    this.about = null;
  }

  async load(source, key) {
    const about = await source.run(key);
    if (this._closed) return null;
    this.steps?.close();
    this._observer?.disconnect();
    this.about = about;
    this._cells = new Map();
    this._painters = [];
    this._build();
    this._choose(this._tracks().find((track) => track.draw !== "value" && track.draw !== "text") ?? null);
    this.steps = new Steps(source, key, about, this._pictures(), this._on);
    this._observer = new ResizeObserver(() => this.layout());
    this._observer.observe(this._stage);
    this.layout();
    return about;
  }

  // More steps have been recorded since.
  grow(about) {
    this.about = about;
    this.steps.grow(about);
  }

  get last() {
    return Math.max(0, (this.about?.steps ?? 1) - 1);
  }

  ready(step) {
    return this.about.steps === 0 || this.steps.ready(Math.min(step, this.last));
  }

  show(wanted) {
    if (!this.about || this.about.steps === 0) return;
    const step = Math.min(wanted, this.last);
    this._step = step;
    const damage = this.steps.damage(step);
    if (damage) this._showDamage(`Step ${step} is damaged: ${damage}`);
    else this._showDamage(this.about.note ?? "", true);
    this.element.classList.toggle("sp-over", wanted > this.last);
    for (const painter of this._painters) painter(step);
    this._showValues(step);
  }

  redraw() {
    if (this._step !== undefined && this.steps?.ready(this._step)) this.show(this._step);
  }

  layout() {
    if (!this._stage) return;
    this._ratio = window.devicePixelRatio || 1;
    this._fit?.();
    for (const fit of this._fits ?? []) fit();
    this.redraw();
  }

  close() {
    this._closed = true;
    this.steps?.close();
    this._observer?.disconnect();
    this.element.replaceChildren();
  }

  // Building. Everything that is text is set as text: names may hold anything.

  _build() {
    const { about, element } = this;
    element.replaceChildren();
    element.style.setProperty("--sp-own", `var(${this.colour})`);
    this._stage = child(element, "div", "sp-stage");
    this._canvasBox = child(this._stage, "div", "sp-canvas-box");
    this._note = child(this._stage, "div", "sp-damage");
    this._note.setAttribute("role", "status");
    this._side = child(element, "div", "sp-side");
    const title = child(this._side, "h2", "sp-title");
    title.textContent = about.title;
    title.title = about.title;
    if (about.damage) child(this._side, "p", "sp-health").textContent = `Damaged: ${about.damage}`;
    this._hud = child(this._side, "dl", "sp-hud");
    for (const name of this._hudNames()) this._cell(this._hud, name);
    this._small = child(this._side, "div", "sp-small");
    this._rest = child(this._side, "div", "sp-rest");
    this._buildColumns();
    this._noteText = "";
    if (about.damage && about.steps === 0) this._showDamage(about.damage);
    else if (about.note) this._showDamage(about.note, true);
    if (about.steps === 0 && !about.damage) this._showDamage(about.live ? "No step has been recorded yet." : "This run has no steps.", true);
  }

  _buildColumns() {
    const columns = Object.entries(this.about.columns ?? {}).filter(([, value]) => value !== null && value !== "");
    if (columns.length === 0) return;
    const details = child(this._side, "details", "sp-columns");
    details.open = window.innerWidth > 760;
    child(details, "summary", "").textContent = "About this run";
    const list = child(details, "dl", "");
    for (const [name, value] of columns) {
      child(list, "dt", "").textContent = name;
      child(list, "dd", "").textContent = typeof value === "number" ? short(value) : String(value).replace(TIME, "$1 $2");
    }
  }

  _tracks() {
    return this.about.tracks ?? [];
  }

  _named(...names) {
    return this._tracks().find((track) => names.includes(track.name) && track.draw === "value")?.name;
  }

  _hudNames() {
    const names = [];
    if (this._named("action", "move")) names.push("action");
    if (this._named("reward")) names.push("reward");
    if (this.about.curve?.return) names.push("return");
    if (this._board()) names.push("score", "highest");
    if (this._named("value", "values") || this._tracks().some((track) => track.name === "ev_values")) names.push("value");
    return names;
  }

  _board() {
    return this._tracks().find((track) => track.draw === "board");
  }

  _cell(list, name, key = name) {
    const box = child(list, "div", "sp-cell");
    child(box, "dt", "").textContent = name;
    const shown = child(box, "dd", "");
    shown.textContent = "–";
    this._cells.set(key, shown);
  }

  // The track that is shown large; the others are small, and become large when they are clicked.
  _choose(main) {
    this._main = main;
    this._painters = [];
    this._fits = [];
    this._canvasBox.replaceChildren();
    this._small.replaceChildren();
    this._rest.replaceChildren();
    this._fit = null;
    this.element.classList.toggle("sp-plain", main === null);
    this.element.classList.toggle("sp-chart", main?.draw === "curve");
    if (main) this._add(main, this._canvasBox, true);
    if (this._board()) {
      this._bars = new BranchBars(child(this._small, "div", ""));
      this._painters.push((step) => this._drawBars(step));
    }
    let pictures = 0;
    for (const track of this._tracks()) {
      if (track === main || NOT_LISTED.includes(track.name) || track.of) continue;
      if (PICTURES.includes(track.draw) && ++pictures > SMALL) continue;
      if (PICTURES.includes(track.draw) || track.draw === "curve" || track.draw === "board") this._addSmall(track);
    }
    this._addRest();
  }

  _addSmall(track) {
    const box = child(this._small, "figure", `sp-track sp-track-${track.draw}`);
    const button = child(box, "button", "sp-track-button");
    button.type = "button";
    button.setAttribute("aria-label", `Show ${track.name} large`);
    button.addEventListener("click", () => {
      this._choose(track);
      this.steps.decode(this._pictures());
      this.layout();
      this._on.onready();
    });
    child(box, "figcaption", "").textContent = track.name;
    this._add(track, button, false);
  }

  _addRest() {
    const inHud = ["action", "reward", "value", "values", "return", ...(this._board() ? ["move"] : [])];
    if (!this._board() && this._named("move") && !this._named("action")) inHud.push("move");
    const list = document.createElement("dl");
    for (const track of this._tracks()) {
      if (inHud.includes(track.name) || NOT_LISTED.includes(track.name) || track.of) continue;
      if (track.draw === "value" || track.draw === "text") this._cell(list, track.name, `rest:${track.name}`);
    }
    if (list.childElementCount) this._rest.append(list);
    this._restTracks = this._tracks().filter((track) => this._cells.has(`rest:${track.name}`));
  }

  _pictures() {
    const shown = [this._main, ...this._tracks()].filter((track) => track && PICTURES.includes(track.draw));
    return [...new Set(shown.map((track) => track.name))].slice(0, 1 + SMALL);
  }

  _add(track, element, large) {
    const canvas = child(element, "canvas", "");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", track.name);
    const fits = (fit) => (large ? (this._fit = fit) : this._fits.push(fit));
    if (PICTURES.includes(track.draw)) this._addPicture(track, canvas, large, fits);
    else if (track.draw === "board") this._addBoard(track, canvas, large, fits);
    else this._addCurve(track, canvas, large, fits);
  }

  _addPicture(track, canvas, large, fits) {
    canvas.classList.add("sp-pixels");
    const context = canvas.getContext("2d");
    const fit = () => {
      if (!large) return;
      const [width, height] = [this._stage.clientWidth, this._stage.clientHeight];
      const size = fitted(canvas.width, canvas.height, width, height, this._ratio);
      canvas.style.width = `${size[0]}px`;
      canvas.style.height = `${size[1]}px`;
    };
    fits(fit);
    [canvas.width, canvas.height] = sizeOf(track);
    this._painters.push((step) => {
      const picture = this.steps.picture(step, track.name);
      if (picture === null) {
        context.clearRect(0, 0, canvas.width, canvas.height);
        return;
      }
      if (canvas.width !== picture.width || canvas.height !== picture.height) {
        [canvas.width, canvas.height] = [picture.width, picture.height];
        fit();
      }
      context.drawImage(picture, 0, 0);
    });
  }

  _addBoard(track, canvas, large, fits) {
    const painter = new BoardPainter(canvas);
    fits(() => {
      const side = large ? Math.min(this._stage.clientWidth, this._stage.clientHeight, 720) : 120;
      painter.resize(Math.max(48, Math.floor(side * this._ratio)));
      canvas.style.width = canvas.style.height = `${side}px`;
    });
    this._painters.push((step) => {
      const board = this.steps.values(step, track.name)?.[0];
      this._tiles = board === undefined ? new Array(16).fill(0) : tilesOf(board);
      painter.draw(this._tiles, this.steps.value(step, "move"), this._colours().accent);
    });
  }

  _addCurve(track, canvas, large, fits) {
    const width = track.shown ?? track.shape.reduce((product, each) => product * each, 1);
    const painter = new CurvePainter(canvas, width, large ? 600 : 240);
    fits(() => {
      const box = large ? this._stage : canvas.parentElement;
      const size = [box.clientWidth, large ? box.clientHeight : 96];
      painter.resize(...size, this._ratio);
      canvas.style.width = `${size[0]}px`;
      canvas.style.height = `${size[1]}px`;
    });
    const valuesOf = (step) => this.steps.values(step, track.name);
    this._painters.push((step) => painter.draw(step, this.about.steps, valuesOf, this._colours()));
  }

  _colours() {
    if (!this._colourCache) {
      const style = getComputedStyle(this.element);
      const colour = (name) => style.getPropertyValue(name).trim();
      this._colourCache = {
        ink: colour("--sp-ink"), muted: colour("--sp-muted"), line: colour("--sp-line"), accent: colour("--sp-own"),
        dark: document.body.classList.contains("body--dark"),
      };
    }
    return this._colourCache;
  }

  recolour() {
    this._colourCache = null;
    this.redraw();
  }

  // What changes with every step.

  _drawBars(step) {
    const values = this.steps.values(step, "ev_values");
    this._bars.draw(values, this.steps.value(step, "ev_legal") ?? 0, this.steps.value(step, "move"));
  }

  _showValues(step) {
    for (const name of SHOWN_FIRST.concat("highest")) {
      if (this._cells.has(name)) this._set(name, this._valueOf(step, name));
    }
    for (const track of this._restTracks) {
      const text = track.draw === "text" ? (this.steps.text(step, track.name) ?? "–") : this._number(step, track);
      this._set(`rest:${track.name}`, text);
    }
  }

  _number(step, track) {
    const value = this.steps.value(step, track.name);
    if (track.dtype === "|b1" && value !== undefined) return value ? "yes" : "no";
    return short(value);
  }

  _valueOf(step, name) {
    if (name === "action") return this._action(step);
    if (name === "return") return short(this._return(step));
    if (name === "score") return this._tiles ? scoreOf(this._tiles).toLocaleString("en-US") : "–";
    if (name === "highest") return this._tiles ? String(highestOf(this._tiles)) : "–";
    if (name === "value" && !this._named("value", "values")) {
      const move = this.steps.value(step, "move");
      return formatValue(this.steps.values(step, "ev_values")?.[move]);
    }
    return short(this.steps.value(step, this._named(name, `${name}s`)));
  }

  _action(step) {
    const value = this.steps.value(step, this._named("action", "move"));
    if (value === undefined) return "–";
    const name = this.about.actions?.[value];
    return name ?? short(value);
  }

  // The rewards up to here. A long run's curve has less than one point a step, and chunks have the rest.
  _return(step) {
    const exact = this.steps.value(step, "return");
    if (exact !== undefined) return exact;
    const { x, max } = this.about.curve.return;
    return x.length === this.about.steps ? (max[step] ?? undefined) : undefined;
  }

  _set(name, text) {
    const cell = this._cells.get(name);
    if (cell.textContent !== text) cell.textContent = text;
  }

  _showDamage(sentence, calm = false) {
    if (this._noteText === sentence) return;
    this._noteText = sentence;
    this._note.textContent = sentence;
    this._note.classList.toggle("sp-shown", Boolean(sentence));
    this._note.classList.toggle("sp-calm", calm);
  }
}

// The largest whole number of device pixels for each pixel; smaller than they are only where it must be.
export function fitted(width, height, roomX, roomY, ratio) {
  if (!width || !height || !roomX || !roomY) return [width, height];
  const scale = Math.min((roomX * ratio) / width, (roomY * ratio) / height);
  const factor = (scale >= 1 ? Math.floor(scale) : scale) / ratio;
  return [width * factor, height * factor];
}

function sizeOf(track) {
  const [first, second, third] = track.shape;
  return third !== undefined && first < third ? [third, second] : [second ?? 1, first ?? 1];
}

function child(element, tag, name) {
  const made = element.appendChild(document.createElement(tag));
  if (name) made.className = name;
  return made;
}
