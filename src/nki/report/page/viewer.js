// The viewer: one step at a time, its values, and the memories around it.

const byId = (id) => document.getElementById(id);
const PLAY_MS = 120, PAGE = 100;
const MARKS = { difference: "capacity", nan: "nan", unwritten: "scalar", error: "capacity" }; // of the strip, by condition

class Viewer {
  constructor(run) {
    this.run = run;
    this.at = 0;
    this.hits = []; // steps of a search or a line
    this.tooltip = byId("tooltip");
    this.breaks = new Breakpoints(run);
    this.palette = new Palette();
    this.memories = new Memories(run, this.tooltip);
    this.listing = new Listing(run, {
      toggle: (key) => this.toggle(key), choose: (key) => this.chooseLine(key), go: (step) => this.go(step), clear: () => this.clear(),
    });
    byId("at").max = Math.max(0, run.steps - 1);
    this.#buttons();
    this.#conditions();
    this.#summary();
    this.#keys();
    followTheme(() => this.#recolor());
    new ResizeObserver(() => this.redraw()).observe(byId("memories"));
    addEventListener("hashchange", () => this.#goToHash());
    this.#goToHash();
    this.drawNow();
  }

  // ---- moving ------------------------------------------------------------------------------------

  /** Shows a step at the next frame: a slider may ask for hundreds in between. */
  go(step) {
    this.at = Math.max(0, Math.min(this.run.steps - 1, step));
    this.redraw();
  }

  /** `page.html#412` opens at step 412. */
  #goToHash() {
    const [, step] = /^#(\d+)$/.exec(location.hash) ?? [];
    if (step) this.go(step - 1);
  }

  redraw() {
    this.pending ||= requestAnimationFrame(() => this.drawNow());
  }

  /** Draws the step; the promise is fulfilled when its heat maps are painted. */
  drawNow() {
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    if (!this.run.steps) {
      byId("what").textContent = "The kernel issued no instruction.";
      return Promise.resolve();
    }
    const { run, at } = this;
    this.tooltip.hidden = true;
    byId("at").value = at;
    byId("count").replaceChildren(`${(at + 1).toLocaleString("en-US")} / ${run.steps.toLocaleString("en-US")}`,
      element("small", { textContent: this.breaks.reasons(at).join(", ") }));
    this.#loops();
    this.#title();
    this.listing.mark(at);
    this.listing.current(at);
    this.memories.draw(at);
    this.#strip();
    return this.operands();
  }

  #title() {
    const { run, at } = this;
    const kind = run.kindOf(at);
    const engine = element("span", { className: `chip ${kind.engine}`, textContent: kind.engine === "dma" ? "DMA" : kind.engine });
    byId("what").replaceChildren(...(kind.name ? [element("code", { textContent: `nisa.${kind.name}` }), engine] : ["The kernel raises an error"]),
      element("small", { textContent: run.place(at) }));
    byId("error").textContent = run.failsAt(at) ? run.raised : "";
    byId("error").hidden = !run.failsAt(at);
  }

  async operands() {
    const { run, at } = this;
    const maps = [...run.operandsOf(at)].map((operand) => new HeatMap(run, operand, this.palette, this.tooltip));
    byId("operands").replaceChildren(...maps.map((map) => map.node));
    this.maps = maps;
    const sampled = !run.has_values || (at % run.every === 0 && (!run.window || (at >= run.window[0] && at < run.window[1])));
    byId("sampled").hidden = sampled || run.live;
    if (!sampled) byId("sampled").textContent = this.#sampling();
    await Promise.all(maps.map((map) => map.ready));
  }

  /** Which steps have their values in this file. */
  #sampling() {
    const { every, window: part, steps } = this.run;
    const which = part ? `steps ${part[0] + 1} to ${Math.min(part[1], steps)}` : "the run";
    return `This file holds the values of ${every > 1 ? `one step in ${every} of ` : ""}${which}; ` +
      `nki show with --steps ${Math.max(1, this.at - 199)}:${Math.min(steps, this.at + 200)} writes one with those around this step.`;
  }

  #loops() {
    const { run, at } = this;
    byId("loops").replaceChildren(...run.loops[run.loop[at]].map((name, depth) => {
      const arrow = (by, text, word) => element("button", { textContent: text, title: `${word} ${name}`, "aria-label": `${word} ${name}`, onclick: () => this.#iterate(depth, by) });
      return element("span", {}, arrow(-1, "‹", "previous"), element("b", { textContent: `${name} = ${iterationValue(run, depth, at)}` }), arrow(1, "›", "next"));
    }));
  }

  /** Goes to the next iteration of the loop of a depth; backwards to the first step of the one before. */
  #iterate(depth, by) {
    const { run } = this;
    const outer = (step) => run.loops[run.loop[step]].slice(0, depth + 1).join();
    const same = (a, b) => outer(a) === outer(b) && run.iterations.slice(0, depth + 1).every((values) => values[a] === values[b]);
    const inside = (step) => step >= 0 && step < run.steps;
    let step = this.at + by;
    while (inside(step) && (outer(step) !== outer(this.at) || same(step, this.at))) step += by;
    if (!inside(step)) return;
    while (by < 0 && step > 0 && same(step, step - 1)) step--;
    this.go(step);
  }

  // ---- the strip above the slider ----------------------------------------------------------------

  #strip() {
    const { run, at } = this;
    const canvas = byId("strip");
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return; // not laid out yet
    if (this.painted?.width !== width) this.painted = this.#overview(width, height);
    const ratio = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    const context = canvas.getContext("2d");
    context.drawImage(this.painted, 0, 0, canvas.width, canvas.height);
    context.fillStyle = cssText(cssColor("ink"));
    context.fillRect(Math.round(((at + 0.5) / run.steps) * canvas.width) - ratio, 0, 2 * ratio, canvas.height);
  }

  /** Engines of the steps below, breakpoints and matches above; painted once. */
  #overview(width, height) {
    const { run } = this;
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = canvas.getContext("2d");
    const colors = new Map();
    const color = (name) => colors.get(name) ?? colors.set(name, cssText(cssColor(name))).get(name);
    const wide = Math.max(1, width / run.steps);
    for (let x = 0; x < width; x += wide) {
      const { engine } = run.kindOf(Math.min(run.steps - 1, Math.floor((x / width) * run.steps)));
      context.fillStyle = color(engine === "dma" ? "load" : MARK_ENGINES.has(engine) ? engine : "sync");
      context.fillRect(x, 14, Math.ceil(wide), height - 14);
    }
    const mark = (name, top, tall, wanted) => {
      context.fillStyle = color(name);
      for (let step = 0, last = -1; step < run.steps; step++) {
        const x = Math.floor((step / run.steps) * width);
        if (x === last || !wanted(step)) continue; // one mark for each pixel
        context.fillRect(x, top, Math.max(1.5, wide), tall);
        last = x;
      }
    };
    const hits = new Set(this.hits);
    mark("link", 9, 4, (step) => hits.has(step));
    for (const [name, { steps }] of Object.entries(this.breaks.conditions)) mark(MARKS[name], 1, 7, (step) => steps[step]);
    const lines = run.kinds.map(({ file, line }) => this.breaks.lines.has(`${file}:${line}`));
    mark("accent", 1, 3, (step) => lines[run.kind[step]]);
    return canvas;
  }

  #repaint() {
    this.painted = null;
    this.redraw();
  }

  #recolor() {
    this.palette = new Palette();
    this.memories.readColors();
    this.#repaint();
  }

  // ---- breakpoints and search --------------------------------------------------------------------

  toggle(key) {
    this.listing.breakpoint(key, this.breaks.toggle(key));
    this.#repaint();
  }

  nextBreak(by) {
    const step = this.breaks.next(this.at, by);
    byId("found").textContent = step < 0 ? `no breakpoint ${by > 0 ? "after" : "before"} this step` : "";
    if (step >= 0) this.go(step);
  }

  /** Shows the steps of a line, and goes to the first of them from here on. */
  chooseLine(key) {
    const [file, line] = key.split(":").map(Number);
    const steps = [];
    for (let step = 0; step < this.run.steps; step++) {
      const kind = this.run.kindOf(step);
      if (kind.file === file && kind.line === line) steps.push(step);
    }
    this.listing.choose(key);
    this.#show(`${this.run.files[file].name}:${line}`, steps);
  }

  search(text) {
    this.listing.choose(null);
    this.#show(`“${text}”`, searchSteps(this.run, text));
    byId("found").textContent = text.trim() ? countText(this.hits.length, "step") : "";
  }

  #show(title, steps) {
    this.hits = steps;
    if (steps.length) this.go(steps.find((step) => step >= this.at) ?? steps[0]);
    this.listing.hits(title, steps, this.at);
    this.#repaint();
  }

  clear() {
    byId("search").value = "";
    this.search("");
  }

  #nextHit(by) {
    const later = by > 0 ? this.hits.find((step) => step > this.at) : this.hits.findLast((step) => step < this.at);
    if (later !== undefined) this.go(later);
  }

  // ---- controls ----------------------------------------------------------------------------------

  #buttons() {
    const act = { start: () => this.go(0), back: () => this.go(this.at - 1), next: () => this.go(this.at + 1), end: () => this.go(this.run.steps - 1),
      play: () => this.play(), "next-break": () => this.nextBreak(1), "previous-break": () => this.nextBreak(-1) };
    for (const [id, does] of Object.entries(act)) byId(id).onclick = does;
    byId("at").oninput = (event) => this.go(Number(event.target.value));
    byId("strip").onpointerdown = (event) => this.go(Math.floor((event.offsetX / event.target.clientWidth) * this.run.steps));
    const search = byId("search");
    search.oninput = () => this.search(search.value);
    search.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === "Escape") this.clear();
      if (event.key === "Enter") this.#nextHit(event.shiftKey ? -1 : 1);
    };
  }

  /** Goes on until the end or a breakpoint. */
  play() {
    const stop = () => {
      this.timer = clearInterval(this.timer);
      byId("play").setAttribute("aria-pressed", "false");
    };
    if (this.timer) return stop();
    byId("play").setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => {
      this.go(this.at + 1);
      if (this.at + 1 >= this.run.steps || this.breaks.reasons(this.at).length) stop();
    }, PLAY_MS);
  }

  #conditions() {
    const box = byId("conditions");
    for (const [key, condition] of Object.entries(this.breaks.conditions)) {
      if ((key === "difference" && !this.run.agreements.length) || (key === "error" && !this.run.raised)) continue;
      const count = element("small");
      const button = element("button", { id: `on-${key}`, title: condition.title, "aria-pressed": "true", textContent: condition.name }, count);
      button.onclick = () => {
        condition.on = !condition.on;
        button.setAttribute("aria-pressed", String(condition.on));
        this.redraw();
      };
      condition.recount = () => (count.textContent = condition.steps.reduce((a, b) => a + b, 0).toLocaleString("en-US"));
      condition.recount();
      box.append(button);
      if (key === "difference") box.append(this.#tolerance(condition));
    }
  }

  #tolerance(condition) {
    const input = element("input", { id: "tolerance", type: "number", min: 0, step: "any", value: 1, title: `${condition.title}: 1 is what is allowed`, "aria-label": "Tolerance, 1 is what the dtype and the sums allow" });
    input.oninput = () => {
      this.breaks.setTolerance(Number(input.value));
      condition.recount();
      this.#repaint();
    };
    return input;
  }

  #summary() {
    const { run } = this;
    const tile = (name, text, step, bad) => element("div", { className: bad ? "bad" : "" }, element("dt", { textContent: name }),
      element("dd", {}, step >= 0 ? element("button", { className: "summary-link", textContent: text, onclick: () => this.go(step) }) : text));
    const first = (key) => this.breaks.conditions[key].steps.indexOf(1);
    const stop = (name, key) => (first(key) < 0 ? "" : tile(name, `step ${(first(key) + 1).toLocaleString("en-US")}`, first(key), true));
    const wrong = run.agreements.reduce((sum, [wrong]) => sum + wrong, 0);
    const agreed = !run.agreements.length ? "" : tile("Reference", wrong ? `${countText(wrong, "element")} differ` : "agrees", -1, wrong > 0);
    const raises = run.raised ? tile("Raises", `step ${run.steps.toLocaleString("en-US")}`, run.steps - 1, true) : "";
    byId("summary").append(...[tile("Steps", run.steps.toLocaleString("en-US"), -1), raises, agreed, stop("First difference", "difference"), stop("First NaN", "nan"),
      stop("Never written, first read", "unwritten")].filter(Boolean));
  }

  #keys() {
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || (event.target.tagName === "INPUT" && event.target.type !== "range")) return;
      const { file, line } = this.run.steps ? this.run.kindOf(this.at) : {};
      const does = {
        ArrowRight: () => this.go(this.at + 1), ArrowLeft: () => this.go(this.at - 1), PageDown: () => this.go(this.at + PAGE), PageUp: () => this.go(this.at - PAGE),
        Home: () => this.go(0), End: () => this.go(this.run.steps - 1), n: () => this.nextBreak(1), p: () => this.nextBreak(-1),
        b: () => this.toggle(`${file}:${line}`), "/": () => byId("search").focus(), Escape: () => this.clear(),
        ...(event.target.tagName === "BUTTON" ? {} : { " ": () => this.play() }),
      }[event.key];
      if (!does) return;
      event.preventDefault();
      does();
    });
  }
}

const MARK_ENGINES = new Set(["tensor", "vector", "scalar", "gpsimd"]);
