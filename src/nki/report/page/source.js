// The user's files with the time of each line.

class Source {
  constructor(data, actions) {
    this.data = data;
    this.box = document.getElementById("listing");
    this.rows = new Map(); // "file:line" -> element
    this.marked = [];
    this.longest = Math.max(1, ...data.lines.map((line) => this.#sum(line)));
    const times = new Map(data.lines.map((line) => [`${line.file}:${line.number}`, line]));
    data.files.forEach((file, number) => this.box.append(this.#file(file, number, times)));
    this.box.addEventListener("click", (event) => this.#chosen(event.target, actions));
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.#chosen(event.target, actions);
      }
    });
  }

  #sum = (line) => Object.values(line.engines).reduce((a, b) => a + b, 0);

  #file(file, number, times) {
    const section = element("section", {}, element("h3", { textContent: file.name, title: file.path }));
    if (file.lines.length === 0) {
      section.append(element("p", { className: "faint", textContent: "The text of this file is not at hand." }));
      for (const line of times.values()) {
        if (line.file === number) section.append(this.#row(number, line.number, line, []));
      }
      return section;
    }
    highlighted(file.lines.join("\n")).forEach((code, i) => {
      section.append(this.#row(number, i + 1, times.get(`${number}:${i + 1}`), code));
    });
    return section;
  }

  #row(file, line, time, code) {
    const row = element("div", { className: "row" },
      element("span", { className: "lineno", textContent: line }),
      element("span", { className: "time", textContent: time && time.critical_us > 0 ? timeText(1e3 * time.critical_us) : "" }),
      element("span", { className: "share" }, ...(time ? this.#bars(time) : [])),
      element("code", {}, ...code));
    this.rows.set(`${file}:${line}`, row);
    if (time) {
      row.classList.add("timed");
      Object.assign(row.dataset, { file, line });
      row.title = this.#explain(time);
      row.tabIndex = 0;
      row.setAttribute("role", "button");
    }
    return row;
  }

  #bars(time) {
    return Object.entries(time.engines).map(([engine, us]) =>
      element("i", { className: engine === "dma" ? "load" : engine, style: `width:${(100 * us) / this.longest}%` }));
  }

  #explain(time) {
    const engines = Object.entries(time.engines).map(([engine, us]) => `${ENGINE_NAMES[engine]} ${timeText(1e3 * us)}`);
    return `decides ${timeText(1e3 * time.critical_us)} of the run (${time.critical_percent.toFixed(1)} %)\n` +
      `${countText(time.instructions, "instruction")}: ${engines.join(", ")}`;
  }

  #chosen(target, actions) {
    const row = target.closest(".timed");
    if (row) actions.focusLine(+row.dataset.file, +row.dataset.line);
  }

  /** Marks a line and brings it into sight; file -1 marks nothing. */
  mark(file, line, scroll = true) {
    for (const row of this.marked) row.classList.remove("marked");
    const row = this.rows.get(`${file}:${line}`);
    this.marked = row ? [row] : [];
    row?.classList.add("marked");
    if (row && scroll) this.scrollTo(row);
  }

  scrollTo(row) {
    const top = row.getBoundingClientRect().top - this.box.getBoundingClientRect().top + this.box.scrollTop;
    this.box.scrollTop = top - this.box.clientHeight / 2;
  }

  /** Opens where the run's time is decided. */
  showHottest() {
    const hottest = [...this.data.lines].sort((a, b) => b.critical_us - a.critical_us)[0];
    const row = hottest && this.rows.get(`${hottest.file}:${hottest.number}`);
    if (row) this.scrollTo(row);
  }
}
