// Elements, icons and numbers in words. Strings are only ever inserted as text nodes.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. Properties that start with "on" are listeners, those with a dash and `role` are attributes, the
 * rest are set as properties; `null` and `false` children are left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [props]
 * @param {...(Node | string | null | false)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) setProperty(element, name, value);
  for (const child of children) if (child !== null && child !== false) element.append(child);
  return element;
}

/** @param {HTMLElement} element @param {string} name @param {any} value */
function setProperty(element, name, value) {
  if (value === undefined || value === null) return;
  if (name === "href" && !String(value).startsWith("https://")) return; // of a record, which anybody may have written
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "class") element.className = value;
  else if (name === "style") Object.assign(element.style, value);
  else if (name.includes("-") || name === "role") element.setAttribute(name, String(value));
  else /** @type {any} */ (element)[name] = value;
}

/** Paths on a 16 by 16 grid, drawn with a stroke. */
const ICONS = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.6 10.6 14 14",
  copy: "M6 6h7v8H6ZM3 10V2h7",
  close: "M4 4l8 8M12 4l-8 8",
  split: "M2.5 3h11v10h-11ZM8 3v10",
  compare: "M5 2v9M2.5 8.5 5 11l2.5-2.5M11 14V5M8.5 7.5 11 5l2.5 2.5",
  fold: "M4 6l4-3.5L12 6M4 10l4 3.5L12 10M2 8h12",
  up: "M4 10l4-4 4 4",
  down: "M4 6l4 4 4-4",
  right: "M6 4l4 4-4 4",
  theme: "M8 2a6 6 0 1 0 0 12V2Z",
  help: "M5.5 6a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.5M8 12.4v.2",
  panel: "M2.5 3h11v10h-11ZM10 3v10",
  warning: "M8 2.5 14.2 13.5H1.8ZM8 6.5v3.4M8 11.6v.2",
  places: "M8 14c3-3.6 4.5-6 4.5-7.8a4.5 4.5 0 0 0-9 0C3.5 8 5 10.4 8 14ZM8 7.8a1.6 1.6 0 1 0 0-3.2 1.6 1.6 0 0 0 0 3.2Z",
  rainbow: "M1.5 12.5a6.5 6.5 0 0 1 13 0M4.2 12.5a3.8 3.8 0 0 1 7.6 0M6.8 12.5a1.2 1.2 0 0 1 2.4 0",
  plus: "M8 3.5v9M3.5 8h9",
  minus: "M3.5 8h9",
  back: "M9.5 3.5 5 8l4.5 4.5",
  forward: "M6.5 3.5 11 8l-4.5 4.5",
  full: "M9.5 2.5h4v4M13.5 2.5 9 7M6.5 13.5h-4v-4M2.5 13.5 7 9",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
};

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag @param {Record<string, string>} attributes @returns {SVGElementTagNameMap[K]}
 */
export function svgElement(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** @typedef {keyof typeof ICONS} IconName */

/** @param {IconName} name @returns {SVGSVGElement} */
export function icon(name) {
  const svg = svgElement("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "tc-icon" });
  svg.append(svgElement("path", { d: ICONS[name] }));
  return svg;
}

/**
 * A button with an icon and a name that is its tooltip.
 * @param {IconName} name @param {string} title @param {(event: MouseEvent) => void} onclick
 */
export function iconButton(name, title, onclick) {
  return h("button", { class: "tc-button", type: "button", title, "aria-label": title, onclick }, icon(name));
}

/**
 * Buttons of which one is pressed.
 * @param {string} label @param {(Node | string)[]} names @param {number} at @param {(index: number) => void} choose
 */
export function modes(label, names, at, choose) {
  const buttons = names.map((name, index) => h("button", { type: "button", "aria-pressed": String(index === at), onclick: () => choose(index) }, name));
  return h("div", { class: "tc-modes", role: "group", "aria-label": label }, ...buttons);
}

/** A menu. @param {string} label @param {string[]} names @param {number} at @param {(index: number) => void} choose */
export function menu(label, names, at, choose) {
  const options = names.map((name, index) => h("option", { value: String(index), selected: index === at }, name));
  const select = h("select", { class: "tc-choose", "aria-label": label }, ...options);
  select.addEventListener("change", () => {
    choose(Number(select.value));
    if (select.isConnected) select.focus({ preventScroll: true });
  });
  return select;
}

/** @param {number} count e.g. 1300000 -> "1.24 MiB" */
export function bytesInWords(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.floor(Math.log2(count) / 10), units.length);
  const value = count / 1024 ** power;
  return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${units[power - 1]}`;
}

/** @param {number} seconds e.g. 0.0123 -> "12 ms", 9.78e-9 -> "9.8 ns" */
export function secondsInWords(seconds) {
  if (seconds < 1e-6) return `${Number((seconds * 1e9).toPrecision(2))} ns`;
  if (seconds < 1e-4) return `${Number((seconds * 1e6).toPrecision(2))} µs`;
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.0995) return `${(seconds * 1e3).toFixed(0)} ms`;
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : `${seconds.toFixed(0)} s`;
}

/** @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/**
 * Put new children into an element, and the focus, if it was in there, on the child with the same name, else on
 * `otherwise`: lost focus would send the next key to the notebook.
 * @param {HTMLElement} parent @param {Node[]} children @param {HTMLElement} [otherwise]
 */
export function replaceKeepingFocus(parent, children, otherwise = parent) {
  const focused = focusedNear(parent);
  const had = parent.contains(focused);
  parent.replaceChildren(...children);
  if (!had || !focused) return;
  const same = [...parent.querySelectorAll(focused.tagName)].find(
    (element) => nameOfControl(element) === nameOfControl(focused),
  );
  (same instanceof HTMLElement ? same : otherwise).focus({ preventScroll: true });
}

/** The element with the focus, in the tree that `element` is in: marimo shows widgets in a shadow root. @param {Element} element */
export function focusedNear(element) {
  const tree = element.getRootNode();
  return tree instanceof Document || tree instanceof ShadowRoot ? tree.activeElement : null;
}

/** @param {Element} element */
function nameOfControl(element) {
  return element.getAttribute("aria-label") ?? element.textContent;
}

/** @param {string} text @returns {Promise<boolean>} false where the browser does not allow it */
async function written(text) {
  return navigator.clipboard.writeText(text).then(() => true, () => false);
}

/** Put text on the clipboard, also on pages that are not a secure context. @param {string} text */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext && (await written(text))) return;
  const area = h("textarea", { value: text, class: "tc-offscreen" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
