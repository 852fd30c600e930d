// Which rows of a text are lit, and how strongly.

/** @typedef {import("./store.js").Artifact} Artifact */

export const PRIMARY = 3;
export const LINKED = 2;
/** Only something around the row is lit, while something inside that is lit elsewhere. */
export const WEAK = 1;

/**
 * How strongly each row is lit. The ids of a row stand outermost first: an outer one (a kernel around a line of it) is
 * weak once one of the more specific ids inside it is lit.
 * @param {Artifact} artifact @param {Set<string>} primary @param {Set<string>} linked @param {Uint8Array} marks
 */
export function markRows(artifact, primary, linked, marks) {
  const around = idsAround(artifact, linked);
  marks.fill(0);
  for (const id of linked) {
    const mark = primary.has(id) ? PRIMARY : around.has(id) ? WEAK : LINKED;
    for (const row of artifact.rowsOf.get(id) ?? []) marks[row] = Math.max(marks[row], mark);
  }
}

/** The lit ids that have a lit id inside them. @param {Artifact} artifact @param {Set<string>} lit */
function idsAround(artifact, lit) {
  /** @type {Set<string>} */
  const around = new Set();
  for (const id of lit) {
    for (const row of artifact.rowsOf.get(id) ?? []) {
      const ids = artifact.rows.get(row) ?? [];
      const last = ids.findLastIndex((inside) => lit.has(inside));
      if (ids.indexOf(id) < last) around.add(id);
    }
    if (isAround(artifact, id, lit)) around.add(id);
  }
  return around;
}

/**
 * The head line of a kernel in machine code (`ptx[…].kernel`) is around all groups of its instructions.
 * @param {Artifact} artifact @param {string} id @param {Set<string>} lit
 */
function isAround(artifact, id, lit) {
  if (!id.endsWith(".kernel") || !artifact.rowsOf.has(id)) return false;
  const inside = id.slice(0, -"kernel".length);
  return [...lit].some((other) => other !== id && other.startsWith(inside) && artifact.rowsOf.has(other));
}

/** The ids of a row that are about that row: not those of what is around it. @param {string[]} ids */
export function mostSpecific(ids) {
  return ids.filter((id) => !ids.some((inside) => inside.startsWith(`${id}.`)));
}

/** The rows that are lit, but not those that are so for what is around them only. @param {Uint8Array} marks */
export function rowsMarked(marks) {
  const rows = [];
  for (let row = 0; row < marks.length; row++) if (marks[row] > WEAK) rows.push(row);
  return rows;
}
