// The card of a selected entity of a finding, the same as in the finding's view.

import { breakCard } from "./break_card.js";
import { recompileCard } from "./recompile_card.js";

/** @type {Record<string, (card: any, actions: import("./inspector.js").Actions, tools: Node[]) => HTMLElement>} */
const CARDS = { break: breakCard, recompile: recompileCard };

/**
 * None for what has no card, or before it has arrived.
 * @param {import("./store.js").Store} store @param {import("./store.js").Entity} entity
 * @param {import("./inspector.js").Actions} actions @param {Node[]} tools that stand in its corner
 */
export function findingCard(store, entity, actions, tools) {
  const artifact = entity.kind in CARDS ? store.artifactOf(entity.id) : undefined;
  if (!artifact?.info.parts.view) return null;
  store.need(artifact.info.id, "view");
  const card = artifact.view?.cards.find((/** @type {{ids: string[]}} */ { ids }) => ids.includes(entity.id));
  return card ? CARDS[entity.kind](card, actions, tools) : null;
}
