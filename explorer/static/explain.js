// What an instruction, an operation or a function means: one line and a link, where it is pointed at.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Words} Words */
/** @typedef {{from: number, to: number, meaning: [string, string, string]}} Explained */

const TOKEN = /[%@#!]?[A-Za-z_][\w.$]*/g;
/** How long, in milliseconds, the pointer rests before something is explained, and may be away before that goes. */
const REST = 250;
const AWAY = 300;

/** The words of a line that can be explained, in order. @param {Words} words @param {string} line @returns {Explained[]} */
export function explainedIn(words, line) {
  return [...line.matchAll(TOKEN)].flatMap((match) => {
    const found = longestKnown(words, match[0], match.index);
    return found ? [found] : [];
  });
}

/**
 * The longest stretch of a dotted name that is known: all of `aten.mm.default`, else `aten.mm`, …
 * @param {Words} words @param {string} name @param {number} column @returns {Explained | null}
 */
function longestKnown(words, name, column) {
  const parts = name.split(".");
  for (let count = parts.length; count > 0; count--) {
    for (let first = 0; first + count <= parts.length; first++) {
      const word = parts.slice(first, first + count).join(".");
      if (!Object.hasOwn(words, word)) continue;
      const from = column + parts.slice(0, first).join(".").length + (first ? 1 : 0);
      return { from, to: from + word.length, meaning: words[word] };
    }
  }
  return null;
}

/** The column of a row's text that is pointed at, -1 where there is none. @param {Element} line @param {MouseEvent} event */
function columnAt(line, { clientX, clientY }) {
  const place = /** @type {any} */ (document);
  const caret = place.caretPositionFromPoint?.(clientX, clientY) ?? place.caretRangeFromPoint?.(clientX, clientY);
  const node = caret?.offsetNode ?? caret?.startContainer;
  if (!node || !line.contains(node)) return -1;
  const before = document.createRange();
  before.setStart(line, 0);
  before.setEnd(node, caret.offset ?? caret.startOffset);
  return before.toString().length;
}

/** Where some columns of a row are on the page. @param {Element} line @param {number} from @param {number} to */
function placeOf(line, from, to) {
  const range = document.createRange();
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  let column = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const end = column + (node.textContent ?? "").length;
    if (column <= from && from < end) range.setStart(node, from - column);
    if (column < to && to <= end) {
      range.setEnd(node, to - column);
      break;
    }
    column = end;
  }
  return range.getBoundingClientRect();
}

export class Explainer {
  /** @param {HTMLElement} around the tip stays inside it @param {() => Words} words */
  constructor(around, words) {
    this.around = around;
    this.words = words;
    this.tip = h("div", {
      class: "tc-tip",
      role: "status",
      hidden: true,
      onpointerenter: () => clearTimeout(this.timer),
      onpointerleave: () => this.leave(),
    });
    around.append(this.tip);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.at = { row: -1, index: -1 };
  }

  /** The pointer is over a line. @param {Element} line @param {string} text @param {MouseEvent} event */
  point(line, text, event) {
    clearTimeout(this.timer);
    const column = columnAt(line, event);
    const found = explainedIn(this.words(), text).find(({ from, to }) => from <= column && column <= to);
    if (!found || !holds(placeOf(line, found.from, found.to), event.clientX)) return this.leave();
    this.timer = setTimeout(() => this.show(line, found), REST);
  }

  leave() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.hide(), AWAY);
  }

  /** Explain the next word of a line, from the keyboard. @param {Element} line @param {string} text @param {number} row */
  next(line, text, row) {
    const found = explainedIn(this.words(), text);
    this.at = { row, index: this.at.row === row ? this.at.index + 1 : 0 };
    const one = found[this.at.index];
    if (one) this.show(line, one);
    else this.hide();
  }

  /** @param {Element} line @param {Explained} found */
  show(line, { from, to, meaning: [name, words, link] }) {
    const more = link ? h("a", { href: link, target: "_blank", rel: "noopener noreferrer" }, "documentation") : null;
    this.tip.replaceChildren(h("b", {}, name), " ", words, " ", more ?? "");
    this.tip.hidden = false;
    const [word, frame] = [placeOf(line, from, to), this.around.getBoundingClientRect()];
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const below = word.bottom + height + 6 < frame.bottom;
    const left = Math.max(Math.min(word.left - frame.left, frame.width - width - 8), 4);
    Object.assign(this.tip.style, {
      left: `${left}px`,
      top: `${below ? word.bottom - frame.top + 3 : word.top - frame.top - height - 3}px`,
    });
  }

  hide() {
    clearTimeout(this.timer);
    this.tip.hidden = true;
    this.at = { row: -1, index: -1 };
  }
}

/** @param {DOMRect} place @param {number} x */
function holds(place, x) {
  return place.left - 1 <= x && x <= place.right + 1;
}
