// The same seats as a table with checkboxes, one section at a time: everything that the map does, without the map.

import { el } from "../dom.js";
import { lookName, isFree, isHeldForBuyer, SELECTED } from "./seat-states.js";

const ROWS_AT_ONCE = 200;

export class ListView {
  #rows = new Map(); // seat → {box, state}
  #section = 0;
  #limit = ROWS_AT_ONCE;

  /** does: {toggle(seat), label(seat), canToggle(seat), money(), enter(section)}. */
  constructor({ model, texts, does }) {
    this.model = model;
    this.texts = texts;
    this.does = does;
    this.node = el("div", { class: "list", hidden: true });
  }

  get section() {
    return this.#section;
  }

  /** Shows a section from its first row on. */
  enter(section) {
    this.#section = section;
    this.#limit = ROWS_AT_ONCE;
    this.render();
  }

  /** Renders everything, if it is seen. */
  render() {
    if (this.node.hidden) return;
    this.#rows.clear();
    const section = this.model.plan.sections[this.#section];
    if (!section) return this.node.replaceChildren();
    const all = section.rows.flatMap((row) => [...this.model.plan.rows[row].seats]);
    const shown = all.filter((seat) => this.model.isShown(this.model.levelOf[seat]));
    this.node.replaceChildren(this.#table(section, shown.slice(0, this.#limit)), ...this.#rest(shown.length));
  }

  /** These seats have changed. */
  update(seats) {
    if (this.node.hidden) return;
    for (const seat of seats) if (this.#rows.has(seat)) this.#say(seat);
  }

  #table(section, seats) {
    const { texts } = this;
    const heads = [texts.choose, texts.row, texts.seat, texts.category, texts.price, texts.state];
    return el(
      "table",
      {},
      el("caption", {}, texts.listLabel(section.name)),
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, seats.map((seat) => this.#row(seat))),
    );
  }

  #row(seat) {
    const { model } = this;
    const box = el("input", { type: "checkbox", change: () => this.does.toggle(seat) });
    const [price, state] = [el("td", {}), el("td", {})];
    this.#rows.set(seat, { box, price, state });
    this.#say(seat);
    return el(
      "tr",
      { click: (event) => event.target === box || box.disabled || box.click() },
      el("td", {}, box),
      el("td", {}, model.plan.rows[model.plan.rowOf[seat]].name),
      el("td", {}, model.numbers[seat]),
      el("td", {}, model.categories[seat] ?? ""),
      price,
      state,
    );
  }

  #say(seat) {
    const { box, price, state } = this.#rows.get(seat);
    const byte = this.model.bytes[seat];
    const name = lookName(byte);
    box.setAttribute("aria-label", this.does.label(seat));
    box.checked = isFree(byte) ? Boolean(byte & SELECTED) : isHeldForBuyer(byte);
    box.disabled = !this.does.canToggle(seat);
    price.textContent = this.does.money().exact(this.model.prices[seat]);
    state.textContent = this.texts.states[name];
    state.dataset.state = name;
  }

  #rest(count) {
    const left = count - this.#limit;
    if (left <= 0) return [];
    const more = () => {
      this.#limit += ROWS_AT_ONCE;
      this.render();
      this.node.querySelectorAll("input")[this.#limit - ROWS_AT_ONCE].focus();
    };
    const words = this.texts.more(Math.min(left, ROWS_AT_ONCE));
    return [el("button", { type: "button", class: "more", click: more }, words)];
  }
}
