// The list of keys.

import { h } from "./dom.js";

const KEYS = [
  ["↑ ↓", "move between lines, and preview their links"],
  ["Enter", "select the line; with Ctrl, add to the selection"],
  ["← →", "fold and unfold a block, close and open a function that is called on the line"],
  ["[ ]", "previous and next stage"],
  ["n p", "next and previous linked line"],
  ["g", "text, list or graph"],
  ["r", "colour by source line, in all panes"],
  ["e", "explain the next word of the line"],
  ["f 1 + − l", "in a graph: fit, actual size, zoom, list the nodes; arrows go along edges, Enter opens a group"],
  ["f + −", "in a map of the program: all of it, zoom; arrows go along its lines"],
  ["← → b", "in steps: back and forward, with Shift over calls; to the instruction before the next break"],
  ["o", "go to the other pane"],
  ["\\", "open a pane to the side"],
  ["/", "search: Enter and Shift-Enter go through this pane, ↑ ↓ and Enter open a line of any stage"],
  ["Alt+← Alt+→", "back and forward through what was selected and shown"],
  ["i F", "show or hide the inspector, fill the screen"],
  ["P", "present: large type, one pane at a time"],
  ["Escape", "clear the selection"],
  ["?", "this list"],
];

/** @param {HTMLElement} root */
export function showKeys(root) {
  const rows = KEYS.flatMap(([key, what]) => [
    h("dt", {}, ...key.split(" ").map((one) => h("kbd", {}, one))),
    h("dd", {}, what),
  ]);
  const dialog = h(
    "dialog",
    { class: "tc-keys", "aria-label": "Keys", onclose: () => dialog.remove(), onclick: () => dialog.close() },
    h("h3", {}, "Keys"),
    h("dl", {}, ...rows),
    h("button", { class: "tc-button tc-text", type: "button" }, "Close"),
  );
  root.append(dialog);
  dialog.showModal();
}
