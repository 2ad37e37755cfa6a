// What hands do on the map: drag, pinch, wheel with Ctrl or Cmd, tap and point. It knows nothing of seats.

const TAP_PX_MAX = 10; // farther is a drag
const WHEEL_STEP = 0.0022;
const HINT_MS = 1600;

export class Gestures {
  #pointers = new Map(); // pointer id → where it is now
  #began = null; // where the first pointer came down
  #isTap = false;
  #span = null; // of two fingers: how far apart, and where their middle is
  #hint = null;

  /** does: {canPan(), pan(dx, dy), zoom(factor, pixel), tap(pixel), point(pixel or null), hint(isShown)}. */
  constructor(surface, does) {
    this.surface = surface;
    this.does = does;
    const listen = (name, act, options) => surface.addEventListener(name, act, options);
    listen("pointerdown", (event) => this.#down(event));
    listen("pointermove", (event) => this.#move(event));
    listen("pointerup", (event) => this.#up(event));
    listen("pointercancel", (event) => this.#leave(event));
    listen("pointerleave", () => this.does.point(null));
    listen("wheel", (event) => this.#wheel(event), { passive: false });
  }

  #pixel(event) {
    const box = this.surface.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  #down(event) {
    if (event.button > 0 || event.target.closest("button")) return;
    this.#pointers.set(event.pointerId, this.#pixel(event));
    this.#isTap = this.#pointers.size === 1;
    if (this.#isTap) this.#began = this.#pixel(event);
    this.#span = this.#measure();
    if (this.#span) for (const id of this.#pointers.keys()) this.#capture(id);
  }

  #move(event) {
    const pixel = this.#pixel(event);
    const last = this.#pointers.get(event.pointerId);
    if (!last) return event.pointerType === "touch" ? null : this.does.point(pixel);
    this.#pointers.set(event.pointerId, pixel);
    if (this.#span) return this.#pinch();
    if (this.#isTap && Math.hypot(pixel.x - this.#began.x, pixel.y - this.#began.y) < TAP_PX_MAX) return null;
    if (this.#isTap) this.#capture(event.pointerId);
    const from = this.#isTap ? this.#began : last;
    this.#isTap = false;
    if (this.does.canPan()) this.does.pan(pixel.x - from.x, pixel.y - from.y);
    return this.does.point(null);
  }

  #pinch() {
    const [before, now] = [this.#span, this.#measure()];
    this.#span = now;
    this.does.zoom(now.distance / before.distance, now.middle);
    this.does.pan(now.middle.x - before.middle.x, now.middle.y - before.middle.y);
  }

  #measure() {
    if (this.#pointers.size !== 2) return null;
    const [one, other] = [...this.#pointers.values()];
    return {
      distance: Math.max(1, Math.hypot(one.x - other.x, one.y - other.y)),
      middle: { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 },
    };
  }

  #up(event) {
    const isTap = this.#isTap && this.#pointers.has(event.pointerId);
    this.#leave(event);
    if (isTap) this.does.tap(this.#pixel(event));
  }

  #leave(event) {
    if (!this.#pointers.delete(event.pointerId)) return;
    this.#span = this.#measure();
    this.#isTap = false;
  }

  // A pointer that is already gone cannot be captured.
  #capture(id) {
    try {
      this.surface.setPointerCapture(id);
    } catch {
      this.#pointers.delete(id);
    }
  }

  // Without the key the page scrolls, as everywhere; a pinch on a touchpad arrives with ctrlKey.
  #wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return this.#showHint();
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
    return this.does.zoom(Math.exp(-WHEEL_STEP * Math.max(-240, Math.min(240, pixels))), this.#pixel(event));
  }

  #showHint() {
    clearTimeout(this.#hint);
    this.does.hint(true);
    this.#hint = setTimeout(() => this.does.hint(false), HINT_MS);
  }
}
