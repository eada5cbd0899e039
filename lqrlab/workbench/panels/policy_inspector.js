function render({ model, el }) {
  const box = document.createElement("div");
  const draw = () => { box.innerHTML = model.get("svg"); };
  box.style.cursor = "crosshair";
  box.addEventListener("click", (event) => {
    const seen = box.querySelector("svg").getBoundingClientRect();
    const [left, right, top, bottom] = model.get("frame");
    const x = ((event.clientX - seen.left) / seen.width - left) / (right - left);
    const y = 1 - ((event.clientY - seen.top) / seen.height - top) / (bottom - top);
    if (x >= 0 && x <= 1 && y >= 0 && y <= 1) {
      model.set("point", [x, y]);
      model.save_changes();
    }
  });
  model.on("change:svg", draw);
  draw();
  el.appendChild(box);
}
export default { render };
