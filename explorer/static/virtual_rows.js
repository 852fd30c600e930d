// A list of equally high rows of which only those in sight are elements, so that 50,000 scroll smoothly.

import { h } from "./dom.js";

/** Rows kept ready above and below what is in sight. */
const SPARE = 30;
/** So many rows are printed at most, some hundred pages. */
const MOST_PRINTED = 5000;
const paper = window.matchMedia("print");

export class VirtualRows {
  /**
   * @param {HTMLElement} scroller scrolls; gets the rows as its content
   * @param {(index: number) => HTMLElement} make
   */
  constructor(scroller, make) {
    this.scroller = scroller;
    this.make = make;
    this.count = 0;
    this.height = 18;
    /** @type {Map<number, HTMLElement>} */
    this.live = new Map();
    this.content = h("div", { class: "tc-rows" });
    this.scroller.append(this.content);
    this.frame = 0;
    /** Where it was scrolled to: Jupyter takes cells that are out of sight off the page, and they forget. */
    this.top = 0;
    this.away = false;
    this.scroller.addEventListener("scroll", () => this.later(), { passive: true });
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.scroller);
    this.printing = () => this.redraw();
    paper.addEventListener("change", this.printing);
  }

  /** @param {number} count @param {string} width CSS length of the widest row */
  reset(count, width) {
    this.count = count;
    this.content.style.minWidth = `max(100%, ${width})`;
    this.redraw();
  }

  /** Make all rows anew: in order, as paper has no places for them but one after the other. */
  redraw() {
    for (const row of this.live.values()) row.remove();
    this.live.clear();
    if (paper.matches) this.drawAll();
    else this.measure();
  }

  drawAll() {
    const count = Math.min(this.count, MOST_PRINTED);
    this.content.append(...Array.from({ length: count }, (_, index) => this.place(index)));
    if (count < this.count) this.content.append(this.place(count, h("p", {}, `${this.count - count} more lines are not printed`)));
  }

  measure() {
    if (paper.matches) return;
    if (!this.scroller.clientHeight) this.away = true;
    const { height } = this;
    this.height = parseFloat(getComputedStyle(this.content).lineHeight) || height;
    if (this.height !== height) for (const [index, row] of this.live) row.style.top = `${index * this.height}px`;
    this.content.style.height = `${this.count * this.height}px`;
    if (this.away && this.scroller.clientHeight) {
      this.scroller.scrollTop = this.top;
      this.away = false;
    } else if (this.height !== height) this.scroller.scrollTop *= this.height / height;
    this.draw();
  }

  later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  /** @returns {[number, number]} first row in sight, and the one after the last */
  inSight() {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.floor(scrollTop / this.height);
    return [Math.max(first, 0), Math.min(Math.ceil((scrollTop + clientHeight) / this.height), this.count)];
  }

  draw() {
    if (paper.matches || !this.scroller.clientHeight) return;
    this.top = this.scroller.scrollTop;
    const [first, last] = this.inSight();
    const from = Math.max(first - SPARE, 0);
    const to = Math.min(last + SPARE, this.count);
    for (const [index, row] of this.live) {
      if (index >= from && index < to) continue;
      row.remove();
      this.live.delete(index);
    }
    const fresh = document.createDocumentFragment();
    for (let index = from; index < to; index++) if (!this.live.has(index)) fresh.append(this.place(index));
    this.content.append(fresh);
  }

  /** @param {number} index @param {HTMLElement} [row] */
  place(index, row = this.make(index)) {
    row.style.top = `${index * this.height}px`;
    this.live.set(index, row);
    return row;
  }

  /** Bring a row into sight: not at all if it is, else a third down. @param {number} index */
  reveal(index) {
    const [first, last] = this.inSight();
    if (index >= first + 1 && index < last - 1) return;
    const third = this.scroller.clientHeight / 3;
    this.scroller.scrollTop = Math.max(index * this.height - third, 0);
    this.draw();
  }

  /** Scroll so that a row stands at the top. @param {number} index */
  toTop(index) {
    this.top = index * this.height;
    this.scroller.scrollTop = this.top;
    this.draw();
  }

  destroy() {
    this.observer.disconnect();
    paper.removeEventListener("change", this.printing);
    cancelAnimationFrame(this.frame);
  }
}
