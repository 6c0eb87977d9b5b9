// The kernel's source with the number of steps of each line, breakpoints, and the steps of a chosen line.

const MOST_HITS = 200; // that are listed at once

class Listing {
  constructor(run, actions) {
    Object.assign(this, { run, actions, rows: new Map(), marked: null });
    this.box = document.getElementById("listing");
    this.counts = new Map(); // "file:line" -> steps
    for (let step = 0; step < run.steps; step++) {
      const { file, line } = run.kindOf(step);
      this.counts.set(`${file}:${line}`, (this.counts.get(`${file}:${line}`) ?? 0) + 1);
    }
    run.files.forEach((file, number) => this.box.append(this.#file(file, number)));
    this.box.onclick = (event) => this.#act(event);
    this.box.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      this.#act(event);
    };
  }

  #file(file, number) {
    const section = element("section", {}, element("h3", { textContent: file.name, title: file.path }));
    highlighted(file.lines.join("\n")).forEach((code, i) => section.append(this.#row(number, i + 1, code)));
    return section;
  }

  #row(file, line, code) {
    const key = `${file}:${line}`;
    const steps = this.counts.get(key);
    const row = element("div", { className: steps ? "row stepped" : "row" },
      element("span", { className: "lineno", textContent: line, ...(steps && { role: "button", tabIndex: 0, "aria-pressed": "false", "aria-label": `Breakpoint on line ${line}` }) }),
      element("span", { className: "count", textContent: steps ? `${steps.toLocaleString("en-US")}×` : "" }),
      element("code", {}, ...code));
    if (steps) {
      row.dataset.key = key;
      row.querySelector("code").tabIndex = 0;
      this.rows.set(key, row);
    }
    return row;
  }

  #act(event) {
    const row = event.target.closest(".stepped");
    if (!row) return;
    if (event.target.closest(".lineno")) this.actions.toggle(row.dataset.key);
    else this.actions.choose(row.dataset.key);
  }

  /** Marks the line of a step and brings it into sight. */
  mark(step) {
    const { file, line } = this.run.kindOf(step);
    const row = this.rows.get(`${file}:${line}`);
    if (row === this.marked) return;
    this.marked?.classList.remove("marked");
    this.marked = row;
    if (!row) return;
    row.classList.add("marked");
    const [top, box] = [row.offsetTop, this.box];
    if (top < box.scrollTop + 30 || top > box.scrollTop + box.clientHeight - 40) box.scrollTop = top - box.clientHeight / 2;
  }

  breakpoint(key, on) {
    this.rows.get(key)?.querySelector(".lineno").setAttribute("aria-pressed", String(on));
  }

  choose(key) {
    this.chosen?.classList.remove("chosen");
    this.chosen = this.rows.get(key);
    this.chosen?.classList.add("chosen");
  }

  /** Lists steps: number, loop counters, and the range of what each wrote. */
  hits(title, steps, at) {
    const panel = document.getElementById("hits");
    panel.hidden = !steps.length;
    if (!steps.length) return;
    const near = Math.max(0, Math.min(steps.length - MOST_HITS, steps.findIndex((step) => step >= at) - MOST_HITS / 2));
    const shown = steps.slice(near, near + MOST_HITS);
    const clear = element("button", { className: "link", textContent: "clear", onclick: () => this.actions.clear() });
    document.getElementById("hits-title").replaceChildren(`${title}: ${countText(steps.length, "step")}`, clear);
    document.getElementById("hits-list").replaceChildren(...shown.map((step) => element("li", {}, this.#hit(step))));
    this.current(at);
  }

  #hit(step) {
    const { run } = this;
    const written = [...run.operandsOf(step)].find((operand) => run.role[operand] !== READS && run.map[operand] >= 0);
    const map = run.map[written];
    const range = written === undefined ? "" : `${shortText(run.map_low[map])} … ${shortText(run.map_high[map])}`;
    const button = element("button", { onclick: () => this.actions.go(step) },
      element("b", { textContent: (step + 1).toLocaleString("en-US") }), element("span", { textContent: iterationText(run, step) || run.kindOf(step).name }), element("span", { textContent: range }));
    button.dataset.step = step;
    return button;
  }

  /** Marks the step among those listed. */
  current(at) {
    const list = document.getElementById("hits-list");
    list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const button = list.querySelector(`[data-step="${at}"]`);
    button?.setAttribute("aria-current", "step");
    button?.scrollIntoView({ block: "nearest" });
  }
}
