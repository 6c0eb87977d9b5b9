"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const make = (kind, parent, className, text) => {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
};
const first = data.tiles.map(() => Infinity), last = data.tiles.map(() => -1);
data.steps.forEach((step, number) => step.views.forEach((v) => {
  first[v.tile] = Math.min(first[v.tile], number);
  last[v.tile] = Math.max(last[v.tile], number);
}));
let at = 0, timer = null;

function drawSource(step) {
  const pane = $("source"), file = data.sources[step.file];
  if (pane.dataset.file !== step.file) {
    pane.textContent = "";
    pane.dataset.file = step.file;
    for (const [number, text] of (file ? file.lines : []).entries()) {
      const line = make("div", pane);
      line.dataset.line = file.first + number;
      make("span", line, "", String(file.first + number));
      line.append(text || " ");
    }
  }
  for (const line of pane.children) line.classList.toggle("on", Number(line.dataset.line) === step.line);
  const on = pane.querySelector(".on");
  if (on) pane.scrollTop = on.offsetTop - pane.offsetTop - pane.clientHeight / 2;
}

function drawTiles(step) {
  for (const memory of ["hbm", "sbuf", "psum"]) $(memory).textContent = "";
  const boxes = [], touched = new Set(step.views.map((v) => v.tile));
  data.tiles.forEach((tile, number) => {
    if (!tile.resident && tile.memory !== "hbm" && (at < first[number] || at > last[number])) return;
    const shown = make("div", $(tile.memory), touched.has(number) ? "tile" : "tile idle");
    shown.style.width = `${Math.min(100, 14 + 14 * Math.log2(1 + tile.columns))}%`;
    shown.style.height = `${Math.min(120, 12 + 12 * Math.log2(1 + tile.rows))}px`;
    make("p", shown, "", `${tile.label} ${tile.dtype}[${tile.shape.join(", ")}]`);
    step.views.filter((v) => v.tile === number).forEach((view) => {
      const box = make("div", shown, `box ${view.role}${view.anywhere ? " anywhere" : ""}`);
      const [top, bottom, left, right] = view.box.map((x) => `${100 * x}%`);
      Object.assign(box.style, { top, left, width: `calc(${right} - ${left})`, height: `calc(${bottom} - ${top})` });
      box.onmousemove = (event) => tip(event, view);
      box.onmouseleave = () => ($("tip").style.display = "none");
      boxes.push([view.role, box]);
    });
  });
  drawArrows(boxes);
}

function drawArrows(boxes) {
  const frame = $("memories").getBoundingClientRect();
  const middle = (box) => {
    const r = box.getBoundingClientRect();
    return [r.left + r.width / 2 - frame.left, r.top + r.height / 2 - frame.top];
  };
  const sources = boxes.filter(([role]) => role === "reads"), targets = boxes.filter(([role]) => role !== "reads");
  $("arrows").replaceChildren(...sources.flatMap(([, from]) => targets.map(([, to]) => {
    const [x, y] = middle(from), [u, v] = middle(to);
    const path = document.createElementNS($("arrows").namespaceURI, "path");
    path.setAttribute("d", `M${x} ${y}C${(x + u) / 2} ${y} ${(x + u) / 2} ${v} ${u} ${v}`);
    return path;
  })));
}

function tip(event, view) {
  const shape = view.shape, columns = shape[shape.length - 1] || 1, rows = [];
  const values = view.values || [];
  for (let i = 0; i < values.length && rows.length < 24; i += columns) {
    const row = values.slice(i, i + Math.min(columns, 12)).map((v) => v.padStart(9)).join(" ");
    rows.push(columns > 12 ? row + " ..." : row);
  }
  if (values.length > 24 * columns) rows.push("...");
  const box = $("tip");
  box.textContent = `${view.role.replace("_", " ")} [${shape.join(", ")}]` + (rows.length ? "\n" + rows.join("\n") : "");
  Object.assign(box.style, { display: "block", left: `${Math.min(event.clientX + 12, innerWidth * 0.5)}px`, top: `${event.clientY + 12}px` });
}

function go(number) {
  if (!data.steps.length) return void ($("what").textContent = "no instruction");
  at = Math.max(0, Math.min(data.steps.length - 1, number));
  const step = data.steps[at], left = data.left_out ? ` (${data.left_out} more are left out)` : "";
  $("at").value = at;
  $("count").textContent = `${at + 1} / ${data.steps.length}${left}`;
  $("what").textContent = `nisa.${step.name}  on ${step.engine}`;
  $("tip").style.display = "none";
  drawSource(step);
  drawTiles(step);
}

function play() {
  timer = timer ? clearInterval(timer) : setInterval(() => (at + 1 < data.steps.length ? go(at + 1) : play()), 600);
  $("play").textContent = timer ? "pause" : "play";
}

$("at").max = Math.max(0, data.steps.length - 1);
$("at").oninput = (event) => go(Number(event.target.value));
$("back").onclick = () => go(at - 1);
$("next").onclick = () => go(at + 1);
$("play").onclick = play;
addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT") return;
  if (event.key === "ArrowRight") go(at + 1);
  else if (event.key === "ArrowLeft") go(at - 1);
  else if (event.key === " ") { event.preventDefault(); play(); }
});
addEventListener("resize", () => go(at));
go(0);
