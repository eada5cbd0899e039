// Puts sliders to the pictures of a design page. Of what the page holds it reads numbers, and words, which it writes as text.
(() => {
  const digits = (v) => Math.round(10 * v) / 10;

  const curve = (steps, { x, y, hold }) => {
    let level = 0;
    return steps.map((step, i) => {
      level += step;
      const [across, up] = [digits(x[0] + x[1] * i), digits(y[0] + y[1] * level)];
      if (!i) return `M${across} ${up}`;
      return hold ? `H${across}V${up}` : `L${across} ${up}`;
    }).join("");
  };

  const marks = (poles, { x, y, mark }) =>
    poles.map(([re, im]) => `M${digits(x[0] + x[1] * re)} ${digits(y[0] + y[1] * im)}${mark}`).join("");

  // A part of the drawing is a path through points, a circle or a word.
  const place = (part, at) => {
    const names = { circle: ["cx", "cy", "r"], text: ["x", "y"] }[part.tagName];
    if (names) names.forEach((name, i) => part.setAttribute(name, at[i]));
    else {
      const points = at.flatMap((x, i) => (i % 2 ? [] : [`${x} ${at[i + 1]}`]));
      part.setAttribute("d", "M" + points.join("L") + (part.getAttribute("d").endsWith("Z") ? "Z" : ""));
    }
  };

  const pose = (parts, { sizes, fine, fixed, moving, poses }, design, frame) => {
    const numbers = [...fixed];
    moving.forEach((k, i) => { numbers[k] = poses[design][i].slice(0, frame + 1).reduce((a, b) => a + b, 0); });
    let used = 0;
    parts.forEach((part, i) => place(part, numbers.slice(used, used += sizes[i]).map((v) => digits(v / fine))));
  };

  const slider = (row, { words, at, label }, move) => {
    const input = document.createElement("input");
    Object.assign(input, { type: "range", min: 0, max: words.length - 1, step: 1, value: at });
    input.setAttribute("aria-label", label);
    const say = () => {
      row.querySelector("b").textContent = words[input.value];
      input.setAttribute("aria-valuetext", words[input.value]);
    };
    input.addEventListener("input", () => { say(); move(); });
    row.querySelector(".lq-slot").replaceChildren(input);
    say();
    return input;
  };

  const start = async (page) => {
    const packed = Uint8Array.from(atob(page.dataset.designs), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const { axes, charts, curves, poles, words, scene } = JSON.parse(await new Response(stream).text());
    const [lines, now, parts, said, rows] = [".lq-live", ".lq-now", ".lq-part", ".lq-said b", ".lq-row"]
      .map((which) => [...page.querySelectorAll(which)]);
    const draw = () => {
      const design = axes.reduce((sum, axis, i) => sum * axis.words.length + Number(inputs[i].value), 0);
      charts.forEach((chart, i) => lines[i].setAttribute("d", curve(curves[i][design], chart)));
      lines[charts.length].setAttribute("d", marks(poles.at[design], poles));
      words.forEach((row, i) => { said[i].textContent = row.words[design]; });
      if (!scene.words) return;
      const frame = Number(inputs[axes.length].value);
      pose(parts, scene, design, frame);
      now.forEach((mark, i) => mark.setAttribute(
        "transform", `translate(${digits(charts[i].x[0] + charts[i].x[1] * frame * scene.every)} 0)`));
    };
    const moved = scene.words ? [...axes, scene] : axes;
    const inputs = moved.map((axis, i) => slider(rows[i], axis, draw));
    const reset = document.createElement("button");
    reset.type = "button";
    reset.textContent = "back to the defaults";
    reset.addEventListener("click", () => inputs.forEach((input, i) => {
      input.value = moved[i].at;
      input.dispatchEvent(new Event("input"));
    }));
    page.querySelector(".lq-note span").replaceChildren(`${poles.at.length} designs to choose from. `, reset);
  };

  for (const page of document.querySelectorAll(".lq-designs[data-designs]"))
    start(page).catch((error) => console.info(`no sliders: ${error}`));  // the still pictures stay
})();
