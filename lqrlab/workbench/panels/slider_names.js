// A slider's handle says only its value to a screen reader: give it the words that stand beside it.
function name() {
  for (const slider of document.querySelectorAll(".widget-slider")) {
    const label = slider.querySelector(".widget-label");
    for (const handle of slider.querySelectorAll(".noUi-handle")) {
      if (label) handle.setAttribute("aria-label", label.textContent);
    }
  }
}
function render({ el }) {
  el.style.display = "none";
  const watch = new MutationObserver(name);
  setTimeout(() => {  // when the panel is in the page
    watch.observe(el.closest(".jp-OutputArea") ?? document.body, { childList: true, subtree: true });
    name();
  });
  return () => watch.disconnect();
}
export default { render };
