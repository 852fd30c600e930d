// Search in a pane: what to look for, how often it is there, and going from one to the next.

import { h, icon, iconButton } from "./dom.js";

/**
 * Which hit is shown, of how many, and whether there are more that were not counted.
 * @typedef {[number, number, boolean]} Found
 * @typedef {{find: (query: string) => Found, stepHit: (direction: number) => Found, focus: () => void}} Searchable
 */

export class SearchBar {
  /** @param {() => Searchable | null} view what is searched: a pane changes it */
  constructor(view) {
    this.view = view;
    this.input = h("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": "Search",
      spellcheck: false,
      oninput: () => this.show(this.view()?.find(this.input.value)),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
    });
    this.count = h("span", { class: "tc-search-count", "aria-live": "polite" });
    const buttons = [
      iconButton("up", "Previous (Shift-Enter)", () => this.step(-1)),
      iconButton("down", "Next (Enter)", () => this.step(1)),
      iconButton("close", "Close (Escape)", () => this.close()),
    ];
    this.root = h("div", { class: "tc-search", hidden: true }, icon("search"), this.input, this.count, ...buttons);
  }

  open() {
    this.root.hidden = false;
    this.input.focus();
    this.input.select();
  }

  close() {
    this.root.hidden = true;
    this.input.value = "";
    this.show(this.view()?.find(""));
    this.view()?.focus();
  }

  /** @param {number} direction */
  step(direction) {
    this.show(this.view()?.stepHit(direction));
  }

  /** @param {Found | undefined} found */
  show(found) {
    if (!found) return;
    const [at, all, more] = found;
    const count = `${at.toLocaleString("en")} of ${all.toLocaleString("en")}${more ? "+" : ""}`;
    this.count.textContent = !this.input.value ? "" : all ? count : "none";
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
