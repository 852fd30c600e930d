// Kernels of two backends in pairs: what they compute is the same, their facts and sources stand side by side.

import { h } from "./dom.js";
import { FindingView } from "./finding_view.js";
import { cellText } from "./list_view.js";

/** @typedef {{id: string, name: string, artifact: string, lines: [number, number]}} Side */
/** Title, what it means, unit, and the value of each side. @typedef {[string, string, string, import("./list_view.js").Cell, import("./list_view.js").Cell]} Fact */
/** @typedef {{sides: (Side | null)[], facts: Fact[]}} Pair */

export class VersusView extends FindingView {
  draw() {
    /** @type {{names: [string, string], pairs: Pair[]}} */
    const { names, pairs } = this.artifact.view;
    /** Sources that are open and whose text has not arrived yet, by artifact. @type {Map<string, (() => void)[]>} */
    this.waiting = new Map();
    this.stop = this.store.listen((what, id) => {
      if (what === "text") this.arrived(id);
    });
    const words = `Kernels of ${names[0]} and ${names[1]} that compute the same, by name or by their nodes. Numbers of the whole call are in the text.`;
    const cards = pairs.map((pair) => this.pair(pair, names));
    this.scroller.replaceChildren(h("div", { class: "tc-versus-view" }, h("p", { class: "tc-why" }, words), ...cards));
  }

  /** @param {string} artifact */
  arrived(artifact) {
    const ready = this.waiting?.get(artifact) ?? [];
    this.waiting?.delete(artifact);
    ready.forEach((show) => show());
  }

  /** @param {Pair} pair @param {[string, string]} names */
  pair({ sides, facts }, names) {
    const head = sides.map((side, at) => h("th", { scope: "col" }, h("small", {}, names[at]), side ? h("code", {}, side.name) : "no kernel of its own"));
    const rows = facts.map(([title, about, unit, ...cells]) =>
      h("tr", { title: about }, h("th", { scope: "row" }, title), ...cells.map((cell) => h("td", {}, cellText(cell, unit) || "–"))),
    );
    const table = h("table", { class: "tc-versus-table" }, h("thead", {}, h("tr", {}, h("td"), ...head)), h("tbody", {}, ...rows));
    const sources = this.fold(["Sources"], [], () => [h("div", { class: "tc-versus-sources" }, ...sides.flatMap((side, at) => (side ? [this.source(side, names[at])] : [])))]);
    const ids = sides.flatMap((side) => (side ? [side.id] : []));
    return this.item(ids, h("article", { class: "tc-card", "aria-label": ids.join(", ") }, table, sources));
  }

  /** @param {Side} side @param {string} name of its backend */
  source({ name: kernel, artifact, lines: [first, last] }, name) {
    const code = h("pre", { class: "tc-snippet", tabIndex: 0, "aria-label": `${kernel} of ${name}` }, "Loading…");
    const show = () => {
      const found = this.store.artifacts.get(artifact);
      if (!found) return void (code.textContent = "This record does not hold the source.");
      const { lines } = found;
      if (lines) code.textContent = lines.slice(first - 1, last).join("\n");
      else this.waiting?.set(artifact, [...(this.waiting.get(artifact) ?? []), show]);
    };
    this.store.need(artifact, "text");
    show();
    return h("figure", {}, h("figcaption", {}, name), code);
  }

  destroy() {
    this.stop?.();
  }
}
