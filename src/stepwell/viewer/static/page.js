// A page of one episode that needs no server: its steps are in scripts, beside it or inside it.

import { Player } from "./player.js";

const arrived = new Map(); // first step of a chunk: base64, or who waits for it
const { about, files } = window.stepwellEpisode;

window.stepwellChunk = (start, text) => {
  const waiting = arrived.get(start);
  arrived.set(start, text);
  if (typeof waiting === "function") waiting(text);
};
for (const [start, text] of window.stepwellChunks ?? []) window.stepwellChunk(start, text);

function fetchScript(start) {
  const script = document.createElement("script");
  script.src = `chunks/${start}.js`;
  return new Promise((resolve, reject) => {
    arrived.set(start, resolve);
    script.onerror = () => {
      arrived.delete(start);
      reject(new Error(`expected the file chunks/${start}.js beside this page, there is none`));
    };
    document.head.append(script);
  }).finally(() => script.remove());
}

const source = {
  run: async () => about,
  chunk: async (key, start) => {
    const first = start - (start % about.chunk);
    let text = arrived.get(first);
    if (typeof text !== "string") text = await fetchScript(first);
    if (files) arrived.delete(first); // can be read again
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  },
};

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.body.classList.toggle("body--dark", dark.matches);
dark.addEventListener("change", follow);
follow();
const step = Number(new URLSearchParams(window.location.hash.slice(1)).get("step")) || 0;
const player = new Player(document.getElementById("player"), source);
player.load(about.key, { step });
window.stepwellPlayer = player;
