// The buyer's basket: one held booking for each event, at the server. The page shows at once what the buyer wants; one
// request at a time tells the server, and what it refuses goes back to what the server has.
//
//   the first choice ─ hold ─► held ─ each further choice ─ change ─► held ─ the last one is dropped ─ release ─► nothing
//
// What the buyer wants further while a request is under way goes into the next one, all at once.

import * as api from "../api.js";

const OPEN = ["held", "paying"];

export class Basket {
  /** What the server has: a booking that is held or being paid, or null. */
  booking = null;
  /** Confirmed bookings of the event, and open ones beside the basket: made in another tab at the same moment. */
  sold = [];
  others = [];
  #wanted = null; // {seats: Map id → line, pools: Map id → line}, while it is not what the server has
  #work = null;
  #loading = null;
  #answers = 0; // how many requests of the buyer's were answered
  #otherTabs = new BroadcastChannel("earmark.basket");

  /**
   * onChange() whenever there is something else to show; onSeat(id, "held" | "free" | "taken") for each seat that a request
   * was about; onRefusal(error, {taken, yours, isOnMap}) when the server refused, with the lines of seats that were lost.
   */
  constructor({ eventId, onChange, onSeat, onRefusal }) {
    Object.assign(this, { eventId, onChange, onSeat, onRefusal });
    this.#otherTabs.onmessage = ({ data }) => data === eventId && this.load().catch(() => {});
  }

  // ---- what there is to show

  get isBusy() {
    return this.#work !== null;
  }

  /** Paying has begun: nothing can be changed until it is decided. */
  get isLocked() {
    return this.booking?.state === "paying";
  }

  /** The lines as the buyer wants them: `{seats, pools}`, each with `isPending` while the server has not said yes. */
  get lines() {
    const { seats, pools } = this.#wanted ?? wantedOf(this.booking);
    const held = wantedOf(this.booking);
    return {
      seats: [...seats.values()].map((seat) => ({ ...seat, isPending: !held.seats.has(seat.id) })),
      pools: [...pools.values()].map((pool) => ({ ...pool, isPending: held.pools.get(pool.id)?.units !== pool.units })),
    };
  }

  get isEmpty() {
    const { seats, pools } = this.lines;
    return seats.length + pools.length === 0;
  }

  /** How many seats and units. */
  get count() {
    return countOf(this.lines);
  }

  get total() {
    const { seats, pools } = this.lines;
    return seats.reduce((sum, { price }) => sum + price, 0) + pools.reduce((sum, { price, units }) => sum + price * units, 0);
  }

  /** How many the buyer has of the event elsewhere: bought, or held beside this basket. */
  get countElsewhere() {
    return [...this.sold, ...this.others].reduce((sum, booking) => sum + countOf(booking), 0);
  }

  // ---- what the server has

  /** Finds the basket again. What is under way comes first: its answer is newer. */
  load() {
    this.#loading ??= this.#load().finally(() => (this.#loading = null));
    return this.#loading;
  }

  async #load() {
    await this.#work;
    const answers = this.#answers;
    const bookings = await api.listBookings({ event_id: this.eventId });
    if (this.#work || this.#answers !== answers) return; // the buyer chose meanwhile: the answer to that is newer
    const open = bookings.filter(({ state }) => OPEN.includes(state));
    this.booking = open.pop() ?? null;
    this.others = open;
    this.sold = bookings.filter(({ state }) => state === "confirmed");
    this.onChange();
  }

  // ---- what the buyer does

  addSeat(seat) {
    this.#want(({ seats }) => seats.set(seat.id, seat));
  }

  dropSeat(id) {
    this.#want(({ seats }) => seats.delete(id));
  }

  /** So many units of a pool, `{id, units, price}`; 0 drops it. */
  setUnits(pool) {
    this.#want(({ pools }) => (pool.units > 0 ? pools.set(pool.id, pool) : pools.delete(pool.id)));
  }

  clear() {
    this.#want((wanted) => {
      wanted.seats.clear();
      wanted.pools.clear();
    });
  }

  /** Holds so many seats as the server chooses, where there is no basket yet. Resolves with the booking, or null. */
  holdBest(best) {
    return this.#alone(() => api.hold(this.eventId, { best }));
  }

  /** Holds these lines of a booking that ran out. Resolves with the booking, or null where the server refused. */
  holdAgain({ seats, pools }) {
    const units = Object.fromEntries(pools.map((pool) => [pool.id, pool.units]));
    return this.#alone(() => api.hold(this.eventId, { seats: seats.map(({ id }) => id), pools: units }));
  }

  async extend(seconds) {
    await this.settled();
    return this.booking && this.#alone(() => api.extend(this.booking.id, seconds));
  }

  /** Resolves once no request is under way. */
  async settled() {
    while (this.#work) await this.#work;
  }

  // ---- one request at a time

  #want(edit) {
    this.#wanted ??= wantedOf(this.booking);
    edit(this.#wanted);
    this.#work ??= this.#workOff().finally(() => this.#done());
    this.onChange();
  }

  async #alone(ask) {
    await this.settled();
    let booking = null;
    this.#work = ask()
      .then((answer) => this.#take((booking = answer)))
      .catch((error) => this.#yield(error))
      .finally(() => this.#done());
    this.onChange();
    await this.#work;
    return booking;
  }

  #done() {
    this.#work = null;
    this.onChange();
    this.#otherTabs.postMessage(this.eventId);
  }

  async #workOff() {
    await null; // clicks of the same moment go into one request
    while (this.#wanted) {
      const difference = differenceOf(this.booking, this.#wanted);
      if (difference.isNone) {
        this.#wanted = null;
        return;
      }
      try {
        const before = wantedOf(this.booking);
        this.#take(await this.#send(difference));
        this.#followElsewhere(before, difference);
      } catch (error) {
        await this.#yield(error);
      }
      this.onChange();
    }
  }

  /** What changed in the booking without this request was the buyer's doing elsewhere: it is wanted here too. */
  #followElsewhere(before, asked) {
    if (!this.#wanted) return;
    const [{ seats, pools }, now] = [this.#wanted, wantedOf(this.booking)];
    for (const [id, seat] of now.seats) if (!before.seats.has(id) && !asked.addSeats.includes(id)) seats.set(id, seat);
    for (const id of before.seats.keys()) if (!now.seats.has(id) && !asked.dropSeats.includes(id)) seats.delete(id);
    for (const id of new Set([...before.pools.keys(), ...now.pools.keys()])) {
      const [had, has] = [before.pools.get(id), now.pools.get(id)];
      const isNotOurs = !(id in asked.pools) && had?.units !== has?.units && pools.get(id)?.units === had?.units;
      if (isNotOurs) has ? pools.set(id, has) : pools.delete(id);
    }
  }

  #send({ addSeats, dropSeats, pools, leavesNothing }) {
    if (!this.booking) return api.hold(this.eventId, { seats: addSeats, pools });
    if (leavesNothing) return api.release(this.booking.id);
    return api.change(this.booking.id, { addSeats, dropSeats, pools });
  }

  #take(booking) {
    this.#answers += 1;
    const before = wantedOf(this.booking).seats;
    this.booking = OPEN.includes(booking.state) ? booking : null;
    const now = wantedOf(this.booking).seats;
    for (const id of before.keys()) if (!now.has(id)) this.onSeat(id, "free");
    for (const id of now.keys()) if (!before.has(id)) this.onSeat(id, "held");
  }

  // ---- when the server refuses

  async #yield(error) {
    const wanted = this.#wanted ?? wantedOf(this.booking);
    const lost = error.code === "seats_taken" ? error.seats : [];
    const own = new Set(Object.keys(error.facts?.yours ?? {}));
    const lines = lost.map((id) => wanted.seats.get(id) ?? { id });
    const isOnMap = lost.length > 0 && this.#wanted !== null; // the map says it, and offers the seats beside
    if (isOnMap) {
      for (const id of lost) this.#giveUp(id, own.has(id) ? "free" : "taken");
    } else {
      this.#backToServer();
    }
    if (["booking_expired", "booking_resolved", "booking_unknown", "payment_in_progress"].includes(error.code)) {
      await this.#reread();
    }
    const [yours, taken] = [lines.filter(({ id }) => own.has(id)), lines.filter(({ id }) => !own.has(id))];
    this.onRefusal(error, { taken, yours, isOnMap });
  }

  #giveUp(id, result) {
    this.#wanted.seats.delete(id);
    this.onSeat(id, result);
  }

  /** What the buyer wanted beside what the server has is not wanted any more. */
  #backToServer() {
    const wanted = this.#wanted ?? wantedOf(null);
    const held = wantedOf(this.booking);
    this.#wanted = null;
    for (const id of wanted.seats.keys()) if (!held.seats.has(id)) this.onSeat(id, "free");
    for (const id of held.seats.keys()) if (!wanted.seats.has(id)) this.onSeat(id, "held");
  }

  async #reread() {
    const booking = await api.readBooking(this.booking.id).catch(() => null);
    if (booking) this.#take(booking);
  }
}

/** The number of seats and units of a booking, or of lines. */
export const countOf = ({ seats, pools }) => seats.length + pools.reduce((sum, { units }) => sum + units, 0);

function wantedOf(booking) {
  return {
    seats: new Map((booking?.seats ?? []).map((seat) => [seat.id, seat])),
    pools: new Map((booking?.pools ?? []).map((pool) => [pool.id, pool])),
  };
}

function differenceOf(booking, wanted) {
  const held = wantedOf(booking);
  const addSeats = [...wanted.seats.keys()].filter((id) => !held.seats.has(id));
  const dropSeats = [...held.seats.keys()].filter((id) => !wanted.seats.has(id));
  const pools = {};
  for (const { id, units } of wanted.pools.values()) if (held.pools.get(id)?.units !== units) pools[id] = units;
  for (const id of held.pools.keys()) if (!wanted.pools.has(id)) pools[id] = 0;
  const isNone = addSeats.length + dropSeats.length + Object.keys(pools).length === 0;
  return { addSeats, dropSeats, pools, isNone, leavesNothing: wanted.seats.size + wanted.pools.size === 0 };
}
