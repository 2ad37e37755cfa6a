// Everything of the plan that is no seat: the stage, the areas of the sections and their names, the names of rows.

import { RADIUS } from "./seat-sprites.js";
import { hasRoomFor } from "./section-outline.js";

const ROOM = 1.7; // how wide the pen is that draws a section around the middles of its outermost seats
const ROOM_WITH_ROW_NAMES = 2.1;
const NAME_PX = 14;
const NAME_PX_MIN = 9;
const NAME_WEIGHT = 650;
const REST_PX = NAME_PX - 2;
const REST_WEIGHT = 450;
const LINE_PX = 17;
const ROW_NAME_PX_MIN = 15; // of a seat; below, rows have no names
const ROW_NAME_AWAY = 0.85;
const SAMPLES = 7;

// ---- stage

/** A platform with boards, seen from above: its front edge bends towards the seats and is lit. */
export function drawStage(pen, { plan, camera, theme, label }) {
  const px = toPixels(plan.stage, camera);
  const bend = 0.16 * px.width;
  const platform = platformPath(px, bend);
  const light = pen.createLinearGradient(0, px.top, 0, px.top + px.height + bend);
  light.addColorStop(0, theme.stageEdge);
  light.addColorStop(0.25, theme.stage);
  light.addColorStop(1, theme.stageEdge);
  pen.save();
  pen.fillStyle = light;
  pen.fill(platform);
  pen.clip(platform);
  drawBoards(pen, px, theme);
  pen.restore();
  drawEdge(pen, px, bend, theme);
  const size = Math.min(Math.max(8, 0.3 * px.height), 22);
  pen.fillStyle = theme.stageText;
  pen.font = `600 ${size}px ${theme.font}`;
  pen.textAlign = "center";
  pen.letterSpacing = `${0.3 * size}px`;
  const hasRoom = 1.5 * size < px.height && pen.measureText(label).width < 0.8 * px.width;
  if (hasRoom) pen.fillText(label.toUpperCase(), px.left + px.width / 2, px.top + 0.62 * px.height);
  pen.letterSpacing = "0px";
}

function platformPath({ left, top, width, height }, bend) {
  const path = new Path2D();
  const inset = 0.07 * width;
  path.moveTo(left + inset, top);
  path.lineTo(left + width - inset, top);
  path.lineTo(left + width, top + height - bend / 2);
  path.quadraticCurveTo(left + width / 2, top + height + bend / 2, left, top + height - bend / 2);
  path.closePath();
  return path;
}

function drawBoards(pen, { left, top, width, height }, theme) {
  pen.strokeStyle = theme.stageText;
  pen.globalAlpha = 0.08;
  pen.lineWidth = 1;
  pen.beginPath();
  const [middle, boards] = [left + width / 2, 12];
  for (let board = -boards; board <= boards; board++) {
    pen.moveTo(middle + (board * 0.86 * width) / (2 * boards), top);
    pen.lineTo(middle + (board * width) / (2 * boards), top + 1.4 * height);
  }
  pen.stroke();
}

// The lip of the stage, and a row of footlights on it.
function drawEdge(pen, { left, top, width, height }, bend, theme) {
  const y = top + height - bend / 2;
  pen.lineWidth = Math.max(2, 0.05 * height);
  pen.strokeStyle = theme.own;
  pen.beginPath();
  pen.moveTo(left, y);
  pen.quadraticCurveTo(left + width / 2, y + bend, left + width, y);
  pen.stroke();
}

// ---- sections

/** The areas of sections as a ground for their seats. */
export function drawGrounds(pen, { plan, camera, theme }) {
  const width = ROOM_WITH_ROW_NAMES * camera.scale;
  for (const section of plan.sections) paint(pen, sectionPath(section, camera), theme.section, width);
}

/** The areas of sections in the overview: `tintOf(section)` is the colour and its share. */
export function drawAreas(pen, { plan, camera, theme, tintOf }) {
  plan.sections.forEach((section, number) => {
    const path = sectionPath(section, camera);
    const { colour, share } = tintOf(number);
    const mixed = `color-mix(in srgb, ${colour} ${Math.round(100 * share)}%, ${theme.section})`;
    paint(pen, path, colour, ROOM * camera.scale + 1.5);
    paint(pen, path, mixed, ROOM * camera.scale - 1);
  });
}

function paint(pen, path, colour, width) {
  pen.lineJoin = pen.lineCap = "round";
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = width;
  pen.stroke(path);
  pen.fill(path);
}

function sectionPath(section, camera) {
  const path = new Path2D();
  section.outline.forEach(([x, y], at) => {
    const [left, top] = [x * camera.scale + camera.x, y * camera.scale + camera.y];
    if (at) path.lineTo(left, top);
    else path.moveTo(left, top);
  });
  path.closePath();
  return path;
}

/** In the overview: a section's name, its lowest price and how many seats are left; the name alone where all do not fit. */
export function drawSectionSummary(pen, { section, camera, theme, lines }) {
  const [x, y] = [section.middle.x * camera.scale + camera.x, section.middle.y * camera.scale + camera.y];
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillStyle = theme.text;
  const fits = (line, away, size, weight) => {
    pen.font = `${weight} ${size}px ${theme.font}`;
    const half = { x: pen.measureText(line).width / (2 * camera.scale), y: size / (2 * camera.scale) };
    return hasRoomFor(section.outline, { x: section.middle.x, y: section.middle.y + away / camera.scale }, half);
  };
  const rest = lines.slice(1);
  const above = (rest.length * LINE_PX) / 2;
  const hasAll =
    fits(lines[0], -above, NAME_PX, NAME_WEIGHT) &&
    rest.every((line, at) => fits(line, (at + 1) * LINE_PX - above, REST_PX, REST_WEIGHT));
  const name = hasAll ? { words: lines[0], size: NAME_PX } : nameThatFits(lines[0], fits);
  pen.font = `${NAME_WEIGHT} ${name.size}px ${theme.font}`;
  pen.fillText(name.words, x, hasAll ? y - above : y);
  pen.font = `${REST_WEIGHT} ${REST_PX}px ${theme.font}`;
  if (hasAll) rest.forEach((line, at) => pen.fillText(line, x, y + (at + 1) * LINE_PX - above));
  pen.textBaseline = "alphabetic";
}

// Smaller and smaller; then its last word alone, which tells "Floor 1" from "Floor 2". Nothing, where that has no room either.
function nameThatFits(name, fits) {
  for (const words of [name, name.split(" ").at(-1)]) {
    for (let size = NAME_PX; size >= NAME_PX_MIN; size--) if (fits(words, 0, size, NAME_WEIGHT)) return { words, size };
  }
  return { words: "", size: NAME_PX_MIN };
}

/** Where the name of each section stands beside its seats: `{x, y}`, or null where seats are on all sides. */
export function placeSectionNames(plan) {
  return plan.sections.map((section) => {
    const { left, right, top, bottom } = section.box;
    const reach = Math.min(0.28 * section.name.length + 0.5, (right - left) / 2 + 2);
    const ends = [section.rows[0], section.rows.at(-1)].map((row) => middleSeat(plan, plan.rows[row].seats));
    const tries = [
      { x: ends[0].x, y: ends[0].y - 1.55 },
      { x: (left + right) / 2, y: top - 1.05 },
      { x: ends[1].x, y: ends[1].y + 1.55 },
      { x: (left + right) / 2, y: bottom + 1.05 },
    ];
    return tries.find((place) => isClear(plan, place, reach)) ?? null;
  });
}

function middleSeat({ x, y }, seats) {
  const seat = seats[Math.floor(seats.length / 2)];
  return { x: x[seat], y: y[seat] };
}

function isClear({ index, stage }, { x, y }, reach) {
  const isOnStage = x + reach > stage.left && x - reach < stage.right && y > stage.top - 1 && y < stage.bottom + 0.5;
  if (isOnStage) return false;
  for (let at = 0; at < SAMPLES; at++) {
    const offset = reach * ((2 * at) / (SAMPLES - 1) - 1);
    if (index.nearest(x + offset, y, RADIUS + 0.42) >= 0) return false;
  }
  return true;
}

/** The name of a section, above or below its seats. */
export function drawSectionName(pen, { name, place, camera, theme }) {
  const size = Math.min(Math.max(11, 0.5 * camera.scale), 18);
  pen.font = `650 ${size}px ${theme.font}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillStyle = theme.text;
  pen.fillText(name, place.x * camera.scale + camera.x, place.y * camera.scale + camera.y);
  pen.textBaseline = "alphabetic";
}

// ---- rows

/** The name of a row beyond each of its ends, in the direction of the row. */
export function drawRowNames(pen, { plan, camera, theme, isSeen }) {
  if (camera.scale < ROW_NAME_PX_MIN) return;
  pen.font = `550 ${Math.min(0.4 * camera.scale, 15)}px ${theme.font}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillStyle = theme.quiet;
  for (const { name, seats } of plan.rows) {
    if (!name || seats.length < 2) continue;
    for (const [end, next] of [[seats[0], seats[1]], [seats.at(-1), seats.at(-2)]]) {
      const point = beyond(plan, end, next);
      if (!isSeen(point) || plan.index.nearest(point.x, point.y, 0.5) >= 0) continue;
      pen.fillText(name, point.x * camera.scale + camera.x, point.y * camera.scale + camera.y);
    }
  }
  pen.textBaseline = "alphabetic";
}

function beyond({ x, y }, end, next) {
  const [dx, dy] = [x[end] - x[next], y[end] - y[next]];
  const far = ROW_NAME_AWAY / (Math.hypot(dx, dy) || 1);
  return { x: x[end] + far * dx, y: y[end] + far * dy };
}

const toPixels = ({ left, top, right, bottom }, { scale, x, y }) => ({
  left: left * scale + x,
  top: top * scale + y,
  width: (right - left) * scale,
  height: (bottom - top) * scale,
});
