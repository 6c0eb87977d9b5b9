// The part of the run in sight: zoom and pan, and the scale between time and pixels.

const SHORTEST_SPAN_NS = 20;
const MARGIN = 0.01; // of the run, left free on both sides

class View {
  constructor(total) {
    this.total = Math.max(total, SHORTEST_SPAN_NS);
    this.fit();
  }

  fit() {
    this.t0 = -MARGIN * this.total;
    this.t1 = (1 + MARGIN) * this.total;
  }

  get span() {
    return this.t1 - this.t0;
  }

  get middle() {
    return (this.t0 + this.t1) / 2;
  }

  show(t0, t1) {
    const most = (1 + 2 * MARGIN) * this.total;
    const span = Math.min(most, Math.max(SHORTEST_SPAN_NS, t1 - t0));
    const middle = (t0 + t1) / 2;
    this.t0 = Math.min(Math.max(middle - span / 2, -MARGIN * this.total), (1 + MARGIN) * this.total - span);
    this.t1 = this.t0 + span;
  }

  /** Makes the span `factor` times as long, with the moment under the cursor staying there. */
  zoom(moment, factor) {
    const most = (1 + 2 * MARGIN) * this.total;
    const span = Math.min(most, Math.max(SHORTEST_SPAN_NS, this.span * factor));
    const left = moment - ((moment - this.t0) / this.span) * span;
    this.show(left, left + span);
  }

  pan(ns) {
    this.show(this.t0 + ns, this.t1 + ns);
  }

  center(moment) {
    this.pan(moment - (this.t0 + this.t1) / 2);
  }
}

/** Moments for the axis, at most one per `spacing` pixels, with their labels. */
function ticks(t0, t1, width, spacing = 110) {
  const raw = ((t1 - t0) / width) * spacing;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const [unit, name] = t1 >= 1e6 ? [1e6, "ms"] : t1 >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  const found = [];
  for (let n = Math.ceil(Math.max(0, t0) / step); n * step <= t1; n++) {
    found.push({ moment: n * step, label: `${((n * step) / unit).toFixed(decimals)} ${name}` });
  }
  return found;
}
