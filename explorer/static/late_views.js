// Views that a widget gets only when one is opened: most records need none of them, and every widget carries its script.
// A saved page has them from the start. They may import from any module of the core; the core imports none of them.

import { ComparisonView } from "./comparison_view.js";
import { showKeys } from "./keys.js";
import { LanesView } from "./lanes_view.js";
import { MemoryView } from "./memory_view.js";
import { showMorph } from "./morph_overlay.js";
import { savePicture } from "./picture_file.js";
import { present } from "./presenter.js";
import { ProfileView } from "./profile_view.js";
import { ProgramMapView } from "./program_map.js";
import { StepsView } from "./steps_view.js";
import { TimingView } from "./timing_view.js";
import { TOOLS } from "./views.js";
import { XrayView } from "./xray_view.js";

Object.assign(TOOLS, { savePicture, showKeys, showMorph, present });

/** @type {import("./views.js").Views} */
export const LATE_VIEWS = {
  collectives: LanesView,
  comparison: ComparisonView,
  memory_chart: MemoryView,
  profile: ProfileView,
  program_map: ProgramMapView,
  steps: StepsView,
  times: TimingView,
  xray: XrayView,
};
