// The list of a stage, sortable, over the code of what is chosen in it.

import { bytesInWords, h, secondsInWords } from "./dom.js";
import { nameElement, sharedStarts } from "./names.js";
import { splitter } from "./splitter.js";

/** @typedef {import("./store.js").List} List */
/** @typedef {import("./store.js").Cell} Cell */
/** @typedef {import("./text_view.js").TextView} TextView */
/** By which column, and whether the largest comes first. @typedef {{column: number, down: boolean}} Order */

export class ListView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks @param {List} list
   * @param {(root: HTMLElement) => TextView} makeText @param {Order} order kept by the pane, and changed here
   */
  constructor(root, callbacks, list, makeText, order) {
    this.callbacks = callbacks;
    this.list = list;
    this.order = order;
    /** @type {Map<string, HTMLElement>} */
    this.rows = new Map();
    this.shared = sharedStarts(list.rows.map(({ cells }) => String(cells[0])));
    this.scroller = h("div", { class: "tc-list-scroll", onpointerleave: () => callbacks.onHover([]) });
    const code = h("div", { class: "tc-pane-body" });
    root.replaceChildren(h("div", { class: "tc-list-view" }, this.scroller, splitter(), code));
    this.text = makeText(code);
    this.draw();
  }

  draw() {
    const { columns } = this.list;
    this.rows.clear();
    const head = columns.map((column, index) => this.heading(column, index));
    const body = this.sorted().map((row) => this.row(row));
    const table = h("table", { class: "tc-table", "aria-label": "Kernels" });
    table.append(h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body));
    this.scroller.replaceChildren(table);
    body[0]?.setAttribute("tabindex", "0");
  }

  /** @param {List["columns"][number]} column @param {number} index */
  heading({ title, about }, index) {
    const chosen = this.order.column === index;
    const sort = () => {
      this.order.down = chosen ? !this.order.down : this.isNumeric(index);
      this.order.column = index;
      const { primary, linked } = this;
      this.draw();
      this.mark(primary, linked);
      this.scroller.querySelectorAll("th button")[index]?.dispatchEvent(new Event("focus"));
      /** @type {HTMLElement} */ (this.scroller.querySelectorAll("th button")[index]).focus();
    };
    const arrow = chosen ? (this.order.down ? " ↓" : " ↑") : "";
    const heading = h("th", { scope: "col", class: this.isNumeric(index) ? "tc-numeric" : "" });
    if (chosen) heading.setAttribute("aria-sort", this.order.down ? "descending" : "ascending");
    heading.append(h("button", { type: "button", title: `${about}. Click to sort.`, onclick: sort }, title + arrow));
    return heading;
  }

  /** @param {number} index */
  isNumeric(index) {
    return this.list.rows.some(({ cells }) => typeof cells[index] === "number");
  }

  sorted() {
    const { column, down } = this.order;
    if (column < 0) return this.list.rows;
    const sign = down ? -1 : 1;
    return [...this.list.rows].sort((a, b) => compareCells(a.cells[column], b.cells[column], sign));
  }

  /** @param {List["rows"][number]} row */
  row({ id, cells }) {
    const element = h(
      "tr",
      {
        tabIndex: -1,
        "aria-selected": "false",
        onclick: (/** @type {MouseEvent} */ event) => this.choose(id, event),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event, id),
        onpointerenter: () => this.callbacks.onHover([id]),
        onfocus: () => this.callbacks.onHover([id]),
      },
      ...cells.map((cell, index) => cellOf(cell, this.list.columns[index].unit, index ? -1 : (this.shared.get(String(cell)) ?? 0))),
    );
    this.rows.set(id, element);
    return element;
  }

  /** @param {string} id @param {MouseEvent | KeyboardEvent} event */
  choose(id, event) {
    this.callbacks.onChoose?.([id], event.ctrlKey || event.metaKey);
  }

  /** @param {KeyboardEvent} event @param {string} id */
  pressed(event, id) {
    const rows = [...this.rows.values()];
    const at = rows.findIndex((row) => row === event.currentTarget);
    /** @type {Record<string, number>} */
    const places = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 };
    if (event.key in places) rows[places[event.key]]?.focus();
    else if (event.key === "Enter" || event.key === " ") this.choose(id, event);
    else return;
    event.preventDefault();
  }

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    this.mark(primary, linked);
    this.text.select(primary, linked, reveal);
    if (!reveal) return;
    const first = [...this.rows].find(([id]) => primary.has(id)) ?? [...this.rows].find(([id]) => linked.has(id));
    if (first) bringIntoSight(this.scroller, first[1]);
  }

  /** @param {Set<string> | undefined} primary @param {Set<string> | undefined} linked */
  mark(primary, linked) {
    this.primary = primary;
    this.linked = linked;
    for (const [id, row] of this.rows) {
      const chosen = Boolean(primary?.has(id));
      row.classList.toggle("tc-primary", chosen);
      row.classList.toggle("tc-linked", !chosen && Boolean(linked?.has(id)));
      row.setAttribute("aria-selected", String(chosen));
    }
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    for (const [id, row] of this.rows) row.classList.toggle("tc-previewed", linked.has(id));
    this.text.preview(linked);
  }

  focus() {
    const row = this.scroller.querySelector("tr.tc-primary") ?? this.scroller.querySelector("tbody tr");
    if (row instanceof HTMLElement) row.focus({ preventScroll: true });
  }

  themeChanged() {
    this.text.themeChanged();
  }

  destroy() {
    this.text.destroy();
  }
}

/** Numbers by size, words by letters; what is missing comes last. @param {Cell} a @param {Cell} b @param {number} sign */
export function compareCells(a, b, sign) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  const numbers = typeof a === "number" && typeof b === "number";
  return sign * (numbers ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

/** @param {Cell} value @param {string} unit */
export function cellText(value, unit) {
  if (value === null) return "";
  if (typeof value === "string") return value;
  if (unit === "bytes") return bytesInWords(value);
  if (unit === "seconds") return secondsInWords(value);
  return unit ? `${value} ${unit === "percent" ? "%" : unit}` : value.toLocaleString("en");
}

/** @param {Cell} value @param {string} unit @param {number} shared how much of a name its neighbours share; -1 for no name */
function cellOf(value, unit, shared) {
  const text = cellText(value, unit);
  return h("td", { class: typeof value === "number" ? "tc-numeric" : "", title: text }, shared < 0 ? text : nameElement(text, shared));
}

/** Scroll a list, and nothing else, to one of its rows. @param {HTMLElement} scroller @param {HTMLElement} row */
function bringIntoSight(scroller, row) {
  const top = row.offsetTop - row.offsetHeight;
  if (top < scroller.scrollTop || top + 2 * row.offsetHeight > scroller.scrollTop + scroller.clientHeight) {
    scroller.scrollTop = Math.max(top - scroller.clientHeight / 3, 0);
  }
}
