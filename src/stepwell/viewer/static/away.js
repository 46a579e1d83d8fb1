// NiceGUI's note that the connection is lost promises to try again. A viewer that was started again has
// another token, and nothing is answered to this page until its new address was opened.

const LOOKS_MS = 1500;

const note = document.getElementById("popup");
const [title, words] = note.querySelectorAll("span");
const before = [title.textContent, words.textContent];
let timer = 0;

async function look() {
  let refused = false;
  try {
    refused = (await fetch(import.meta.url, { method: "HEAD", cache: "no-store" })).status === 403;
  } catch {
    // it does not answer yet
  }
  const shown = refused
    ? ["The viewer was started again.", "Open the address that it printed; then this page goes on."]
    : before;
  [title.textContent, words.textContent] = shown;
  if (note.ariaHidden === "false") timer = setTimeout(look, LOOKS_MS);
}

new MutationObserver(() => {
  clearTimeout(timer);
  if (note.ariaHidden === "false") look();
}).observe(note, { attributes: true, attributeFilter: ["aria-hidden"] });
