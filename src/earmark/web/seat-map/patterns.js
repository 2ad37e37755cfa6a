// A pattern for each price level, so that colour is never the only difference.

/** Draws inside a circle around the middle of a context; r is its radius. */
const PATTERNS = [
  () => {},
  (pen, r) => lines(pen, r, Math.PI / 4),
  (pen, r) => dots(pen, r),
  (pen, r) => lines(pen, r, 0),
  (pen, r) => ring(pen, r),
  (pen, r) => lines(pen, r, -Math.PI / 4),
  (pen, r) => (lines(pen, r, 0), lines(pen, r, Math.PI / 2)),
  (pen, r) => lines(pen, r, Math.PI / 2),
];

export const LEVELS_MAX = PATTERNS.length;

/** Draws the pattern of a level into the circle that is the current clip. */
export function drawPattern(pen, level, r) {
  PATTERNS[level % LEVELS_MAX](pen, r);
}

function lines(pen, r, angle) {
  pen.save();
  pen.rotate(angle);
  pen.lineWidth = 0.2 * r;
  pen.beginPath();
  for (let at = -r; at <= r; at += 0.56 * r) {
    pen.moveTo(-1.2 * r, at);
    pen.lineTo(1.2 * r, at);
  }
  pen.stroke();
  pen.restore();
}

// In parts of the radius.
const DOTS = [0, 0, -0.5, -0.5, 0.5, -0.5, -0.5, 0.5, 0.5, 0.5, 0, -0.85, 0, 0.85, -0.9, 0, 0.9, 0];

function dots(pen, r) {
  pen.beginPath();
  for (let at = 0; at < DOTS.length; at += 2) {
    const [x, y] = [DOTS[at], DOTS[at + 1]];
    pen.moveTo(x * r + 0.16 * r, y * r);
    pen.arc(x * r, y * r, 0.16 * r, 0, 7);
  }
  pen.fill();
}

function ring(pen, r) {
  pen.lineWidth = 0.2 * r;
  pen.beginPath();
  pen.arc(0, 0, 0.68 * r, 0, 7);
  pen.stroke();
}
