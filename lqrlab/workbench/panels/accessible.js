// What screen readers and keyboards need of a panel, and nothing to be seen.
// A slider's handle says only its value to a screen reader: give it the words that stand beside it.
function name() {
  for (const slider of document.querySelectorAll(".widget-slider")) {
    const label = slider.querySelector(".widget-label");
    for (const handle of slider.querySelectorAll(".noUi-handle")) {
      if (label) handle.setAttribute("aria-label", label.textContent);
    }
  }
}
// JupyterLab takes arrows, Enter and letters for commands to its cells, also where a control of a panel has the focus.
function keep(event) {
  if (!event.target.closest?.(".lq-panel")) return;
  event.target.toggleAttribute("data-lm-suppress-shortcuts", !(event.ctrlKey || event.metaKey || event.altKey));
}
function render({ el }) {
  el.style.display = "none";
  const watch = new MutationObserver(name);
  setTimeout(() => {  // when the panel is in the page
    watch.observe(el.closest(".jp-OutputArea") ?? document.body, { childList: true, subtree: true });
    name();
  });
  window.addEventListener("keydown", keep, true);  // before JupyterLab, which listens to the document
  return () => { watch.disconnect(); window.removeEventListener("keydown", keep, true); };
}
export default { render };
