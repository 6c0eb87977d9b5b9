// The canvas of lanes and memories: what is drawn where, and which bar is selected.

const LONGEST_CHAIN = 400;

class Timeline {
  constructor(data, actions) {
    this.data = data;
    this.actions = actions; // select(row), hover(row or memory, event), focusLine(file, line)
    this.view = new View(data.work_ns);
    this.painter = new Painter(data);
    this.selected = -1;
    this.chain = []; // the selected bar and what decided its start, and so on
    this.dependents = []; // whose start it decided
    this.hovered = -1;
    this.cursor = null;
    this.range = null; // two moments that were chosen
    this.box = document.getElementById("lanes");
    this.area = document.getElementById("area");
    this.canvases = {};
    for (const name of ["bars", "overlay", "ruler"]) this.canvases[name] = document.getElementById(name);
    this.layout = new Layout(data, data.memories.map((memory) => new Memory(data, memory)));
    this.layout.label(document.getElementById("labels"));
    this.overlay = new Overlay(this);
    this.ruler = new Ruler(this);
    this.controls = new Controls(this, actions);
    this.readColors();
    this.resize();
  }

  /** What is under a point of the canvas. */
  at(x, y) {
    return this.layout.at(x, y, this.scale);
  }

  // ---- drawing ---------------------------------------------------------------------------------

  readColors() {
    this.painter.readColors();
    this.theme = {};
    for (const name of ["ground", "stripe", "line", "ink", "faint", "accent", "capacity"]) {
      this.theme[name] = cssText(cssColor(name));
    }
    this.ownerColors = Array.from({ length: 8 }, (_, i) => cssText(cssColor(`owner${i}`)));
    this.ruler.overview = null;
  }

  resize() {
    const { bars, overlay, ruler } = this.canvases;
    const { height } = this.layout;
    this.width = Math.max(50, this.area.clientWidth);
    this.ratio = window.devicePixelRatio || 1;
    for (const [canvas, tall] of [[bars, height], [overlay, height], [ruler, this.ruler.height]]) {
      canvas.width = Math.round(this.width * this.ratio);
      canvas.height = Math.round(tall * this.ratio);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${tall}px`;
    }
    this.area.style.height = `${height}px`;
    this.ruler.overview = null;
    this.drawNow();
  }

  redraw() {
    this.pending ||= requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    const begun = performance.now();
    const pixels = this.canvases.bars.width;
    // Pixels begin at whole multiples of their own length, so that panning does not make them flicker.
    const perPixel = this.view.span / pixels;
    const t0 = Math.floor(this.view.t0 / perPixel) * perPixel;
    this.scale = {
      t0, t1: t0 + this.view.span, width: this.width,
      x: (moment) => ((moment - t0) / this.view.span) * this.width,
      moment: (x) => t0 + (x / this.width) * this.view.span,
    };
    const context = this.#clear(this.canvases.bars);
    this.#grid(context);
    this.#tracks(context, perPixel, pixels);
    this.#memories(context);
    this.drawOverlay();
    this.ruler.draw(this.#clear(this.canvases.ruler));
    this.drawn_ms = performance.now() - begun;
    this.actions.viewed?.(this.view);
  }

  #clear(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    return context;
  }

  #grid(context) {
    context.fillStyle = this.theme.stripe;
    for (const strip of this.layout.strips) {
      if (strip.lane || strip.memory) context.fillRect(0, strip.y, this.width, strip.height - 1);
    }
    context.fillStyle = this.theme.line;
    for (const { moment } of ticks(this.scale.t0, this.scale.t1, this.width)) {
      context.fillRect(Math.round(this.scale.x(moment)), 0, 1, this.layout.height);
    }
  }

  #tracks(context, perPixel, pixels) {
    const crowded = [];
    for (const strip of this.layout.lanes) {
      strip.tracks.forEach((track, number) => {
        const y = strip.y + number * strip.step;
        if (this.painter.crowded(track, this.scale.t0, this.scale.t1, pixels)) crowded.push({ track, y, height: strip.step - 1 });
        else this.painter.bars(context, track, this.scale, y, strip.step - 1);
      });
    }
    if (crowded.length) {
      this.painter.image(context, crowded, { t0: this.scale.t0, perPixel, pixels, width: this.width });
    }
  }

  #memories(context) {
    for (const { memory, y, height } of this.layout.strips) {
      if (!memory) continue;
      memory.draw(context, this.scale.t0, this.view.span / this.width, this.width, y, height - 1, this.ownerColors);
      const limit = y + height - 1 - (memory.usable / memory.scale) * (height - 1);
      if (limit < y - 1) continue;
      context.fillStyle = this.theme.capacity;
      context.fillRect(0, Math.max(y, Math.round(limit)), this.width, 1);
    }
  }

  drawOverlay() {
    this.overlay.draw(this.#clear(this.canvases.overlay));
  }

  // ---- selection and focus ---------------------------------------------------------------------

  select(row) {
    this.selected = row;
    this.chain = [];
    for (let at = row; at >= 0 && this.chain.length < LONGEST_CHAIN; at = this.data.blocker[at]) this.chain.push(at);
    this.dependents = [];
    if (row >= 0) {
      for (let i = 0; i < this.data.rows; i++) if (this.data.blocker[i] === row) this.dependents.push(i);
    }
    this.drawOverlay();
  }

  /** Moves the view so that a bar is in sight. */
  reveal(row) {
    const { start, end } = this.data;
    if (end[row] < this.view.t0 || start[row] > this.view.t1) this.view.center(start[row]);
    const strip = this.layout.lanes[this.data.lane[row]];
    if (strip.y < this.box.scrollTop) this.box.scrollTop = strip.y - 8;
    if (strip.y + strip.height > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = strip.y + strip.height - this.box.clientHeight + 8;
    }
    this.redraw();
  }

  zoomTo(row) {
    const { start, end } = this.data;
    const length = Math.max(SHORTEST_SPAN_NS, end[row] - start[row]);
    this.view.show(start[row] - 6 * length, end[row] + 6 * length);
    this.redraw();
  }

  /** Dims every bar but those that are `on`, a 0 or 1 per row; null shows all. */
  focus(on) {
    this.painter.focus = on;
    this.redraw();
  }
}
