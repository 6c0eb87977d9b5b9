// Lanes, the tracks inside them, and which colour a bar has.

const MOST_TRACKS = 4; // transfers in flight that a queue's lane shows side by side

/** First index whose value exceeds x. */
function upperBound(values, x) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Rows of one lane that follow each other; `end` is cut where the next one begins. */
class Track {
  constructor(data, rows) {
    this.rows = new Uint32Array(rows);
    this.start = new Float64Array(rows.length);
    this.end = new Float64Array(rows.length);
    for (let i = 0; i < rows.length; i++) {
      this.start[i] = data.start[rows[i]];
      this.end[i] = data.end[rows[i]];
      if (i > 0 && this.end[i - 1] > this.start[i]) this.end[i - 1] = this.start[i];
    }
  }

  /** The bar at a moment, or the nearest within `slack` ns; -1 for none. */
  at(moment, slack) {
    const i = upperBound(this.start, moment) - 1;
    if (i >= 0 && moment <= this.end[i]) return this.rows[i];
    const before = i >= 0 ? moment - this.end[i] : Infinity;
    const after = i + 1 < this.rows.length ? this.start[i + 1] - moment : Infinity;
    if (Math.min(before, after) > slack) return -1;
    return this.rows[before <= after ? i : i + 1];
  }
}

/** Engines overlap by their drain alone: one track. Transfers in flight are shown side by side. */
function tracksOf(data, lane) {
  const last = lane.first + lane.rows;
  if (COMPUTE.has(lane.name)) return [new Track(data, new Uint32Array(lane.rows).map((_, i) => lane.first + i))];
  const tracks = [];
  const free = [];
  for (let row = lane.first; row < last; row++) {
    const begin = data.start[row] + data.tick_ns;
    let choice = free.findIndex((moment) => moment <= begin);
    if (choice < 0 && tracks.length < MOST_TRACKS) choice = tracks.push([]) - 1;
    if (choice < 0) choice = free.indexOf(Math.min(...free));
    tracks[choice].push(row);
    free[choice] = data.end[row];
  }
  return tracks.map((chosen) => new Track(data, chosen));
}

// ---- colours -----------------------------------------------------------------------------------

const SHADES = [0, 0.3, -0.25, 0.5, -0.4];

const shaded = (color, shade) =>
  color.map((c) => Math.round(shade >= 0 ? c + (255 - c) * shade : c * (1 + shade)));

/** A colour per kind: transfers by their way, instructions by engine, the most frequent purest. */
function colorsOf(data) {
  const rows = new Uint32Array(data.kinds.length);
  const lane = new Int16Array(data.kinds.length).fill(-1); // of its first row
  for (let row = 0; row < data.rows; row++) {
    const kind = data.kind[row];
    rows[kind]++;
    if (lane[kind] < 0) lane[kind] = data.lane[row];
  }
  const seen = {};
  const byRows = [...data.kinds.keys()].sort((a, b) => rows[b] - rows[a]);
  const colors = [];
  for (const number of byRows) {
    const kind = data.kinds[number];
    const engine = data.lanes[lane[number]]?.name;
    if (!COMPUTE.has(engine)) {
      colors[number] = cssColor(kind.flow || "move");
      continue;
    }
    const names = (seen[engine] ||= []);
    if (!names.includes(kind.name)) names.push(kind.name);
    colors[number] = shaded(cssColor(engine), SHADES[names.indexOf(kind.name) % SHADES.length]);
  }
  return colors;
}
