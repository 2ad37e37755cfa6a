// Counted units, without a number on the seat: how many are left, and how many this buyer wants.

import { el } from "./dom.js";

export class PoolList {
  #rows = new Map();

  /** onChange(poolId, units) when the buyer wants another number. */
  constructor(root, { onChange, price }) {
    this.root = root;
    this.onChange = onChange;
    this.price = price;
  }

  update(pools, unitsOf) {
    for (const pool of pools) {
      if (!this.#rows.has(pool.id)) this.#add(pool);
      this.#show(pool, unitsOf(pool.id));
    }
  }

  #add(pool) {
    const typed = (by) => () => this.#set(pool.id, this.#units(pool.id) + by);
    const step = (by, sign, words) =>
      el("button", { type: "button", "aria-label": `${words} ${pool.id}`, click: typed(by) }, sign);
    const label = `How many ${pool.id}`;
    const row = {
      left: el("p", { class: "quiet" }),
      fill: el("div", { class: "fill" }),
      input: el("input", { type: "number", min: 0, inputmode: "numeric", "aria-label": label, change: typed(0) }),
      fewer: step(-1, "−", "One less"),
      more: step(+1, "+", "One more"),
      available: pool.available,
    };
    this.#rows.set(pool.id, row);
    this.root.append(
      el(
        "li",
        { "data-pool": pool.id },
        el("div", { class: "pool-name" }, el("strong", {}, pool.id), el("span", {}, this.price(pool)), row.left),
        el("div", { class: "stepper" }, row.fewer, row.input, row.more),
        el("div", { class: "bar", "aria-hidden": "true" }, row.fill),
      ),
    );
  }

  #show(pool, units) {
    const row = this.#rows.get(pool.id);
    row.available = pool.available;
    row.left.textContent = pool.available ? `${pool.available} of ${pool.capacity} left` : "Sold out for now";
    row.fill.style.width = `${(100 * pool.available) / Math.max(1, pool.capacity)}%`;
    row.input.max = pool.available;
    // A number being typed is left alone.
    if (document.activeElement !== row.input || Number(row.input.value) > pool.available) row.input.value = units;
    row.fewer.disabled = units === 0;
    row.more.disabled = units >= pool.available;
  }

  #units(id) {
    return Math.trunc(Number(this.#rows.get(id).input.value)) || 0;
  }

  #set(id, units) {
    const row = this.#rows.get(id);
    const allowed = Math.min(Math.max(0, units), row.available);
    row.input.value = allowed;
    this.onChange(id, allowed);
  }
}
