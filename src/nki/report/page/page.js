// Puts the page together: one Report receives every choice and updates the views.

class Report {
  constructor(data) {
    this.data = data;
    document.body.classList.toggle("two", data.cores > 1);
    data.kind_of = (row) => data.kinds[data.kind[row]];
    data.lane_of = (row) => data.lanes[data.lane[row]];
    data.why_of = (row) => data.why_names[data.why[row]];
    data.active = this.#active();
    const actions = {
      select: (row) => this.select(row),
      hover: (found, event) => this.details.hover(found, event),
      focusLine: (file, line) => this.focusLine(file, line),
      toLine: (file, line) => this.source.mark(file, line),
      critical: () => this.showCritical(),
      clear: () => this.clear(),
      viewed: (view) => this.#range(view),
      ranged: (t0, t1) => this.showRange(t0, t1),
    };
    this.details = new Details(data, actions);
    this.timeline = new Timeline(data, actions);
    this.source = new Source(data, actions);
    this.finder = new Search(data);
    this.built = new Set();
    this.#memoryKey();
    this.#listen();
    this.source.showHottest();
  }

  /** Percent of the run in which each lane had a bar, by core and name. */
  #active() {
    const active = Array.from({ length: this.data.cores }, () => ({}));
    for (const lane of this.data.lanes) {
      let busy = 0;
      let until = -Infinity;
      for (let row = lane.first; row < lane.first + lane.rows; row++) {
        busy += Math.max(0, this.data.end[row] - Math.max(until, this.data.start[row]));
        until = Math.max(until, this.data.end[row]);
      }
      active[lane.core][lane.name] = (100 * busy) / Math.max(1e-9, this.data.total_ns);
    }
    return active;
  }

  // ---- choices ---------------------------------------------------------------------------------

  select(row) {
    if (row < 0) return this.clear();
    this.timeline.select(row);
    this.timeline.reveal(row);
    this.details.show(row, this.timeline.chain, this.timeline.dependents);
    this.#open("instruction");
    const kind = this.data.kind_of(row);
    this.source.mark(kind.file, kind.line);
    this.#announce(`${kind.name}, ${timeText(this.data.end[row] - this.data.start[row])}, line ${placeText(this.data, kind)}`);
  }

  focusLine(file, line) {
    const same = this.focused === `${file}:${line}`;
    this.clear();
    if (same) return;
    this.focused = `${file}:${line}`;
    this.source.mark(file, line, false);
    const wanted = this.data.kinds.map((kind) => kind.file === file && kind.line === line);
    const on = rowsWhere(this.data, (row) => wanted[this.data.kind[row]]);
    this.timeline.focus(on);
    this.#announce(`${countText(countRows(on), "instruction")} of ${placeText(this.data, { file, line })}`);
  }

  /** Lights what matches every word: of a name, label, tile, line or engine, or `k=3` of a loop. Returns how many do. */
  search(text) {
    this.clear();
    this.matches = null;
    const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0) return this.data.rows;
    return this.#light(`search ${words.join(" ")}`, this.finder.rows(words), `match "${text.trim()}"`);
  }

  /** Lights the instructions of a name on an engine. */
  showName(name, lane) {
    this.clear();
    const { data } = this;
    const named = data.kinds.map((kind) => kind.name === name);
    const on = rowsWhere(data, (row) => named[data.kind[row]] && data.lane_of(row).name === lane);
    this.#light(name, on, `are ${name}`);
  }

  /** Dims all but the bars that are `on`, and announces how many those are. */
  #light(what, on, words) {
    this.focused = what;
    this.timeline.focus(on);
    this.matches = on;
    const count = countRows(on);
    this.#announce(`${countText(count, "instruction")} ${words}`);
    return count;
  }

  showRange(t0, t1) {
    document.getElementById("range-summary").replaceChildren(
      ...rangeView(this.data, t0, t1, (name, lane) => this.showName(name, lane)));
    this.#open("range-summary");
  }

  /** Panels that are made when they are first looked at. */
  #build(name) {
    if (this.built.has(name)) return;
    this.built.add(name);
    const box = document.getElementById(name);
    if (name === "roofline") drawRoofline(this.data, box);
    if (name === "waits") box.replaceChildren(...standstillView(this.data));
    if (name === "instructions") box.replaceChildren(instructionTable(this.data, (n, lane) => this.showName(n, lane)));
  }

  showCritical() {
    const shown = this.focused === "critical";
    this.clear();
    if (shown) return;
    this.focused = "critical";
    const on = new Uint8Array(this.data.rows);
    const last = this.data.end.reduce((best, end, row) => (best < 0 || end > this.data.end[best] ? row : best), -1);
    for (let row = last; row >= 0; row = this.data.blocker[row]) on[row] = 1;
    this.timeline.focus(on);
    document.getElementById("critical").setAttribute("aria-pressed", "true");
    this.#announce("the chain of instructions that decides the time of the run");
  }

  clear() {
    this.focused = null;
    document.getElementById("critical").setAttribute("aria-pressed", "false");
    this.timeline.select(-1);
    this.timeline.focus(null);
    this.details.show(-1);
    this.source.mark(-1, 0);
    this.#announce("");
  }

  /** Selects the match after the selected one, in time. */
  #nextMatch(by) {
    const { start } = this.data;
    const from = this.timeline.selected >= 0 ? start[this.timeline.selected] : by > 0 ? -Infinity : Infinity;
    let best = -1;
    for (let row = 0; row < this.matches.length; row++) {
      if (this.matches[row] && by * (start[row] - from) > 0 && (best < 0 || by * (start[row] - start[best]) < 0)) best = row;
    }
    if (best < 0) return;
    this.select(best);
    document.getElementById("search").focus();
  }

  // ---- the rest of the page --------------------------------------------------------------------

  #announce(text) {
    document.getElementById("status").textContent = text;
  }

  #range({ t0, t1, total }) {
    document.getElementById("range").textContent = t1 - t0 >= total ? "" : `${timeText(t1 - t0)} in sight`;
  }

  #memoryKey() {
    const box = document.getElementById("owners");
    for (const { core, name, owners } of this.data.memories) {
      if (core > 0 || owners.length === 0) continue;
      box.append(element("b", { textContent: name.toUpperCase() }));
      owners.forEach(([owner, file, line], k) => {
        const swatch = element("i", { className: "swatch", style: `background:var(--owner${k % 8})` });
        const text = file < 0 ? owner : `${owner} ${placeText(this.data, { file, line })}`;
        const button = element("button", { className: "link plain" }, swatch, text);
        button.onclick = () => file >= 0 && this.source.mark(file, line);
        box.append(button);
      });
    }
  }

  #open(name) {
    this.#build(name);
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const chosen = tab.dataset.panel === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      document.getElementById(tab.dataset.panel).hidden = !chosen;
    }
  }

  #toPlace(text) {
    const [name, line] = [text.slice(0, text.lastIndexOf(":")), +text.slice(text.lastIndexOf(":") + 1)];
    const file = this.data.files.findIndex((f) => f.name === name || f.path.endsWith(`/${name}`));
    if (file < 0) return;
    if (this.focused !== `${file}:${line}`) this.focusLine(file, line);
    this.source.mark(file, line);
  }

  #listen() {
    document.querySelectorAll("[data-place]").forEach((link) => (link.onclick = () => this.#toPlace(link.dataset.place)));
    const tabs = [...document.querySelectorAll("[role=tab]")];
    tabs.forEach((tab, i) => {
      tab.onclick = () => this.#open(tab.dataset.panel);
      tab.onkeydown = ({ key }) => {
        const next = { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[key];
        if (!next) return;
        const other = tabs[(i + next) % tabs.length];
        this.#open(other.dataset.panel);
        other.focus();
      };
    });
    const { view } = this.timeline;
    const button = (id, act) => (document.getElementById(id).onclick = () => {
      act();
      this.timeline.redraw();
    });
    button("zoom-in", () => view.zoom(view.middle, 0.5));
    button("zoom-out", () => view.zoom(view.middle, 2));
    button("fit", () => view.fit());
    button("critical", () => this.showCritical());
    const recolor = () => {
      this.timeline.readColors();
      this.timeline.redraw();
    };
    followTheme(recolor);
    document.querySelectorAll("table").forEach((table) => table.tHead && makeSortable(table));
    const search = document.getElementById("search");
    search.oninput = () => this.search(search.value);
    search.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === "Escape") this.search((search.value = ""));
      if (event.key === "Enter" && this.matches) this.#nextMatch(event.shiftKey ? -1 : 1);
    };
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.clear();
      if (event.key === "/" && event.target !== search) {
        event.preventDefault();
        search.focus();
      }
    });
  }
}

async function main() {
  const begun = performance.now();
  const data = await readProfile();
  const decoded = performance.now();
  const report = new Report(data);
  report.milliseconds = { decode: decoded - begun, build: performance.now() - decoded, drawn: performance.now() };
  window.report = report;
  document.documentElement.dataset.ready = "yes";
}

main().catch((problem) => {
  document.getElementById("status").textContent = `The timeline could not be read: ${problem.message}`;
  throw problem;
});
