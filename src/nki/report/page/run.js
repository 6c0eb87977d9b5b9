// The run as typed arrays: steps, their operands, tiles and heat maps. See recording.py for the columns.

const [READS, ADDS_TO, WRITES] = [0, 1, 2]; // roles of operands
const KEPT_CHUNKS = 256; // of cells that stay unpacked
const FIGURES = ["rows", "columns", "low", "high", "mean", "nans", "unwritten"];

class Run {
  static async read() {
    const table = JSON.parse(document.getElementById("run").textContent);
    const packed = fromBase64(document.getElementById("columns").textContent.trim());
    return new Run(table, cutColumns(await inflate(packed), table.layout));
  }

  constructor(table, columns) {
    Object.assign(this, table, columns);
    for (const name of ["tile", "begin", "map"]) this[name] = accumulateWhole(columns[name]);
    this.map = new Int32Array(this.map.buffer); // -1: none
    this.steps = this.kind.length;
    this.first = new Uint32Array(this.steps + 1); // operand of each step
    for (let step = 0; step < this.steps; step++) this.first[step + 1] = this.first[step] + this.views[step];
    const depths = table.layout.filter(([name]) => /^iteration\d+$/.test(name)).length;
    this.iterations = Array.from({ length: depths }, (_, depth) => new Int32Array(accumulateWhole(columns[`iteration${depth}`]).buffer));
    this.kinds = this.kinds.map(([name, engine, file, line]) => ({ name, engine, file, line }));
    this.chunks = new Map(); // number -> promise of its bytes, the oldest first
    this.answers = new Map(); // operand -> its map as the page's server computed it, the oldest first
  }

  kindOf(step) {
    return this.kinds[this.kind[step]];
  }

  /** Whether the kernel raised an error at a step. */
  failsAt(step) {
    return this.raised !== "" && step === this.steps - 1;
  }

  place(step) {
    const { file, line } = this.kindOf(step);
    return file < 0 ? "" : `${this.files[file].name}:${line}`;
  }

  /** The numbers of a step's operands. */
  *operandsOf(step) {
    for (let i = this.first[step]; i < this.first[step + 1]; i++) yield i;
  }

  /** A 1 for every step with an operand for which `wanted(operand, map)`; operands without a map are left out. */
  stepsWith(wanted) {
    const on = new Uint8Array(this.steps);
    for (let step = 0; step < this.steps; step++) {
      for (let i = this.first[step]; i < this.first[step + 1] && !on[step]; i++) {
        if (this.map[i] >= 0 && wanted(i, this.map[i])) on[step] = 1;
      }
    }
    return on;
  }

  /** The heat map of an operand: its figures and, if this file or its server has them, `cells()`; undefined for none. */
  mapOf(operand) {
    const map = this.map[operand];
    if (this.answers.has(operand) || map < 0) return this.answers.get(operand);
    const figures = Object.fromEntries([...FIGURES, "down", "across"].map((name) => [name, this[`map_${name}`][map]]));
    const size = figures.down * figures.across;
    const cells = async () => readCells(await this.#chunk(this.map_chunk[map]), this.map_start[map], this.map_width[map], size);
    return { ...figures, exact: this.map_width[map] > 2, cells: this.map_chunk[map] > 0 ? cells : null };
  }

  #chunk(number) {
    let found = this.chunks.get(number);
    if (found) this.chunks.delete(number);
    else found = inflate(fromBase64(document.getElementById(`cells${number}`).textContent));
    this.chunks.set(number, found);
    if (this.chunks.size > KEPT_CHUNKS) this.chunks.delete(this.chunks.keys().next().value);
    return found;
  }

  /** `tile[0:128, 64]`: which part of its tile an operand is. */
  partText(operand) {
    const label = this.labels[this.tile_label[this.tile[operand]]];
    const [, , part, indirect] = this.shapes[this.shape[operand]];
    if (indirect) return `${label}[at run time]`;
    if (!part) return label;
    let begin = this.begin[operand];
    const [strides, shape, taken] = part;
    const texts = strides.map((stride, axis) => {
      const first = shape[axis] === 1 ? 0 : Math.floor(begin / stride);
      begin -= first * stride;
      if (taken[axis] === shape[axis]) return ":";
      return taken[axis] === 1 ? `${first}` : `${first}:${first + taken[axis]}`;
    });
    return `${label}[${texts.join(", ")}]`;
  }

  typeText(operand) {
    const [dtype, shape] = this.shapes[this.shape[operand]];
    return `${dtype}[${shape.join(", ")}]`;
  }
}

/** The cells of a heat map: numbers, NaN, and where nothing was ever written. */
function readCells(buffer, start, width, size) {
  const never = new Uint8Array(size);
  if (width === 8) {
    const words = new Uint32Array(buffer, start, 2 * size);
    for (let i = 0; i < size; i++) never[i] = words[2 * i + 1] === 0xffffffff;
    return { values: new Float64Array(buffer, start, size), never, exact: true };
  }
  const values = new Float32Array(size);
  const bits = new Uint32Array(values.buffer);
  const words = width === 4 ? new Uint32Array(buffer, start, size) : new Uint16Array(buffer, start, size);
  const nothing = width === 4 ? 0xffffffff : 0xffff;
  for (let i = 0; i < size; i++) {
    never[i] = words[i] === nothing;
    bits[i] = width === 4 ? words[i] : words[i] << 16;
  }
  return { values, never, exact: width > 2 };
}

/** A number as numpy shows a float32: the shortest text that gives it back. */
function numberText(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? "-inf" : "inf";
  if (Math.fround(value) !== value) return String(value);
  for (let digits = 1; digits < 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return String(short);
  }
  return String(Number(value.toPrecision(9)));
}

const shortText = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : numberText(value));
