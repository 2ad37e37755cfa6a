// How much longer a hold can be made. The server ends every hold half an hour after its beginning, because other buyers
// wait for the seats. Within that, a buyer can ask at least ten times (WCAG 2.2.1), each time for the same step.

const LIFE_SECONDS = 1800;
const TIMES = 10;
const STEP_SECONDS_MIN = 30;
const MINUTE = 60;

/** In seconds: what one more step gives this hold; 0 where it has had all. */
export function moreTime(booking, event) {
  const [from, until] = [booking.created_at, booking.expires_at].map((moment) => Date.parse(moment) / 1000);
  const left = Math.floor(LIFE_SECONDS - (until - from));
  const first = event?.hold_ttl_seconds ?? 600;
  const tenth = Math.max(STEP_SECONDS_MIN, Math.floor((LIFE_SECONDS - first) / TIMES));
  const step = tenth < MINUTE ? tenth : tenth - (tenth % MINUTE); // whole minutes, which are easier to read
  return Math.max(0, Math.min(step, left));
}
