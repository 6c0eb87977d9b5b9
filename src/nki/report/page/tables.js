// Tables: sorted by a click on a column's name; instructions by kind; why each engine stood still.

/** What a cell is sorted by: its data-value, else its number, else its text. */
function sortKey(cell) {
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text.toLowerCase() : number;
}

/** Every table with a head is sorted by the column clicked, the other way round by the next click. */
function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = element("button", { className: "sort", textContent: head.textContent });
    head.replaceChildren(button);
    button.onclick = () => {
      const falling = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[column]), row]);
      rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (falling ? -1 : 1));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    };
  });
  return table;
}

/** A table of [text, value] cells; `value` is what it is sorted by. */
function tableOf(names, rows) {
  const head = element("tr", {}, ...names.map((name) => element("th", { textContent: name })));
  const body = rows.map((cells) => element("tr", {}, ...cells.map(([content, value]) => {
    const cell = element("td", {}, content);
    if (value !== undefined) cell.dataset.value = value;
    return cell;
  })));
  return makeSortable(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

// ---- instructions by kind ------------------------------------------------------------------------

/** Count, time, bytes and flops of each instruction on each engine, between two moments. */
function byName(data, t0 = -Infinity, t1 = Infinity) {
  const found = new Map();
  for (let row = 0; row < data.rows; row++) {
    const length = Math.min(data.end[row], t1) - Math.max(data.start[row], t0);
    if (length <= 0) continue;
    const kind = data.kind_of(row);
    const lane = data.lane_of(row).name;
    const key = `${kind.name} ${lane}`;
    let sum = found.get(key);
    if (!sum) found.set(key, (sum = { name: kind.name, lane, count: 0, ns: 0, bytes: 0, flops: 0 }));
    sum.count++;
    sum.ns += length;
    sum.bytes += kind.bytes;
    sum.flops += kind.flops;
  }
  return [...found.values()].sort((a, b) => b.ns - a.ns);
}

function instructionTable(data, chosen, t0, t1) {
  const rows = byName(data, t0, t1).map(({ name, lane, count, ns, bytes, flops }) => {
    const link = element("button", { className: "link", textContent: name, title: "show these alone" });
    link.onclick = () => chosen(name, lane);
    return [
      [link, name], [ENGINE_NAMES[lane] ?? lane], [count.toLocaleString("en-US"), count], [timeText(ns), ns],
      [timeText(ns / count), ns / count], [bytes ? sizeText(bytes) : "", bytes], [flops ? flopsText(flops) : "", flops],
    ];
  });
  return tableOf(["instruction", "engine", "count", "time", "each", "moves", "computes"], rows);
}

// ---- why an engine stood still -------------------------------------------------------------------

/** Reasons of a gap: the lane that made the data, or what else was missing. */
function reasonOf(data, row) {
  const why = data.why_of(row);
  const before = data.blocker[row];
  if (before < 0) return "nothing to do";
  if (why === "data") return `data of ${ENGINE_NAMES[data.lane_of(before).name]}`;
  if (why === "engine") return COMPUTE.has(data.lane_of(row).name) ? "shared port" : "queue";
  if (why === "order") return "order";
  return data.kind_of(row).writes === "psum" ? "PSUM bank" : "room in SBUF";
}

/** ns of each lane: at work, and still for each reason. The parts add up to the whole run. */
function standstill(data) {
  return data.lanes.filter((lane) => lane.rows > 0 && lane.name !== "stationary").map((lane) => {
    const parts = new Map([["at work", 0]]);
    const add = (reason, ns) => parts.set(reason, (parts.get(reason) ?? 0) + ns);
    let until = 0;
    for (let row = lane.first; row < lane.first + lane.rows; row++) {
      const gap = data.start[row] - until;
      if (gap > 0) {
        const across = data.why_of(row) === "data" && COMPUTE.has(data.lane_of(Math.max(0, data.blocker[row])).name);
        const semaphore = across && COMPUTE.has(lane.name) ? Math.min(gap, data.semaphore_ns) : 0;
        if (semaphore) add("semaphore", semaphore);
        if (gap > semaphore) add(reasonOf(data, row), gap - semaphore);
      }
      add("at work", Math.max(0, data.end[row] - Math.max(until, data.start[row])));
      until = Math.max(until, data.end[row]);
    }
    add("nothing to do", Math.max(0, data.work_ns - until));
    return { lane, parts };
  });
}

const REASON_COLORS = {
  "at work": "var(--c)", semaphore: "var(--number)", "PSUM bank": "var(--spill)", "room in SBUF": "var(--reload)",
  queue: "var(--keyword)", order: "var(--sync)", "shared port": "var(--owner4)", "nothing to do": "var(--line)",
};
const sourceColor = (reason) => {
  const lane = Object.keys(ENGINE_NAMES).find((name) => reason === `data of ${ENGINE_NAMES[name]}`);
  return REASON_COLORS[reason] ?? `color-mix(in srgb, var(--${COMPUTE.has(lane) ? lane : "load"}) 55%, var(--ground))`;
};

/** A stacked bar per engine, and the same as a table. */
function standstillView(data) {
  const found = standstill(data);
  const rank = (reason) => Object.keys(REASON_COLORS).indexOf(reason); // data of an engine: -1, after "at work"
  const reasons = [...new Set(found.flatMap(({ parts }) => [...parts.keys()]))].slice(1)
    .sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  reasons.unshift("at work");
  const bars = found.map(({ lane, parts }) => {
    const name = ENGINE_NAMES[lane.name] + (data.cores > 1 ? ` ${lane.core}` : "");
    const pieces = reasons.filter((reason) => parts.get(reason) > 0).map((reason) => element("i", {
      style: `width:${(100 * parts.get(reason)) / data.work_ns}%;background:${sourceColor(reason)}`,
      title: `${reason}: ${timeText(parts.get(reason))}`,
    }));
    const className = `stack ${COMPUTE.has(lane.name) ? lane.name : "load"}`;
    return element("div", { className }, element("span", { textContent: name }), element("div", {}, ...pieces));
  });
  const rows = found.map(({ lane, parts }) => [
    [ENGINE_NAMES[lane.name] + (data.cores > 1 ? ` ${lane.core}` : "")],
    ...reasons.map((reason) => [parts.get(reason) ? timeText(parts.get(reason)) : "", parts.get(reason) ?? 0]),
  ]);
  const key = reasons.slice(1).map((reason) =>
    element("span", {}, element("i", { className: "swatch", style: `background:${sourceColor(reason)}` }), reason));
  return [
    element("p", { className: "faint", textContent: "Each bar is the whole run of an engine or queue: at work, and why it stood still." }),
    ...bars, element("p", { className: "reasons" }, ...key), tableOf(["engine", ...reasons], rows),
  ];
}

// ---- a range -------------------------------------------------------------------------------------

/** What happened between two moments: how busy each lane was, and its instructions. */
function rangeView(data, t0, t1, chosen) {
  const rows = data.lanes.filter((lane) => lane.rows).map((lane) => {
    let [busy, until, count] = [0, t0, 0];
    for (let row = lane.first; row < lane.first + lane.rows && data.start[row] < t1; row++) {
      if (data.end[row] <= t0) continue;
      count++;
      const end = Math.min(t1, data.end[row]);
      busy += Math.max(0, end - Math.max(until, data.start[row]));
      until = Math.max(until, end);
    }
    const name = ENGINE_NAMES[lane.name] + (data.cores > 1 ? ` ${lane.core}` : "");
    const share = (100 * busy) / (t1 - t0);
    return [[name], [`${share.toFixed(1)} %`, share], [timeText(busy), busy], [count.toLocaleString("en-US"), count]];
  });
  return [
    element("h3", { textContent: `${timeText(t1 - t0)} from ${momentText(t0)} to ${momentText(t1)}` }),
    tableOf(["engine", "active", "time", "instructions"], rows),
    element("h4", { textContent: "Instructions" }),
    instructionTable(data, chosen, t0, t1),
  ];
}
