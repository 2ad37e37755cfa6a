// What the buyer chooses: selected seats, units of pools, seats that are lost to others, and the best that are free.

import { bestSeats } from "./best-available.js";
import { nearbySeats } from "./neighbours.js";
import { SELECTED, isHeldForBuyer, lookName } from "./seat-states.js";

const OFFERS_MAX = 3;

export class Choice {
  /** host: {dispatch(name, detail, isCancelable), maxSelected, holdsEachSeat, screen, texts, money}. */
  constructor(model, host) {
    this.model = model;
    this.host = host;
  }

  // ---- seats in words

  /** A seat as the page is told of it. */
  describe(at) {
    const { model } = this;
    const row = model.plan.rows[model.plan.rowOf[at]];
    return {
      id: model.ids[at],
      section: row.section || null,
      row: row.name || null,
      number: model.numbers[at],
      category: model.categories[at],
      price: model.prices[at],
      state: lookName(model.bytes[at]),
    };
  }

  #parts(at) {
    const { section, row, number } = this.describe(at);
    return { section, row, seat: number };
  }

  label(at) {
    const { texts, money } = this.host;
    const state = texts.states[lookName(this.model.bytes[at])];
    return texts.seatLabel({ ...this.#parts(at), price: money.exact(this.model.prices[at]), state });
  }

  /** The same in two lines. */
  tip(at) {
    const { texts, money } = this.host;
    const state = texts.states[lookName(this.model.bytes[at])];
    return `${this.name(at)}\n${money.exact(this.model.prices[at])}, ${state}`;
  }

  name(at) {
    return this.host.texts.seatName(this.#parts(at));
  }

  // ---- choosing

  canToggle(at) {
    const byte = this.model.bytes[at];
    return this.model.isOpen(at) || Boolean(byte & SELECTED) || (this.host.holdsEachSeat && isHeldForBuyer(byte));
  }

  get #chosen() {
    const { model, host } = this;
    return model.selected.length + (host.holdsEachSeat ? model.heldForBuyer.length : 0);
  }

  toggle(at) {
    const { model, host } = this;
    if (!this.canToggle(at)) return this.#refuse(at, this.label(at));
    const byte = model.bytes[at];
    const isSelected = !(byte & SELECTED) && !isHeldForBuyer(byte);
    const isFull = isSelected && this.#chosen >= host.maxSelected;
    if (isFull) return this.#refuse(at, host.texts.selectionFull(host.maxSelected));
    const isAllowed = host.dispatch("earmark-toggle", { seat: this.describe(at), isSelected }, true);
    if (!isAllowed) return this.#changed([at]);
    // The page may have answered already, within the event.
    if (model.bytes[at] === byte) model.select(at, isSelected, { isPending: host.holdsEachSeat });
    host.screen.hideNotice();
    this.#changed([at]);
    host.screen.say(isSelected ? host.texts.nowSelected(this.name(at)) : host.texts.nowFree(this.name(at)));
    return this.#tellSelection();
  }

  #refuse(at, words) {
    this.host.screen.notify(words);
    this.#changed([at]);
  }

  #changed(seats) {
    this.host.screen.update(seats);
  }

  get selection() {
    const { model } = this;
    return {
      seats: model.selected.map((at) => model.ids[at]),
      pools: Object.fromEntries(model.units),
    };
  }

  /** Selects these seats and units, and nothing else; what is not free is left out. */
  setSelection({ seats = [], pools = {} }) {
    const { model } = this;
    const wanted = new Set(seats.map((id) => model.placeOf(id)).filter((at) => at >= 0 && model.isOpen(at)));
    const before = model.selected;
    for (const at of before) model.select(at, false);
    for (const at of wanted) model.select(at, true);
    model.units.clear();
    for (const [id, units] of Object.entries(pools)) {
      model.setUnits(id, Math.min(units, model.unitsMax(id)));
    }
    this.#changed([...new Set([...before, ...wanted])]);
  }

  setUnits(id, units) {
    this.model.setUnits(id, units);
    this.#changed([]);
    this.host.dispatch("earmark-pool", { pool: id, units, price: this.model.pools.get(id)?.price ?? 0 });
    this.#tellSelection();
  }

  #tellSelection() {
    const { seats, pools } = this.selection;
    this.host.dispatch("earmark-select", { seats: seats.map((id) => this.describe(this.model.placeOf(id))), pools });
  }

  // ---- what became of it

  /** What the page's request for a seat led to: "held", "free" or "taken". */
  setHoldResult(id, result) {
    const { model, host } = this;
    const at = model.placeOf(id);
    if (at < 0) return;
    model.select(at, false);
    model.setOwn(id, result === "held");
    if (result === "taken") {
      model.markTaken(at);
      this.lose([at]);
    }
    if (result === "held") host.screen.say(host.texts.nowHeld(this.name(at)));
    this.#changed([at]);
    this.#tellSelection();
  }

  /** Selected seats went to others: they leave the selection, and free seats nearby are offered. */
  lose(seats) {
    const { model, host } = this;
    if (!seats.length) return;
    const near = (at) => nearbySeats(model.plan, at, { accept: (other) => this.#isOffered(other), most: OFFERS_MAX });
    const offers = [...new Set(seats.flatMap(near))].slice(0, OFFERS_MAX + seats.length - 1);
    for (const at of seats) {
      const neighbours = near(at).map((other) => this.describe(other));
      host.dispatch("earmark-taken", { seat: this.describe(at), neighbours });
    }
    host.screen.map.flash(seats);
    const words = host.texts.taken(seats.map((at) => this.name(at)).join("; "));
    host.screen.notify(
      `${words} ${offers.length ? host.texts.instead : host.texts.noneNear}`,
      offers.map((at) => ({ words: this.name(at), seat: at, take: () => this.#take(at) })),
    );
    this.#tellSelection();
  }

  #isOffered(at) {
    return this.model.isOpen(at) && !(this.model.bytes[at] & SELECTED);
  }

  #take(at) {
    const { screen } = this.host;
    this.toggle(at);
    if (screen.view === "map") screen.grid.focusSeat(at);
    else screen.nodes.views[1].focus();
  }

  // ---- the best that are free

  /** Tells the page, which may hold the seats that the server chooses; if it does not, selects a proposal. */
  pickBest({ count, level }) {
    const { model, host } = this;
    const { category = null, price = null } = model.levels[level] ?? {};
    const isOurs = host.dispatch("earmark-best-available", { count, category, price }, true);
    if (!isOurs) return;
    if (this.#chosen + count > host.maxSelected) return host.screen.notify(host.texts.selectionFull(host.maxSelected));
    const accept = (at) => this.#isOffered(at) && (level === null || model.levelOf[at] === level);
    const found = bestSeats(model.plan, count, accept);
    if (!found) return host.screen.notify(host.texts.noneTogether(count));
    for (const at of found) this.toggle(at);
    if (host.screen.view === "map") host.screen.map.reveal(found[0]);
    host.screen.say(host.texts.pickedBest(found.map((at) => this.name(at)).join("; ")));
  }
}
