// The outline of a section: along its first row, down the ends of its rows, and back along its last row.

const SIDE_TOLERANCE = 0.6; // rows differ by part of a seat: their ends make a straight side, not a saw
const ROW_TOLERANCE = 0.02;

/** The smallest rectangle around these seats, with room for their own size. */
export function boxOf(seats, { x, y }) {
  const box = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  for (const seat of seats) {
    box.left = Math.min(box.left, x[seat] - 0.5);
    box.right = Math.max(box.right, x[seat] + 0.5);
    box.top = Math.min(box.top, y[seat] - 0.5);
    box.bottom = Math.max(box.bottom, y[seat] + 0.5);
  }
  return box;
}

/** The smallest rectangle around both; one of them may be null. */
export function unite(one, other) {
  if (!one || !other) return one ?? other;
  return {
    left: Math.min(one.left, other.left),
    top: Math.min(one.top, other.top),
    right: Math.max(one.right, other.right),
    bottom: Math.max(one.bottom, other.bottom),
  };
}

/** Points `[x, y]` through the outermost seats; the renderer draws them with a wide round pen, so seats are inside. */
export function outlineOf(rows, { x, y }) {
  const point = (seat) => [x[seat], y[seat]];
  const inOrder = rows.filter((row) => row.length > 0);
  const ends = inOrder.map((row) => [point(row[0]), point(row.at(-1))]);
  const isBlock = ends.every((end, at) => at === 0 || isNextTo(ends[at - 1], end));
  if (!isBlock) return hullOf(inOrder.flatMap((row) => Array.from(row, point)));
  const first = simplify(Array.from(inOrder[0], point), ROW_TOLERANCE);
  if (inOrder.length < 2) return first;
  const last = simplify(Array.from(inOrder.at(-1), point), ROW_TOLERANCE).reverse();
  const side = (end) => simplify(ends.map((both) => both[end]), SIDE_TOLERANCE).slice(1, -1);
  return [...first, ...side(1), ...last, ...side(0).reverse()];
}

/** Without the points that lie nearly on the line between those that stay (Douglas and Peucker). */
export function simplify(points, tolerance) {
  if (points.length < 3) return points;
  const [from, to] = [points[0], points.at(-1)];
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(dx, dy) || 1;
  const off = ([x, y]) => Math.abs((x - from[0]) * dy - (y - from[1]) * dx) / length;
  let far = 0;
  for (let at = 1; at < points.length - 1; at++) if (off(points[at]) > off(points[far])) far = at;
  if (off(points[far]) <= tolerance) return [from, to];
  return [...simplify(points.slice(0, far + 1), tolerance).slice(0, -1), ...simplify(points.slice(far), tolerance)];
}

/**
 * Whether a box, half so wide and high as `half`, fits around a point. The outline runs through the middles of seats, so a box
 * may be half a seat beyond it.
 */
export function hasRoomFor(outline, { x, y }, half) {
  const [wide, high] = [Math.max(0, half.x - 0.5), Math.max(0, half.y - 0.5)];
  return [-1, 0, 1].every((across) => [-1, 1].every((down) => isInside(outline, x + across * wide, y + down * high)));
}

// Whether a line from the point to the right crosses the outline an odd number of times.
function isInside(outline, x, y) {
  let isIn = false;
  outline.forEach(([toX, toY], at) => {
    const [fromX, fromY] = outline.at(at - 1);
    if (fromY > y !== toY > y && x < fromX + ((y - fromY) / (toY - fromY)) * (toX - fromX)) isIn = !isIn;
  });
  return isIn;
}

// Rows of one block begin near each other, and end near each other, in the same order.
function isNextTo([left, right], [nextLeft, nextRight]) {
  const gap = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1]);
  const isSameWay = gap(left, nextLeft) + gap(right, nextRight) <= gap(left, nextRight) + gap(right, nextLeft);
  const length = Math.max(gap(left, right), gap(nextLeft, nextRight));
  return isSameWay && gap(left, nextLeft) < 4 + length / 2 && gap(right, nextRight) < 4 + length / 2;
}

/** The convex hull of points, by the monotone chain of Andrew. */
export function hullOf(points) {
  const sorted = points.slice().sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  const turn = (one, two, three) => (two[0] - one[0]) * (three[1] - one[1]) - (two[1] - one[1]) * (three[0] - one[0]);
  const chain = (ordered) => {
    const kept = [];
    for (const point of ordered) {
      while (kept.length > 1 && turn(kept.at(-2), kept.at(-1), point) <= 0) kept.pop();
      kept.push(point);
    }
    return kept.slice(0, -1);
  };
  return sorted.length < 3 ? sorted : [...chain(sorted), ...chain(sorted.reverse())];
}
