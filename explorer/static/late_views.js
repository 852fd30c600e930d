// Views that a widget gets only when one is opened: most records need none of them, and every widget carries its script.
// A saved page has them from the start. They may import from any module of the core; the core imports none of them.

import { ChainView } from "./chain_view.js";
import { MemoryView } from "./memory_view.js";
import { ProgramMapView } from "./program_map.js";
import { StepsView } from "./steps_view.js";
import { TimingView } from "./timing_view.js";
import { XrayView } from "./xray_view.js";

/** @type {import("./views.js").Views} */
export const LATE_VIEWS = { chain_rule: ChainView, memory_chart: MemoryView, program_map: ProgramMapView, steps: StepsView, times: TimingView, xray: XrayView };
