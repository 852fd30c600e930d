// The bar between two panes: dragged, or moved with the arrow keys.

import { h } from "./dom.js";

const STEP = 24;
const LEAST = 120;

/** @returns {HTMLElement} changes the sizes of the elements before and after it */
export function splitter() {
  const bar = h("div", {
    class: "tc-splitter",
    role: "separator",
    tabIndex: 0,
    "aria-label": "Resize",
    title: "Drag, or use the arrow keys",
    "aria-valuemin": 0,
    "aria-valuemax": 100,
    "aria-valuenow": 50,
    onfocus: () => tellPlace(bar),
  });
  bar.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    bar.setPointerCapture(event.pointerId);
    let at = along(bar, event);
    const move = (/** @type {PointerEvent} */ next) => {
      moveBy(bar, along(bar, next) - at);
      at = along(bar, next);
    };
    bar.addEventListener("pointermove", move);
    bar.addEventListener("lostpointercapture", () => bar.removeEventListener("pointermove", move), { once: true });
  });
  bar.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -STEP, ArrowUp: -STEP, ArrowRight: STEP, ArrowDown: STEP };
    if (!(event.key in steps)) return;
    event.preventDefault();
    moveBy(bar, steps[/** @type {keyof typeof steps} */ (event.key)]);
  });
  return bar;
}

/** @param {HTMLElement} bar */
function sizeOf(bar) {
  return isVertical(bar) ? "offsetWidth" : "offsetHeight";
}

/** Tell assistive technology where the bar stands: the share of the element before it, in percent. @param {HTMLElement} bar */
function tellPlace(bar) {
  const size = sizeOf(bar);
  const [before, after] = [bar.previousElementSibling, bar.nextElementSibling].map((item) => /** @type {HTMLElement} */ (item)[size]);
  bar.setAttribute("aria-valuenow", String(Math.round((100 * before) / (before + after || 1))));
  bar.setAttribute("aria-orientation", isVertical(bar) ? "vertical" : "horizontal");
}

/** @param {HTMLElement} bar */
function isVertical(bar) {
  return getComputedStyle(/** @type {HTMLElement} */ (bar.parentElement)).flexDirection === "row";
}

/** @param {HTMLElement} bar @param {PointerEvent} event */
function along(bar, event) {
  return isVertical(bar) ? event.clientX : event.clientY;
}

/** @param {HTMLElement} bar @param {number} distance in points */
function moveBy(bar, distance) {
  const size = sizeOf(bar);
  const items = /** @type {HTMLElement[]} */ ([...(bar.parentElement?.children ?? [])]).filter(
    (item) => !item.classList.contains("tc-splitter"),
  );
  const sizes = items.map((item) => item[size]);
  const before = items.indexOf(/** @type {HTMLElement} */ (bar.previousElementSibling));
  const room = Math.max(LEAST - sizes[before], Math.min(distance, sizes[before + 1] - LEAST));
  sizes[before] += room;
  sizes[before + 1] -= room;
  items.forEach((item, index) => {
    item.style.flex = `${sizes[index]} 1 0`;
  });
  tellPlace(bar);
}
