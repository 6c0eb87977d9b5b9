// Numbers and reasons as words.

const ENGINE_NAMES = {
  tensor: "Tensor", vector: "Vector", scalar: "Scalar", gpsimd: "GpSimd", sync: "Sync",
  software: "DMA software", hardware: "DMA hardware", static: "DMA static", dma: "DMA",
};
const COMPUTE = new Set(["tensor", "vector", "scalar", "gpsimd", "sync"]);

const three = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));

function timeText(ns) {
  if (ns >= 1e9) return `${three(ns / 1e9)} s`;
  if (ns >= 1e6) return `${three(ns / 1e6)} ms`;
  if (ns >= 1e3) return `${three(ns / 1e3)} µs`;
  return `${ns >= 100 || Number.isInteger(ns) ? ns.toFixed(0) : ns.toFixed(1)} ns`;
}

/** A moment to a hundredth of a microsecond, however late it is. */
const momentText = (ns) => `${(ns / 1e3).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} µs`;

function sizeText(bytes) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (bytes < 1024) return `${bytes >= 100 ? Math.round(bytes) : +bytes.toPrecision(3)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(2)} GiB`;
}

function flopsText(flops) {
  for (const unit of ["", "k", "M", "G"]) {
    if (flops < 1000) return `${three(flops)} ${unit}FLOP`;
    flops /= 1000;
  }
  return `${three(flops)} TFLOP`;
}

const countText = (n, noun) => `${n.toLocaleString("en-US")} ${noun}${n === 1 ? "" : "s"}`;

/** Why an instruction started when it did; `x` is the one that decided it. */
const REASONS = {
  data: (x) => `${x} writes what it reads`,
  overwrite: (x) => `${x} still reads the tile it overwrites`,
  rewrite: (x) => `${x} writes the same tile before it`,
  space: (x) => `${x} must first give up the memory it takes`,
  engine: (x) => `${x} keeps the engine busy`,
  order: (x) => `it is ordered after ${x}`,
};

const SHORT_REASONS = {
  data: "its data", overwrite: "it still read", rewrite: "it wrote before", space: "memory", engine: "engine busy", order: "order",
};

const QUEUE_BUSY = (x) => `${x} is triggered before it on this queue`;

function reasonText(data, row) {
  const before = data.blocker[row];
  if (before < 0) return "nothing: it could start at once";
  const why = data.why_of(row);
  const said = why === "engine" && !COMPUTE.has(data.lane_of(row).name) ? QUEUE_BUSY : REASONS[why];
  const name = data.kind_of(before).name;
  return said ? said(name) : `${name} (${why})`;
}

/** The operands of a kind, one text each. */
const operandList = (text) => (text ? text.split(/, (?=\w+ \w+\[)/) : []);

function placeText(data, kind) {
  return kind.file < 0 ? "no source line" : `${data.files[kind.file].name}:${kind.line}`;
}

function sourceText(data, kind) {
  return kind.file < 0 ? "" : (data.files[kind.file].lines[kind.line - 1] || "").trim();
}

/** An element with properties, attributes (data-, aria-, role) and children. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}
