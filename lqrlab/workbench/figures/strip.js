// Puts sliders to strips of pictures: it shows one picture of a strip and hides the others.
for (const strip of document.querySelectorAll(".lq-strip")) {
  const still = strip.querySelector(".lq-still");
  const rows = strip.querySelectorAll(".lq-row");
  const axes = [...strip.querySelectorAll(".lq-frames")].map((group, k) => {
    const [row, frames] = [rows[k], [...group.children]];
    const at = frames.findIndex((frame) => !frame.childElementCount);
    const input = Object.assign(document.createElement("input"), { type: "range", min: 0, max: frames.length - 1, value: at });
    const said = row.querySelector("b");
    said.textContent = frames[at].getAttribute("aria-label");
    input.setAttribute("aria-label", row.querySelector("span").textContent);
    row.querySelector(".lq-slot").replaceChildren(input);
    return { frames, at, input, said };
  });
  const show = (moved) => {
    for (const axis of axes) {
      if (axis !== moved) axis.input.value = axis.at;
      axis.frames.forEach((frame, i) => frame.classList.toggle("lq-on", axis === moved && i === Number(axis.input.value)));
      axis.said.textContent = axis.frames[axis.input.value].getAttribute("aria-label");
      axis.input.setAttribute("aria-valuetext", axis.said.textContent);
    }
    still.hidden = Number(moved.input.value) !== moved.at;
  };
  axes.forEach((axis) => axis.input.addEventListener("input", () => show(axis)));
}
