// Names that are too long for their place. Kernels' names begin alike: what all of them share is folded first, then the
// middle is cut, so that what tells a name from the others stays.

import { h } from "./dom.js";

/** So much of the end of a name is always shown. */
const LONGEST_END = 14;
/** A shorter beginning is not worth folding. */
const SHORTEST_SHARED = 4;

/**
 * How long the words are that a name shares with all others that have its first word; nothing for a name without others.
 * @param {string[]} names @returns {Map<string, number>}
 */
export function sharedStarts(names) {
  /** @type {Map<string, string[]>} */
  const alike = new Map();
  for (const name of new Set(names)) {
    const word = /^[^_./: ]*/.exec(name)?.[0] ?? "";
    alike.set(word, [...(alike.get(word) ?? []), name]);
  }
  return new Map([...alike.values()].flatMap((group) => group.map((name) => [name, sharedStart(group)])));
}

/** @param {string[]} names that are all different */
function sharedStart([first, ...others]) {
  let at = others.length ? first.length : 0;
  for (const name of others) while (!name.startsWith(first.slice(0, at))) at--;
  while (at > 0 && !/[_./: ]/.test(first[at - 1])) at--;
  return at < SHORTEST_SHARED ? 0 : at;
}

/**
 * A name of at most so many characters: cut in the shared beginning, and where that is not enough, without it and between
 * two of its words: `triton_…_relu_3`.
 * @param {string} name @param {number} most @param {number} [shared] length of the beginning that others have too
 */
export function shortName(name, most, shared = 0) {
  if (name.length <= most) return name;
  if (shared) {
    const own = name.slice(shared);
    const before = Math.min(most - 1 - own.length, shared);
    return shortName(`${before < SHORTEST_SHARED ? "" : name.slice(0, before)}…${own}`, most);
  }
  const end = lastWords(name, Math.floor(most * 0.45));
  const start = name.slice(0, Math.max(most - 1 - end.length, 0));
  const words = /^.*[_./: ]/.exec(start)?.[0] ?? "";
  return `${words.length * 2 > start.length ? words : start}…${end}`;
}

/** The last words of a name, in at most so many characters; without words, its last characters. @param {string} name @param {number} most */
function lastWords(name, most) {
  const end = most > 0 ? name.slice(-most) : "";
  const at = end.search(/[_./: ][^_./: ]/);
  return at < 0 ? end : end.slice(at);
}

/**
 * A name that, where there is no room for all of it, loses the shared beginning, and then what is before its last words.
 * @param {string} name @param {number} [shared] length of the beginning that others have too
 */
export function nameElement(name, shared = 0) {
  const own = name.slice(shared);
  const end = lastWords(own, Math.min(LONGEST_END, Math.ceil(own.length * 0.6)));
  const start = h("span", { class: "tc-name-start" }, own.slice(0, own.length - end.length));
  const before = shared ? [h("span", { class: "tc-name-shared" }, name.slice(0, shared))] : [];
  const element = h("span", { class: shared ? "tc-name tc-name-folds" : "tc-name", title: name }, ...before, start, end);
  element.style.setProperty("--end", `${end.length}ch`);
  element.style.setProperty("--own", `${own.length}ch`);
  return element;
}
