// Presenter mode, for a lecture hall: large type, one pane at a time, everything by keys. A mode of the view that is there.

import { h } from "./dom.js";

/** The sizes of type, as factors, and which one is used at first. */
const SIZES = [1.25, 1.5, 1.8, 2.2, 2.7];
const FIRST = 2;
const HINTS = [["o", "next pane"], ["[ ]", "stages"], ["g", "text, graph"], ["n p", "links"], ["/", "search"], ["< >", "type"], ["?", "keys"], ["P", "leave"]];

/** @type {WeakMap<import("./explorer.js").Explorer, Presenter>} */
const presenters = new WeakMap();

/** Begin to present a view, or leave that. @param {import("./explorer.js").Explorer} explorer */
export function present(explorer) {
  const presenter = presenters.get(explorer);
  if (presenter) presenter.leave();
  else presenters.set(explorer, new Presenter(explorer));
}

class Presenter {
  /** @param {import("./explorer.js").Explorer} explorer */
  constructor(explorer) {
    this.explorer = explorer;
    this.root = explorer.root;
    this.size = FIRST;
    this.shown = explorer.active;
    this.where = h("b", {});
    const hints = HINTS.map(([keys, what]) => h("span", {}, ...keys.split(" ").map((key) => h("kbd", {}, key)), ` ${what}`));
    this.bar = h("div", { class: "tc-presenter-bar" }, h("span", { role: "status" }, this.where), ...hints);
    this.stopping = new AbortController();
    const { signal } = this.stopping;
    this.root.addEventListener("focusin", () => this.follow(), { signal });
    this.root.addEventListener("keydown", (event) => this.pressed(event), { signal, capture: true });
    document.addEventListener("fullscreenchange", () => document.fullscreenElement || this.leave(), { signal });
    this.hadInspector = !this.root.classList.contains("tc-no-inspector");
    this.root.classList.add("tc-presenting", "tc-no-inspector");
    this.root.append(this.bar);
    explorer.follow = () => this.follow();
    if (document.fullscreenEnabled && !document.fullscreenElement) this.root.requestFullscreen().catch(() => {});
    this.resize(0);
    this.follow();
    this.shown.view?.focus();
  }

  /** Show the pane that was used last. */
  follow() {
    const panes = this.explorer.allPanes();
    const { active } = this.explorer;
    this.shown = panes.includes(active) ? active : panes[0];
    for (const pane of panes) pane.root.classList.toggle("tc-shown", pane === this.shown);
    const { store } = this.explorer;
    const stage = this.shown.home ? store.artifacts.get(this.shown.artifact)?.info.title : store.stage(this.shown.stage)?.title;
    const words = `${stage ?? ""}, pane ${panes.indexOf(this.shown) + 1} of ${panes.length}`;
    if (this.where.textContent !== words) this.where.textContent = words;
  }

  /** @param {number} step to larger or smaller type */
  resize(step) {
    this.size = Math.min(Math.max(this.size + step, 0), SIZES.length - 1);
    this.root.style.setProperty("--tc-size", String(SIZES[this.size]));
    for (const pane of this.explorer.allPanes()) pane.view?.themeChanged();
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target instanceof Element && event.target.closest("input, select, textarea, dialog")) return;
    const step = { "<": -1, ">": 1 }[event.key];
    if (step) this.resize(step);
    else if (event.key !== "Escape" || this.explorer.store.primary.size) return;
    else this.leave();
    event.preventDefault();
    event.stopPropagation();
  }

  leave() {
    presenters.delete(this.explorer);
    this.stopping.abort();
    this.bar.remove();
    this.explorer.follow = () => {};
    this.root.classList.remove("tc-presenting");
    this.root.classList.toggle("tc-no-inspector", !this.hadInspector);
    this.root.style.removeProperty("--tc-size");
    if (document.fullscreenElement === this.root) document.exitFullscreen();
    for (const pane of this.explorer.allPanes()) pane.view?.themeChanged();
    this.shown.view?.focus();
  }
}
