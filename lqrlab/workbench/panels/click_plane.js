function render({ model, el }) {
  const box = document.createElement("div");
  const draw = () => { box.innerHTML = model.get("svg"); };
  box.style.cursor = "crosshair";
  box.style.touchAction = "none";
  const tell = (event) => {
    event.preventDefault();
    const seen = box.querySelector("svg").getBoundingClientRect();
    const [left, right, top, bottom] = model.get("frame");
    const x = ((event.clientX - seen.left) / seen.width - left) / (right - left);
    const y = 1 - ((event.clientY - seen.top) / seen.height - top) / (bottom - top);
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
