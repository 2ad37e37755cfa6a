// The position of each seat: its own x and y when all seats have them, else in slightly curved rows before the front.

export const PITCH = 36; // from one seat's middle to the next
const AISLE = 1.2 * PITCH; // before a section, with room for its name
const SAG = 0.11; // how much nearer to the front the widest row's ends are, per half of its width

/**
 * `{rows: [{label, section, price, seats: [{seat, x, y}]}], half, curve}`: a row's price is null when its seats differ;
 * curve(x) is how far a row's point lies from its middle's height; half is half the widest row, null without a front.
 */
export function layOut(seats) {
  const placed = seats.every((seat) => Number.isFinite(seat.x) && Number.isFinite(seat.y));
  const groups = [...groupBy(seats, (seat) => `${seat.section ?? ""}\n${rowOf(seat)}`).values()];
  if (placed) return { rows: byCoordinates(groups, seats).map(describe), half: null, curve: () => 0 };
  const half = groups.reduce((most, group) => Math.max(most, group.length), 1) * (PITCH / 2);
  const curve = (x) => (-SAG * x * x) / half;
  return { rows: byRows(groups, curve).map(describe), half, curve };
}

/** The label on the seat: its number, or the digits its id ends with. */
export const numberOf = (seat) => String(seat.number ?? seat.id.match(/\d+$/)?.[0] ?? seat.id);

/** The row's name; seats without one take the letters their id begins with. */
export const rowOf = (seat) => String(seat.row ?? seat.id.match(/^(.*?)[-\s]?\d+$/)?.[1] ?? "");

function byRows(groups, curve) {
  let y = 0;
  let section = null;
  return groups.map((group) => {
    if ((group[0].section ?? null) !== section) y += AISLE;
    section = group[0].section ?? null;
    y += PITCH;
    const middle = (group.length - 1) / 2;
    return group.map((seat, index) => {
      const x = (index - middle) * PITCH;
      return { seat, x, y: y + curve(x) };
    });
  });
}

function byCoordinates(groups, seats) {
  const scale = PITCH / smallestGap(seats);
  const rows = groups.map((group) => group.map((seat) => ({ seat, x: seat.x * scale, y: seat.y * scale })));
  for (const row of rows) row.sort((one, other) => one.x - other.x);
  return rows.sort((one, other) => one[0].y - other[0].y);
}

// Neighbours in the list are nearly always neighbours on the plan; the closest pair sets the scale.
function smallestGap(seats) {
  const gaps = seats.slice(1).map((seat, index) => Math.hypot(seat.x - seats[index].x, seat.y - seats[index].y));
  const real = gaps.filter((gap) => gap > 0);
  return real.length ? real.reduce((least, gap) => Math.min(least, gap)) : PITCH;
}

function describe(row) {
  const [first] = row;
  const price = row.every(({ seat }) => seat.price === first.seat.price) ? first.seat.price : null;
  return { label: rowOf(first.seat), section: first.seat.section ?? null, price, seats: row };
}

function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}
