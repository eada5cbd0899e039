function render({ model, el }) {
  const box = document.createElement("div");
  const draw = () => { box.innerHTML = model.get("svg"); };
  box.style.cursor = "crosshair";
  box.style.touchAction = "none";
  const tell = (event) => {
    event.preventDefault();
    const svg = box.querySelector("svg");
    if (!svg) return;
    const [left, right, top, bottom] = model.get("frame"), { width, height } = svg.viewBox.baseVal;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const x = (at.x / width - left) / (right - left), y = 1 - (at.y / height - top) / (bottom - top);
    if (x >= 0 && x <= 1 && y >= 0 && y <= 1) {
      if (event.type === "pointerdown") model.set("start", [x, y, event.timeStamp]);
      model.set("point", [x, y]);
      model.save_changes();
    }
  };
  box.addEventListener("pointerdown", tell);
  box.addEventListener("pointermove", (event) => { if (event.buttons & 1) tell(event); });
  model.on("change:svg", draw);
  draw();
  el.appendChild(box);
}
export default { render };
