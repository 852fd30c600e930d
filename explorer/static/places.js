// Places as the part of a page's address after `#`, e.g. `break=3&panes=breaks,source`.

/** @typedef {import("./history.js").Place} Place */

/** A longer selection is left out of an address: browsers and mail programs cut it off. */
const LONGEST = 1500;
const MOST_PANES = 4;

/** What has a meaning in an address, or is changed by browsers; brackets and slashes stay legible. */
const SPECIAL = /[%,&=#:~@+"<>`\s\u0080-\uffff]+/g;

/** @param {string} text */
function escape(text) {
  return text.replace(SPECIAL, (some) => encodeURIComponent(some).replaceAll("~", "%7E"));
}

/**
 * @param {Place} place @param {string[]} breaks the ids of all breaks: one that is selected alone has its number
 * @returns {string} without the `#`; "" for a place that says nothing
 */
export function addressOf({ panes, select, find, colours }, breaks) {
  const shown = panes.map(({ name, mode, other, state }) => (other && `${escape(other)}~`) + escape(name) + (mode && `:${mode}`) + (state ? `@${state}` : ""));
  const number = select.length === 1 ? breaks.indexOf(select[0]) + 1 : 0;
  const ids = select.map(escape).join(",");
  const parts = [
    number ? `break=${number}` : ids.length <= LONGEST && ids && `select=${ids}`,
    shown.length > 0 && `panes=${shown.join(",")}`,
    find && `find=${escape(find)}`,
    colours && "colours=lines",
  ];
  return parts.filter(Boolean).join("&");
}

/**
 * Read an address, or a stage alone (`run.html#kernels`).
 * @param {string} text @param {string[]} breaks @returns {Place | null} null for none that can be read
 */
export function placeOf(text, breaks) {
  const unescape = (/** @type {string} */ part) => decodeURIComponent(part.replaceAll("+", " "));
  const listed = (/** @type {string} */ part) => (part ? part.split(",") : []);
  const parts = text.includes("=") ? text.split("&").map((part) => part.split("=")) : [["panes", text]];
  const { break: number, panes = "", select = "", find = "", colours = "", ...others } = Object.fromEntries(parts);
  /** @type {(string | undefined)[]} */
  const chosen = number === undefined ? listed(select) : [breaks[Number(number) - 1]];
  const shown = listed(panes).map((pane) => /^(?:([^~]+)~)?([^:~@]+)(?::([a-z]+))?(?:@([\w.-]{1,40}))?$/.exec(pane));
  const isRead = parts.every(({ length }) => length === 2) && !chosen.includes(undefined) && !shown.includes(null) && ["", "lines"].includes(colours);
  if (!isRead || Object.keys(others).length || shown.length > MOST_PANES) return null;
  try {
    return {
      panes: shown.map((pane) => ({ name: unescape(pane?.[2] ?? ""), mode: pane?.[3] ?? "", other: unescape(pane?.[1] ?? ""), state: pane?.[4] ?? "" })),
      select: chosen.map((id = "") => (number === undefined ? unescape(id) : id)),
      find: unescape(find),
      colours: colours === "lines",
    };
  } catch {
    return null; // an escape that stands for no character: anybody may have typed it
  }
}
