// Proposes seats on the map: side by side, leaving no single seat, near the middle of the stage. The server decides.

const SINGLE_LEFT = 1000; // worse than any distance: only where nothing else is left

/** `count` seats that accept(seat) allows, in one row side by side; null where no row has them. */
export function bestSeats(plan, count, accept) {
  const focus = { x: (plan.stage.left + plan.stage.right) / 2, y: plan.stage.bottom };
  let [best, least] = [null, Infinity];
  for (const row of plan.rows) {
    for (const run of runsOf(row.seats, plan, accept)) {
      for (let from = 0; from + count <= run.length; from++) {
        const cost = costOf(run, from, count, { plan, focus });
        if (cost >= least) continue;
        best = run.slice(from, from + count);
        least = cost;
      }
    }
  }
  return best;
}

// Seats of a row with an aisle between them are not side by side.
function runsOf(seats, { x, y }, accept) {
  const runs = [];
  let run = [];
  for (const seat of seats) {
    const last = run.at(-1);
    const isNext = last !== undefined && Math.hypot(x[seat] - x[last], y[seat] - y[last]) < 1.6;
    if (run.length > 0 && !(isNext && accept(seat))) {
      runs.push(run);
      run = [];
    }
    if (accept(seat)) run.push(seat);
  }
  return run.length > 0 ? [...runs, run] : runs;
}

function costOf(run, from, count, { plan, focus }) {
  const [before, after] = [from, run.length - from - count];
  const singles = Number(before === 1) + Number(after === 1);
  let away = 0;
  for (let at = from; at < from + count; at++) {
    away += Math.hypot(plan.x[run[at]] - focus.x, plan.y[run[at]] - focus.y);
  }
  return away / count + SINGLE_LEFT * singles;
}
