// The views of findings by name.

import { BreaksView } from "./breaks_view.js";
import { BytecodeView } from "./bytecode_view.js";
import { GuardsView } from "./guards_view.js";
import { RecompilesView } from "./recompiles_view.js";
import { StepsView } from "./steps_view.js";

/**
 * What a pane asks of what it shows.
 * @typedef {{select: (primary: Set<string>, linked: Set<string>, reveal: boolean) => void,
 *   preview: (linked: Set<string>) => void, stepLinked: (direction: number) => [number, number],
 *   find: (query: string) => import("./search_bar.js").Found,
 *   stepHit: (direction: number) => import("./search_bar.js").Found, focus: () => void, themeChanged: () => void,
 *   destroy: () => void}} View
 */

/**
 * @type {Record<string, new (root: HTMLElement, callbacks: import("./text_view.js").Callbacks,
 *   artifact: import("./store.js").Artifact, store: import("./store.js").Store) => View>}
 */
export const VIEWS = { breaks: BreaksView, bytecode: BytecodeView, guards: GuardsView, recompiles: RecompilesView, steps: StepsView };
