// What a seat looks like, drawn once for each look and price level at the size needed now, and then copied.

import { drawPattern } from "./patterns.js";
import { LOOKS } from "./seat-states.js";

export const RADIUS = 0.42; // of the distance of two seats
const GLYPH_PX_MIN = 5; // smaller circles have no room for a glyph
const PATTERN_PX_MIN = 4;
const GLYPHS = LOOKS.map(({ glyph }) => (glyph ? new Path2D(glyph) : null));
const BY_LEVEL = new Set(["available", "filtered"]);

export class SeatSprites {
  #sprites = new Map();

  /** For seats of this size in device pixels. */
  constructor(theme, seatPx) {
    this.theme = theme;
    this.radius = RADIUS * seatPx;
    this.size = 2 * Math.ceil(this.radius + 1.5);
  }

  /** The picture of a look; its middle is the seat's. */
  of(look, level) {
    const key = BY_LEVEL.has(LOOKS[look].name) ? look + 8 * (level + 1) : look;
    let sprite = this.#sprites.get(key);
    if (!sprite) {
      sprite = new OffscreenCanvas(this.size, this.size);
      const pen = sprite.getContext("2d");
      pen.translate(this.size / 2, this.size / 2);
      drawSeat(pen, { look, level, theme: this.theme, r: this.radius });
      this.#sprites.set(key, sprite);
    }
    return sprite;
  }
}

/** Draws a seat around the middle of a context. */
export function drawSeat(pen, { look, level, theme, r }) {
  const draw = DRAW[LOOKS[look].name];
  pen.save();
  draw(pen, { theme, r, level });
  pen.restore();
}

const DRAW = {
  available: (pen, { theme, r, level }) => {
    const { fill, ink } = theme.levels[level % theme.levels.length];
    disc(pen, r, fill);
    if (r < PATTERN_PX_MIN) return;
    pen.clip(circle(r));
    pen.globalAlpha = 0.3;
    pen.strokeStyle = pen.fillStyle = ink;
    drawPattern(pen, level, r);
  },
  filtered: (pen, { theme, r, level }) => {
    pen.globalAlpha = 0.16;
    disc(pen, r, theme.levels[level % theme.levels.length].fill);
  },
  selected: (pen, { theme, r }) => {
    disc(pen, r, theme.selected);
    glyph(pen, "selected", r, theme.onSelected, 2.8);
  },
  heldForYou: (pen, { theme, r }) => {
    disc(pen, r, theme.own);
    glyph(pen, "heldForYou", r, theme.onOwn, 2);
  },
  yours: (pen, { theme, r }) => {
    disc(pen, r, theme.own);
    glyph(pen, "yours", r, theme.onOwn, 1, true);
  },
  held: (pen, { theme, r }) => {
    disc(pen, r, theme.off);
    edge(pen, r, theme.onOff, [0.5 * r, 0.4 * r]);
    glyph(pen, "held", 0.86 * r, theme.onOff, 1.6);
  },
  sold: (pen, { theme, r }) => {
    disc(pen, r, theme.off);
    glyph(pen, "sold", 0.86 * r, theme.onOff, 1.8);
  },
  blocked: (pen, { theme, r }) => {
    edge(pen, r, theme.line, []);
    glyph(pen, "blocked", r, theme.onOff, 1.6);
  },
};

function circle(r) {
  const path = new Path2D();
  path.arc(0, 0, r, 0, 7);
  return path;
}

function disc(pen, r, fill) {
  pen.fillStyle = fill;
  pen.fill(circle(r));
}

function edge(pen, r, colour, dashes) {
  const width = Math.max(1, 0.12 * r);
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.setLineDash(dashes);
  pen.stroke(circle(r - width / 2));
  pen.setLineDash([]);
}

function glyph(pen, name, r, colour, width, isFilled = false) {
  if (r < GLYPH_PX_MIN) return;
  const path = GLYPHS[LOOKS.findIndex((look) => look.name === name)];
  pen.scale(r / 11, r / 11);
  pen.lineWidth = width;
  pen.lineCap = pen.lineJoin = "round";
  pen.strokeStyle = pen.fillStyle = colour;
  if (isFilled) pen.fill(path);
  else pen.stroke(path);
}
