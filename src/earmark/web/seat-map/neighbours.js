// Which seat is next: by direction for the arrow keys, and nearby for a buyer whose seat was taken.

import { around } from "./grid-index.js";

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ASIDE = 2; // how much worse a step aside is than a step ahead
const SAME_ROW = 0.6; // a seat of the same row is preferred, where rows bend or turn
const FIRST_LOOK = 3;

/** The next seat in the direction of an arrow key, as the plan lies; the seat itself at the edge. */
export function nextSeat(plan, seat, key) {
  const [dx, dy] = DIRECTIONS[key];
  const reachMax = Math.max(plan.box.right - plan.box.left, plan.box.bottom - plan.box.top);
  for (let reach = FIRST_LOOK; ; reach *= 2) {
    const found = bestAhead(plan, seat, { dx, dy, reach });
    if (found !== seat || reach > reachMax) return found;
  }
}

function bestAhead({ x, y, rowOf, index }, seat, { dx, dy, reach }) {
  let [best, least] = [seat, Infinity];
  index.forEachIn(around(x[seat], y[seat], reach), (other) => {
    const [awayX, awayY] = [x[other] - x[seat], y[other] - y[seat]];
    const ahead = awayX * dx + awayY * dy;
    const aside = Math.abs(awayX * dy - awayY * dx);
    if (ahead < 0.25 || aside > 1.5 * ahead) return;
    const cost = (ahead + ASIDE * aside) * (rowOf[other] === rowOf[seat] ? SAME_ROW : 1);
    if (cost >= least) return;
    best = other;
    least = cost;
  });
  return best;
}

/** The first and the last seat of the row. */
export const rowEnds = ({ rows, rowOf }, seat) => [rows[rowOf[seat]].seats[0], rows[rowOf[seat]].seats.at(-1)];

/** A seat of the section before (step -1) or after (step 1); the seat itself at the ends. */
export function seatOfNextSection({ sections, sectionOf }, seat, step) {
  const section = sections[sectionOf[seat] + step];
  return section ? section.seats[0] : seat;
}

/** Up to `most` seats that accept(seat) allows: those of the row first, then the nearest others. */
export function nearbySeats({ x, y, rowOf, sectionOf, index }, seat, { accept, most, reach = 8 }) {
  const found = [];
  index.forEachIn(around(x[seat], y[seat], reach), (other) => {
    if (other === seat || !accept(other)) return;
    const away = Math.hypot(x[other] - x[seat], y[other] - y[seat]);
    if (away > reach) return;
    const penalty = (rowOf[other] === rowOf[seat] ? 0 : 3) + (sectionOf[other] === sectionOf[seat] ? 0 : reach);
    found.push({ other, cost: away + penalty });
  });
  return found
    .sort((one, other) => one.cost - other.cost)
    .slice(0, most)
    .map(({ other }) => other);
}
