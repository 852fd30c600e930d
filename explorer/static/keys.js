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
  ["f l + −", "in a graph: show all, list the nodes, zoom; arrows go along edges, Enter opens a group"],
  ["← → b", "in steps: back and forward, with Shift over calls; to the instruction before the next break"],
  ["o", "go to the other pane"],
  ["\\", "open a pane to the side"],
  ["/", "search; Enter and Shift-Enter go through what is found"],
  ["i", "show or hide the inspector"],
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
