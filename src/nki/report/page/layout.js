// Where things are: the strips of lanes and memories, from top to bottom, and what lies in them.

const ENGINE_HEIGHT = 24;
const TRACK_HEIGHT = 13;
const IDLE_HEIGHT = 15;
const LANE_GAP = 5;
const CORE_HEIGHT = 16;
const MEMORY_HEIGHT = { sbuf: 58, psum: 34 };
const OVERVIEW_HEIGHT = 5;
const SMALL = { engine: 17, track: 8, gap: 3, memory: { sbuf: 32, psum: 26 }, overview: 3 }; // two cores at once

class Layout {
  constructor(data, memories) {
    this.data = data;
    this.memories = memories;
    this.trackOf = new Uint8Array(data.rows);
    this.strips = []; // from top to bottom: { lane, tracks, ... }, { memory, ... } or { core, ... }
    this.lanes = []; // those of lanes, by number
    this.#place();
  }

  #place() {
    const small = this.data.cores > 1; // two cores are seen at once on a laptop's screen
    const gap = small ? SMALL.gap : LANE_GAP;
    this.overviewHeight = small ? SMALL.overview : OVERVIEW_HEIGHT;
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

  /** Writes the names of the strips beside them. */
  label(labels) {
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

  /** Where a bar is drawn. */
  rectangle(row, scale) {
    const strip = this.lanes[this.data.lane[row]];
    const left = scale.x(this.data.start[row]);
    const width = Math.max(2, scale.x(this.data.end[row]) - left);
    return { left, width, y: strip.y + this.trackOf[row] * strip.step, height: strip.step - 1 };
  }

  /** What is under a point: { row } or { memory, moment } or nothing. */
  at(x, y, scale) {
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
}
