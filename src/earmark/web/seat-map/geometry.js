// The plan of an event: where each seat is, in which row and section. One unit is the distance of two seats in a row.

import { boxOf, outlineOf, unite } from "./section-outline.js";
import { GridIndex } from "./grid-index.js";

const AISLE = 2.6; // before a section that has no coordinates, with room for its name
const SAG = 0.11; // how much nearer to the stage a row's ends are, per half of the widest row
const EDGE = 0.7; // around the outermost seats, for the names of rows
const GAP_PERCENTILE = 0.1; // of all distances: nearly the smallest, so that aisles do not matter

/** The label on the seat: its number, or the digits its id ends with. */
export const numberOf = (seat) => String(seat.number ?? seat.id.match(/\d+$/)?.[0] ?? seat.id);

/** The row's name; seats without one take the letters their id begins with. */
export const rowNameOf = (seat) => String(seat.row ?? seat.id.match(/^(.*?)[-\s]?\d+$/)?.[1] ?? "");

/**
 * `{count, x, y, rowOf, sectionOf, rows, sections, box, stage, index}`. Seats are known by their place in the list.
 * A row is `{name, section, seats}`, its seats in order; a section is
 * `{name, rows, seats, box, outline, middle}`.
 */
export function makePlan(seats) {
  const groups = groupRows(seats);
  const hasPlaces = seats.every((seat) => Number.isFinite(seat.x) && Number.isFinite(seat.y));
  const { x, y } = hasPlaces ? placesAsGiven(seats) : placesByRow(seats, groups);
  const count = seats.length;
  const plan = { count, x, y, rowOf: new Uint32Array(count), sectionOf: new Uint16Array(count) };
  plan.rows = groups.map(({ name, section, members }) => ({ name, section, seats: along(members, x, y) }));
  plan.sections = makeSections(plan);
  plan.box = plan.sections.map(({ box }) => box).reduce(unite, null) ?? { left: 0, top: 0, right: 1, bottom: 1 };
  plan.index = new GridIndex(x, y, plan.box);
  plan.stage = stageBefore(plan);
  plan.box = unite(grown(plan.box, EDGE), plan.stage);
  return plan;
}

function grown({ left, top, right, bottom }, by) {
  return { left: left - by, top: top - by, right: right + by, bottom: bottom + by };
}

function groupRows(seats) {
  const groups = new Map();
  seats.forEach((seat, at) => {
    const [section, name] = [seat.section ?? "", rowNameOf(seat)];
    const key = `${section}\n${name}`;
    if (!groups.has(key)) groups.set(key, { name, section, members: [] });
    groups.get(key).members.push(at);
  });
  return [...groups.values()];
}

// ---- where seats are

function placesAsGiven(seats) {
  const scale = 1 / gapOf(seats);
  return {
    x: Float32Array.from(seats, (seat) => seat.x * scale),
    y: Float32Array.from(seats, (seat) => seat.y * scale),
  };
}

// Neighbours in the list are nearly always neighbours on the plan.
function gapOf(seats) {
  const gaps = [];
  for (let at = 1; at < seats.length; at++) {
    const gap = Math.hypot(seats[at].x - seats[at - 1].x, seats[at].y - seats[at - 1].y);
    if (gap > 0) gaps.push(gap);
  }
  gaps.sort((one, other) => one - other);
  return gaps[Math.floor(gaps.length * GAP_PERCENTILE)] ?? 1;
}

function placesByRow(seats, groups) {
  const [x, y] = [new Float32Array(seats.length), new Float32Array(seats.length)];
  const offsets = groups.map(({ members }) => offsetsInRow(members.map((at) => seats[at].number)));
  const half = offsets.flat().reduce((most, offset) => Math.max(most, Math.abs(offset)), 1);
  let height = 0;
  groups.forEach(({ section, members }, row) => {
    height += row > 0 && groups[row - 1].section !== section ? 1 + AISLE : 1;
    members.forEach((at, column) => {
      x[at] = offsets[row][column];
      y[at] = height - (SAG * x[at] * x[at]) / half;
    });
  });
  return { x, y };
}

// A number that is missing leaves a gap, also where a row has only odd numbers; other rows are filled from the middle.
function offsetsInRow(numbers) {
  const sorted = [...new Set(numbers)].sort((one, other) => one - other);
  const step = sorted.slice(1).reduce((gap, number, at) => divisor(gap, number - sorted[at]), 0) || 1;
  const span = (sorted.at(-1) - sorted[0]) / step;
  const isPlain = numbers.every(Number.isFinite) && sorted.length === numbers.length && span < 1.5 * numbers.length;
  if (!isPlain) return numbers.map((_, column) => column - (numbers.length - 1) / 2);
  return numbers.map((number) => (number - sorted[0]) / step - span / 2);
}

const divisor = (one, other) => (other ? divisor(other, one % other) : one);

// ---- rows and sections

// From one end to the other, whatever the direction of the row: along the line through its two farthest ends.
function along(members, x, y) {
  if (members.length < 3) return Int32Array.from(members);
  const distance = (one, other) => Math.hypot(x[one] - x[other], y[one] - y[other]);
  const far = (from) => members.reduce((best, at) => (distance(at, from) > distance(best, from) ? at : best));
  const one = far(members[0]);
  const other = far(one);
  const [dx, dy] = [x[other] - x[one], y[other] - y[one]];
  const sign = (Math.abs(dx) > 0.01 ? dx : dy) < 0 ? -1 : 1;
  const key = (at) => sign * (x[at] * dx + y[at] * dy);
  return Int32Array.from(members.slice().sort((left, right) => key(left) - key(right)));
}

function makeSections(plan) {
  const byName = new Map();
  plan.rows.forEach((row, number) => {
    if (!byName.has(row.section)) byName.set(row.section, { name: row.section, rows: [], seats: [] });
    const section = byName.get(row.section);
    section.rows.push(number);
    for (const seat of row.seats) {
      section.seats.push(seat);
      plan.rowOf[seat] = number;
    }
  });
  const sections = [...byName.values()];
  sections.forEach((section, number) => {
    section.seats = Int32Array.from(section.seats);
    for (const seat of section.seats) plan.sectionOf[seat] = number;
    section.box = boxOf(section.seats, plan);
    section.outline = outlineOf(section.rows.map((row) => plan.rows[row].seats), plan);
    section.middle = middleOf(section, plan);
  });
  return sections;
}

// A seat near the middle: in a section that bends, the middle itself may be outside.
function middleOf(section, { x, y }) {
  let [sumX, sumY] = [0, 0];
  for (const seat of section.seats) {
    sumX += x[seat];
    sumY += y[seat];
  }
  const [middleX, middleY] = [sumX / section.seats.length, sumY / section.seats.length];
  let best = section.seats[0];
  const off = (seat) => Math.hypot(x[seat] - middleX, y[seat] - middleY);
  for (const seat of section.seats) if (off(seat) < off(best)) best = seat;
  return off(best) < 2 ? { x: middleX, y: middleY } : { x: x[best], y: y[best] };
}

// ---- the stage

// Before the seats of the middle: so it is between the wings where sections surround it on three sides.
function stageBefore({ x, y, box, count }) {
  const middle = (box.left + box.right) / 2;
  const width = box.right - box.left;
  const half = Math.min(Math.max(3, 0.3 * width), 20);
  let top = Infinity;
  for (let seat = 0; seat < count; seat++) if (Math.abs(x[seat] - middle) < half + 1) top = Math.min(top, y[seat]);
  if (top === Infinity) top = box.top;
  const depth = Math.min(Math.max(1.8, half * 0.36), 8);
  const bottom = top - 2.6;
  return { left: middle - half, right: middle + half, top: bottom - depth, bottom };
}
