// The form of a prediction as an anywidget: the kernel runs the code and grades the answers.

import { PredictForm } from "./predict.js";

export default () => ({
  /** @param {{model: import("./widget.js").Model, el: HTMLElement}} context */
  render({ model, el }) {
    const view = new PredictForm(model);
    el.append(view.root);
    return () => view.destroy();
  },
});
