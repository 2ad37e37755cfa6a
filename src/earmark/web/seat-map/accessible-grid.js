// The seats as a grid of the accessibility tree, above the canvas: real elements that have focus, names and states.
// Only the rows around the active seat are in the document; the row numbers say how many there are.

import { el } from "../dom.js";
import { nextSeat, rowEnds, seatOfNextSection } from "./neighbours.js";
import { isFree, isHeldForBuyer, lookName, SELECTED } from "./seat-states.js";

const UNIT_PX = 32; // of the grid's own coordinates; the camera scales them
const CELLS_MAX = 500;

export class AccessibleGrid {
  #cells = new Map(); // seat → its cell
  #section = -1;
  #active = -1;

  /** does: {toggle(seat), focus(seat or -1), label(seat), canToggle(seat)}. */
  constructor({ model, texts, does }) {
    this.model = model;
    this.texts = texts;
    this.does = does;
    this.node = el("div", {
      class: "grid",
      role: "grid",
      "aria-multiselectable": "true",
      click: (event) => this.#onClick(event),
      focusin: (event) => this.#onFocus(seatOf(event)),
      focusout: () => does.focus(-1),
    });
  }

  get active() {
    return this.#active;
  }

  /** Moves the grid to where the seats are drawn. */
  move({ scale, x, y }) {
    this.node.style.transform = `translate(${x}px, ${y}px) scale(${scale / UNIT_PX})`;
  }

  /** After a new plan: the first free seat is the one that the tab key reaches. */
  reset() {
    const { count, plan } = this.model;
    this.#section = this.#active = -1;
    this.#cells.clear();
    this.node.replaceChildren();
    this.node.hidden = count === 0;
    if (!count) return;
    const isOpen = (seat) => this.model.isOpen(seat);
    const row = plan.rows.find(({ seats }) => seats.some(isOpen)) ?? plan.rows[0];
    this.#activate(row.seats.find(isOpen) ?? row.seats[0]);
  }

  /** These seats have changed. */
  update(seats) {
    for (const seat of seats) if (this.#cells.has(seat)) this.#say(seat, this.#cells.get(seat));
    if (this.#section >= 0) this.#nameGrid();
  }

  /** Another language, price or filter: everything is said anew. */
  refresh() {
    this.update(this.#cells.keys());
  }

  /** Makes a seat the active one and gives it the focus. */
  focusSeat(seat) {
    this.#activate(seat);
    this.#cells.get(seat).focus({ preventScroll: true });
  }

  /** Makes a section the one that the tab key reaches. */
  enterSection(section) {
    if (section === this.#section) return;
    const { seats } = this.model.plan.sections[section];
    this.#activate(seats.find((seat) => this.model.isOpen(seat)) ?? seats[0]);
  }

  /** Where an arrow key and its like lead from the active seat; null for other keys. */
  seatFor(event) {
    const { plan } = this.model;
    const { key } = event;
    const isAll = event.ctrlKey || event.metaKey;
    if (key.startsWith("Arrow") && !isAll) return nextSeat(plan, this.#active, key);
    if (key === "Home") return isAll ? plan.rows[0].seats[0] : rowEnds(plan, this.#active)[0];
    if (key === "End") return isAll ? plan.rows.at(-1).seats.at(-1) : rowEnds(plan, this.#active)[1];
    if (key === "PageUp") return seatOfNextSection(plan, this.#active, -1);
    if (key === "PageDown") return seatOfNextSection(plan, this.#active, 1);
    return null;
  }

  #onClick(event) {
    const seat = seatOf(event);
    if (seat >= 0) this.does.toggle(seat);
  }

  #onFocus(seat) {
    if (seat < 0) return;
    this.#activate(seat);
    this.does.focus(seat);
  }

  // ---- cells

  #activate(seat) {
    if (!this.#cells.has(seat)) this.#build(seat);
    this.#cells.get(this.#active)?.setAttribute("tabindex", -1);
    this.#cells.get(seat).setAttribute("tabindex", 0);
    this.#active = seat;
  }

  #build(around) {
    const { plan } = this.model;
    this.#section = plan.sectionOf[around];
    this.#cells.clear();
    const { rows } = plan.sections[this.#section];
    const columns = rows.reduce((most, row) => Math.max(most, plan.rows[row].seats.length), 0);
    this.node.setAttribute("aria-rowcount", rows.length);
    this.node.setAttribute("aria-colcount", columns);
    this.#nameGrid();
    const nodes = rowsAround(rows, rows.indexOf(plan.rowOf[around]), plan.rows);
    this.node.replaceChildren(...nodes.map((at) => this.#row(rows[at], at + 1)));
  }

  #row(row, number) {
    const { seats } = this.model.plan.rows[row];
    const cells = Array.from(seats, (seat, column) => this.#cell(seat, column + 1));
    return el("div", { role: "row", "aria-rowindex": number }, cells);
  }

  #cell(seat, column) {
    const { x, y } = this.model.plan;
    const node = el("div", { role: "gridcell", tabindex: -1, "aria-colindex": column });
    node.dataset.seat = seat;
    node.style.left = `${(x[seat] - 0.5) * UNIT_PX}px`;
    node.style.top = `${(y[seat] - 0.5) * UNIT_PX}px`;
    this.#cells.set(seat, node);
    this.#say(seat, node);
    return node;
  }

  #say(seat, node) {
    const byte = this.model.bytes[seat];
    const isChosen = isFree(byte) ? Boolean(byte & SELECTED) : isHeldForBuyer(byte);
    node.dataset.state = lookName(byte);
    node.setAttribute("aria-label", this.does.label(seat));
    node.setAttribute("aria-selected", isChosen);
    node.setAttribute("aria-disabled", !this.does.canToggle(seat));
  }

  #nameGrid() {
    const { name } = this.model.plan.sections[this.#section];
    this.node.setAttribute("aria-label", this.texts.gridLabel(name, this.model.free[this.#section]));
  }
}

const seatOf = (event) => Number(event.target.closest?.("[data-seat]")?.dataset.seat ?? -1);

/** Numbers of rows, nearest to one first, until there are enough seats; in the order of the section. */
function rowsAround(rows, middle, all) {
  const chosen = [];
  let cells = 0;
  for (let away = 0; away < rows.length && (cells < CELLS_MAX || away < 2); away++) {
    for (const at of away ? [middle - away, middle + away] : [middle]) {
      if (at < 0 || at >= rows.length) continue;
      chosen.push(at);
      cells += all[rows[at]].seats.length;
    }
  }
  return chosen.sort((one, other) => one - other);
}
