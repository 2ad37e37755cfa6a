// The state of a seat in one byte: what the server says in the lowest bits, and what this buyer and this page add.

const BY_NAME = { available: 0, held: 1, booked: 2, blocked: 3 };
const SERVER = 3;
export const MINE = 4;
export const SELECTED = 8;
export const FILTERED = 16;
/** The page was told that the buyer wants the seat, and has not said yet whether it is held. */
export const PENDING = 32;

const CLOCK = "M0 -6.5a6.5 6.5 0 1 1 -.01 0M0 -3V.5L2.5 2";
const STAR = "M0 -7L2 -2.2L7 -2L3 1.4L4.4 6.5L0 3.6L-4.4 6.5L-3 1.4L-7 -2L-2 -2.2Z";
const HOURGLASS = "M-4 -6H4M-4 6H4M-3.4 -6C-3.4 -1 3.4 1 3.4 6M3.4 -6C3.4 -1 -3.4 1 -3.4 6";

/** What a seat looks like, in the order of their numbers; the glyph is a path in a box from -8 to 8. */
export const LOOKS = [
  { name: "available", glyph: "" },
  { name: "selected", glyph: "M-5 .5L-1.5 4L5.5 -4" },
  { name: "heldForYou", glyph: CLOCK },
  { name: "yours", glyph: STAR },
  { name: "held", glyph: HOURGLASS },
  { name: "sold", glyph: "M-4 -4L4 4M4 -4L-4 4" },
  { name: "blocked", glyph: "M-5 0H5" },
  { name: "filtered", glyph: "" },
];
const [AVAILABLE, CHOSEN, HELD_FOR_YOU, YOURS, HELD, SOLD, BLOCKED, OUT] = LOOKS.keys();

/** The byte with what the server says about a seat, and what it said before about selection and filter. */
export function told(byte, { state, mine }) {
  return (byte & ~(SERVER | MINE)) | (BY_NAME[state] ?? BY_NAME.blocked) | (mine ? MINE : 0);
}

/** The number of its look. */
export function lookOf(byte) {
  const server = byte & SERVER;
  if (byte & MINE && server !== BY_NAME.blocked) return server === BY_NAME.booked ? YOURS : HELD_FOR_YOU;
  if (server === BY_NAME.held) return byte & PENDING ? CHOSEN : HELD;
  if (server === BY_NAME.booked) return SOLD;
  if (server === BY_NAME.blocked) return BLOCKED;
  if (byte & SELECTED) return CHOSEN;
  return byte & FILTERED ? OUT : AVAILABLE;
}

export const lookName = (byte) => LOOKS[lookOf(byte)].name;
export const isFree = (byte) => (byte & (SERVER | MINE)) === BY_NAME.available;
export const isHeldForBuyer = (byte) => lookOf(byte) === HELD_FOR_YOU;
