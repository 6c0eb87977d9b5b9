// The tooltip, and the panel about the selected instruction.

const MOST_LINKS = 8; // groups of instructions that are seen at once
const MOST_FURTHER = 200; // after them, when the list is expanded

class Details {
  constructor(data, actions) {
    this.data = data;
    this.actions = actions;
    this.tooltip = document.getElementById("tooltip");
    this.panel = document.getElementById("instruction");
    this.empty = [...this.panel.childNodes];
  }

  // ---- tooltip ---------------------------------------------------------------------------------

  hover({ row, others, memory, moment }, event) {
    if (row === undefined && !memory) {
      this.tooltip.hidden = true;
      return;
    }
    this.tooltip.replaceChildren(...(memory ? this.#memory(memory, moment) : this.#brief(row, others)));
    showNear(this.tooltip, event);
  }

  #brief(row, others) {
    const { data } = this;
    const kind = data.kind_of(row);
    return [
      this.#title(row),
      ...operandList(data, row).map((text) => element("code", { textContent: text })),
      this.#facts(row),
      element("p", { className: "place" }, element("b", { textContent: placeText(data, kind) }),
        element("code", { textContent: sourceText(data, kind) })),
      others.length ? element("p", { className: "faint", textContent: this.#beside(row, others) }) : "",
    ].filter(Boolean);
  }

  /** What else is under the cursor: which loops it goes through. */
  #beside(row, others) {
    const iterations = iterationsText(this.data, [row, ...others]);
    return `${countText(others.length, "more instruction")} under this pixel${iterations ? `: ${iterations}` : ""}. Zoom in.`;
  }

  #title(row) {
    const kind = this.data.kind_of(row);
    const label = this.data.labels[this.data.label[row]];
    const lane = this.data.lane_of(row);
    const core = this.data.cores > 1 ? ` · core ${lane.core}` : "";
    return element("h3", {}, kind.name, label ? element("i", { textContent: ` ${label}` }) : "",
      element("span", { className: `chip ${COMPUTE.has(lane.name) ? lane.name : kind.flow || "move"}`, textContent: ENGINE_NAMES[lane.name] + core }));
  }

  #facts(row) {
    const { data } = this;
    const kind = data.kind_of(row);
    const length = data.end[row] - data.start[row];
    const facts = [["start", momentText(data.start[row])], ["duration", timeText(length)]];
    const iteration = iterationText(data, row);
    if (iteration) facts.unshift(["loops", iteration]);
    if (kind.bytes) facts.push(["moves", `${sizeText(kind.bytes)}, ${three(kind.bytes / length)} GB/s`]);
    if (kind.flops) facts.push(["computes", `${flopsText(kind.flops)}, ${three(kind.flops / length / 1e3)} TFLOP/s`]);
    const idle = data.wait[row] > 0 ? `${timeText(data.wait[row])} idle before it; ` : "";
    facts.push(["waited for", idle + reasonText(data, row)]);
    return element("dl", {}, ...facts.flatMap(([name, text]) =>
      [element("dt", { textContent: name }), element("dd", { textContent: text })]));
  }

  #memory(memory, moment) {
    const held = memory.heldAt(moment);
    const total = held.reduce((a, b) => a + b, 0);
    const rows = memory.owners.map((owner, k) => ({ owner, k, bytes: held[k] })).filter(({ bytes }) => bytes > 0);
    return [
      element("h3", { textContent: `${memory.name.toUpperCase()} at ${momentText(Math.max(0, moment))}` }),
      element("p", { textContent: `${sizeText(total)} of ${sizeText(memory.usable)} per partition` }),
      element("dl", { className: "owners" }, ...rows.flatMap(({ owner: [name, file, line], k, bytes }) => [
        element("dt", {}, element("i", { className: "swatch", style: `background:var(--owner${k % 8})` }), name),
        element("dd", { textContent: `${sizeText(bytes)}  ${placeText(this.data, { file, line }).replace("no source line", "")}` }),
      ])),
    ];
  }

  // ---- panel -----------------------------------------------------------------------------------

  show(row, chain, dependents) {
    if (row < 0) return this.panel.replaceChildren(...this.empty);
    const { data } = this;
    const kind = data.kind_of(row);
    const line = element("button", { className: "link", textContent: placeText(data, kind) });
    line.onclick = () => this.actions.toLine(kind.file, kind.line);
    this.panel.replaceChildren(
      this.#title(row),
      element("ul", { className: "operands" }, ...operandList(data, row).map((text) => element("li", {}, element("code", { textContent: text })))),
      this.#facts(row),
      element("p", { className: "place" }, line, element("code", { textContent: sourceText(data, kind) })),
      ...this.#links("What decided its start, back in time", chain.slice(1), (other, i) =>
        `${timeText(data.start[chain[i]] - data.start[other])} earlier: ${this.#why(chain[i])}`),
      ...this.#links("What it decided", dependents, (other) => this.#why(other)),
    );
  }

  #why(row) {
    const why = this.data.why_of(row);
    if (why === "engine" && !COMPUTE.has(this.data.lane_of(row).name)) return "queue busy";
    return SHORT_REASONS[why] ?? why;
  }

  /** Links to instructions; neighbours that only differ in their iteration of the loops are one entry. */
  #links(title, rows, note) {
    if (rows.length === 0) return [];
    const groups = this.#grouped(rows, rows.map(note));
    const shown = groups.slice(0, MOST_LINKS);
    const left = groups.slice(MOST_LINKS).flatMap(({ rows: some }) => some);
    return [
      element("h4", { textContent: title }),
      element("ol", { className: "links" }, ...shown.map((group) => this.#link(group))),
      left.length ? element("details", { className: "further" },
        element("summary", { className: "faint", textContent: `${countText(left.length, "further instruction")}: ${this.#names(left)}` }),
        element("ol", { className: "links" }, ...groups.slice(MOST_LINKS, MOST_LINKS + MOST_FURTHER).map((group) => this.#link(group)))) : "",
    ];
  }

  /** Neighbours of one line and reason, together. */
  #grouped(rows, notes) {
    const groups = [];
    rows.forEach((row, i) => {
      const reason = notes[i].replace(/^.*earlier: /, "");
      const last = groups.at(-1);
      if (last && last.reason === reason && this.data.kind[last.rows[0]] === this.data.kind[row]) last.rows.push(row);
      else groups.push({ rows: [row], reason, note: notes[i] });
    });
    return groups;
  }

  #link({ rows, note, reason }) {
    const { data } = this;
    const [row] = rows;
    const button = element("button", { className: "link", textContent: data.kind_of(row).name });
    button.onclick = () => this.actions.select(row);
    const many = rows.length > 1 ? ` ${rows.length.toLocaleString("en-US")} ×` : "";
    const words = [tileText(data, row), iterationsText(data, rows)].filter(Boolean).join(", ");
    return element("li", {}, button, element("span", { textContent: `${many} ${ENGINE_NAMES[data.lane_of(row).name]}, ${many ? reason : note}` }),
      words ? element("code", { textContent: words }) : "");
  }

  #names(rows) {
    const names = [...new Set(rows.map((row) => this.data.kind_of(row).name))];
    return names.slice(0, 4).join(", ") + (names.length > 4 ? "…" : "");
  }
}
