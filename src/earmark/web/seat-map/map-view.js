// The map as it is seen: moves the camera, draws in frames, and knows which seat is under a pixel.

import * as cameras from "./camera.js";
import { CanvasRenderer } from "./canvas-renderer.js";

const GLIDE_MS = 260;
const SETTLE_MS = 60; // after the last step of a zoom
const REACH_PX = 22; // a tap reaches the nearest seat within this
const SOME_MAX = 1500; // more changed seats are drawn as a whole picture

export class MapView {
  camera = { scale: 1, x: 0, y: 0 };
  view = { width: 0, height: 0 };
  marks = { focused: -1, hovered: -1, section: -1 };
  #isWhole = true; // the whole plan is shown, and stays so when the size changes
  #frame = 0;
  #needsPicture = false;
  #some = new Set();
  #glide = null;
  #movedAt = -Infinity;
  #settling = 0;

  /** onMove() after each change of the camera. */
  constructor({ canvases, model, texts, onMove }) {
    this.renderer = new CanvasRenderer(...canvases);
    this.model = model;
    this.texts = texts;
    this.onMove = onMove;
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
  }

  /** A new size of the element; nothing is drawn while it is hidden. */
  resize(width, height) {
    const wasHidden = !this.view.width;
    const middle = cameras.toPlan(this.camera, { x: this.view.width / 2, y: this.view.height / 2 });
    this.view = { width, height };
    if (!width || !height) return;
    this.renderer.resize(this.view);
    if (this.#isWhole || wasHidden) this.showAll({ isCalm: true });
    else this.#set(cameras.lookAt(middle, this.view, this.camera.scale));
    this.draw();
  }

  setTheme(theme) {
    this.renderer.setTheme(theme);
    this.drawSoon();
  }

  // ---- the camera

  get whole() {
    return cameras.fit(this.model.plan.box, this.view);
  }

  get isWhole() {
    return this.#isWhole;
  }

  get showsSeats() {
    return CanvasRenderer.showsSeats(this.model, this.camera);
  }

  get seatsReact() {
    return this.camera.scale >= cameras.SEAT_PX_TO_REACT - 0.01;
  }

  showAll({ isCalm = false } = {}) {
    this.#isWhole = true;
    this.#goTo(this.whole, isCalm);
  }

  /** All of a section; where that would make seats too small to choose, its middle or the given point. */
  showSection(section, point = null) {
    const { box, middle } = this.model.plan.sections[section];
    const fitted = cameras.fit(box, this.view, { margin: 40 });
    const isEnough = fitted.scale >= cameras.SEAT_PX_TO_REACT;
    this.#isWhole = false;
    this.#goTo(isEnough ? fitted : cameras.lookAt(point ?? middle, this.view, cameras.SEAT_PX_TO_REACT + 4));
  }

  /** Zoomed by a factor around a pixel; the middle if none is given. */
  zoom(factor, pixel = { x: this.view.width / 2, y: this.view.height / 2 }, { isGlide = false } = {}) {
    const from = this.#glide?.to ?? this.camera;
    const to = cameras.zoomAt(from, factor, pixel);
    this.#isWhole = to.scale <= this.whole.scale * 1.001;
    this.#goTo(this.#isWhole ? this.whole : to, !isGlide);
  }

  pan(dx, dy) {
    this.#isWhole = false;
    this.#goTo({ ...this.camera, x: this.camera.x + dx, y: this.camera.y + dy }, true);
  }

  /** Brings a seat into view, large enough to be chosen. */
  reveal(seat) {
    const { x, y } = this.model.plan;
    const point = { x: x[seat], y: y[seat] };
    const least = this.seatsReact ? this.camera.scale : cameras.SEAT_PX_TO_REACT + 4;
    const zoomed = least > this.camera.scale ? cameras.lookAt(point, this.view, least) : this.camera;
    const to = cameras.reveal(this.#glide?.to ?? zoomed, point, this.view);
    if (to.x === this.camera.x && to.y === this.camera.y && to.scale === this.camera.scale) return;
    this.#isWhole = false;
    this.#goTo(least > this.camera.scale ? cameras.reveal(zoomed, point, this.view) : to);
  }

  #goTo(camera, isAtOnce = false) {
    const to = cameras.clamp(camera, this.model.plan.box, this.view);
    if (isAtOnce || this.calm.matches) {
      this.#glide = null;
      return this.#set(to);
    }
    this.#glide = { from: this.camera, to, began: performance.now() };
    return this.drawSoon();
  }

  #set(camera) {
    if (camera.scale !== this.camera.scale) this.#movedAt = performance.now();
    this.camera = camera;
    this.onMove();
    this.drawSoon();
  }

  #glideOn() {
    const { from, to, began } = this.#glide;
    const part = Math.min(1, (performance.now() - began) / GLIDE_MS);
    this.camera = cameras.between(from, to, 1 - (1 - part) ** 3);
    if (part === 1) [this.camera, this.#glide] = [to, null];
    this.#needsPicture = true;
    this.#movedAt = performance.now();
    this.onMove();
  }

  // ---- drawing

  /** Draws the whole picture with the next frame. */
  drawSoon() {
    this.#needsPicture = true;
    this.#request();
  }

  /** Draws these seats with the next frame, however many changes come until then. */
  drawSomeSoon(seats) {
    for (const seat of seats) this.#some.add(seat);
    this.#request();
  }

  mark(marks) {
    Object.assign(this.marks, marks);
    this.#request();
  }

  flash(seats) {
    if (!this.calm.matches) this.renderer.flash(seats);
    this.#request();
  }

  #request() {
    this.#frame ||= requestAnimationFrame(() => this.draw());
  }

  /** Draws what is due now. */
  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.view.width) return;
    if (this.#glide) this.#glideOn();
    const isLittle = this.#some.size <= SOME_MAX && this.showsSeats;
    const isMoving = performance.now() - this.#movedAt < SETTLE_MS;
    if (this.#needsPicture || (this.#some.size && !isLittle)) this.#drawWhole(isMoving);
    else if (this.#some.size) this.renderer.drawSome(this.model, this.camera, [...this.#some]);
    this.#needsPicture = false;
    this.#some.clear();
    const moves = this.renderer.drawMarks(this.model, this.camera, this.marks);
    if (moves || this.#glide) this.#request();
  }

  // While the map moves, a picture may be simpler; when it stands still it is drawn in full.
  #drawWhole(isMoving) {
    this.renderer.draw(this.model, this.camera, this.texts, { isMoving });
    clearTimeout(this.#settling);
    if (this.renderer.isSimple) this.#settling = setTimeout(() => this.drawSoon(), 2 * SETTLE_MS);
  }

  // ---- what is where

  /** The seat for a tap or a pointer at a pixel; -1 if none is near enough. */
  seatAt(pixel) {
    const { x, y } = cameras.toPlan(this.camera, pixel);
    return this.model.plan.index.nearest(x, y, Math.min(REACH_PX / this.camera.scale, 1));
  }

  /** The section at a pixel, by its nearest seat; -1 if there is none. */
  sectionAt(pixel) {
    const { x, y } = cameras.toPlan(this.camera, pixel);
    const seat = this.model.plan.index.nearest(x, y, Math.max(1.3, REACH_PX / this.camera.scale));
    return seat < 0 ? -1 : this.model.plan.sectionOf[seat];
  }

  planAt(pixel) {
    return cameras.toPlan(this.camera, pixel);
  }

  /** Where the middle of a seat is, in pixels of the map. */
  pixelOf(seat) {
    return cameras.toPixel(this.camera, { x: this.model.plan.x[seat], y: this.model.plan.y[seat] });
  }
}
