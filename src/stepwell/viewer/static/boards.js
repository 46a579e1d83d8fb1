// Boards of 2048: 16 tiles in a 64-bit number, four bits each from the top left on.

const TILES = [
  null, "#eee4da", "#ede0c8", "#f2b179", "#f59563", "#f67c5f", "#f65e3b", "#edcf72", "#edcc61", "#edc850",
  "#edc53f", "#edc22e", "#6d8f5a", "#4c7f93", "#6a5b9a", "#3c3a32",
];
const BOARD = "#bbada0";
const EMPTY = "#cdc1b4";
const DARK_TEXT = "#776e65";
const LIGHT_TEXT = "#f9f6f2";
const ARROWS = ["M-.5 .35 0-.4 .5 .35Z", "M-.5-.35 0 .4 .5-.35Z", "M.35-.5-.4 0 .35 .5Z", "M-.35-.5 .4 0-.35 .5Z"];

export function tilesOf(board) {
  const tiles = new Array(16);
  const [high, low] = [Number(board >> 32n), Number(board & 0xffffffffn)];
  for (let i = 0; i < 8; i++) {
    tiles[i] = (high >>> (28 - 4 * i)) & 15;
    tiles[i + 8] = (low >>> (28 - 4 * i)) & 15;
  }
  return tiles;
}

// Points as if every tile had been merged from 2s.
export function scoreOf(tiles) {
  return tiles.reduce((sum, rank) => sum + (rank > 1 ? (rank - 1) * 2 ** rank : 0), 0);
}

export function highestOf(tiles) {
  return 2 ** Math.max(...tiles);
}

// Draws boards into a square canvas. Tiles are drawn once and copied from there.
export class BoardPainter {
  constructor(canvas) {
    this._canvas = canvas;
    this._context = canvas.getContext("2d");
    this._sprites = new Map();
    this._side = 0;
  }

  // `side` is in pixels of the canvas.
  resize(side) {
    if (side === this._side) return;
    this._side = this._canvas.width = this._canvas.height = side;
    this._sprites.clear();
    // The mark of a move is in the margin, so that it covers no tile.
    this._margin = Math.round(side * 0.055);
    const inner = side - 2 * this._margin;
    this._gap = Math.round(inner * 0.027);
    this._tile = Math.floor((inner - 5 * this._gap) / 4);
    this._from = this._margin + this._gap + Math.floor((inner - 5 * this._gap - 4 * this._tile) / 2);
  }

  // `move` is 0 to 3, or anything else for none.
  draw(tiles, move, colour) {
    const context = this._context;
    const side = this._side;
    context.clearRect(0, 0, side, side);
    context.fillStyle = BOARD;
    rounded(context, this._margin, this._margin, side - 2 * this._margin, this._tile * 0.09);
    for (let i = 0; i < 16; i++) {
      const x = this._from + (i % 4) * (this._tile + this._gap);
      const y = this._from + (i >> 2) * (this._tile + this._gap);
      context.drawImage(this._sprite(tiles[i]), x, y);
    }
    if (move >= 0 && move < 4) this._mark(move, colour);
  }

  _mark(move, colour) {
    const context = this._context;
    const [middle, edge] = [this._side / 2, this._margin * 0.5];
    const places = [[middle, edge], [middle, this._side - edge], [edge, middle], [this._side - edge, middle]];
    context.save();
    context.translate(...places[move]);
    context.scale(this._margin, this._margin);
    context.fillStyle = colour;
    context.fill(new Path2D(ARROWS[move]));
    context.restore();
  }

  _sprite(rank) {
    let sprite = this._sprites.get(rank);
    if (sprite !== undefined) return sprite;
    sprite = document.createElement("canvas");
    sprite.width = sprite.height = this._tile;
    const context = sprite.getContext("2d");
    context.fillStyle = TILES[rank] ?? EMPTY;
    rounded(context, 0, 0, this._tile, this._tile * 0.06);
    if (rank > 0) {
      const text = String(2 ** rank);
      const size = this._tile * [0.5, 0.5, 0.42, 0.34, 0.28][text.length - 1];
      context.font = `700 ${size}px "Clear Sans", "Helvetica Neue", Arial, sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillStyle = rank < 3 ? DARK_TEXT : LIGHT_TEXT;
      context.fillText(text, this._tile / 2, this._tile / 2 + size * 0.04);
    }
    this._sprites.set(rank, sprite);
    return sprite;
  }
}

function rounded(context, x, y, side, radius) {
  context.beginPath();
  context.roundRect(x, y, side, side, radius);
  context.fill();
}

const NAMES = ["Up", "Down", "Left", "Right"];
const GLYPHS = ["↑", "↓", "←", "→"];

// The values of the four branches as bars. Those of one step are close together, so bars begin near the
// lowest; the numbers are the values.
export class BranchBars {
  constructor(element) {
    element.classList.add("sp-bars");
    this._rows = NAMES.map((name, move) => {
      const row = element.appendChild(document.createElement("div"));
      row.className = "sp-bar";
      const label = row.appendChild(document.createElement("span"));
      label.className = "sp-bar-name";
      label.textContent = `${GLYPHS[move]} ${name}`;
      const track = row.appendChild(document.createElement("span"));
      track.className = "sp-bar-track";
      const fill = track.appendChild(document.createElement("span"));
      const number = row.appendChild(document.createElement("span"));
      number.className = "sp-bar-value";
      return { row, fill, number };
    });
  }

  // `values` are four numbers or undefined, `legal` a bit for each move.
  draw(values, legal, move) {
    const shown = [0, 1, 2, 3].map((m) => (legal >> m) & 1 && values ? Number(values[m]) : NaN);
    const finite = shown.filter(Number.isFinite);
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    this._rows.forEach(({ row, fill, number }, m) => {
      const isLegal = Boolean((legal >> m) & 1);
      const share = Number.isFinite(shown[m]) ? (high > low ? 0.15 + (0.85 * (shown[m] - low)) / (high - low) : 1) : 0;
      row.classList.toggle("sp-chosen", m === move);
      row.classList.toggle("sp-illegal", !isLegal);
      fill.style.transform = `scaleX(${share.toFixed(4)})`;
      const text = isLegal ? formatValue(shown[m]) : "illegal";
      if (number.textContent !== text) number.textContent = text;
    });
  }
}

// A value with as many digits as its neighbours have, so that they can be compared.
export function formatValue(value) {
  if (!Number.isFinite(value)) return "–";
  const digits = Math.abs(value) < 100 ? 3 : 1;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
