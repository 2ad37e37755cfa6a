// What is known of an event's seats and pools: the plan, one byte of state a seat, price levels, selection and filter.

import { makePlan, numberOf } from "./geometry.js";
import * as states from "./seat-states.js";

const LEVELS_MAX = 8; // as many colours and patterns as there are

export class SeatModel {
  plan = makePlan([]);
  ids = [];
  pools = new Map();
  units = new Map(); // pool id → how many the buyer wants
  levels = []; // {category, price, priceMax}: a category, or a price within one
  free = new Int32Array(0); // by section
  #at = new Map(); // seat id → its place
  #own = new Set();
  #ownUnits = new Map(); // pool id → units held for the buyer
  #filter = new Set(); // numbers of levels; empty: all are shown
  #least = []; // by section: the lowest price of a free seat, null unless known

  get count() {
    return this.ids.length;
  }

  placeOf(id) {
    return this.#at.get(id) ?? -1;
  }

  /** Puts a whole map in place of the last one. `{isNewPlan, changed, lost}`: lost are selected seats that are gone. */
  replace({ seats, pools }) {
    const isSame = seats.length === this.ids.length && seats.every((seat, at) => seat.id === this.ids[at]);
    if (!isSame) this.#begin(seats);
    this.pools = new Map(pools.map((pool) => [pool.id, pool]));
    return { isNewPlan: !isSame, ...this.#tell(seats, isSame) };
  }

  /** Puts changes over what is known. */
  apply({ seats, pools }) {
    for (const pool of pools) this.pools.set(pool.id, pool);
    return this.#tell(seats.filter((seat) => this.#at.has(seat.id)), true);
  }

  #begin(seats) {
    this.plan = makePlan(seats);
    this.ids = seats.map(({ id }) => id);
    this.#at = new Map(this.ids.map((id, at) => [id, at]));
    this.numbers = seats.map(numberOf);
    this.prices = Float64Array.from(seats, ({ price }) => price);
    this.categories = seats.map(({ category }) => category ?? null);
    this.bytes = new Uint8Array(seats.length);
    this.levelOf = new Uint8Array(seats.length);
    this.#filter.clear();
    this.#findLevels();
  }

  // By category and price; by category alone where that would be more than there are colours.
  #findLevels() {
    const fine = this.#group((at) => `${this.categories[at] ?? ""}\n${this.prices[at]}`);
    this.levels = fine.length <= LEVELS_MAX ? fine : this.#group((at) => this.categories[at] ?? "");
  }

  #group(keyOf) {
    const found = new Map();
    for (let at = 0; at < this.count; at++) {
      const key = keyOf(at);
      const price = this.prices[at];
      if (!found.has(key)) found.set(key, { category: this.categories[at], price, priceMax: price, order: found.size });
      const level = found.get(key);
      level.price = Math.min(level.price, price);
      level.priceMax = Math.max(level.priceMax, price);
      this.levelOf[at] = Math.min(level.order, 255);
    }
    return [...found.values()];
  }

  #tell(seats, isKnown) {
    const [changed, lost] = [[], []];
    let isRepriced = false;
    for (const seat of seats) {
      const at = this.#at.get(seat.id);
      const before = this.bytes[at];
      const mine = seat.mine || this.#own.has(seat.id);
      const [oldPrice, price] = [this.prices[at], seat.price];
      isRepriced ||= price !== oldPrice;
      this.prices[at] = price;
      this.bytes[at] = this.#afterLoss(states.told(before, { state: seat.state, mine }), at, lost);
      if (this.bytes[at] !== before || price !== oldPrice) changed.push(at);
    }
    if (isRepriced) this.#findLevels();
    this.#count(isKnown ? changed : null);
    this.#dropUnits();
    return { changed, lost };
  }

  // A selected seat that is not free any more leaves the selection, unless the page is about to hold it.
  #afterLoss(byte, at, lost) {
    const isWanted = byte & (states.SELECTED | states.PENDING);
    if (!isWanted || states.isFree(byte)) return byte;
    if (byte & states.PENDING && !(byte & states.MINE)) return byte;
    if (!(byte & states.MINE)) lost.push(at);
    return byte & ~(states.SELECTED | states.PENDING);
  }

  #count(changed) {
    const { sections, sectionOf } = this.plan;
    const touched = changed ? new Set(changed.map((at) => sectionOf[at])) : sections.keys();
    if (!changed) [this.free, this.#least] = [new Int32Array(sections.length), new Array(sections.length).fill(null)];
    for (const section of touched) {
      let [free, least] = [0, Infinity];
      for (const seat of sections[section].seats) {
        if (!states.isFree(this.bytes[seat])) continue;
        free += 1;
        least = Math.min(least, this.prices[seat]);
      }
      this.free[section] = free;
      this.#least[section] = least;
    }
  }

  #dropUnits() {
    for (const [id, wanted] of this.units) this.setUnits(id, Math.min(wanted, this.unitsMax(id)));
  }

  /** The lowest price of a free seat of a section; null when it is sold out. */
  priceFrom(section) {
    return this.#least[section] === Infinity ? null : this.#least[section];
  }

  // ---- selection

  get selected() {
    return this.#where((byte) => byte & states.SELECTED);
  }

  get heldForBuyer() {
    return this.#where(states.isHeldForBuyer);
  }

  #where(accept) {
    const found = [];
    for (let at = 0; at < this.count; at++) if (accept(this.bytes[at])) found.push(at);
    return found;
  }

  /** Selects a seat or takes it out of the selection; the byte's other bits stay. */
  select(at, isSelected, { isPending = false } = {}) {
    this.bytes[at] &= ~(states.SELECTED | states.PENDING);
    if (isSelected) this.bytes[at] |= states.SELECTED;
    if (isPending) this.bytes[at] |= states.PENDING;
  }

  /** Held by another buyer, which the server has told the page and not yet the map. */
  markTaken(at) {
    this.bytes[at] = states.told(this.bytes[at], { state: "held", mine: false });
    this.#count([at]);
  }

  setUnits(id, units) {
    if (units > 0) this.units.set(id, units);
    else this.units.delete(id);
  }

  /** How many units of pools are held for the buyer already: they are chosen, and the pool's free units come on top. */
  ownUnits(units) {
    this.#ownUnits = new Map(Object.entries(units));
    this.units = new Map(this.#ownUnits);
  }

  /** The most units of a pool that the buyer can have. */
  unitsMax(id) {
    return (this.pools.get(id)?.available ?? 0) + (this.#ownUnits.get(id) ?? 0);
  }

  /** How many seats and units are free. */
  get available() {
    const units = [...this.pools.values()].reduce((sum, pool) => sum + pool.available, 0);
    return { seats: (this.free ?? []).reduce((sum, free) => sum + free, 0), units };
  }

  /** The ids of seats that are the buyer's own, whatever the server says. Returns the seats that changed. */
  own(ids) {
    const before = this.#own;
    this.#own = new Set(ids);
    const changed = [...new Set([...before, ...this.#own])].filter((id) => before.has(id) !== this.#own.has(id));
    const places = changed.map((id) => this.placeOf(id)).filter((at) => at >= 0);
    for (const at of places) {
      this.bytes[at] &= ~states.MINE;
      if (!this.#own.has(this.ids[at])) continue;
      this.select(at, false);
      this.bytes[at] |= states.MINE;
    }
    this.#count(places);
    return places;
  }

  /** One more or one less seat of the buyer's own. */
  setOwn(id, isOwn) {
    const ids = new Set(this.#own);
    if (isOwn) ids.add(id);
    else ids.delete(id);
    return this.own(ids);
  }

  // ---- filter

  isShown(level) {
    return this.#filter.size === 0 || this.#filter.has(level);
  }

  get isFiltered() {
    return this.#filter.size > 0;
  }

  isInFilter(level) {
    return this.#filter.has(level);
  }

  /** Shows only seats of these levels; none means all. */
  filter(levels) {
    this.#filter = new Set(levels);
    for (let at = 0; at < this.count; at++) {
      if (this.isShown(this.levelOf[at])) this.bytes[at] &= ~states.FILTERED;
      else this.bytes[at] |= states.FILTERED;
    }
  }

  /** The number of a seat's look. */
  lookOf(at) {
    return states.lookOf(this.bytes[at]);
  }

  /** Free, and not filtered out: a buyer may choose it. */
  isOpen(at) {
    return states.isFree(this.bytes[at]) && !(this.bytes[at] & states.FILTERED);
  }
}
