// The nodes of a graph as a list: for screen readers, and for all others when it has the focus.

import { h } from "./dom.js";
import { opName, shapeInWords } from "./graph_model.js";
import { VirtualRows } from "./virtual_rows.js";

/** @typedef {import("./graph_model.js").Entity} Entity */

const PAGE = 15;
let lists = 0;

export class NodeList {
  /** @param {(ids: string[], add: boolean) => void} choose @param {() => void} leave */
  constructor(choose, leave) {
    this.choose = choose;
    this.leave = leave;
    this.name = `tc-nodes-${++lists}`;
    /** @type {Entity[]} */
    this.entities = [];
    /** @type {Set<string>} */
    this.selected = new Set();
    this.at = 0;
    this.element = h("div", {
      role: "listbox",
      tabIndex: 0,
      class: "tc-graph-list",
      "aria-label": "Nodes of the graph",
      "aria-multiselectable": "true",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.typed(event),
      onclick: (/** @type {MouseEvent} */ event) => this.clicked(event),
      onfocus: () => this.reveal(true),
      onblur: () => this.reveal(false),
    });
    this.rows = new VirtualRows(this.element, (index) => this.row(index));
    this.reveal(false);
  }

  /** @param {Entity[]} entities */
  show(entities) {
    this.entities = entities;
    this.at = 0;
    this.redraw();
  }

  /** @param {Set<string>} selected ids */
  mark(selected) {
    this.selected = selected;
    const first = this.entities.findIndex((entity) => selected.has(entity.id));
    if (first >= 0 && !selected.has(this.entities[this.at]?.id)) this.at = first;
    this.redraw();
  }

  focus() {
    this.element.focus();
  }

  /** @param {boolean} shown */
  reveal(shown) {
    Object.assign(this.element.style, { opacity: shown ? "1" : "0", pointerEvents: shown ? "auto" : "none" });
    if (shown) this.redraw();
  }

  redraw() {
    this.rows.reset(this.entities.length, "0px");
    if (this.entities.length) this.rows.reveal(this.at);
    this.element.setAttribute("aria-activedescendant", this.entities.length ? `${this.name}-${this.at}` : "");
  }

  /** @param {number} index */
  row(index) {
    const entity = this.entities[index];
    const { attrs } = entity;
    const selected = this.selected.has(entity.id);
    const active = index === this.at;
    const words = [
      entity.label,
      entity.label.includes(opName(entity)) ? "" : opName(entity),
      shapeInWords(entity),
      attrs.module,
    ].filter(Boolean);
    return h(
      "div",
      {
        id: `${this.name}-${index}`,
        role: "option",
        "aria-selected": String(selected),
        "aria-setsize": this.entities.length,
        "aria-posinset": index + 1,
        title: words.join(", "),
        class: active ? "tc-active" : "",
      },
      words.join(", "),
    );
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const row = event.target instanceof Element ? event.target.closest("[aria-posinset]") : null;
    if (row) this.pick(Number(row.getAttribute("aria-posinset")) - 1, event.ctrlKey || event.metaKey || event.shiftKey);
  }

  /** @param {number} index @param {boolean} add */
  pick(index, add) {
    this.at = index;
    this.choose([this.entities[index].id], add);
    this.redraw();
  }

  /** @param {KeyboardEvent} event */
  typed(event) {
    const last = this.entities.length - 1;
    /** @type {Record<string, number>} */
    const targets = {
      ArrowDown: this.at + 1,
      ArrowUp: this.at - 1,
      PageDown: this.at + PAGE,
      PageUp: this.at - PAGE,
      Home: 0,
      End: last,
    };
    const target = targets[event.key];
    if (target !== undefined) this.at = Math.max(0, Math.min(last, target));
    else if (event.key === "Escape" || event.key === "l") this.leave();
    else if ((event.key === "Enter" || event.key === " ") && last >= 0)
      this.pick(this.at, event.ctrlKey || event.metaKey || event.shiftKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (target !== undefined) this.redraw();
  }

  destroy() {
    this.rows.destroy();
  }
}
