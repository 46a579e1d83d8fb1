// A list of episodes, to choose one from that is shown beside another.

const ROWS = 100;

export class Picker {
  constructor(element, source, list, onChoose) {
    Object.assign(this, { _source: source, _list: list, _onChoose: onChoose });
    this._dialog = element.appendChild(document.createElement("dialog"));
    this._dialog.className = "sp-picker";
    this._dialog.setAttribute("aria-label", "Choose an episode");
    const form = this._dialog.appendChild(document.createElement("form"));
    this._input = form.appendChild(document.createElement("input"));
    Object.assign(this._input, { type: "text", value: list.where, placeholder: "all; or a condition over their columns, in SQL", className: "sp-text" });
    this._input.setAttribute("aria-label", "Which episodes, in SQL");
    this._note = this._dialog.appendChild(document.createElement("p"));
    this._note.setAttribute("role", "status");
    this._rows = this._dialog.appendChild(document.createElement("div"));
    this._rows.className = "sp-picker-rows";
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._fill();
    });
    this._dialog.addEventListener("click", (event) => event.target === this._dialog && this._dialog.close());
  }

  open(without) {
    this._without = without;
    this._dialog.showModal();
    this._fill();
  }

  async _fill() {
    const turn = (this._turn = (this._turn ?? 0) + 1);
    const given = { where: this._input.value, sort: this._list.sort, desc: this._list.desc, limit: String(ROWS) };
    let found;
    try {
      found = await this._source.json("runs", given);
    } catch (error) {
      this._note.textContent = error.message;
      return;
    }
    if (turn !== this._turn) return;
    const place = found.columns.indexOf(found.key);
    const shown = found.rows.filter((row) => String(row[place]) !== String(this._without));
    this._note.textContent = found.count > ROWS ? `The first ${ROWS} of ${found.count.toLocaleString("en-US")}` : "";
    this._rows.replaceChildren(...shown.map((row) => this._row(found.columns, row, place)));
  }

  _row(columns, row, place) {
    const button = document.createElement("button");
    button.type = "button";
    const picture = button.appendChild(document.createElement("img"));
    Object.assign(picture, { loading: "lazy", alt: "", src: this._source.thumb(String(row[place])), width: 48, height: 48 });
    picture.addEventListener("error", () => (picture.style.visibility = "hidden"));
    const text = button.appendChild(document.createElement("span"));
    text.appendChild(document.createElement("strong")).textContent = String(row[place]);
    const some = columns.map((name, i) => [name, row[i]]).filter(([name, value], i) => i !== place && typeof value === "number" && name !== "number");
    text.appendChild(document.createElement("small")).textContent = some.slice(0, 4).map(([name, value]) => `${name} ${value}`).join("  ·  ");
    button.addEventListener("click", () => {
      this._dialog.close();
      this._onChoose(String(row[place]));
    });
    return button;
  }
}
