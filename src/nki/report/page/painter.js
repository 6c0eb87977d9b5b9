// Draws tracks: bar by bar where bars are wide enough, else as the mean colour of every pixel.

const DIMMED = 0.16; // of bars that are not in focus
const FAINTEST = 0.2; // of a pixel that holds anything at all

class Painter {
  constructor(data) {
    this.data = data;
    this.focus = null; // per row: 1 keeps its colour, 0 is dimmed
    this.readColors();
  }

  readColors() {
    this.colors = colorsOf(this.data);
    this.plain = this.colors.map((color) => cssText(color));
    this.dimmed = this.colors.map((color) => cssText(color, DIMMED));
    this.ink = this.colors.map(([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 150 ? "#10151c" : "#ffffff"));
  }

  /** Red, green, blue and alpha of every pixel from t0 on, written to `out`, a row of an image. */
  mix(track, t0, perPixel, width, out) {
    const sums = new Float32Array(width * 4);
    const { start, end, rows } = track;
    const { kind } = this.data;
    const t1 = t0 + width * perPixel;
    const { focus, colors } = this;
    const add = (x, share, color) => {
      sums[4 * x] += share * color[0];
      sums[4 * x + 1] += share * color[1];
      sums[4 * x + 2] += share * color[2];
      sums[4 * x + 3] += share;
    };
    for (let i = upperBound(end, t0); i < rows.length && start[i] < t1; i++) {
      const color = colors[kind[rows[i]]];
      const weight = focus !== null && !focus[rows[i]] ? DIMMED : 1;
      const from = Math.max(0, (start[i] - t0) / perPixel);
      const to = Math.min(width, Math.max((end[i] - t0) / perPixel, from + 1e-3));
      const first = from | 0;
      if (to <= first + 1) add(first, weight * (to - from), color); // most of a crowd lie inside one pixel
      else for (let x = first; x < to; x++) add(x, weight * (Math.min(to, x + 1) - Math.max(from, x)), color);
    }
    for (let x = 0; x < 4 * width; x += 4) {
      const share = sums[x + 3];
      if (share === 0) continue;
      for (let c = 0; c < 3; c++) out[x + c] = sums[x + c] / share;
      const faintest = this.focus === null ? FAINTEST : DIMMED / 2;
      out[x + 3] = 255 * (faintest + (1 - faintest) * Math.min(1, share));
    }
  }

  /** Tracks as rows of one image, stretched to their heights. */
  image(context, places, { t0, perPixel, pixels, width }) {
    const image = new ImageData(pixels, places.length);
    places.forEach(({ track }, number) =>
      this.mix(track, t0, perPixel, pixels, image.data.subarray(4 * pixels * number, 4 * pixels * (number + 1))));
    const sheet = new OffscreenCanvas(pixels, places.length);
    sheet.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    places.forEach(({ y, height }, number) => context.drawImage(sheet, 0, number, pixels, 1, 0, y, width, height));
  }

  /** Every bar of the track as a rectangle, named where there is room. */
  bars(context, track, scale, y, height) {
    const { start, end, rows } = track;
    const { data } = this;
    context.font = `${height < 18 ? 10 : 11}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    for (let i = upperBound(end, scale.t0); i < rows.length && start[i] < scale.t1; i++) {
      const row = rows[i];
      const kind = data.kind[row];
      const lit = this.focus === null || this.focus[row];
      const left = Math.round(Math.max(-2, scale.x(start[i])));
      const right = Math.max(left + 1, Math.round(Math.min(scale.width + 2, scale.x(end[i]))));
      const gap = right - left > 3 ? 1 : 0;
      context.fillStyle = lit ? this.plain[kind] : this.dimmed[kind];
      context.fillRect(left, y, right - left - gap, height);
      const room = Math.floor((right - Math.max(0, left) - 10) / 6.2);
      if (lit && room >= 4 && height >= 9) {
        const name = data.labels[data.label[row]] || data.kinds[kind].name;
        context.fillStyle = this.ink[kind];
        context.fillText(name.length <= room ? name : `${name.slice(0, room - 1)}…`, Math.max(0, left) + 5, y + height / 2 + 0.5);
      }
    }
  }

  /** True when the bars in sight are too many to be drawn one by one. */
  crowded(track, t0, t1, pixels) {
    return upperBound(track.start, t1) - upperBound(track.end, t0) > pixels / 3;
  }
}
