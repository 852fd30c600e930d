// A new cell in JupyterLab and Notebook 7. They have no call for it that a widget could make: this does what a user does.

/** How often, and with what pause in milliseconds, to look for the editor of the new cell. */
const [TIMES, PAUSE] = [40, 50];

/**
 * Add a cell below the one that an element is in, and paste text into it. False where the front end is another one.
 * @param {Element} element @param {string} text @returns {Promise<boolean>}
 */
export async function insertCell(element, text) {
  const [cell, panel] = [element.closest(".jp-Cell"), element.closest(".jp-NotebookPanel")];
  const insert = panel?.querySelector('[data-command="notebook:insert-cell-below"], [data-jp-item-name="insert"] :is(button, jp-button)');
  if (!cell || !panel || !(insert instanceof HTMLElement)) return false;
  const before = new Set(panel.querySelectorAll(".jp-Cell"));
  // Some versions of the button hear clicks, others mouse presses, all of them this key. It adds below the active cell,
  // which this one is: the click that led here was in it.
  insert.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  for (let time = 0; time < TIMES; time++) {
    await new Promise((done) => setTimeout(done, PAUSE));
    const made = [...panel.querySelectorAll(".jp-Cell")].find((each) => !before.has(each));
    const editor = made?.querySelector(".cm-content");
    if (editor) return paste(editor, text);
  }
  return false;
}

/** @param {Element} editor @param {string} text @returns {boolean} whether the editor took it */
function paste(editor, text) {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  return !editor.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}
