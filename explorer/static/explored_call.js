// Which call of a cell is explored, and the other calls that it can be switched to.

import { h } from "./dom.js";

const REPEATED = "Other side effects of its code, such as appending to a list, happen again";

/**
 * Which call of the cell is explored, and what it can be switched to: by a click where there is a kernel. Nothing where
 * the cell has no other.
 * @param {import("./store.js").Store} store @returns {(HTMLElement | string)[]}
 */
export function exploredCall({ manifest: { explored }, kernel }) {
  if (!explored || !(explored.others.length || explored.scripts.length || explored.inside)) return [];
  const where = explored.inside ? [", called in ", h("code", {}, explored.inside)] : [];
  const chosen = h("span", {}, "Explored: ", h("code", {}, explored.callee), ...where, ` (line ${explored.line})`);
  const named = (/** @type {string} */ callee, title = "") => h("code", { title }, `--fn ${callee}`);
  const others = explored.others.map((callee) => {
    if (!kernel) return named(callee);
    const title = `Call ${callee} once more, on copies of its arguments, and explore that (--fn ${callee}). ${REPEATED}`;
    const onclick = () => kernel.switchTo(callee);
    return h("button", { class: "tc-button tc-text", type: "button", title, onclick }, callee);
  });
  const about = "It runs a model: to call it once more would change that. Run the cell with this option";
  const all = [...others, ...explored.scripts.map((callee) => named(callee, about))];
  return all.length ? [chosen, h("span", {}, "Switch to: "), ...all] : [chosen];
}
