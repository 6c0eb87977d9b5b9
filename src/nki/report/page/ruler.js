// The ruler: the whole run in small, the part of it in sight, and the axis.

const AXIS_HEIGHT = 22;
const WHOLE = 1 + 2 * MARGIN; // of the run: what the overview shows

class Ruler {
  constructor(timeline) {
    this.timeline = timeline;
    this.layout = timeline.layout;
    this.overview = null; // painted once for each size and theme
  }

  get height() {
    return this.layout.lanes.length * this.layout.overviewHeight + 8 + AXIS_HEIGHT;
  }

  /** The moment at a point of the overview, nothing below it. */
  momentAt(x, y) {
    if (y > this.layout.lanes.length * this.layout.overviewHeight + 6) return undefined;
    return ((x / this.timeline.width) * WHOLE - MARGIN) * this.timeline.view.total;
  }

  draw(context) {
    const { view, width, theme } = this.timeline;
    const height = this.layout.lanes.length * this.layout.overviewHeight + 4;
    this.overview ||= this.#paintOverview(height);
    context.drawImage(this.overview, 0, 0, width, height);
    const at = (moment) => ((moment / view.total + MARGIN) / WHOLE) * width;
    const [left, right] = [at(view.t0), at(view.t1)];
    context.fillStyle = theme.ground;
    context.globalAlpha = 0.65;
    context.fillRect(0, 0, left, height);
    context.fillRect(right, 0, width - right, height);
    context.globalAlpha = 1;
    context.strokeStyle = theme.faint;
    context.strokeRect(Math.max(0.5, left), 0.5, Math.max(2, Math.min(width - 1, right - left - 1)), height - 1);
    this.#axis(context, height);
  }

  #paintOverview(height) {
    const { view, painter, ratio, width } = this.timeline;
    const { lanes, overviewHeight } = this.layout;
    const pixels = Math.round(width * ratio);
    const perPixel = (WHOLE * view.total) / pixels;
    const sheet = new OffscreenCanvas(pixels, Math.round(height * ratio));
    const context = sheet.getContext("2d");
    context.scale(ratio, ratio);
    const places = lanes.flatMap(({ tracks }, number) =>
      tracks.map((track, t) => ({
        track,
        y: 2 + (number + t / tracks.length) * overviewHeight,
        height: (overviewHeight - 1) / tracks.length,
      })));
    const focus = painter.focus;
    painter.focus = null;
    painter.image(context, places, { t0: -MARGIN * view.total, perPixel, pixels, width });
    painter.focus = focus;
    return sheet;
  }

  #axis(context, top) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const { scale, theme } = this.timeline;
    for (const { moment, label } of ticks(scale.t0, scale.t1, scale.width)) {
      const x = Math.round(scale.x(moment));
      context.fillStyle = theme.line;
      context.fillRect(x, top + 4, 1, AXIS_HEIGHT);
      context.fillStyle = theme.faint;
      context.fillText(label, x + 4, top + AXIS_HEIGHT / 2 + 4);
    }
  }
}
