// Formats amounts, times and lists in the language of the browser.

/** Minor units as money: (4500, "EUR") reads €45.00, (4500, "JPY") reads ¥4,500. */
export function money(amount, currency) {
  const format = moneyFormat(currency);
  return format.format(amount / 10 ** format.resolvedOptions().maximumFractionDigits);
}

const formats = new Map();

function moneyFormat(currency) {
  if (!formats.has(currency)) formats.set(currency, new Intl.NumberFormat(undefined, { style: "currency", currency }));
  return formats.get(currency);
}

/** How long, at a glance: 8 reads 8 s, 400 reads 6 min, 90000 reads 25 h. */
export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  return whole < 172_800 ? `${Math.floor(whole / 3600)} h` : `${Math.floor(whole / 86_400)} d`;
}

/** "A1", "A1 and A2", "A1, A2 and A3". */
export function list(words) {
  const all = [...words];
  return all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all.at(-1)}`;
}

/** "1 seat", "2 seats". */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** The lines of a booking as text: "A1, A2 and 2 × GA". */
export function claim(booking) {
  return list([...booking.seats.map((seat) => seat.id), ...booking.pools.map((pool) => `${pool.units} × ${pool.id}`)]);
}
