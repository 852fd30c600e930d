// What stands where a stage has not been compiled yet: how far that is, or how to get it.

import { counted, h } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").StageInfo} StageInfo */

/** Start compiling what a stage lacks, unless that is going on. @param {Store} store @param {StageInfo} stage */
export function startCompiling(store, stage) {
  if (!store.kernel || store.compiling.total) return;
  if (stage.makes) store.kernel.make(stage.name);
  else store.kernel.compile();
  store.setCompiling({ done: 0, total: stage.pending, waiting: true, stage: stage.makes ? stage.name : "" });
}

/** @param {Store} store @param {StageInfo} stage @param {() => void} read @returns {HTMLElement} */
export function pendingCard(store, stage, read) {
  const words = stage.makes || `Compile ${counted(stage.pending, "kernel")}`;
  if (!store.kernel) return onPage(stage);
  if (store.compiling.confirm && !stage.makes) return confirmCard(store, store.compiling.confirm, read);
  if (store.compiling.total) return compilingCard(store);
  const compile = h("button", { class: "tc-button tc-text tc-main-button", type: "button" }, words);
  compile.addEventListener("click", () => startCompiling(store, stage));
  const missing = stage.makes ? `${stage.title}: ${stage.about}` : `${stage.title}: not compiled yet.`;
  return h("div", { class: "tc-pending" }, h("p", {}, missing), compile);
}

/**
 * Asks whether code of a loaded run may be executed: Python answers so where it was asked to compile it.
 * @param {Store} store @param {{kernels: string[], count: number}} confirm @param {() => void} read shows the source
 */
function confirmCard(store, { kernels, count }, read) {
  const number = counted(count, "kernel");
  const names = kernels.map((name) => h("li", {}, h("code", {}, name)));
  if (count > names.length) names.push(h("li", {}, `and ${(count - names.length).toLocaleString("en")} more`));
  const agree = () => {
    store.kernel?.trust();
    store.setCompiling({ done: 0, total: count, waiting: true });
  };
  /** @param {string} words @param {string} style @param {() => void} onclick */
  const button = (words, style, onclick) => h("button", { class: `tc-button tc-text ${style}`, type: "button", onclick }, words);
  return h(
    "div",
    { class: "tc-pending tc-confirm", role: "group", "aria-label": "Execute code from the file?" },
    h("p", { class: "tc-confirm-title" }, "Execute code from the file?"),
    h("p", {}, `This run was loaded from a file. To compile it, the Python source of ${number}, as it stands in the file, `,
      "is executed on this machine:"),
    h("ul", { tabIndex: 0, "aria-label": "Kernels that would be executed" }, ...names),
    h("p", { class: "tc-why" }, "Whoever made the file wrote that source. Agree only if you trust them."),
    h(
      "div",
      { class: "tc-confirm-choices" },
      button(`Trust the file and compile ${number}`, "tc-main-button", agree),
      button("Read the source", "", read),
      button("Not now", "", () => store.setCompiling({})),
    ),
  );
}

/** @param {StageInfo} stage */
function onPage({ title }) {
  const [call, flag] = ["run.compile_kernels()", "--stages all"].map((code) => h("code", {}, code));
  const how = h("p", {}, `${title} was not compiled: call `, call, " before saving, or explore with ", flag, ".");
  return h("div", { class: "tc-pending" }, how);
}

/**
 * Over a list that would say more if its kernels were compiled, or over one of the kernels that were before it was
 * cancelled. @param {Store} store @param {boolean} isList @param {() => void} read @returns {HTMLElement[]}
 */
export function compileHint(store, isList, read) {
  const stage = store.manifest.stages.find(({ pending, makes }) => pending && !makes);
  if (!stage || !store.kernel) return [];
  if (store.compiling.confirm) return [confirmCard(store, store.compiling.confirm, read)];
  const hint = h("div", { class: "tc-compiling" }, h("p", { role: "status" }));
  showProgress(hint, store);
  if (store.compiling.total) return [hint];
  const onclick = () => startCompiling(store, stage);
  const compile = h("button", { class: "tc-more", type: "button", onclick }, `compile ${counted(stage.pending, "kernel")}`);
  const why = isList ? "For registers, shared memory and occupancy: " : "Other kernels are not compiled yet: ";
  return [h("p", {}, why, compile)];
}

/** @param {Store} store */
function compilingCard(store) {
  const bar = h("progress", { "aria-label": "Kernels compiled" });
  const words = h("p", { role: "status" });
  const cancel = h("button", { class: "tc-button tc-text", type: "button" }, "Cancel");
  cancel.addEventListener("click", () => {
    cancel.disabled = true;
    cancel.textContent = "Cancelling…";
    store.kernel?.cancel();
  });
  if (store.compiling.stage) cancel.hidden = true;
  const card = h("div", { class: "tc-pending tc-compiling" }, words, bar, cancel);
  showProgress(card, store);
  return card;
}

/** Bring a card up to date in place. @param {Element} card @param {Store} store */
export function showProgress(card, { compiling: { done = 0, total = 0, waiting = false, stage = "", words: said = "" } }) {
  const [words, bar] = [card.querySelector("p"), card.querySelector("progress")];
  if (stage && words) words.textContent = waiting ? "Waiting for Python" : said || `Tracing ${counted(total, "graph")} at every level`;
  if (stage) return bar?.removeAttribute("value");
  const kernels = counted(total, "kernel");
  if (words) words.textContent = waiting ? `Waiting for Python to compile ${kernels}` : `Compiling: ${done} of ${kernels}`;
  if (bar) Object.assign(bar, { max: total, value: done });
}
