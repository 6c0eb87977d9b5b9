// What lies over the bars: the cursor, a chosen range, and the selected bar with what it waited for.

const MOST_ARROWS = 60;
const CLOSEST_ARROWS = 4; // pixels

class Overlay {
  constructor(timeline) {
    this.timeline = timeline;
    this.data = timeline.data;
  }

  get scale() {
    return this.timeline.scale;
  }

  get theme() {
    return this.timeline.theme;
  }

  get width() {
    return this.timeline.width;
  }

  draw(context) {
    const { cursor, range, hovered, selected, chain, dependents, layout } = this.timeline;
    if (cursor !== null) {
      context.fillStyle = this.theme.faint;
      context.fillRect(Math.round(this.scale.x(cursor)), 0, 1, layout.height);
    }
    if (range) {
      const [left, right] = range.map((moment) => this.scale.x(moment)).sort((a, b) => a - b);
      context.globalAlpha = 0.14;
      context.fillStyle = this.theme.accent;
      context.fillRect(left, 0, right - left, layout.height);
      context.globalAlpha = 1;
    }
    if (hovered >= 0) this.#outline(context, hovered, this.theme.ink, 1);
    if (selected < 0) return;
    this.#chain(context, chain);
    for (const row of dependents.slice(0, MOST_ARROWS)) this.#arrow(context, selected, row, -1);
    this.#waiting(context, selected);
    this.#outline(context, selected, this.theme.accent, 2.5);
    this.#marker(context, selected);
  }

  /** Where a bar is drawn. */
  #place(row) {
    return this.timeline.layout.rectangle(row, this.scale);
  }

  /** The selected instruction and those before it, but for those that would lie on top of each other. */
  #chain(context, chain) {
    let last = this.scale.x(this.data.start[chain[0]]);
    for (let i = 0; i + 1 < Math.min(chain.length, MOST_ARROWS); i++) {
      const x = this.scale.x(this.data.start[chain[i + 1]]);
      if (i > 0 && last - x < CLOSEST_ARROWS) continue;
      last = x;
      this.#outline(context, chain[i + 1], this.theme.accent, 1);
      this.#arrow(context, chain[i + 1], chain[i], i);
    }
  }

  /** A pin above the selected bar, which may be narrower than a pixel. */
  #marker(context, row) {
    const { left, width, y } = this.#place(row);
    if (width > 12) return;
    const x = left + width / 2;
    context.fillStyle = this.theme.accent;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x - 5, y - 7);
    context.lineTo(x + 5, y - 7);
    context.fill();
  }

  #outline(context, row, color, thickness) {
    const { left, width, y, height } = this.#place(row);
    if (left > this.width + 5 || left + width < -5) return;
    context.strokeStyle = color;
    context.lineWidth = thickness;
    const x = Math.max(-5, left);
    context.strokeRect(x - 0.5, y - 0.5, Math.min(this.width + 5, left + width) - x + 1, height + 1);
  }

  /** From the end of one bar to the start of another; `depth` steps before the selected one, -1 after it. */
  #arrow(context, from, to, depth) {
    const a = this.#place(from);
    const b = this.#place(to);
    if (Math.abs(a.y - b.y) < 1) return; // neighbours on one lane: their outlines suffice
    const x0 = Math.min(a.left + a.width, Math.max(b.left, a.left));
    if (Math.max(x0, b.left) < -20 || Math.min(x0, b.left) > this.width + 20) return;
    context.globalAlpha = depth < 0 ? 0.45 : Math.max(0.25, 1 - depth / 12);
    context.strokeStyle = context.fillStyle = depth < 0 ? this.theme.ink : this.theme.accent;
    context.lineWidth = depth === 0 ? 2 : 1.25;
    context.setLineDash(depth < 0 ? [4, 3] : []);
    if (b.left - x0 > 30) this.#sideways(context, x0, a.y + a.height / 2, b.left, b.y + b.height / 2);
    else if (a.y < b.y) this.#upright(context, x0, a.y + a.height, b.left + 1, b.y, 7);
    else this.#upright(context, x0, a.y, b.left + 1, b.y + b.height, -7);
    context.globalAlpha = 1;
  }

  #sideways(context, x0, y0, x1, y1) {
    const bend = Math.min(60, (x1 - x0) / 2);
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 3, y1);
    context.stroke();
    this.#head(context, x1, y1, x1 - 7, y1 - 3.5, x1 - 7, y1 + 3.5);
  }

  /** Between bars that follow close upon each other: from edge to edge; `head` is its length downwards. */
  #upright(context, x0, y0, x1, y1, head) {
    const middle = (y0 + y1) / 2;
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0, middle, x1, middle, x1, y1 - head / 2);
    context.stroke();
    this.#head(context, x1, y1, x1 - 3.5, y1 - head, x1 + 3.5, y1 - head);
  }

  #head(context, ...points) {
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(points[0], points[1]);
    context.lineTo(points[2], points[3]);
    context.lineTo(points[4], points[5]);
    context.fill();
  }

  /** The time the selected bar's engine stood still before it. */
  #waiting(context, row) {
    if (this.data.wait[row] <= 0) return;
    const { y, height } = this.#place(row);
    const from = Math.max(-2, this.scale.x(this.data.start[row] - this.data.wait[row]));
    const to = Math.min(this.width + 2, this.scale.x(this.data.start[row]));
    if (to - from < 2) return;
    context.strokeStyle = this.theme.accent;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(from, y + height / 2);
    context.lineTo(to, y + height / 2);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(from + 0.5, y + height / 2 - 4);
    context.lineTo(from + 0.5, y + height / 2 + 4);
    context.stroke();
  }
}
