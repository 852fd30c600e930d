// The strip beside a text that shows where in it things are.

import { h } from "./dom.js";

/** Marks in a colour (a CSS variable) at some rows, over a part of the strip's width. */
/** @typedef {{colour: string, rows: Iterable<number>, from: number, to: number}} Marks */

export class Ruler {
  /** @param {(share: number) => void} jump where in the text, from 0 to 1, someone wants to be */
  constructor(jump) {
    this.root = h("canvas", { class: "tc-ruler" });
    this.root.addEventListener("click", (event) => jump(event.offsetY / this.root.clientHeight));
  }

  /**
   * No marks where all is in sight anyway.
   * @param {number} count of rows @param {HTMLElement} scroller @param {Marks[]} layers
   */
  draw(count, scroller, layers) {
    const { clientWidth: width, clientHeight: height } = this.root;
    const brush = this.root.getContext("2d");
    if (!width || !height || !brush) return;
    const scale = window.devicePixelRatio || 1;
    this.root.width = width * scale;
    this.root.height = height * scale;
    if (scroller.scrollHeight <= scroller.clientHeight + 1) return;
    brush.scale(scale, scale);
    const style = getComputedStyle(this.root);
    const step = height / count;
    for (const { colour, rows, from, to } of layers) {
      brush.fillStyle = style.getPropertyValue(colour);
      for (const row of rows)
        brush.fillRect(from * width, Math.floor(row * step), (to - from) * width, Math.max(step, 2));
    }
  }
}
