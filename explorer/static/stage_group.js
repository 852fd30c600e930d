// Stages that belong together: chips in a row, or folded, one chip that opens a list of them.

import { counted, focusedNear, h, icon } from "./dom.js";

/** Classes that a folded group has where one of its chips has them, or all have. */
const OF_ANY = ["tc-warns", "tc-problem", "tc-running"];
const OF_ALL = ["tc-pending-chip", "tc-absent"];

export class StageGroup {
  /** @param {string} name @param {HTMLButtonElement[]} chips */
  constructor(name, chips) {
    this.name = name;
    this.chips = chips;
    this.isOpen = false;
    this.list = h("div", { class: "tc-group-chips" }, ...chips);
    this.facts = h("span", { class: "tc-chip-facts" });
    this.links = h("span", { class: "tc-chip-links" });
    this.head = h(
      "button",
      { class: "tc-chip tc-group-head", type: "button", "aria-expanded": "false", onclick: () => this.toggle() },
      h("span", { class: "tc-chip-top" }, h("span", { class: "tc-chip-name" }, name), icon("down")),
      " ",
      this.facts,
      " ",
      this.links,
    );
    this.root = h("div", { class: "tc-group", role: "group", "aria-label": name }, this.head, this.list);
    this.root.addEventListener("keydown", (event) => this.pressed(event));
    this.list.addEventListener("click", () => this.chosen());
    this.outside = (/** @type {Event} */ event) => {
      if (!event.composedPath().includes(this.root)) this.close();
    };
  }

  get isFolded() {
    return this.root.classList.contains("tc-group-folded");
  }

  /** Whether none of its stages is made yet. */
  get isPending() {
    return this.chips.every((chip) => chip.classList.contains("tc-pending-chip"));
  }

  /** @param {boolean} folded */
  look(folded) {
    this.root.classList.toggle("tc-group-folded", folded);
  }

  /** @param {boolean} folded */
  fold(folded) {
    this.look(folded);
    if (!folded) this.close();
  }

  /** Say on the folded chip what its stages say: which are open, how much of the selection is in them. */
  mark() {
    const open = this.chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map(nameOf);
    const links = this.chips.map((chip) => chip.querySelector(".tc-chip-links")?.textContent ?? "");
    const sum = links.reduce((total, text) => total + Number.parseInt(text || "0", 10), 0);
    const facts = new Set(this.chips.map((chip) => chip.querySelector(".tc-chip-facts")?.textContent ?? ""));
    const same = facts.size === 1 ? [...facts][0] : "";
    this.facts.textContent = open.join(", ") || same || counted(this.chips.length, "stage");
    this.links.textContent = sum > 99 ? "99+" : String(sum || "");
    this.head.classList.toggle("tc-holds-open", open.length > 0);
    this.head.title = this.chips.map(nameOf).join(" → ");
    const has = (/** @type {string} */ name) => (/** @type {HTMLElement} */ chip) => chip.classList.contains(name);
    for (const name of OF_ANY) this.head.classList.toggle(name, this.chips.some(has(name)));
    for (const name of OF_ALL) this.head.classList.toggle(name, this.chips.every(has(name)));
  }

  toggle() {
    if (this.isOpen) return this.close();
    this.open();
    (this.chips.find((chip) => chip.getAttribute("aria-pressed") === "true") ?? this.chips[0]).focus();
  }

  open() {
    if (!this.isFolded) return;
    this.setOpen(true);
    document.addEventListener("pointerdown", this.outside, true);
    document.addEventListener("focusin", this.outside, true);
    this.keepInside();
  }

  close() {
    if (this.isOpen) this.setOpen(false);
    document.removeEventListener("pointerdown", this.outside, true);
    document.removeEventListener("focusin", this.outside, true);
  }

  /** @param {boolean} isOpen */
  setOpen(isOpen) {
    this.isOpen = isOpen;
    this.root.classList.toggle("tc-unfurled", isOpen);
    this.head.setAttribute("aria-expanded", String(isOpen));
  }

  /** The list ends where the explorer does: what is outside of it is cut off. */
  keepInside() {
    const edge = this.root.closest(".tcompile")?.getBoundingClientRect().right ?? window.innerWidth;
    this.list.style.left = "";
    const over = this.list.getBoundingClientRect().right - edge + 8;
    if (over > 0) this.list.style.left = `${-over}px`;
  }

  /** A stage was chosen from the list. */
  chosen() {
    if (!this.isOpen) return;
    this.close();
    this.head.focus();
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (!this.isFolded) return;
    const at = this.chips.findIndex((chip) => chip === focusedNear(this.root));
    const last = this.chips.length - 1;
    /** @type {Record<string, () => void>} */
    const actions = {
      ArrowDown: () => (this.isOpen ? this.chips[Math.min(at + 1, last)].focus() : this.toggle()),
      ArrowUp: () => this.chips[Math.max(at - 1, 0)].focus(),
      Home: () => this.chips[0].focus(),
      End: () => this.chips[last].focus(),
      Escape: () => {
        this.close();
        this.head.focus();
      },
    };
    const action = actions[event.key];
    if (!action || (!this.isOpen && event.key !== "ArrowDown")) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  destroy() {
    this.close();
  }
}

/** @param {HTMLElement} chip */
function nameOf(chip) {
  return chip.querySelector(".tc-chip-name")?.textContent ?? "";
}
