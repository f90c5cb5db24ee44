"use strict";
/* Copies the text of a block to the clipboard. */
const clipboard = (() => {
  const SHOWN_FOR = 1500;

  async function copy(button) {
    const text = button.closest(".block")?.querySelector("[data-text]")?.textContent ?? "";
    const isCopied = await written(text);
    button.textContent = isCopied ? "Copied" : "Not copied";
    timeline.announce(button.textContent);
    setTimeout(() => {
      button.textContent = "Copy";
    }, SHOWN_FOR);
  }

  /** Pages on other hosts than this machine have no clipboard without TLS; there the older way works. */
  async function written(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return selected(text);
    }
  }

  function selected(text) {
    const before = document.activeElement;
    const area = dom.el("textarea", { class: "visually-hidden", readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    try {
      return document.execCommand("copy");
    } finally {
      area.remove();
      before?.focus?.({ preventScroll: true });
    }
  }

  return { copy };
})();
