// A heat map: cells in colours, values under the pointer or by the arrow keys.

const SHADES = 255; // on each side of zero
const WIDTH = 236, MOST_HEIGHT = 124, LEAST_SIDE = 14, LARGEST_CELL = 26;

/** A colour as ImageData holds it. */
const pixel = (color) => new Uint32Array(new Uint8ClampedArray([...color, 255]).buffer)[0];

/** Colours from cold through zero to warm; from zero on where no value is negative. */
class Palette {
  constructor() {
    [this.cold, this.zero, this.warm, this.nan] = ["cold", "zero", "warm", "nan"].map(cssColor);
    this.pixels = Uint32Array.from({ length: 2 * SHADES + 1 }, (_, i) => pixel(this.at((i - SHADES) / SHADES))); // of shares from -1 to 1
    this.nanPixel = pixel(this.nan);
  }

  /** The colour of a share of the scale, from -1 to 1. */
  at(share) {
    const end = share < 0 ? this.cold : this.warm;
    const part = Math.min(1, Math.abs(share));
    return this.zero.map((zero, i) => zero + (end[i] - zero) * part);
  }

  gradient(low, high) {
    const [from, middle, to] = [low, (low + high) / 2, high].map((share) => cssText(this.at(share).map(Math.round)));
    return low < 0 && high > 0 ? `linear-gradient(90deg, ${from}, ${cssText(this.zero)} ${(100 * -low) / (high - low)}%, ${to})`
      : `linear-gradient(90deg, ${from}, ${middle}, ${to})`;
  }
}

/** How values become shares of the colour scale. */
function scaleOf(low, high) {
  const largest = Math.max(Math.abs(low), Math.abs(high));
  if (low < 0 || high === low) return (value) => (largest ? value / largest : 0);
  return (value) => 0.06 + (0.94 * (value - low)) / (high - low);
}

class HeatMap {
  constructor(run, operand, palette, tooltip) {
    Object.assign(this, { run, operand, palette, tooltip, map: run.mapOf(operand) });
    this.node = element("figure", {}, this.#caption());
    if (!this.map) {
      this.node.append(element("p", { className: "absent", textContent: this.#absence() }));
      return;
    }
    if (this.map.cells) this.#drawing();
    else this.node.append(element("p", { className: "absent", textContent: "its values are not in this file" }));
    this.node.append(this.#facts());
  }

  #absence() {
    const { run, operand } = this;
    if (!run.has_values) return "no values: the kernel was traced";
    return run.role[operand] !== READS && operand >= run.first[run.steps - 1] && run.raised ? "not written: the step failed" : "not in this file";
  }

  #caption() {
    const { run, operand } = this;
    const role = run.roles[run.role[operand]];
    const name = run.operands[run.operand[operand]];
    return element("figcaption", {},
      element("b", { className: role, textContent: `${role.replace("_", " ")} ${name}` }), " ",
      element("code", { textContent: run.partText(operand) }), element("br"),
      element("span", { className: "faint", textContent: `${run.typeText(operand)} ${run.memories[run.tile_memory[run.tile[operand]]].toUpperCase()}` }));
  }

  #facts() {
    const { low, high, mean, nans, unwritten: never } = this.map;
    return element("p", { className: "facts" }, `min ${shortText(low)}  max ${shortText(high)}  mean ${shortText(mean)}`,
      nans ? " · " : "", nans ? element("span", { className: "nan", textContent: `${nans.toLocaleString("en-US")} NaN` }) : "",
      never ? " · " : "", never ? element("span", { className: "never", textContent: `${never.toLocaleString("en-US")} never written` }) : "");
  }

  /** The colours of the cells, between their smallest and largest. */
  #legend(low, high, share) {
    const ends = [low, high].map((value) => element("span", { textContent: shortText(value) }));
    const title = this.cells.exact ? "the elements" : `means of blocks of about ${Math.round((this.rows * this.columns) / (this.down * this.across))} elements`;
    return element("div", { className: "scale", title }, ends[0], element("i", { style: `background:${this.palette.gradient(share(low), share(high))}` }), ends[1]);
  }

  #drawing() {
    const { run, map } = this;
    ({ down: this.down, across: this.across, rows: this.rows, columns: this.columns } = map);
    const cell = Math.min(LARGEST_CELL, WIDTH / this.across);
    const width = this.across > 8 ? "100%" : `${Math.max(LEAST_SIDE, Math.round(cell * this.across))}px`;
    const height = Math.max(LEAST_SIDE, Math.min(MOST_HEIGHT, Math.round(Math.max(cell, 2) * this.down)));
    this.canvas = element("canvas", {
      className: "map", tabIndex: 0, role: "img", width: this.across, height: this.down, style: `width:${width};height:${height}px`,
      "aria-label": `Heat map of ${run.partText(this.operand)}; arrow keys show its values`,
    });
    this.canvas.onpointermove = (event) => this.#hover(event);
    this.canvas.onpointerleave = () => (this.tooltip.hidden = true);
    this.canvas.onblur = () => (this.tooltip.hidden = true);
    this.canvas.onkeydown = (event) => this.#key(event);
    this.node.append(this.canvas);
    this.ready = map.cells().then((cells) => this.#paint(cells));
  }

  #paint(cells) {
    this.cells = cells;
    const { palette } = this;
    const { values, never } = cells;
    let low = Infinity, high = -Infinity;
    for (let i = 0; i < values.length; i++) {
      if (never[i] || !Number.isFinite(values[i])) continue;
      if (values[i] < low) low = values[i];
      if (values[i] > high) high = values[i];
    }
    if (low > high) low = high = 0;
    const share = scaleOf(low, high);
    const image = new ImageData(this.across, this.down);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < values.length; i++) {
      if (never[i]) continue; // transparent: the hatching behind it shows
      const value = values[i];
      pixels[i] = Number.isNaN(value) ? palette.nanPixel : palette.pixels[SHADES + Math.round(SHADES * Math.max(-1, Math.min(1, share(value))))];
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    this.canvas.after(this.#legend(low, high, share));
  }

  /** What a cell says: an element and its value, or a block and its mean. */
  text(row, column) {
    const { values, never, exact } = this.cells;
    const i = row * this.across + column;
    const [top, bottom] = [row, row + 1].map((n) => Math.floor((n * this.rows) / this.down));
    const [left, right] = [column, column + 1].map((n) => Math.floor((n * this.columns) / this.across));
    const single = bottom - top === 1 && right - left === 1;
    const place = single ? this.#index(top, left) : `[${top}:${bottom}, ${left}:${right}]`;
    if (never[i]) return `${place} ${single ? "never written" : "has elements that were never written"}`;
    if (exact && single) return `${place} = ${numberText(values[i])}`;
    return Number.isNaN(values[i]) ? `${place} has NaN` : `${place} mean ${shortText(values[i])}`;
  }

  /** The index of an element in the operand's own shape. */
  #index(row, column) {
    const { run, operand } = this;
    const [, shape, , indirect] = run.shapes[run.shape[operand]];
    if (indirect || shape.length < 2) return `[${shape.length < 2 ? column : `${row}, ${column}`}]`;
    const split = run.tile_memory[run.tile[operand]] === 0 ? shape.length - 1 : 1; // rows are all but the last of HBM
    const unravel = (number, sizes) => sizes.reduceRight(([found, rest], size) => [[rest % size, ...found], Math.floor(rest / size)], [[], number])[0];
    return `[${[...unravel(row, shape.slice(0, split)), ...unravel(column, shape.slice(split))].join(", ")}]`;
  }

  #show(row, column, event) {
    if (!this.cells) return;
    this.cursor = [row, column];
    this.tooltip.textContent = this.text(row, column);
    showNear(this.tooltip, event);
  }

  #hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = (offset, size, cells) => Math.min(cells - 1, Math.max(0, Math.floor((offset / size) * cells)));
    this.#show(at(event.clientY - box.top, box.height, this.down), at(event.clientX - box.left, box.width, this.across), event);
  }

  #key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    const [row, column] = this.cursor ?? [0, -1];
    const next = [Math.min(this.down - 1, Math.max(0, row + move[0])), Math.min(this.across - 1, Math.max(0, column + move[1]))];
    const box = this.canvas.getBoundingClientRect();
    this.#show(...next, { clientX: box.left + ((next[1] + 0.5) / this.across) * box.width, clientY: box.top + ((next[0] + 0.5) / this.down) * box.height });
  }
}
