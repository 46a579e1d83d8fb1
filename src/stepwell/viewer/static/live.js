// Runs as they are recorded: a tile for each, with its newest frame, over a WebSocket each.
//
//   const live = new Live(element, base, ["run-7"]);      all lanes of the machine where none is named

import { parseChunk } from "./chunks.js";
import { short } from "./curves.js";
import { fitted } from "./screen.js";

const LOOKS_MS = 1500; // between two looks at which lanes there are
const AGAIN_MS = 1000;
const HISTORY = 400; // returns that are drawn

// Frames drawn, and for each the time at which it was on the screen, for whoever measures.
export const liveStats = { drawn: 0, painted: [] };
if (typeof window !== "undefined") window.stepwellLive = liveStats;

const ENDS = {
  closed: "The writer has closed this run.",
  killed: "The writer is gone without closing the run: it was killed, or it crashed.",
  none: "No writer has a lane of this run on this machine.",
};

export class Live {
  constructor(element, base, runs) {
    this._base = base;
    this._chosen = [...runs];
    element.classList.add("sp-live");
    element.replaceChildren();
    this._chips = child(element, "nav", "sp-chips");
    this._chips.setAttribute("aria-label", "Runs");
    this._grid = child(element, "div", "sp-grid");
    this._empty = child(element, "div", "sp-nothing");
    this._tiles = new Map();
    this._look = this._look.bind(this);
    this._theme = new MutationObserver(() => this._tiles.forEach((tile) => tile.drawHistory()));
    this._theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    for (const run of this._chosen) this._add(run);
    this._look();
  }

  destroy() {
    clearTimeout(this._timer);
    this._theme.disconnect();
    this._closed = true;
    for (const tile of this._tiles.values()) tile.close();
  }

  async _look() {
    clearTimeout(this._timer);
    if (!document.hidden) {
      try {
        const found = await (await fetch(`${this._base}/data/lanes`)).json();
        if (this._closed) return;
        this._show(found);
      } catch {
        // the viewer is away; tiles report that
      }
    }
    if (!this._closed) this._timer = setTimeout(this._look, LOOKS_MS);
  }

  _show(lanes) {
    const known = new Map(lanes.map((lane) => [lane.run_id, lane]));
    const shown = this._chosen.length ? this._chosen : lanes.filter((lane) => lane.alive).map((lane) => lane.run_id);
    for (const run of shown) if (!this._tiles.has(run)) this._add(run);
    for (const [run, tile] of this._tiles) tile.know(known.get(run));
    this._showChips(lanes);
    this._empty.textContent = this._tiles.size ? "" : "Nothing is being recorded on this machine. A run shows itself with Record(env, root, lane=True), or stepwell record --watch.";
    this._grid.style.setProperty("--sp-tiles", String(Math.min(this._tiles.size, 3) || 1));
  }

  _showChips(lanes) {
    const key = JSON.stringify([lanes.map((lane) => [lane.run_id, lane.alive]), [...this._tiles.keys()]]);
    if (key === this._chipsKey) return;
    this._chipsKey = key;
    const names = new Map(lanes.map((lane) => [lane.run_id, lane.alive]));
    for (const run of this._tiles.keys()) if (!names.has(run)) names.set(run, false);
    this._chips.replaceChildren(...[...names].map(([run, alive]) => {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.className = `sp-chip${alive ? " sp-alive" : ""}`;
      chip.setAttribute("aria-pressed", String(this._tiles.has(run)));
      chip.textContent = run;
      chip.addEventListener("click", () => this._toggle(run));
      return chip;
    }));
  }

  // From here on it is the user who chooses, and the address has it.
  _toggle(run) {
    this._chosen = [...this._tiles.keys()];
    if (this._tiles.has(run)) {
      this._tiles.get(run).close();
      this._tiles.delete(run);
      this._chosen = this._chosen.filter((each) => each !== run);
    } else {
      this._chosen.push(run);
      this._add(run);
    }
    const address = new URL(window.location.href);
    address.searchParams.delete("run");
    for (const each of this._chosen) address.searchParams.append("run", each);
    history.replaceState(history.state, "", address.href);
    this._look();
  }

  _add(run) {
    this._tiles.set(run, new Tile(child(this._grid, "article", "sp-tile"), this._base, run));
  }
}

class Tile {
  constructor(element, base, run) {
    Object.assign(this, { _element: element, _base: base, _run: run });
    element.setAttribute("aria-label", run);
    const head = child(element, "header", "");
    this._title = child(head, "h2", "sp-title");
    this._title.textContent = this._title.title = run;
    this._state = child(head, "span", "sp-state");
    this._stage = child(element, "div", "sp-stage");
    this._canvas = child(this._stage, "canvas", "sp-pixels");
    this._canvas.setAttribute("role", "img");
    this._canvas.setAttribute("aria-label", `newest frame of ${run}`);
    [this._canvas.width, this._canvas.height] = [0, 0];
    this._note = child(this._stage, "div", "sp-damage");
    this._note.setAttribute("role", "status");
    this._history = child(element, "canvas", "sp-history");
    this._cells = {};
    const hud = child(element, "dl", "sp-hud");
    for (const name of ["reward", "return", "steps/s", "dropped", "step"]) {
      const cell = child(hud, "div", "sp-cell");
      child(cell, "dt", "").textContent = name;
      this._cells[name] = child(cell, "dd", "");
      this._cells[name].textContent = "–";
    }
    this._cells.dropped.parentElement.title = "Frames that went by without being shown here. The recording has them.";
    this._link = child(element, "a", "sp-recording");
    this._link.textContent = "Recording so far";
    this._returns = [];
    this._seen = 0;
    this._observer = new ResizeObserver(() => this._fit());
    this._observer.observe(this._stage);
    this._connect();
  }

  // What the list of lanes has about it. A writer that is back is followed again.
  know(lane) {
    if (lane?.recording) this._setRecording(lane.recording);
    if (this._ended && lane?.alive) this._connect();
  }

  close() {
    this._closed = true;
    this._socket?.close();
    clearTimeout(this._timer);
    this._observer.disconnect();
    this._element.remove();
  }

  _connect() {
    clearTimeout(this._timer);
    this._ended = null;
    this._first = null;
    this._show("connecting", "");
    const address = new URL(`${this._base}/data/lane?run=${encodeURIComponent(this._run)}`, window.location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = (this._socket = new WebSocket(address));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => (typeof data === "string" ? this._end(JSON.parse(data).end) : this._take(data, socket));
    socket.onclose = () => {
      if (this._closed || this._ended || socket !== this._socket) return;
      this._show("lost", "The viewer does not answer; trying again.");
      this._timer = setTimeout(() => this._connect(), AGAIN_MS);
    };
  }

  async _take(data, socket) {
    const chunk = parseChunk(data);
    const [from, to] = chunk.parts.get("about").places;
    const about = JSON.parse(new TextDecoder().decode(new Uint8Array(data, from, to - from)));
    const [start, end] = chunk.parts.get("frame").places;
    const picture = await createImageBitmap(new Blob([new Uint8Array(data, start, end - start)], { type: "image/png" }));
    this._next?.picture.close(); // one that came before the display was ready for it
    this._next = { picture, about };
    if (this._asked) return socket.readyState === 1 && socket.send("1");
    this._asked = true;
    requestAnimationFrame(() => {
      this._asked = false;
      this._draw();
      if (socket.readyState === 1) socket.send("1");
    });
  }

  _draw() {
    const { picture, about } = this._next;
    this._next = null;
    const canvas = this._canvas;
    if (canvas.width !== picture.width || canvas.height !== picture.height) {
      [canvas.width, canvas.height] = [picture.width, picture.height];
      this._fit();
    }
    this._context ??= canvas.getContext("2d");
    this._context.drawImage(picture, 0, 0);
    picture.close();
    this._count(about);
    this._showNumbers(about);
    if (!this._ended) this._show("live", ""); // the last frame may be unpacked after the end is known
    liveStats.drawn += 1;
    requestAnimationFrame(() => {
      liveStats.painted.push([performance.timeOrigin + performance.now(), about.step]);
      if (liveStats.painted.length > 5000) liveStats.painted.shift();
    });
  }

  // Frames since the first that was seen here; a new writer begins with 1 again.
  _count({ number, restarts }) {
    if (this._first === null || restarts !== this._restarts) {
      this._before = (this._before ?? 0) + (this._first === null ? 0 : this._last - this._first + 1);
      this._first = number;
      this._restarts = restarts;
    }
    this._last = number;
    this._seen += 1;
    this._dropped = this._before + number - this._first + 1 - this._seen;
  }

  _showNumbers(about) {
    const texts = {
      reward: short(Number(about.reward)),
      return: short(Number(about.return)),
      "steps/s": Number(about.rate) >= 100 ? Math.round(about.rate).toLocaleString("en-US") : Number(about.rate).toFixed(1),
      dropped: Math.max(0, this._dropped).toLocaleString("en-US"),
      step: String(about.step.step ?? about.number),
    };
    for (const [name, text] of Object.entries(texts)) {
      if (this._cells[name].textContent !== text) this._cells[name].textContent = text;
    }
    this._returns.push(Number(about.return));
    if (this._returns.length > HISTORY) this._returns.shift();
    if (this._returns.length % 4 === 0 || this._returns.length < 4) this.drawHistory();
  }

  drawHistory() {
    const canvas = this._history;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (!width || this._returns.length < 2) return;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    const finite = this._returns.filter(Number.isFinite);
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const y = (value) => height - 3 * ratio - ((value - low) / (high - low || 1)) * (height - 6 * ratio);
    context.beginPath();
    this._returns.forEach((value, i) => context.lineTo(((HISTORY - this._returns.length + i) / (HISTORY - 1)) * width, y(value)));
    context.strokeStyle = getComputedStyle(canvas).getPropertyValue("--sp-first").trim();
    context.lineWidth = 1.5 * ratio;
    context.stroke();
  }

  _fit() {
    const canvas = this._canvas;
    const size = fitted(canvas.width, canvas.height, this._stage.clientWidth, this._stage.clientHeight, window.devicePixelRatio || 1);
    canvas.style.width = `${size[0]}px`;
    canvas.style.height = `${size[1]}px`;
  }

  _end(why) {
    // A list of lanes that was made before the end has it connect once more, to nothing.
    if (why === "none" && this._lastEnd) why = this._lastEnd;
    this._ended = this._lastEnd = why;
    this._show(why, ENDS[why] ?? "The run has ended.");
    this._findRecording();
    this._timer = setTimeout(() => this._findRecording(), LOOKS_MS); // stores are looked at once a second
  }

  async _findRecording() {
    try {
      const found = await (await fetch(`${this._base}/data/recording?run=${encodeURIComponent(this._run)}`)).json();
      if (found) this._setRecording(found);
    } catch {
      // the link stays as it was
    }
  }

  _setRecording({ store, run, where }) {
    this._link.href = `${this._base}/s/${store}/play?${new URLSearchParams({ run, where })}`;
    this._link.classList.add("sp-shown");
  }

  _show(state, sentence) {
    if (this._shown === state + sentence) return;
    this._shown = state + sentence;
    const words = { live: "live", connecting: "connecting", lost: "no answer", closed: "closed", killed: "writer gone", none: "not there" };
    this._state.textContent = words[state] ?? state;
    this._element.dataset.state = state;
    this._note.textContent = sentence;
    this._note.classList.toggle("sp-shown", Boolean(sentence));
    this._note.classList.toggle("sp-calm", state !== "killed" && state !== "lost");
  }
}

function child(element, tag, name) {
  const made = element.appendChild(document.createElement(tag));
  if (name) made.className = name;
  return made;
}
