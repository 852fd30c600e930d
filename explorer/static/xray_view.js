// The x-ray: a card for each site, and above them the fixes to hand over, as a diff or as a new cell.

import { prose, pythonLine } from "./card_parts.js";
import { DocumentView } from "./document_view.js";
import { copyText, h, replaceKeepingFocus } from "./dom.js";

/** A fix that can be chosen. @typedef {{id: string, place: string, code: string, state: string, together: boolean}} Choice */
/** What a set of fixes gives. @typedef {{text: string, promise: string[], problem: string}} Given */

/** A diff of so many lines is shown at once. */
const SHORT = 40;

export class XrayView extends DocumentView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    super(root, callbacks, artifact, store);
    this.patch = artifact.view.fixes ? new PatchBox(artifact.view, store, callbacks.actions) : null;
    this.placePatch();
  }

  draw() {
    super.draw();
    this.placePatch();
  }

  /** Above the first card. */
  placePatch() {
    if (this.patch) this.scroller.querySelector(".tc-lead")?.after(this.patch.root);
  }

  destroy() {
    this.patch?.destroy();
  }
}

/** The fixes, which can be ticked where there is a kernel, and the patch that they give. */
class PatchBox {
  /**
   * @param {{fixes: Choice[], patch: Given}} view @param {import("./store.js").Store} store
   * @param {import("./inspector.js").Actions} actions
   */
  constructor({ fixes, patch }, store, actions) {
    this.fixes = fixes;
    this.first = patch;
    this.store = store;
    this.actions = actions;
    this.ticked = new Set(fixes.filter(({ together }) => together).map(({ id }) => id));
    this.root = h("section", { class: "tc-patch", "aria-label": "Patch" });
    this.destroy = store.listen((what) => what === "patch" && this.fill());
    this.fill();
  }

  /** The ids of the ticked fixes. */
  chosen() {
    return [...this.ticked].sort();
  }

  /** What the ticked fixes give; undefined if they were not tried together. @returns {Given | undefined} */
  given() {
    const together = this.fixes.filter((fix) => fix.together).map(({ id }) => id);
    return String(together.sort()) === String(this.chosen()) ? this.first : this.store.patches.get(this.chosen().join());
  }

  fill() {
    const given = this.given();
    const live = this.store.kernel !== null;
    const head = h("h4", {}, "Patch");
    const choices = live && this.fixes.length ? this.fieldset() : null;
    const told = h("div", { role: "status" }, ...(given ? this.told(given) : [this.untried()]));
    const tools = given?.text ? this.tools(given, live) : null;
    const shown = given?.text ? diff(given.text) : null;
    replaceKeepingFocus(this.root, [head, choices, told, tools, shown].filter((part) => part !== null));
  }

  fieldset() {
    const rows = this.fixes.map(({ id, place, code, state }) => {
      const box = h("input", { type: "checkbox", checked: this.ticked.has(id), "aria-label": `${place} ${code}, ${state}` });
      box.addEventListener("change", () => {
        if (box.checked) this.ticked.add(id);
        else this.ticked.delete(id);
        this.fill();
      });
      return h("label", { class: "tc-fix-choice" }, box, h("span", {}, place), h("code", {}, code), h("span", { class: "tc-where" }, state));
    });
    return h("fieldset", {}, h("legend", {}, "Fixes in it"), ...rows);
  }

  /** @param {Given} given */
  told({ text, promise, problem }) {
    if (problem) return [h("p", { class: "tc-warning" }, problem)];
    if (!text) return [h("p", {}, "No fix that was tried works here; the cards say why.")];
    return promise.map((words) => h("p", { class: words.startsWith("NOT VERIFIED") ? "tc-warning" : "tc-why" }, ...prose(words)));
  }

  untried() {
    if (!this.ticked.size) return h("p", {}, "No fix is ticked.");
    const ask = h("button", { class: "tc-button tc-text tc-main-button", type: "button" }, "Try these together");
    ask.addEventListener("click", () => {
      ask.disabled = true;
      ask.textContent = "Trying…";
      this.store.kernel?.patch(this.chosen());
    });
    return h("p", {}, "These were not tried together yet. ", ask);
  }

  /** @param {Given} given @param {boolean} live */
  tools({ text }, live) {
    const copy = h("button", { class: "tc-button tc-text", type: "button" }, "Copy the diff");
    copy.addEventListener("click", async () => {
      await copyText(text);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy the diff"), 1200);
    });
    const cell = h("button", { class: "tc-button tc-text tc-main-button", type: "button" }, "Put into a new cell");
    cell.addEventListener("click", () => this.actions.newCell?.(this.chosen()));
    return h("div", { class: "tc-patch-tools" }, live && this.actions.newCell ? cell : null, copy);
  }
}

/** A unified diff, folded where it is long. @param {string} text */
function diff(text) {
  const lines = text.trimEnd().split("\n").filter((line) => !line.startsWith("# "));
  const rows = lines.map((line) => {
    const isHead = /^(---|\+\+\+|@@) /.test(line);
    const kind = isHead ? "tc-diff-head" : line.startsWith("+") ? "tc-added" : line.startsWith("-") ? "tc-removed" : "";
    if (isHead || line.startsWith("\\")) return h("div", { class: "tc-diff-head" }, line);
    return h("div", { class: kind }, h("span", { class: "tc-sign" }, line.slice(0, 1)), pythonLine(line.slice(1)));
  });
  const code = h("pre", { class: "tc-snippet tc-rewrite", tabIndex: 0, "aria-label": "Diff" }, ...rows);
  return h("details", { open: lines.length <= SHORT }, h("summary", {}, `Diff, ${lines.length} lines`), code);
}
