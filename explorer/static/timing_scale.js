// Where things stand on the axis of times: ticks at round numbers, shares of the width, parts of a stack end to end.

/**
 * Round numbers from 0 up to a number, few enough to be read: steps of 1, 2 or 5 times a power of ten.
 * @param {number} most @param {number} count at most so many steps @returns {number[]}
 */
export function roundTicks(most, count) {
  if (!(most > 0)) return [0];
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough * (1 - 1e-9)) ?? 10);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, index) => index * step);
}

/** A tick as it is written: no more digits than the step needs. @param {number} value @param {number} step */
export function tickText(value, step) {
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** How far along an axis a value is, in percent; what lies beyond its end is at the end. @param {number} value @param {number} most */
export function percent(value, most) {
  return most > 0 ? Math.min(100, Math.max(0, (100 * value) / most)) : 0;
}

/**
 * Parts end to end: where each begins and how wide it is, in percent. Parts that are not known take no room.
 * @param {(number | null)[]} parts @param {number} most
 */
export function stacked(parts, most) {
  let before = 0;
  return parts.map((part) => {
    const left = percent(before, most);
    before += part ?? 0;
    return { left, width: percent(before, most) - left };
  });
}

/**
 * The end of the axis: beyond every quartile and, where that is not far, every round.
 * @param {{seconds: number | null, high: number | null, rounds: number[]}[]} rows
 */
export function axisEnd(rows) {
  const quartiles = Math.max(...rows.map(({ seconds, high }) => high ?? seconds ?? 0));
  const rounds = Math.max(0, ...rows.flatMap((row) => row.rounds));
  return 1.04 * Math.max(quartiles, Math.min(rounds, 1.25 * quartiles));
}
