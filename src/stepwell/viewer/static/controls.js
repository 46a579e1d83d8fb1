// Buttons, the rate, the step as a number, and keys.

const ICONS = {
  play: "M7 4.5v15l12-7.5z",
  pause: "M6 4.5h4.2v15H6zM13.8 4.5H18v15h-4.2z",
  back: "M14.5 5 7.5 12l7 7 1.6-1.6L10.700 12l5.400-5.400z",
  forward: "M9.5 5l7 7-7 7-1.600-1.600L13.300 12 7.900 6.600z",
  previous: "M18.500 5v14L8 12zM5 5h2.200v14H5z",
  next: "M5.500 5v14L16 12zM16.800 5H19v14h-2.200z",
  loop: "M7 7h9V4l5 4.5L16 13v-3H9a2 2 0 0 0-2 2v1H4v-2a4 4 0 0 1 3-4zm10 10H8v3l-5-4.5L8 11v3h7a2 2 0 0 0 2-2v-1h3v2a4 4 0 0 1-3 4z",
  beside: "M3 5h8v14H3zm2 2v10h4V7zm8-2h8v14h-8zm2 2v10h4V7z",
  link: "M10.6 13.4a4 4 0 0 0 5.7 0l3-3a4 4 0 0 0-5.7-5.7l-1.2 1.2 1.4 1.4 1.2-1.2a2 2 0 1 1 2.9 2.9l-3 3a2 2 0 0 1-2.9 0zm2.8-2.8a4 4 0 0 0-5.7 0l-3 3a4 4 0 0 0 5.7 5.7l1.2-1.2-1.4-1.4-1.2 1.2a2 2 0 1 1-2.9-2.9l3-3a2 2 0 0 1 2.9 0z",
};
const KEYS = [
  ["Space", "play, pause"],
  ["← →", "one step back, forward"],
  ["Shift ← →", "ten steps"],
  ["Home End", "first, last step"],
  ["0 … 9", "tenths of the episode"],
  ["− +", "slower, faster"],
  ["P N", "previous, next episode"],
  ["L", "play again and again"],
  ["?", "these keys"],
];

export class Controls {
  constructor(element, player, rates, options) {
    this._player = player;
    this._buttons = {};
    const left = group(element, "sp-group");
    if (options.near) this._button(left, "previous", "Previous episode", () => player.go(-1));
    this._button(left, "back", "One step back", () => this._step(-1));
    this._button(left, "play", "Play", () => player.toggle()).classList.add("sp-main-button");
    this._button(left, "forward", "One step forward", () => this._step(1));
    if (options.near) this._button(left, "next", "Next episode", () => player.go(1));
    this._buildPosition(element);
    this._buildRate(element, rates);
    const right = group(element, "sp-group sp-right");
    this._near = right.appendChild(document.createElement("span"));
    this._near.className = "sp-near";
    this._button(right, "loop", "Play again and again", () => player.setLoop(!player.loop));
    if (options.onBeside) this._button(right, "beside", "Side by side", () => options.onBeside());
    if (options.onLink) this._button(right, "link", "Copy a link to this step", () => options.onLink());
    const help = this._button(right, null, "Keys", () => this._help.showModal());
    help.textContent = "?";
    this._buildHelp(element);
  }

  show({ playing, fps, loop, last, near, keys }) {
    const { play, previous, next, loop: looped, beside } = this._buttons;
    icon(play, playing ? "pause" : "play");
    play.setAttribute("aria-label", playing ? "Pause" : "Play");
    play.title = `${playing ? "Pause" : "Play"} (space)`;
    looped.setAttribute("aria-pressed", String(loop));
    beside?.setAttribute("aria-pressed", String(keys.length > 1));
    const known = [...this._rate.options].some((option) => Number(option.value) === fps);
    if (!known) this._rate.append(new Option(`${fps} FPS`, String(fps)));
    this._rate.value = String(fps);
    this._last.textContent = `/ ${last.toLocaleString("en-US")}`;
    this._number.max = String(last);
    this._number.style.width = `${Math.max(String(last).length, 3) + 2.5}ch`;
    if (previous) previous.disabled = near?.previous === null || near?.previous === undefined;
    if (next) next.disabled = near?.next === null || near?.next === undefined;
    this._near.textContent = near?.count ? `${(near.position + 1).toLocaleString("en-US")} of ${near.count.toLocaleString("en-US")}` : "";
  }

  showStep(step) {
    if (document.activeElement !== this._number) this._number.value = String(step);
  }

  onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (target.closest?.("input, textarea, select, [contenteditable], dialog, .q-menu, .q-dialog")) return;
    if (event.key === " " && target.closest?.("button, summary, a")) return; // presses what has the focus
    const player = this._player;
    const { key } = event;
    if (key === " ") player.toggle();
    else if (key === "ArrowLeft") this._step(event.shiftKey ? -10 : -1);
    else if (key === "ArrowRight") this._step(event.shiftKey ? 10 : 1);
    else if (key === "Home") player.seek(0);
    else if (key === "End") player.seek(player.last);
    else if (/^[0-9]$/.test(key)) player.seek(Math.round((Number(key) / 10) * player.last));
    else if (key === "+" || key === "=") player.changeRate(1);
    else if (key === "-") player.changeRate(-1);
    else if (key === "n") player.go(1);
    else if (key === "p") player.go(-1);
    else if (key === "l") player.setLoop(!player.loop);
    else if (key === "?") this._help.showModal();
    else return;
    event.preventDefault();
  }

  close() {
    this._help.remove();
  }

  _step(by) {
    const player = this._player;
    if (player.playing) player.pause();
    player.seek(player.step + by);
  }

  _button(element, name, label, onClick) {
    const button = element.appendChild(document.createElement("button"));
    button.type = "button";
    button.className = "sp-button";
    button.setAttribute("aria-label", label);
    button.title = label;
    if (name) {
      icon(button, name);
      this._buttons[name] = button;
    }
    // A click must not take the keys: space plays, whatever was clicked last.
    button.addEventListener("click", () => {
      onClick();
      button.blur();
    });
    return button;
  }

  _buildPosition(element) {
    const box = group(element, "sp-group sp-position");
    this._number = box.appendChild(document.createElement("input"));
    Object.assign(this._number, { type: "number", min: "0", value: "0", className: "sp-number" });
    this._number.setAttribute("aria-label", "Step");
    const go = () => {
      const step = Number.parseInt(this._number.value, 10);
      if (Number.isFinite(step)) this._player.seek(step);
    };
    this._number.addEventListener("change", go);
    this._number.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === "Escape") this._number.blur();
    });
    this._number.addEventListener("blur", () => this.showStep(this._player.step));
    this._last = box.appendChild(document.createElement("span"));
    this._last.className = "sp-last";
  }

  _buildRate(element, rates) {
    const box = group(element, "sp-group");
    this._rate = box.appendChild(document.createElement("select"));
    this._rate.className = "sp-rate";
    this._rate.setAttribute("aria-label", "Steps a second");
    for (const rate of rates) this._rate.append(new Option(`${rate} FPS`, String(rate)));
    this._rate.addEventListener("change", () => {
      this._player.setRate(Number(this._rate.value));
      this._rate.blur();
    });
  }

  _buildHelp(element) {
    this._help = element.appendChild(document.createElement("dialog"));
    this._help.className = "sp-help";
    this._help.setAttribute("aria-label", "Keys");
    const list = this._help.appendChild(document.createElement("dl"));
    for (const [keys, meaning] of KEYS) {
      const term = list.appendChild(document.createElement("dt"));
      for (const key of keys.split(" ")) {
        if (key === "…") term.append(" … ");
        else term.appendChild(document.createElement("kbd")).textContent = key;
      }
      list.appendChild(document.createElement("dd")).textContent = meaning;
    }
    this._help.addEventListener("click", () => this._help.close());
    this._help.addEventListener("keydown", (event) => event.key === "?" && this._help.close());
  }
}

function group(element, name) {
  const made = element.appendChild(document.createElement("div"));
  made.className = name;
  return made;
}

function icon(button, name) {
  if (button.dataset.icon === name) return;
  button.dataset.icon = name;
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.appendChild(document.createElementNS(space, "path")).setAttribute("d", ICONS[name]);
  button.replaceChildren(svg);
}
