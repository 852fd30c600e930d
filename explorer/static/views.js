// The views of findings by name. Those of late_views.js are added when they are there.

import { DocumentView } from "./document_view.js";

/**
 * What a pane asks of what it shows.
 * @typedef {{select: (primary: Set<string>, linked: Set<string>, reveal: boolean) => void,
 *   preview: (linked: Set<string>) => void, stepLinked: (direction: number) => [number, number],
 *   find: (query: string) => import("./search_bar.js").Found,
 *   stepHit: (direction: number) => import("./search_bar.js").Found, showRow?: (row: number) => void, state?: string, focus: () => void, themeChanged: () => void,
 *   destroy: () => void, text?: import("./text_view.js").TextView, legend?: HTMLElement[]}} View
 */

/**
 * @typedef {Record<string, new (root: HTMLElement, callbacks: import("./text_view.js").Callbacks,
 *   artifact: import("./store.js").Artifact, store: import("./store.js").Store, ...more: any[]) => View>} Views
 */

/**
 * What else is there with the late views.
 * @type {{savePicture?: (picture: import("./picture.js").Picture, kind: "svg" | "png") => Promise<void>,
 *   showKeys?: (root: HTMLElement) => void, showMorph?: (element: HTMLElement, store: import("./store.js").Store, graph: string) => void, present?: (explorer: import("./explorer.js").Explorer) => void}}
 */
export const TOOLS = {};

/** @type {Views} */
export const VIEWS = { document: DocumentView };
