// The views of findings by name. Those of late_views.js are added when they are there.

import { DocumentView } from "./document_view.js";

/**
 * What a pane asks of what it shows.
 * @typedef {{select: (primary: Set<string>, linked: Set<string>, reveal: boolean) => void,
 *   preview: (linked: Set<string>) => void, stepLinked: (direction: number) => [number, number],
 *   find: (query: string) => import("./search_bar.js").Found,
 *   stepHit: (direction: number) => import("./search_bar.js").Found, focus: () => void, themeChanged: () => void,
 *   destroy: () => void}} View
 */

/**
 * @typedef {Record<string, new (root: HTMLElement, callbacks: import("./text_view.js").Callbacks,
 *   artifact: import("./store.js").Artifact, store: import("./store.js").Store) => View>} Views
 */

/** @type {Views} */
export const VIEWS = { document: DocumentView };
