function render({ model, el }) {
  const box = document.createElement("div");
  const draw = () => { box.innerHTML = model.get("svg"); };
  const place = (event) => {
    const seen = box.querySelector("svg")?.getBoundingClientRect();
    if (!seen) return null;
    const [left, right, top, bottom] = model.get("frame");
    const x = ((event.clientX - seen.left) / seen.width - left) / (right - left);
    const y = 1 - ((event.clientY - seen.top) / seen.height - top) / (bottom - top);
    return x >= 0 && x <= 1 && y >= 0 && y <= 1 ? [x, y] : null;
  };
  const framed = () => { box.style.touchAction = model.get("frame")[0] < 1 ? "none" : ""; };
  const tell = (event) => {
    const at = place(event);
    box.style.cursor = at ? "crosshair" : "";
    if (!at || (event.type === "pointermove" && !(event.buttons & 1))) return;
    event.preventDefault();
    if (event.type === "pointerdown") model.set("start", [...at, event.timeStamp]);
    model.set("point", at);
    model.save_changes();
  };
  box.addEventListener("pointerdown", tell);
  box.addEventListener("pointermove", tell);
  model.on("change:svg", draw);
  model.on("change:frame", framed);
  draw();
  framed();
  el.appendChild(box);
}
export default { render };
