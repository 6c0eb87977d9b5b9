// The roofline: what memory and array allow, and where the kernel stands. Both axes are logarithmic.

const ROOF = { width: 560, height: 300, left: 52, right: 24, top: 14, bottom: 40 };

function svg(tag, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

/** The powers of ten from below the least to above the most. */
function decades(least, most) {
  const first = Math.floor(Math.log10(least));
  const last = Math.ceil(Math.log10(most));
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
}

function drawRoofline(data, box) {
  const { roofline, roofs } = data;
  const bandwidth = roofline.hbm_gbs / 1e3; // TFLOP/s per FLOP/byte
  const peak = Math.max(...roofs.map((roof) => roof.tflops));
  const worked = roofline.achieved_tflops > 0;
  const xs = decades(Math.min(roofline.flops_per_byte || 1, 1), Math.max((peak / bandwidth) * 4, roofline.flops_per_byte * 2));
  const ys = decades(Math.min(worked ? roofline.achieved_tflops / 2 : 1, xs[0] * bandwidth * 2), peak);
  const along = (x) => ROOF.left + (Math.log10(x / xs[0]) / Math.log10(xs.at(-1) / xs[0])) * (ROOF.width - ROOF.left - ROOF.right);
  const up = (y) => ROOF.height - ROOF.bottom - (Math.log10(y / ys[0]) / Math.log10(ys.at(-1) / ys[0])) * (ROOF.height - ROOF.top - ROOF.bottom);
  const chart = svg("svg", { viewBox: `0 0 ${ROOF.width} ${ROOF.height}`, role: "img", "aria-label": roofSentence(roofline) });
  drawScales(chart, xs, ys, along, up);
  const floor = Math.max(ys[0], xs[0] * bandwidth);
  chart.append(svg("line", { class: "roof", x1: along(floor / bandwidth), y1: up(floor), x2: along(peak / bandwidth), y2: up(peak) }));
  for (const { name, tflops } of roofs) {
    chart.append(svg("line", { class: "roof", x1: along(tflops / bandwidth), y1: up(tflops), x2: along(xs.at(-1)), y2: up(tflops) }));
    chart.append(svg("text", { x: along(xs.at(-1)) - 4, y: up(tflops) - 5, "text-anchor": "end" }, `${name} ${three(tflops)} TFLOP/s`));
  }
  const slope = (Math.atan2(up(bandwidth) - up(10 * bandwidth), along(10) - along(1)) * 180) / Math.PI;
  const middle = Math.sqrt((floor / bandwidth) * (roofs.at(-1).tflops / bandwidth));
  chart.append(svg("text", {
    transform: `translate(${along(middle)} ${up(middle * bandwidth) - 7}) rotate(${-slope})`, "text-anchor": "middle",
  }, `HBM ${roofline.hbm_gbs.toFixed(0)} GB/s`));
  if (worked) drawPoint(chart, roofline, along, up, ys[0]);
  box.append(chart, element("p", { textContent: roofSentence(roofline) }));
}

function drawScales(chart, xs, ys, along, up) {
  const label = (x) => (x >= 1 ? x.toLocaleString("en-US") : String(+x.toPrecision(1)));
  for (const x of xs) {
    chart.append(svg("line", { class: "grid", x1: along(x), y1: up(ys[0]), x2: along(x), y2: up(ys.at(-1)) }));
    chart.append(svg("text", { x: along(x), y: up(ys[0]) + 15, "text-anchor": "middle" }, label(x)));
  }
  for (const y of ys) {
    chart.append(svg("line", { class: "grid", x1: along(xs[0]), y1: up(y), x2: along(xs.at(-1)), y2: up(y) }));
    chart.append(svg("text", { x: ROOF.left - 6, y: up(y) + 4, "text-anchor": "end" }, label(y)));
  }
  chart.append(svg("text", { x: (ROOF.left + ROOF.width) / 2, y: ROOF.height - 6, "text-anchor": "middle" }, "FLOP per HBM byte"));
  chart.append(svg("text", { transform: `translate(12 ${ROOF.height / 2 - 12}) rotate(-90)`, "text-anchor": "middle" }, "TFLOP/s"));
}

function drawPoint(chart, roofline, along, up, lowest) {
  const [x, y] = [along(roofline.flops_per_byte), up(roofline.achieved_tflops)];
  chart.append(svg("line", { class: "drop", x1: x, y1: up(roofline.attainable_tflops), x2: x, y2: up(lowest) }));
  chart.append(svg("circle", { class: "point", cx: x, cy: y, r: 6 }));
  const left = x > ROOF.width - 190;
  chart.append(svg("text", { class: "kernel", x: left ? x - 11 : x + 11, y: y + 14, "text-anchor": left ? "end" : "start" },
    `this kernel ${three(roofline.achieved_tflops)} TFLOP/s`));
}

function roofSentence(roofline) {
  if (!roofline.achieved_tflops) {
    return "No matrix products: the array has nothing to do, memory and the other engines decide the time. " +
      ceilingSentence(roofline);
  }
  const share = (100 * roofline.achieved_tflops) / roofline.attainable_tflops;
  return `${three(roofline.flops_per_byte)} FLOP per byte of HBM traffic; the ridge is at ` +
    `${three(roofline.ridge_flops_per_byte)}, so TensorE could reach ` +
    `${three(roofline.attainable_tflops)} TFLOP/s in bf16; the kernel has ${share.toFixed(1)} % of that. ` +
    ceilingSentence(roofline);
}

// What each resource needs for this work at the least: the longest is the bound.
function ceilingSentence(roofline) {
  const least = Object.entries(roofline.ceilings_us).map(([name, us]) => `${name} ${three(us)} us`);
  return least.length ? `At the least: ${least.join(", ")}. ${roofline.bound} is the bound.` : "";
}
