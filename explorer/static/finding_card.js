// The card of a selected entity of a finding, the same as in the finding's view.

import { cardOf, cardPart } from "./document.js";

const WITH_CARDS = new Set(["document", "xray"]);

/**
 * None for what has no card, or before it has arrived.
 * @param {import("./store.js").Store} store @param {import("./store.js").Entity} entity
 * @param {import("./inspector.js").Actions} actions @param {Node[]} tools that stand in its corner
 */
export function findingCard(store, entity, actions, tools) {
  const artifact = store.artifactOf(entity.id);
  if (!artifact || !WITH_CARDS.has(artifact.info.view)) return null;
  store.need(artifact.info.id, "view");
  const card = artifact.view && cardOf(artifact.view.parts, entity.id);
  return card ? cardPart(card, { actions, item: (_, element) => element, tools }) : null;
}
