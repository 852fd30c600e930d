// What views that go step by step share: buttons to move, and other panes that follow once one rests on a step.

import { h } from "./dom.js";

/** So long, in milliseconds, one rests on a step before it is selected: each selection goes to Python. */
const REST = 150;

/** @param {[string, string, string][]} moves key, sign and what it does @param {(key: string) => void} move */
export function moveButtons(moves, move) {
  return moves.map(([key, sign, title]) => {
    const onclick = () => move(key);
    return h("button", { class: "tc-button", type: "button", title, "aria-label": title, onclick }, sign);
  });
}

/** Of steps to stop at, in order: the next on this way, round the end. @param {number[]} stops @param {number} at @param {number} direction */
export function nextStop(stops, at, direction) {
  const next = direction > 0 ? stops.findIndex((stop) => stop > at) : stops.findLastIndex((stop) => stop < at);
  return next >= 0 ? next : direction > 0 ? 0 : stops.length - 1;
}

/** Lets graph and source follow: what one is at lights up now, and is selected once one rests on it. */
export class Following {
  /** @param {import("./text_view.js").Callbacks} callbacks */
  constructor(callbacks) {
    this.callbacks = callbacks;
    /** What was selected last, from here or elsewhere. */
    this.selected = "";
    this.timer = 0;
  }

  /** @param {string} id "" for what is nowhere else */
  tell(id) {
    this.stop();
    const isNew = id !== "" && id !== this.selected;
    this.callbacks.onHover(isNew ? [id] : []);
    if (!isNew) return;
    this.timer = setTimeout(() => {
      this.selected = id;
      this.callbacks.onSelect([id], false);
    }, REST);
  }

  stop() {
    clearTimeout(this.timer);
  }
}
