// One graph from eager mode to kernels, over the view: the page of `run.morph()`, which Python makes.

import { h } from "./dom.js";

/** Ask for a graph's page, and show it when it is there. @param {HTMLElement} element @param {import("./store.js").Store} store @param {string} graph */
export function showMorph(element, store, graph) {
  const root = /** @type {HTMLElement} */ (element.closest(".tcompile"));
  const dialog = h("dialog", { class: "tc-morph", "aria-label": "From eager mode to kernels", onclose: () => dialog.remove() });
  const close = h("button", { class: "tc-button tc-text", type: "button", onclick: () => dialog.close() }, "Close (Escape)");
  const waiting = h("p", { role: "status" }, "Laying the graphs out…");
  dialog.append(waiting, close);
  root.append(dialog);
  dialog.showModal();
  const stop = store.listen((what) => {
    if (what !== "morph") return;
    stop();
    const { html, problem } = store.morph;
    if (problem) waiting.textContent = problem;
    else waiting.replaceWith(frameOf(html, getComputedStyle(root).colorScheme === "dark" ? "dark" : "light", dialog));
  });
  store.kernel?.morph(graph);
}

/** @param {string} html @param {string} theme @param {HTMLDialogElement} dialog */
function frameOf(html, theme, dialog) {
  const frame = h("iframe", { title: "From eager mode to kernels", srcdoc: html.replace("<html ", `<html data-theme="${theme}" `) });
  frame.addEventListener("load", () => {
    frame.contentWindow?.focus();
    frame.contentDocument?.addEventListener("keydown", ({ key }) => key === "Escape" && dialog.close());
  });
  return frame;
}
