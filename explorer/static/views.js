// The views of findings by name.

import { FindingView } from "./finding_view.js";

/** @type {Record<string, typeof FindingView>} */
export const VIEWS = {};
