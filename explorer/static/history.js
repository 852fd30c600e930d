// Where the reader is and was: what the panes show, what is selected, what is looked for.

/**
 * What a pane shows: an artifact, or the stage that it is alone in; how, "" for as usual; what it is compared with; and
 * the state of its view, such as the fixes and the zoom of a map, "" for as it opens.
 * @typedef {{name: string, mode: string, other: string, state?: string}} Shown
 * What the reader sees. `colours` is whether lines have their colours.
 * @typedef {{panes: Shown[], select: string[], find: string, colours?: boolean}} Place
 */

const MOST_STEPS = 200;

/** The places where the reader was, with a way back and forward. */
export class History {
  constructor() {
    /** @type {Place[]} */
    this.places = [];
    this.at = -1;
  }

  /**
   * Note where the reader is. What is looked for, colours and the state of a view are no steps of their own, nor is what follows from the last step by itself.
   * @param {Place} place @param {boolean} isStep whether the reader did something
   */
  note(place, isStep) {
    const key = ({ panes, select } = place) => JSON.stringify([panes.map(({ state, ...shown }) => shown), select]);
    const moves = this.at < 0 || (isStep && key() !== key(this.places[this.at]));
    if (moves) this.places.splice(++this.at, Infinity, place);
    else this.places[this.at] = place;
    if (this.places.length > MOST_STEPS) this.places.shift();
    this.at = Math.min(this.at, this.places.length - 1);
  }

  /** @param {number} steps back or forward @returns {Place | undefined} where that leads */
  move(steps) {
    const place = this.places[this.at + steps];
    if (place) this.at += steps;
    return place;
  }

  /** @param {number} steps */
  leads(steps) {
    return this.at + steps in this.places;
  }
}
