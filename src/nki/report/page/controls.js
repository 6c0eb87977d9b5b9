// What mouse and keys do on the canvas.

class Controls {
  constructor(timeline, actions) {
    this.timeline = timeline;
    this.actions = actions;
    this.drag = null; // where the button was pressed
    const { overlay, ruler } = timeline.canvases;
    new ResizeObserver(() => timeline.area.clientWidth !== timeline.width && timeline.resize()).observe(timeline.area);
    for (const canvas of [overlay, ruler]) {
      canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
      canvas.addEventListener("dblclick", () => this.#fit());
    }
    overlay.addEventListener("pointerdown", (event) => this.#press(event));
    overlay.addEventListener("pointermove", (event) => this.#move(event));
    overlay.addEventListener("pointerup", (event) => this.#release(event));
    overlay.addEventListener("pointercancel", () => (this.drag = null));
    overlay.addEventListener("pointerleave", () => this.#leave());
    overlay.addEventListener("keydown", (event) => this.#key(event));
    ruler.addEventListener("pointerdown", (event) => this.#jump(event));
    ruler.addEventListener("pointermove", (event) => event.buttons && this.#jump(event));
  }

  #fit() {
    this.timeline.view.fit();
    this.timeline.redraw();
  }

  #wheel(event) {
    event.preventDefault();
    const { view, width, scale, canvases } = this.timeline;
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const sideways = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) {
      view.pan(((sideways * unit) / width) * view.span);
    } else {
      const moment = event.currentTarget === canvases.ruler ? view.middle : scale.moment(event.offsetX);
      view.zoom(moment, Math.exp(Math.max(-600, Math.min(600, event.deltaY * unit)) * 0.002));
    }
    this.timeline.redraw();
  }

  #press(event) {
    if (event.button !== 0) return;
    const { timeline } = this;
    const moment = timeline.scale.moment(event.offsetX);
    timeline.canvases.overlay.setPointerCapture(event.pointerId);
    this.drag = { x: event.clientX, y: event.clientY, t0: timeline.view.t0, top: timeline.box.scrollTop, moved: false };
    timeline.range = event.shiftKey ? [moment, moment] : null;
  }

  #move(event) {
    if (this.drag && this.#dragged(event)) return;
    const { timeline } = this;
    const found = timeline.at(event.offsetX, event.offsetY);
    timeline.hovered = found.row ?? -1;
    timeline.cursor = timeline.scale.moment(event.offsetX);
    timeline.canvases.overlay.style.cursor = found.row === undefined ? "grab" : "pointer";
    timeline.drawOverlay();
    this.actions.hover(found, event);
  }

  /** With the button held: a range grows, or the view moves. False for a hand that only trembles. */
  #dragged(event) {
    const { drag, timeline } = this;
    const dx = event.clientX - drag.x;
    const dy = event.clientY - drag.y;
    drag.moved ||= Math.hypot(dx, dy) > 4;
    if (timeline.range) {
      timeline.range[1] = timeline.scale.moment(event.offsetX);
      timeline.drawOverlay();
      return true;
    }
    if (!drag.moved) return false;
    timeline.view.pan(drag.t0 - (dx / timeline.width) * timeline.view.span - timeline.view.t0);
    timeline.box.scrollTop = drag.top - dy;
    timeline.canvases.overlay.style.cursor = "grabbing";
    this.actions.hover({}, event);
    timeline.redraw();
    return true;
  }

  #release(event) {
    const { timeline } = this;
    const moved = this.drag?.moved;
    this.drag = null;
    if (timeline.range && moved) {
      return this.actions.ranged(Math.max(0, Math.min(...timeline.range)), Math.max(...timeline.range));
    }
    timeline.range = null;
    timeline.canvases.overlay.style.cursor = "grab";
    if (moved === false) this.actions.select(timeline.at(event.offsetX, event.offsetY).row ?? -1);
  }

  #leave() {
    this.timeline.hovered = -1;
    this.timeline.cursor = null;
    this.timeline.drawOverlay();
    this.actions.hover({});
  }

  #jump(event) {
    const moment = this.timeline.ruler.momentAt(event.offsetX, event.offsetY);
    if (moment === undefined) return;
    this.timeline.view.center(moment);
    this.timeline.redraw();
  }

  /** The next or previous bar of the selected one's lane. */
  #step(by) {
    const { data, selected } = this.timeline;
    if (selected < 0) return this.actions.select(data.rows ? 0 : -1);
    const lane = data.lanes[data.lane[selected]];
    this.actions.select(Math.min(lane.first + lane.rows - 1, Math.max(lane.first, selected + by)));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { timeline, actions } = this;
    const { view, data, selected, cursor } = timeline;
    const pan = (share) => () => view.pan(share * view.span);
    const zoom = (factor) => () => view.zoom(cursor ?? view.middle, factor);
    const does = {
      ArrowLeft: pan(-0.15), a: pan(-0.15), ArrowRight: pan(0.15), d: pan(0.15),
      ArrowUp: zoom(0.7), w: zoom(0.7), "+": zoom(0.7), "=": zoom(0.7),
      ArrowDown: zoom(1 / 0.7), s: zoom(1 / 0.7), "-": zoom(1 / 0.7),
      Home: () => view.fit(), 0: () => view.fit(),
      n: () => this.#step(1), p: () => this.#step(-1),
      b: () => selected >= 0 && data.blocker[selected] >= 0 && actions.select(data.blocker[selected]),
      f: () => selected >= 0 && timeline.zoomTo(selected),
      c: () => actions.critical(),
      Escape: () => actions.clear(),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
    timeline.redraw();
  }
}
