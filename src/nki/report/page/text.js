// Numbers and reasons as words.

const ENGINE_NAMES = {
  tensor: "Tensor", stationary: "LoadStationary", vector: "Vector", scalar: "Scalar", gpsimd: "GpSimd", sync: "Sync",
  software: "DMA software", "hardware sync": "DMA Sync", "hardware scalar": "DMA Scalar", static: "DMA static",
  spill: "DMA spills", ranks: "DMA ranks", dma: "DMA",
};
const QUEUE_WORDS = {
  software: "descriptors by software, triggered by GpSimd", static: "descriptors made before the run",
  "hardware sync": "descriptors by hardware, triggered by Sync", "hardware scalar": "descriptors by hardware, triggered by Scalar",
  spill: "what SBUF had no room for", ranks: "to and from other ranks",
  tensor: "Matmult", stationary: "the stationary operands, loaded while the Matmult before still runs",
};
const COMPUTE = new Set(["tensor", "stationary", "vector", "scalar", "gpsimd", "sync"]);

const three = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));

function timeText(ns) {
  if (ns >= 1e9) return `${three(ns / 1e9)} s`;
  if (ns >= 1e6) return `${three(ns / 1e6)} ms`;
  if (ns >= 1e3) return `${three(ns / 1e3)} µs`;
  return `${ns >= 100 || Number.isInteger(ns) ? ns.toFixed(0) : ns.toFixed(1)} ns`;
}

/** A moment to a hundredth of a microsecond, however late it is. */
const momentText = (ns) => `${(ns / 1e3).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} µs`;

function flopsText(flops) {
  for (const unit of ["", "k", "M", "G"]) {
    if (flops < 1000) return `${three(flops)} ${unit}FLOP`;
    flops /= 1000;
  }
  return `${three(flops)} TFLOP`;
}

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
  if (data.lane_of(row).name === "stationary") return "nothing: it is loaded before its Matmult begins";
  const before = data.blocker[row];
  if (before < 0) return "nothing: it could start at once";
  const why = data.why_of(row);
  const reason = why === "engine" && !COMPUTE.has(data.lane_of(row).name) ? QUEUE_BUSY : REASONS[why];
  const name = data.kind_of(before).name;
  return reason ? reason(name) : `${name} (${why})`;
}

/** The operands of a bar, one text each: `src rhs[256:384, 0:512] bfloat16 private_hbm`. */
function operandList(data, row) {
  const { operands, slices } = data.kind_of(row);
  const texts = operands ? operands.split(/, (?=\w+ (?:[\w.]+ )?\w+\[)/) : [];
  return texts.map((text, i) => (slices[i] ? withSlice(text, slices[i], data.begins[i][row]) : text));
}

/** An operand that is a part of its tensor: where it begins and ends along each dimension. */
function withSlice(text, [strides, shape, taken], begin) {
  const [, operand, name, dtype, where] = /^(\w+) (?:([\w.]+) )?(\w+)\[[^\]]*\] (.*)$/.exec(text) ?? [];
  if (!dtype) return text;
  const parts = strides.map((stride, axis) => {
    const first = shape[axis] === 1 ? 0 : Math.floor(begin / stride);
    begin -= first * stride;
    if (taken[axis] === shape[axis]) return ":";
    return taken[axis] === 1 ? `${first}` : `${first}:${first + taken[axis]}`;
  });
  return `${operand} ${name ?? "tile"}[${parts.join(", ")}] ${dtype} ${where}`;
}

/** The tile or tensor that a bar is about: what a transfer moves in HBM, else what it writes. */
function tileText(data, row) {
  const texts = operandList(data, row);
  const found = texts.find((text) => /hbm$/.test(text)) ?? texts[0] ?? "";
  const part = /^\w+ ([\w.]+\[[^\]]*\]) \w+ \w+$/.exec(found); // `src rhs[0:128, :] bfloat16 private_hbm`
  const whole = /^\w+ ([\w.]+) \w+\[/.exec(found); // `dst sums float32[128, 512] psum`
  return (part ?? whole)?.[1] ?? "";
}

/** The loops around some bars: `m=128 k=0…7`, those that stand still and those that go on. */
function iterationsText(data, rows) {
  const loop = data.loop[rows[0]];
  if (rows.some((row) => data.loop[row] !== loop)) return "";
  return data.loops[loop].map((name, depth) => {
    const values = rows.map((row) => iterationValue(data, depth, row));
    if (values.every((value) => value === values[0])) return `${name}=${values[0]}`;
    if (values.some((value) => typeof value !== "number")) return name;
    return `${name}=${values.reduce((a, b) => Math.min(a, b))}…${values.reduce((a, b) => Math.max(a, b))}`;
  }).join(" ");
}

function placeText(data, kind) {
  return kind.file < 0 ? "no source line" : `${data.files[kind.file].name}:${kind.line}`;
}

function sourceText(data, kind) {
  return kind.file < 0 ? "" : (data.files[kind.file].lines[kind.line - 1] || "").trim();
}
