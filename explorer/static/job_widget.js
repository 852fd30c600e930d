// The index of a job as an anywidget: the kernel opens the record of a compilation below it.

import { JobIndex } from "./job_index.js";

export default () => ({
  /** @param {{model: import("./widget.js").Model, el: HTMLElement}} context */
  render({ model, el }) {
    const index = new JobIndex(model.get("data"), (name) => model.send({ type: "open", name }), true);
    /** A plain key here is not Jupyter's, to which D twice deletes the cell. @param {KeyboardEvent} event */
    const keep = (event) => {
      if (event.target instanceof HTMLElement && index.root.contains(event.target))
        event.target.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey && !event.altKey);
    };
    window.addEventListener("keydown", keep, { capture: true });
    el.classList.add("tcompile", "tc-job-frame"); // the rules of documents are for what is inside of an explorer
    el.append(index.root);
    return () => {
      window.removeEventListener("keydown", keep, { capture: true });
      index.root.remove();
    };
  },
});
