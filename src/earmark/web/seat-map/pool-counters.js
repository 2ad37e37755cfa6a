// Units without a number on a seat: how many are left, and how many the buyer wants.

import { el } from "../dom.js";

export class PoolCounters {
  #rows = new Map();

  /** onUnits(poolId, units) when the buyer wants another number. */
  constructor({ model, texts, onUnits }) {
    this.model = model;
    this.texts = texts;
    this.onUnits = onUnits;
    this.list = el("ul", {});
    const heading = el("h3", {}, texts.pools);
    this.node = el("section", { class: "pools", "aria-label": texts.pools, hidden: true }, heading, this.list);
  }

  render(money) {
    const { pools } = this.model;
    this.node.hidden = pools.size === 0;
    for (const [id, row] of this.#rows) {
      if (pools.has(id)) continue;
      row.node.remove();
      this.#rows.delete(id);
    }
    for (const pool of pools.values()) {
      if (!this.#rows.has(pool.id)) this.#add(pool.id);
      this.#show(pool, money);
    }
  }

  #add(id) {
    const { texts } = this;
    const typed = (by) => () => this.#set(id, this.#wanted(id) + by);
    const step = (by, sign, label) => el("button", { type: "button", "aria-label": label, click: typed(by) }, sign);
    const label = texts.poolUnits(id);
    const row = {
      price: el("span", {}),
      left: el("span", { class: "quiet" }),
      fill: el("div", { class: "fill" }),
      input: el("input", { type: "number", min: 0, inputmode: "numeric", "aria-label": label, change: typed(0) }),
      fewer: step(-1, "−", texts.oneLess(id)),
      more: step(1, "+", texts.oneMore(id)),
    };
    row.node = el(
      "li",
      { "data-pool": id },
      el("div", { class: "words" }, el("strong", {}, id), row.price, row.left),
      el("div", { class: "stepper" }, row.fewer, row.input, row.more),
      el("div", { class: "meter", "aria-hidden": "true" }, row.fill),
    );
    this.#rows.set(id, row);
    this.list.append(row.node);
  }

  #show(pool, money) {
    const row = this.#rows.get(pool.id);
    const wanted = this.model.units.get(pool.id) ?? 0;
    row.price.textContent = money.exact(pool.price);
    row.left.textContent = this.texts.poolLeft(pool.available, pool.capacity);
    row.fill.style.width = `${(100 * pool.available) / Math.max(1, pool.capacity)}%`;
    const most = this.model.unitsMax(pool.id);
    row.input.max = most;
    // A number that is being typed is left alone.
    const isTyped = row.input.getRootNode().activeElement === row.input;
    if (!isTyped || Number(row.input.value) > most) row.input.value = wanted;
    row.fewer.disabled = wanted === 0;
    row.more.disabled = wanted >= most;
  }

  #wanted(id) {
    return Math.trunc(Number(this.#rows.get(id).input.value)) || 0;
  }

  #set(id, units) {
    const allowed = Math.min(Math.max(0, units), this.model.unitsMax(id));
    this.#rows.get(id).input.value = allowed;
    this.onUnits(id, allowed);
  }
}
