// SBUF and PSUM over time: bytes per partition, stacked by owner.

const BLOCK = 16; // entries a coarser level makes one

/** After entry i, owner k holds `held[i * owners + k]`; a block keeps its fullest moment. */
class Level {
  constructor(time, held, owners) {
    this.time = time;
    this.held = held;
    this.owners = owners;
  }

  total(i) {
    let sum = 0;
    for (let k = 0; k < this.owners; k++) sum += this.held[i * this.owners + k];
    return sum;
  }

  coarser() {
    const count = Math.ceil(this.time.length / BLOCK);
    const time = new Float64Array(count + 1); // the last entry is the end: what a block held is gone by then
    const held = new Float32Array((count + 1) * this.owners);
    for (let block = 0; block < count; block++) {
      const first = block * BLOCK;
      let fullest = first;
      let most = -1;
      for (let i = first; i < Math.min(first + BLOCK, this.time.length); i++) {
        const total = this.total(i);
        if (total > most) [fullest, most] = [i, total];
      }
      time[block] = this.time[first];
      held.set(this.held.subarray(fullest * this.owners, (fullest + 1) * this.owners), block * this.owners);
    }
    time[count] = this.time.at(-1);
    held.set(this.held.subarray(-this.owners), count * this.owners);
    return new Level(time, held, this.owners);
  }
}

class Memory {
  constructor(data, memory) {
    Object.assign(this, memory);
    const owners = Math.max(1, memory.owners.length);
    const held = new Float32Array(memory.rows * owners);
    const now = new Float32Array(owners);
    for (let i = 0; i < memory.rows; i++) {
      now[data.owner[memory.first + i]] += data.change[memory.first + i];
      held.set(now, i * owners);
    }
    const time = data.moment.subarray(memory.first, memory.first + memory.rows);
    this.levels = [new Level(time, held, owners)];
    while (this.levels.at(-1).time.length > 4096) this.levels.push(this.levels.at(-1).coarser());
    this.peak = 0;
    const top = this.levels.at(-1);
    for (let i = 0; i < top.time.length; i++) this.peak = Math.max(this.peak, top.total(i));
    this.scale = this.peak > 0.4 * this.usable ? Math.max(this.peak, this.usable) : this.peak * 1.2 || 1;
  }

  /** What each owner holds at a moment. */
  heldAt(moment) {
    const level = this.levels[0];
    const i = upperBound(level.time, moment) - 1;
    if (i < 0) return new Float32Array(level.owners);
    return level.held.subarray(i * level.owners, (i + 1) * level.owners);
  }

  /** The fullest moment inside each pixel: what each owner holds then, pixel after pixel. */
  columns(t0, perPixel, width) {
    const t1 = t0 + perPixel * width;
    const inside = (level) => upperBound(level.time, t1) - upperBound(level.time, t0);
    const level = this.levels.find((l) => inside(l) <= 4 * width) || this.levels.at(-1);
    const { owners, held, time } = level;
    const columns = new Float32Array(width * owners);
    let i = upperBound(time, t0) - 1;
    for (let x = 0; x < width; x++) {
      let fullest = i;
      let most = i < 0 ? 0 : level.total(i);
      while (i + 1 < time.length && time[i + 1] < t0 + (x + 1) * perPixel) {
        i++;
        const total = level.total(i);
        if (total > most) [fullest, most] = [i, total];
      }
      if (fullest >= 0) columns.set(held.subarray(fullest * owners, (fullest + 1) * owners), x * owners);
    }
    return columns;
  }

  /** Draws the stack with its base at y + height. */
  draw(context, t0, perPixel, width, y, height, colors) {
    const count = Math.max(1, this.owners.length);
    const columns = this.columns(t0, perPixel, width);
    const below = new Float32Array(width);
    for (let k = 0; k < count; k++) {
      context.beginPath();
      for (let x = 0; x < width; x++) this.#step(context, x, y + height - (below[x] / this.scale) * height, x === 0);
      for (let x = width - 1; x >= 0; x--) {
        below[x] += columns[x * count + k];
        this.#step(context, x, y + height - (below[x] / this.scale) * height, false);
      }
      context.fillStyle = colors[k % colors.length];
      context.fill();
    }
  }

  #step(context, x, y, first) {
    if (first) context.moveTo(x, y);
    else context.lineTo(x, y);
  }
}
