// HBM, SBUF and PSUM with the tiles that are in them at a step.

const PARTITIONS = 128, CHIP_HEIGHT = 96, OWNERS = 8, MOST_TENSORS = 80;
const HBM_ROW = 64, HBM_LABEL = 15;

class Memories {
  constructor(run, tooltip) {
    Object.assign(this, { run, tooltip });
    this.panels = ["hbm", "sbuf", "psum"].map((name, memory) => {
      const canvas = document.getElementById(name);
      canvas.onpointermove = (event) => this.#hover(memory, event);
      canvas.onpointerleave = () => (this.tooltip.hidden = true);
      return { canvas, text: document.getElementById(`${name}-text`), tiles: [], shown: [], reach: 1 };
    });
    for (let tile = 0; tile < run.tile_memory.length; tile++) {
      const panel = this.panels[run.tile_memory[tile]];
      panel.tiles.push(tile);
      panel.reach = Math.max(panel.reach, run.tile_at[tile] + run.tile_width[tile]);
    }
    const free = this.panels[1].tiles.length + this.panels[2].tiles.length;
    document.getElementById("placed").textContent = free ? "Tiles without an address are drawn in the first gap; the compiler chooses its own." : "";
    this.readColors();
  }

  readColors() {
    this.colors = Object.fromEntries(["line", "stripe", "ink", "faint", "ground", "reads", "writes"].map((name) => [name, cssText(cssColor(name))]));
    this.owners = Array.from({ length: OWNERS }, (_, i) => cssText(cssColor(`owner${i}`), 0.55));
  }

  draw(step) {
    this.step = step;
    this.boxes = new Map(); // tile -> the operands in it
    for (const operand of this.run.operandsOf(step)) {
      if (this.run.role[operand] > WRITES) continue;
      const tile = this.run.tile[operand];
      this.boxes.set(tile, [...(this.boxes.get(tile) ?? []), operand]);
    }
    this.#tensors(this.panels[0]);
    this.#chip(this.panels[1], this.run.sbuf_bytes);
    this.#chip(this.panels[2], this.run.psum_bytes);
  }

  #context(panel, height) {
    const { canvas } = panel;
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    return [context, width];
  }

  #chip(panel, capacity) {
    const { run, step } = this;
    const [context, width] = this.#context(panel, panel.tiles.length ? CHIP_HEIGHT : 0);
    panel.shown = [];
    let used = 0;
    if (panel.tiles.length) {
      context.fillStyle = this.colors.stripe;
      context.fillRect(0, 0, width, CHIP_HEIGHT);
    }
    const reach = panel.reach;
    for (const tile of panel.tiles) {
      if (run.tile_first[tile] > step || run.tile_last[tile] < step || run.tile_core[tile] !== run.core[step]) continue;
      used += run.tile_width[tile];
      const x = (run.tile_at[tile] / reach) * width;
      const y = (run.tile_partition[tile] / PARTITIONS) * CHIP_HEIGHT;
      const size = [Math.max(2, (run.tile_width[tile] / reach) * width), Math.max(2, (run.tile_rows[tile] / PARTITIONS) * CHIP_HEIGHT)];
      this.#tile(context, panel, tile, x, y, ...size);
    }
    const core = run.cores > 1 ? `of core ${run.core[step]}: ` : "";
    panel.text.textContent = panel.tiles.length
      ? `${core}128 partitions × ${sizeText(reach)} of ${sizeText(capacity)}; ${sizeText(used)} in use` : "not used";
  }

  #tile(context, panel, tile, x, y, width, height, label = true) {
    const { run } = this;
    panel.shown.push([tile, x, y, width, height]);
    context.fillStyle = this.owners[run.tile_label[tile] % OWNERS];
    context.fillRect(x, y, width, height);
    context.strokeStyle = this.colors.ground;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    for (const operand of this.boxes.get(tile) ?? []) {
      const [top, bottom, left, right] = [0, 1, 2, 3].map((side) => run[`box${side}`][operand] / 65535);
      const written = run.role[operand] !== READS;
      context.strokeStyle = written ? this.colors.writes : this.colors.reads;
      context.lineWidth = 2;
      const inset = written ? 1 : 3;
      const box = [x + left * width + inset, y + top * height + inset, Math.max(1, (right - left) * width - 2 * inset), Math.max(1, (bottom - top) * height - 2 * inset)];
      context.strokeRect(...box);
      context.fillStyle = context.strokeStyle;
      context.globalAlpha = 0.16;
      context.fillRect(...box);
      context.globalAlpha = 1;
    }
    if (label && width > 26 && height > 16) {
      context.save();
      context.beginPath();
      context.rect(x, y, width - 4, height);
      context.clip();
      context.fillStyle = this.colors.ink;
      context.fillText(run.labels[run.tile_label[tile]], x + 6, y + 5);
      context.restore();
    }
  }

  /** Tensors side by side, in rows; sides grow with the logarithm of their sizes. */
  #tensors(panel) {
    const { run } = this;
    const available = panel.canvas.clientWidth;
    const places = [];
    let [x, y] = [0, 0];
    for (const tile of panel.tiles.slice(0, MOST_TENSORS)) {
      const width = Math.min(available, 30 + 12 * Math.log2(1 + run.tile_width[tile]));
      const height = Math.min(HBM_ROW, 10 + 7 * Math.log2(1 + run.tile_rows[tile]));
      if (x && x + width > available) [x, y] = [0, y + HBM_ROW + HBM_LABEL + 6];
      places.push([tile, x, y, width, height]);
      x += width + 14;
    }
    const [context] = this.#context(panel, panel.tiles.length ? y + HBM_ROW + HBM_LABEL : 0);
    panel.shown = [];
    for (const [tile, left, top, width, height] of places) {
      context.globalAlpha = run.tile_first[tile] > this.step ? 0.45 : 1;
      this.#tile(context, panel, tile, left, top, width, height, false);
      context.fillStyle = this.colors.ink;
      context.fillText(run.labels[run.tile_label[tile]], left, top + height + 3, width + 12);
      context.globalAlpha = 1;
    }
    const more = panel.tiles.length - places.length;
    panel.text.textContent = `${countText(panel.tiles.length, "tensor")}${more > 0 ? `, ${more} of them not drawn` : ""}`;
  }

  #hover(memory, event) {
    const { run } = this;
    const hit = [...this.panels[memory].shown].reverse().find(([, x, y, width, height]) =>
      event.offsetX >= x && event.offsetX < x + width && event.offsetY >= y && event.offsetY < y + height);
    if (!hit) return void (this.tooltip.hidden = true);
    const [tile] = hit;
    const place = memory ? `bytes ${run.tile_at[tile].toLocaleString("en-US")} to ${(run.tile_at[tile] + run.tile_width[tile]).toLocaleString("en-US")} of ${countText(run.tile_rows[tile], "partition")}` : sizeText(run.tile_rows[tile] * run.tile_width[tile]);
    this.tooltip.replaceChildren(element("b", { textContent: run.labels[run.tile_label[tile]] }), ` ${run.types[run.tile_type[tile]]}`, element("br"),
      `${place}; in use from step ${(run.tile_first[tile] + 1).toLocaleString("en-US")} to ${(run.tile_last[tile] + 1).toLocaleString("en-US")}`);
    showNear(this.tooltip, event);
  }
}
