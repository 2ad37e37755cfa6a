// Draws the map on two canvases: the seats below, and what moves often (focus, pointer, flashes) above them.

import { SEAT_PX_TO_SHOW, seen } from "./camera.js";
import {
  drawAreas,
  drawGrounds,
  drawRowNames,
  drawSectionName,
  drawSectionSummary,
  drawStage,
  placeSectionNames,
} from "./draw-surroundings.js";
import { RADIUS, SeatSprites } from "./seat-sprites.js";
import { LOOKS, lookOf } from "./seat-states.js";

const DENSITY_MAX = 2; // more device pixels than this per pixel are not worth their time
const NUMBER_PX_MIN = 21; // of a seat; below, seats have no number
const NUMBERS_MAX = 500; // written in every frame of a zoom
const SPRITES_MAX = 6000; // copied in every frame of a zoom; more are squares until the map stands still
const SPRITE_PX_MIN = 5; // below, seats are squares
const FLASH_MS = 900;
const AVAILABLE = LOOKS.findIndex(({ name }) => name === "available");

export class CanvasRenderer {
  /** What was drawn, for measuring: whole pictures, single seats, and how long the last whole picture took. */
  counts = { wholePictures: 0, seatsInLastPicture: 0, singleSeats: 0, lastPictureMs: 0 };
  /** Whether the last whole picture lacks numbers, or has squares for seats. */
  isSimple = false;
  #names = [];
  #namedPlan = null;
  #flashes = new Map(); // seat → when it began

  constructor(seatsCanvas, marksCanvas) {
    this.seats = seatsCanvas.getContext("2d", { alpha: false });
    this.marks = marksCanvas.getContext("2d");
    this.view = { width: 0, height: 0 };
  }

  resize(view) {
    this.view = view;
    this.density = Math.min(DENSITY_MAX, devicePixelRatio || 1);
    for (const { canvas } of [this.seats, this.marks]) {
      canvas.width = Math.round(view.width * this.density);
      canvas.height = Math.round(view.height * this.density);
    }
  }

  setTheme(theme) {
    this.theme = theme;
    this.sprites = null;
  }

  /** Whether seats are drawn at this zoom, or areas in their place. */
  static showsSeats(model, camera) {
    return camera.scale >= SEAT_PX_TO_SHOW || model.plan.sections.length < 2;
  }

  // ---- a whole picture

  /** Draws everything that the camera sees; what would take too long while it moves is simpler (`isSimple`). */
  draw(model, camera, texts, { isMoving = false } = {}) {
    if (!this.view.width || !this.theme) return;
    const began = performance.now();
    const pen = this.seats;
    pen.setTransform(this.density, 0, 0, this.density, 0, 0);
    pen.fillStyle = this.theme.background;
    pen.fillRect(0, 0, this.view.width, this.view.height);
    const isClose = CanvasRenderer.showsSeats(model, camera);
    if (model.count) this.#drawSurroundings(pen, model, camera, { texts, isClose });
    this.counts.seatsInLastPicture = 0;
    const room = (this.view.width * this.view.height) / camera.scale ** 2;
    const most = camera.scale >= NUMBER_PX_MIN ? NUMBERS_MAX : SPRITES_MAX;
    this.isSimple = isMoving && isClose && Math.min(room, model.count) > most;
    if (isClose) this.#drawSeats(pen, model, camera);
    else this.#drawSummaries(pen, model, camera, texts);
    this.counts.wholePictures += 1;
    this.counts.lastPictureMs = performance.now() - began;
  }

  #drawSurroundings(pen, model, camera, { texts, isClose }) {
    const { theme } = this;
    const { plan } = model;
    if (isClose) drawGrounds(pen, { plan, camera, theme });
    else drawAreas(pen, { plan, camera, theme, tintOf: (number) => this.#tint(model, number) });
    drawStage(pen, { plan, camera, theme, label: texts.stage });
    if (!isClose) return;
    const part = seen(camera, this.view);
    const isSeen = ({ x, y }) => x > part.left && x < part.right && y > part.top && y < part.bottom;
    drawRowNames(pen, { plan, camera, theme, isSeen });
    if (this.#namedPlan !== plan) [this.#names, this.#namedPlan] = [placeSectionNames(plan), plan];
    plan.sections.forEach(({ name }, number) => {
      const place = this.#names[number];
      if (name && place && isSeen(place)) drawSectionName(pen, { name, place, camera, theme });
    });
  }

  // In the overview an area has the colour of most of its seats, paler the fewer are left.
  #tint(model, number) {
    const { theme } = this;
    const free = model.free[number];
    if (!free) return { colour: theme.off, share: 1 };
    const level = model.levelOf[model.plan.sections[number].seats[0]];
    const share = free / model.plan.sections[number].seats.length;
    if (!model.isShown(level)) return { colour: theme.line, share: 0.1 };
    return { colour: theme.levels[level % theme.levels.length].fill, share: 0.14 + 0.26 * share };
  }

  #drawSummaries(pen, model, camera, texts) {
    model.plan.sections.forEach((section, number) => {
      const price = model.priceFrom(number);
      const isSoldOut = price === null;
      const rest = isSoldOut ? [texts.soldOut] : [texts.from(this.money.short(price)), texts.left(model.free[number])];
      drawSectionSummary(pen, { section, camera, theme: this.theme, lines: [section.name, ...rest] });
    });
  }

  #drawSeats(pen, model, camera) {
    pen.setTransform(1, 0, 0, 1, 0, 0);
    const draw = this.#seatDrawer(pen, model, camera);
    model.plan.index.forEachIn(seen(camera, this.view), (seat) => {
      draw(seat);
      this.counts.seatsInLastPicture += 1;
    });
  }

  /** draw(seat) on whole device pixels, where copying a picture is fastest and sharp. */
  #seatDrawer(pen, model, camera) {
    const seatPx = camera.scale * this.density;
    const { x, y } = model.plan;
    const [offsetX, offsetY] = [camera.x * this.density, camera.y * this.density];
    const isTooMany = this.isSimple && camera.scale < NUMBER_PX_MIN;
    if (seatPx < SPRITE_PX_MIN || isTooMany) return this.#squareDrawer(pen, model, { seatPx, offsetX, offsetY });
    if (this.sprites?.seatPx !== seatPx) this.sprites = { seatPx, made: new SeatSprites(this.theme, seatPx) };
    const sprites = this.sprites.made;
    const half = sprites.size / 2;
    const hasNumbers = camera.scale >= NUMBER_PX_MIN && !this.isSimple;
    const drawNumber = hasNumbers ? this.#numberDrawer(pen, model, seatPx) : () => {};
    return (seat) => {
      const look = lookOf(model.bytes[seat]);
      const [left, top] = [Math.round(x[seat] * seatPx + offsetX), Math.round(y[seat] * seatPx + offsetY)];
      pen.drawImage(sprites.of(look, model.levelOf[seat]), left - half, top - half);
      if (look === AVAILABLE) drawNumber(seat, left, top);
    };
  }

  #numberDrawer(pen, model, seatPx) {
    pen.font = `600 ${Math.round(0.36 * seatPx)}px ${this.theme.font}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    return (seat, left, top) => {
      pen.fillStyle = this.theme.levels[model.levelOf[seat] % this.theme.levels.length].ink;
      pen.fillText(model.numbers[seat], left, top + 0.03 * seatPx, 0.74 * seatPx);
    };
  }

  #squareDrawer(pen, model, { seatPx, offsetX, offsetY }) {
    const size = Math.max(1, Math.round(2 * RADIUS * seatPx));
    const { theme } = this;
    const fills = LOOKS.map(({ name }) => ({ selected: theme.selected, heldForYou: theme.own })[name] ?? theme.off);
    let last = null;
    return (seat) => {
      const look = lookOf(model.bytes[seat]);
      const fill = look === AVAILABLE ? theme.levels[model.levelOf[seat] % theme.levels.length].fill : fills[look];
      // Setting a colour costs more than drawing the square.
      if (fill !== last) pen.fillStyle = last = fill;
      const [left, top] = [model.plan.x[seat] * seatPx + offsetX, model.plan.y[seat] * seatPx + offsetY];
      pen.fillRect(Math.round(left - size / 2), Math.round(top - size / 2), size, size);
    };
  }

  // ---- a few seats

  /** Draws these seats over what is there. */
  drawSome(model, camera, changed) {
    const pen = this.seats;
    const part = seen(camera, this.view);
    const { x, y } = model.plan;
    const shown = changed.filter(
      (seat) => x[seat] > part.left && x[seat] < part.right && y[seat] > part.top && y[seat] < part.bottom,
    );
    pen.setTransform(1, 0, 0, 1, 0, 0);
    const seatPx = camera.scale * this.density;
    // A little more than the seat, and not into its neighbours.
    const size = Math.min(Math.ceil(2 * RADIUS * seatPx) + 2, Math.max(1, Math.floor(seatPx)));
    pen.fillStyle = this.theme.section;
    for (const seat of shown) {
      const [left, top] = [x[seat] * seatPx + camera.x * this.density, y[seat] * seatPx + camera.y * this.density];
      pen.fillRect(Math.round(left - size / 2), Math.round(top - size / 2), size, size);
    }
    shown.forEach(this.#seatDrawer(pen, model, camera));
    this.counts.singleSeats += shown.length;
  }

  // ---- marks

  /** Lets rings run around these seats, because they have changed. */
  flash(seats) {
    const now = performance.now();
    for (const seat of seats) this.#flashes.set(seat, now);
  }

  /** Draws the marks; true while one of them moves and another frame is needed. */
  drawMarks(model, camera, { focused, hovered, section }) {
    const pen = this.marks;
    pen.setTransform(this.density, 0, 0, this.density, 0, 0);
    pen.clearRect(0, 0, this.view.width, this.view.height);
    if (!CanvasRenderer.showsSeats(model, camera)) {
      if (section >= 0) this.#markSection(pen, model.plan.sections[section], camera);
      return false;
    }
    const ring = (seat, colour, grow, width) => this.#ring(pen, model.plan, camera, { seat, colour, grow, width });
    for (const [seat, began] of this.#flashes) this.#drawFlash(seat, began, ring);
    if (hovered >= 0) ring(hovered, this.theme.text, 1.12, 2);
    if (focused >= 0) {
      ring(focused, this.theme.background, 1.3, 6);
      ring(focused, this.theme.focus, 1.3, 3);
    }
    return this.#flashes.size > 0;
  }

  #drawFlash(seat, began, ring) {
    const part = (performance.now() - began) / FLASH_MS;
    if (part >= 1) this.#flashes.delete(seat);
    else ring(seat, this.theme.accent, 1 + part, 3 * (1 - part) + 0.5);
  }

  #ring(pen, { x, y }, camera, { seat, colour, grow, width }) {
    pen.beginPath();
    pen.arc(x[seat] * camera.scale + camera.x, y[seat] * camera.scale + camera.y, grow * RADIUS * camera.scale, 0, 7);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.stroke();
  }

  #markSection(pen, { box }, camera) {
    const [left, top] = [box.left * camera.scale + camera.x - 4, box.top * camera.scale + camera.y - 4];
    pen.strokeStyle = this.theme.focus;
    pen.lineWidth = 3;
    pen.beginPath();
    pen.roundRect(left, top, (box.right - box.left) * camera.scale + 8, (box.bottom - box.top) * camera.scale + 8, 8);
    pen.stroke();
  }
}

