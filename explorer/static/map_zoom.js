// Zoom and pan of a program's map along its lines: the same part of every strip is in sight, with fixes and without.

import { h, iconButton } from "./dom.js";

/** One press or notch. */
const STEP = 1.5;
const MOST = 200;
/** A pointer that moved so far, in pixels, drags the map; else it chooses what it is on. */
const DRAGS = 4;

export class MapZoom {
  /** @param {HTMLElement} map in which the strips are @param {() => void} changed is called after a change, before the next frame */
  constructor(map, changed) {
    this.map = map;
    this.changed = changed;
    /** How many times as wide as its window a strip is. */
    this.scale = 1;
    /** The share of a strip that is to the left of its window. */
    this.left = 0;
    this.frame = 0;
    this.buttons = [
      iconButton("minus", "Zoom out (−)", () => this.zoom(1 / STEP)),
      iconButton("plus", "Zoom in (+)", () => this.zoom(STEP)),
      iconButton("fit", "The whole program (f)", () => this.fit()),
    ];
    this.inside = h("div");
    this.bar = h("div", { class: "tc-map-bar", hidden: true, tabIndex: -1, "aria-hidden": "true" }, this.inside);
    this.bar.addEventListener("scroll", () => this.panTo(this.bar.scrollLeft / this.bar.scrollWidth));
    map.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    map.addEventListener("pointerdown", (event) => this.dragged(event));
    this.show();
  }

  /** The width of a strip's window, in pixels; 0 before it is on the screen. */
  get window() {
    return this.map.querySelector(".tc-map-window")?.clientWidth ?? 0;
  }

  /** @param {number} factor @param {number} [at] the place in the window that stays where it is, from 0 to 1 */
  zoom(factor, at = 0.5) {
    const scale = Math.min(Math.max(this.scale * factor, 1), MOST);
    const place = this.left + at / this.scale;
    this.set(scale, place - at / scale);
  }

  fit() {
    this.set(1, 0);
  }

  /** @param {number} left */
  panTo(left) {
    if (Math.abs(left - this.left) * this.scale * this.window >= 1) this.set(this.scale, left);
  }

  /** Bring a part of the strips into sight. @param {number} from @param {number} to shares of a strip, from 0 to 1 */
  reveal(from, to) {
    const room = 1 / this.scale;
    if (from < this.left || to > this.left + room) this.set(this.scale, to - from > room ? from : (from + to - room) / 2);
  }

  /** @param {number} scale @param {number} left */
  set(scale, left) {
    const before = [this.scale, this.left];
    this.scale = Math.min(Math.max(scale, 1), MOST);
    this.left = Math.min(Math.max(left, 0), 1 - 1 / this.scale);
    if (before[0] === this.scale && before[1] === this.left) return;
    this.show();
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.changed();
    });
  }

  show() {
    this.map.style.setProperty("--scale", String(this.scale));
    this.map.style.setProperty("--left", String(this.left));
    this.bar.hidden = this.scale === 1;
    this.inside.style.width = `${100 * this.scale}%`;
    this.bar.scrollLeft = this.left * this.bar.scrollWidth;
    this.buttons.forEach((button, at) => (button.disabled = this.scale === (at === 1 ? MOST : 1)));
  }

  /** The wheel zooms with Ctrl, and goes sideways. @param {WheelEvent} event */
  wheeled(event) {
    const strip = event.target instanceof Element ? event.target.closest(".tc-map-window") : null;
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    if (!strip || !(event.ctrlKey || event.metaKey || (sideways && this.scale > 1))) return;
    event.preventDefault();
    const box = strip.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) this.zoom(STEP ** (-event.deltaY / 100), (event.clientX - box.left) / box.width);
    else this.set(this.scale, this.left + sideways / box.width / this.scale);
  }

  /** @param {PointerEvent} down */
  dragged(down) {
    const strip = down.target instanceof Element ? down.target.closest(".tc-map-window") : null;
    if (!strip || this.scale === 1 || down.button) return;
    const [left, width, stopping] = [this.left, strip.getBoundingClientRect().width, new AbortController()];
    const { signal } = stopping;
    let drags = false;
    const move = (/** @type {PointerEvent} */ { clientX }) => {
      drags ||= Math.abs(clientX - down.clientX) > DRAGS;
      if (drags) this.set(this.scale, left - (clientX - down.clientX) / width / this.scale);
    };
    const end = () => {
      stopping.abort();
      const swallow = (/** @type {Event} */ click) => click.stopPropagation();
      if (drags) window.addEventListener("click", swallow, { capture: true, once: true });
      setTimeout(() => window.removeEventListener("click", swallow, { capture: true }));
    };
    window.addEventListener("pointermove", move, { signal });
    window.addEventListener("pointerup", end, { signal });
    window.addEventListener("pointercancel", end, { signal });
  }

  /** @param {KeyboardEvent} event @param {number} place share of a strip to zoom at @returns {boolean} whether the key is one of the map's */
  pressed({ key }, place) {
    const at = Math.min(Math.max((place - this.left) * this.scale, 0), 1);
    /** @type {Record<string, () => void>} */
    const keys = { "+": () => this.zoom(STEP, at), "=": () => this.zoom(STEP, at), "-": () => this.zoom(1 / STEP, at), f: () => this.fit() };
    keys[key]?.();
    return key in keys;
  }
}
