// The canvas of lanes and memories, and what mouse and keys do there.

const ENGINE_HEIGHT = 24;
const TRACK_HEIGHT = 13;
const IDLE_HEIGHT = 15;
const LANE_GAP = 5;
const CORE_HEIGHT = 16;
const MEMORY_HEIGHT = { sbuf: 58, psum: 34 };
const RULER = { overview: 5, axis: 22 };
const SMALL = { engine: 17, track: 8, gap: 3, memory: { sbuf: 32, psum: 26 }, overview: 3 }; // two cores at once
const LONGEST_CHAIN = 400;
const MOST_ARROWS = 60;
const CLOSEST_ARROWS = 4; // pixels

class Timeline {
  constructor(data, actions) {
    this.data = data;
    this.actions = actions; // select(row), hover(row or memory, event), focusLine(file, line)
    this.view = new View(data.work_ns);
    this.painter = new Painter(data);
    this.selected = -1;
    this.chain = [];
    this.hovered = -1;
    this.cursor = null;
    this.range = null; // two moments that were chosen
    this.canvas = document.getElementById("bars");
    this.overlay = document.getElementById("overlay");
    this.ruler = document.getElementById("ruler");
    this.box = document.getElementById("lanes");
    this.area = document.getElementById("area");
    this.memories = data.memories.map((memory) => new Memory(data, memory));
    this.#place();
    this.#label();
    this.#listen();
    this.readColors();
    this.resize();
  }

  // ---- where things are ------------------------------------------------------------------------

  /** Lanes and memories from top to bottom. */
  #place() {
    this.trackOf = new Uint8Array(this.data.rows);
    this.strips = [];
    this.lanes = [];
    const small = this.data.cores > 1; // two cores are seen at once on a laptop's screen
    const gap = small ? SMALL.gap : LANE_GAP;
    this.overviewHeight = small ? SMALL.overview : RULER.overview;
    const used = new Set(this.data.lanes.filter((lane) => lane.rows).map((lane) => lane.name));
    let y = small ? 0 : 8;
    for (let core = 0; core < this.data.cores; core++) {
      if (this.data.cores > 1) {
        this.strips.push({ core, y, height: CORE_HEIGHT });
        y += CORE_HEIGHT;
      }
      this.data.lanes.forEach((lane, number) => {
        if (lane.core !== core) return;
        if (small && !used.has(lane.name)) {
          this.lanes[number] = { lane, tracks: [], y, step: 0, height: 0 };
          return;
        }
        const tracks = tracksOf(this.data, lane);
        tracks.forEach((track, t) => track.rows.forEach((row) => (this.trackOf[row] = t)));
        const tall = COMPUTE.has(lane.name) && lane.name !== "stationary";
        const step = small ? (tall ? SMALL.engine : SMALL.track) : tall ? ENGINE_HEIGHT : TRACK_HEIGHT;
        const strip = { lane, tracks, y, step, height: lane.rows ? step * tracks.length : IDLE_HEIGHT };
        this.lanes[number] = strip;
        this.strips.push(strip);
        y += Math.max(strip.height, small ? SMALL.engine - 3 : 0) + gap;
      });
      for (const memory of this.memories) {
        if (memory.core !== core) continue;
        if (small && !memory.rows) continue;
        const height = memory.rows ? (small ? SMALL.memory : MEMORY_HEIGHT)[memory.name] : IDLE_HEIGHT;
        this.strips.push({ memory, y: y + (small ? 0 : 4), height });
        y += height + gap + (small ? 0 : 4);
      }
    }
    this.height = y;
  }

  #label() {
    const labels = document.getElementById("labels");
    for (const strip of this.strips) {
      const place = { style: `top:${strip.y}px;height:${strip.height}px` };
      const className = strip.memory?.rows ? "label stacked" : "label";
      labels.append(element("div", { className, ...place }, ...this.#labelParts(strip)));
    }
    labels.style.height = `${this.height}px`;
  }

  #labelParts({ lane, memory, core }) {
    if (core !== undefined) return [element("strong", { textContent: `Core ${core}` })];
    if (memory) {
      return [
        element("span", { className: "lane memory", textContent: memory.name.toUpperCase() }),
        element("small", {
          textContent: memory.rows ? `${sizeText(memory.peak)} of ${sizeText(memory.usable)}` : "not used",
          title: `most bytes per partition in use, of ${sizeText(memory.usable)} usable`,
        }),
      ];
    }
    const busy = this.data.active[lane.core][lane.name];
    const name = element("span", { className: `lane dot ${COMPUTE.has(lane.name) ? lane.name : "load"}`, title: QUEUE_WORDS[lane.name] ?? "" });
    name.textContent = ENGINE_NAMES[lane.name];
    const share = element("small", { textContent: `${busy.toFixed(busy < 10 ? 1 : 0)} %`, title: "active" });
    return [name, share];
  }

  rectangle(row, scale) {
    const strip = this.lanes[this.data.lane[row]];
    const left = scale.x(this.data.start[row]);
    const width = Math.max(2, scale.x(this.data.end[row]) - left);
    return { left, width, y: strip.y + this.trackOf[row] * strip.step, height: strip.step - 1 };
  }

  /** What is under a point of the canvas: { row } or { memory, moment } or nothing. */
  at(x, y) {
    const { scale } = this;
    const moment = scale.moment(x);
    const strip = this.strips.find((s) => y >= s.y && y < s.y + s.height);
    if (!strip) return {};
    if (strip.memory) return { memory: strip.memory, moment };
    if (!strip.lane || strip.tracks.length === 0) return {};
    const track = strip.tracks[Math.min(strip.tracks.length - 1, Math.floor((y - strip.y) / strip.step))];
    const perPixel = scale.moment(1) - scale.moment(0);
    const row = track.at(moment, 3 * perPixel);
    if (row < 0) return {};
    const first = upperBound(track.end, moment - perPixel / 2);
    const last = upperBound(track.start, moment + perPixel / 2);
    return { row, others: [...track.rows.subarray(first, last)].filter((other) => other !== row) };
  }

  // ---- drawing ---------------------------------------------------------------------------------

  readColors() {
    this.painter.readColors();
    this.theme = {};
    for (const name of ["ground", "stripe", "line", "ink", "faint", "accent", "capacity"]) {
      this.theme[name] = cssText(cssColor(name));
    }
    this.ownerColors = Array.from({ length: 8 }, (_, i) => cssText(cssColor(`owner${i}`)));
    this.overview = null;
  }

  resize() {
    const width = Math.max(50, this.area.clientWidth);
    this.rulerHeight = this.lanes.length * this.overviewHeight + 8 + RULER.axis;
    this.ratio = window.devicePixelRatio || 1;
    this.width = width;
    for (const [canvas, height] of [
      [this.canvas, this.height],
      [this.overlay, this.height],
      [this.ruler, this.rulerHeight],
    ]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.area.style.height = `${this.height}px`;
    this.overview = null;
    this.drawNow();
  }

  redraw() {
    this.pending ||= requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    const begun = performance.now();
    const pixels = this.canvas.width;
    // Pixels begin at whole multiples of their own length, so that panning does not make them flicker.
    const perPixel = this.view.span / pixels;
    const t0 = Math.floor(this.view.t0 / perPixel) * perPixel;
    this.scale = {
      t0, t1: t0 + this.view.span, width: this.width,
      x: (moment) => ((moment - t0) / this.view.span) * this.width,
      moment: (x) => t0 + (x / this.width) * this.view.span,
    };
    const context = this.#clear(this.canvas);
    this.#grid(context);
    this.#tracks(context, perPixel, pixels);
    this.#memories(context);
    this.drawOverlay();
    this.#ruler();
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
    for (const strip of this.strips) {
      if (strip.lane || strip.memory) context.fillRect(0, strip.y, this.width, strip.height - 1);
    }
    context.fillStyle = this.theme.line;
    for (const { moment } of ticks(this.scale.t0, this.scale.t1, this.width)) {
      context.fillRect(Math.round(this.scale.x(moment)), 0, 1, this.height);
    }
  }

  #tracks(context, perPixel, pixels) {
    const crowded = [];
    for (const strip of this.lanes) {
      strip.tracks.forEach((track, number) => {
        const y = strip.y + number * strip.step;
        if (this.painter.crowded(track, this.scale.t0, this.scale.t1, pixels)) crowded.push({ track, y, height: strip.step - 1 });
        else this.painter.bars(context, track, this.scale, y, strip.step - 1);
      });
    }
    if (crowded.length) this.#image(context, crowded, this.scale.t0, perPixel, pixels);
  }

  /** Tracks as rows of one image, stretched to their heights. */
  #image(context, places, t0, perPixel, pixels) {
    const image = new ImageData(pixels, places.length);
    places.forEach(({ track }, number) =>
      this.painter.mix(track, t0, perPixel, pixels, image.data.subarray(4 * pixels * number, 4 * pixels * (number + 1))));
    const sheet = new OffscreenCanvas(pixels, places.length);
    sheet.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    places.forEach(({ y, height }, number) =>
      context.drawImage(sheet, 0, number, pixels, 1, 0, y, this.width, height));
  }

  #memories(context) {
    for (const { memory, y, height } of this.strips) {
      if (!memory) continue;
      memory.draw(context, this.scale.t0, this.view.span / this.width, this.width, y, height - 1, this.ownerColors);
      const limit = y + height - 1 - (memory.usable / memory.scale) * (height - 1);
      if (limit < y - 1) continue;
      context.fillStyle = this.theme.capacity;
      context.fillRect(0, Math.max(y, Math.round(limit)), this.width, 1);
    }
  }

  // ---- what lies over the bars -----------------------------------------------------------------

  drawOverlay() {
    const context = this.#clear(this.overlay);
    if (this.cursor !== null) {
      context.fillStyle = this.theme.faint;
      context.fillRect(Math.round(this.scale.x(this.cursor)), 0, 1, this.height);
    }
    if (this.range) {
      const [left, right] = this.range.map((moment) => this.scale.x(moment)).sort((a, b) => a - b);
      context.globalAlpha = 0.14;
      context.fillStyle = this.theme.accent;
      context.fillRect(left, 0, right - left, this.height);
      context.globalAlpha = 1;
    }
    if (this.hovered >= 0) this.#outline(context, this.hovered, this.theme.ink, 1);
    if (this.selected < 0) return;
    this.#chain(context);
    for (const row of this.dependents.slice(0, MOST_ARROWS)) this.#arrow(context, this.selected, row, -1);
    this.#waiting(context, this.selected);
    this.#outline(context, this.selected, this.theme.accent, 2.5);
    this.#marker(context, this.selected);
  }

  /** The instructions before the selected one, those left out that would lie on top of each other. */
  #chain(context) {
    let last = this.scale.x(this.data.start[this.selected]);
    for (let i = 0; i + 1 < Math.min(this.chain.length, MOST_ARROWS); i++) {
      const x = this.scale.x(this.data.start[this.chain[i + 1]]);
      if (i > 0 && last - x < CLOSEST_ARROWS) continue;
      last = x;
      this.#outline(context, this.chain[i + 1], this.theme.accent, 1);
      this.#arrow(context, this.chain[i + 1], this.chain[i], i);
    }
  }

  /** A pin above the selected bar, which may be narrower than a pixel. */
  #marker(context, row) {
    const { left, width, y } = this.rectangle(row, this.scale);
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
    const { left, width, y, height } = this.rectangle(row, this.scale);
    if (left > this.width + 5 || left + width < -5) return;
    context.strokeStyle = color;
    context.lineWidth = thickness;
    const x = Math.max(-5, left);
    context.strokeRect(x - 0.5, y - 0.5, Math.min(this.width + 5, left + width) - x + 1, height + 1);
  }

  /** From the end of one bar to the start of another; `depth` steps before the selected one, -1 after it. */
  #arrow(context, from, to, depth) {
    const a = this.rectangle(from, this.scale);
    const b = this.rectangle(to, this.scale);
    if (Math.abs(a.y - b.y) < 1) return; // neighbours on one lane: their outlines say it
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
    const { y, height } = this.rectangle(row, this.scale);
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

  // ---- the ruler: the whole run, and the axis --------------------------------------------------

  #ruler() {
    const context = this.#clear(this.ruler);
    const height = this.lanes.length * this.overviewHeight + 4;
    this.overview ||= this.#paintOverview(height);
    context.drawImage(this.overview, 0, 0, this.width, height);
    const whole = 1 + 2 * MARGIN;
    const at = (moment) => ((moment / this.view.total + MARGIN) / whole) * this.width;
    const [left, right] = [at(this.view.t0), at(this.view.t1)];
    context.fillStyle = this.theme.ground;
    context.globalAlpha = 0.65;
    context.fillRect(0, 0, left, height);
    context.fillRect(right, 0, this.width - right, height);
    context.globalAlpha = 1;
    context.strokeStyle = this.theme.faint;
    context.strokeRect(Math.max(0.5, left), 0.5, Math.max(2, Math.min(this.width - 1, right - left - 1)), height - 1);
    this.#axis(context, height);
  }

  #paintOverview(height) {
    const pixels = this.ruler.width;
    const perPixel = ((1 + 2 * MARGIN) * this.view.total) / pixels;
    const sheet = new OffscreenCanvas(pixels, Math.round(height * this.ratio));
    const context = sheet.getContext("2d");
    context.scale(this.ratio, this.ratio);
    const places = this.lanes.flatMap(({ tracks }, number) =>
      tracks.map((track, t) => ({
        track,
        y: 2 + (number + t / tracks.length) * this.overviewHeight,
        height: (this.overviewHeight - 1) / tracks.length,
      })));
    const focus = this.painter.focus;
    this.painter.focus = null;
    this.#image(context, places, -MARGIN * this.view.total, perPixel, pixels);
    this.painter.focus = focus;
    return sheet;
  }

  #axis(context, top) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const { moment, label } of ticks(this.scale.t0, this.scale.t1, this.width)) {
      const x = Math.round(this.scale.x(moment));
      context.fillStyle = this.theme.line;
      context.fillRect(x, top + 4, 1, RULER.axis);
      context.fillStyle = this.theme.faint;
      context.fillText(label, x + 4, top + RULER.axis / 2 + 4);
    }
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
    const strip = this.lanes[this.data.lane[row]];
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

  // ---- mouse and keys --------------------------------------------------------------------------

  #listen() {
    const { overlay, ruler } = this;
    new ResizeObserver(() => this.area.clientWidth !== this.width && this.resize()).observe(this.area);
    for (const canvas of [overlay, ruler]) {
      canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
      canvas.addEventListener("dblclick", () => this.#fit());
    }
    overlay.addEventListener("pointerdown", (event) => this.#press(event));
    overlay.addEventListener("pointermove", (event) => this.#move(event));
    overlay.addEventListener("pointerup", (event) => this.#release(event));
    overlay.addEventListener("pointercancel", () => (this.drag = null));
    overlay.addEventListener("pointerleave", () => this.#leave());
    overlay.addEventListener("keydown", (event) => this.#key(event));
    ruler.addEventListener("pointerdown", (event) => this.#jump(event));
    ruler.addEventListener("pointermove", (event) => event.buttons && this.#jump(event));
  }

  #fit() {
    this.view.fit();
    this.redraw();
  }

  #wheel(event) {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const sideways = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) {
      this.view.pan(((sideways * unit) / this.width) * this.view.span);
    } else {
      const moment = event.currentTarget === this.ruler ? (this.view.t0 + this.view.t1) / 2 : this.scale.moment(event.offsetX);
      this.view.zoom(moment, Math.exp(Math.max(-600, Math.min(600, event.deltaY * unit)) * 0.002));
    }
    this.redraw();
  }

  #press(event) {
    if (event.button !== 0) return;
    this.overlay.setPointerCapture(event.pointerId);
    this.drag = { x: event.clientX, y: event.clientY, t0: this.view.t0, top: this.box.scrollTop, moved: false };
    this.range = event.shiftKey ? [this.scale.moment(event.offsetX), this.scale.moment(event.offsetX)] : null;
  }

  #move(event) {
    const { drag } = this;
    if (drag) {
      const dx = event.clientX - drag.x;
      const dy = event.clientY - drag.y;
      drag.moved ||= Math.hypot(dx, dy) > 4;
      if (this.range) {
        this.range[1] = this.scale.moment(event.offsetX);
        this.drawOverlay();
        return;
      }
      if (drag.moved) {
        this.view.pan(drag.t0 - (dx / this.width) * this.view.span - this.view.t0);
        this.box.scrollTop = drag.top - dy;
        this.overlay.style.cursor = "grabbing";
        this.actions.hover({}, event);
        this.redraw();
        return;
      }
    }
    const found = this.at(event.offsetX, event.offsetY);
    this.hovered = found.row ?? -1;
    this.cursor = this.scale.moment(event.offsetX);
    this.overlay.style.cursor = found.row === undefined ? "grab" : "pointer";
    this.drawOverlay();
    this.actions.hover(found, event);
  }

  #release(event) {
    const moved = this.drag?.moved;
    this.drag = null;
    if (this.range && moved) return this.actions.ranged(Math.max(0, Math.min(...this.range)), Math.max(...this.range));
    this.range = null;
    this.overlay.style.cursor = "grab";
    if (moved === false) this.actions.select(this.at(event.offsetX, event.offsetY).row ?? -1);
  }

  #leave() {
    this.hovered = -1;
    this.cursor = null;
    this.drawOverlay();
    this.actions.hover({});
  }

  #jump(event) {
    const whole = 1 + 2 * MARGIN;
    if (event.offsetY > this.lanes.length * this.overviewHeight + 6) return;
    this.view.center(((event.offsetX / this.width) * whole - MARGIN) * this.view.total);
    this.redraw();
  }

  /** The next or previous bar of the selected one's lane. */
  #step(by) {
    if (this.selected < 0) return this.actions.select(this.data.rows ? 0 : -1);
    const lane = this.data.lanes[this.data.lane[this.selected]];
    this.actions.select(Math.min(lane.first + lane.rows - 1, Math.max(lane.first, this.selected + by)));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = (this.view.t0 + this.view.t1) / 2;
    const pan = (share) => () => this.view.pan(share * this.view.span);
    const zoom = (factor) => () => this.view.zoom(this.cursor ?? middle, factor);
    const does = {
      ArrowLeft: pan(-0.15), a: pan(-0.15), ArrowRight: pan(0.15), d: pan(0.15),
      ArrowUp: zoom(0.7), w: zoom(0.7), "+": zoom(0.7), "=": zoom(0.7),
      ArrowDown: zoom(1 / 0.7), s: zoom(1 / 0.7), "-": zoom(1 / 0.7),
      Home: () => this.view.fit(), 0: () => this.view.fit(),
      n: () => this.#step(1), p: () => this.#step(-1),
      b: () => this.selected >= 0 && this.data.blocker[this.selected] >= 0 && this.actions.select(this.data.blocker[this.selected]),
      f: () => this.selected >= 0 && this.zoomTo(this.selected),
      c: () => this.actions.critical(),
      Escape: () => this.actions.clear(),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
    this.redraw();
  }
}
