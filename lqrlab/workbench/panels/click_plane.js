function render({ model, el }) {
  const box = document.createElement("div");
  const draw = () => { box.innerHTML = model.get("svg"); };
  const place = (event) => {
    const svg = box.querySelector("svg");
    if (!svg) return null;
    const [left, right, top, bottom] = model.get("frame"), { width, height } = svg.viewBox.baseVal;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const x = (at.x / width - left) / (right - left), y = 1 - (at.y / height - top) / (bottom - top);
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
