// The basket on the page: what is in it, how long it is held, and what can be done. On a phone it is a bar at the bottom
// that opens.

import { byId, el } from "../dom.js";
import { Clock } from "./clock.js";
import { clockFace, duration, money, seatName, texts } from "./language.js";
import { moreTime } from "./more-time.js";
import { say } from "./page-frame.js";

export class BasketView {
  #shownLines = "";
  #length = 1; // seconds that the clock's bar stands for
  #bookingId = null;

  /** does: {removeSeat(id), removePool(id), extend(seconds), clear(), checkout(), runOut()}. */
  constructor({ basket, event, does }) {
    Object.assign(this, { basket, event, does });
    this.clock = new Clock({
      onTick: (left) => this.#showClock(left),
      onWarning: (seconds) => this.#warn(seconds),
      onEnd: () => does.runOut(),
    });
    const press = { "basket-more": () => does.extend(this.#step), "basket-clear": does.clear, "basket-checkout": does.checkout };
    for (const [id, act] of Object.entries(press)) byId(id).addEventListener("click", act);
    byId("basket-toggle").addEventListener("click", () => this.open(!this.isOpen));
    byId("basket").addEventListener("keydown", ({ key }) => key === "Escape" && this.isOpen && this.open(false));
  }

  // ---- the bar of a phone

  get isOpen() {
    return byId("basket").classList.contains("open");
  }

  open(isOpen) {
    byId("basket").classList.toggle("open", isOpen);
    byId("basket-toggle").setAttribute("aria-expanded", isOpen);
    byId("basket-toggle").setAttribute("aria-label", isOpen ? texts.basketOpen : texts.basketClosed);
  }

  // ---- showing

  get #step() {
    return this.basket.booking ? moreTime(this.basket.booking, this.event) : 0;
  }

  show() {
    const { basket } = this;
    const { isEmpty, isLocked, isBusy } = basket;
    byId("basket").classList.toggle("empty", isEmpty);
    byId("basket-empty").hidden = !isEmpty;
    byId("basket-full").hidden = isEmpty;
    byId("basket-toggle").hidden = isEmpty;
    byId("basket-paying").hidden = !isLocked;
    byId("basket-total").textContent = isEmpty ? "" : money(basket.total, this.event.currency);
    byId("basket-count").textContent = isEmpty ? "" : countWords(basket);
    byId("basket-checkout").textContent = isLocked ? texts.toPayment : texts.checkout;
    byId("basket-checkout").setAttribute("aria-disabled", isBusy);
    byId("basket").setAttribute("aria-busy", isBusy);
    byId("basket-others").hidden = basket.others.length === 0;
    byId("basket-others").textContent = basket.others.length ? texts.otherBaskets(basket.others.length) : "";
    this.#showLines();
    this.#showTime();
    if (isEmpty && this.isOpen) this.open(false);
  }

  #showLines() {
    const { seats, pools } = this.basket.lines;
    const { currency } = this.event;
    const lines = [
      ...seats.map((seat) => ({ name: seatName(seat), price: seat.price, id: seat.id, isPending: seat.isPending, remove: () => this.does.removeSeat(seat.id) })),
      ...pools.map((pool) => ({
        name: texts.units(pool.units, pool.id),
        price: pool.units * pool.price,
        id: pool.id,
        isPending: pool.isPending,
        remove: () => this.does.removePool(pool.id),
      })),
    ];
    // Rendered again only when they differ: a button in use keeps its focus while answers arrive.
    const rendered = JSON.stringify([this.basket.isLocked, lines]);
    if (rendered === this.#shownLines) return;
    this.#shownLines = rendered;
    const focused = document.activeElement?.dataset?.remove;
    byId("basket-lines").replaceChildren(...lines.map((line) => this.#line(line, currency)));
    if (focused !== undefined) this.#keepFocus(focused);
  }

  #line({ name, price, id, isPending, remove }, currency) {
    const click = () => {
      remove();
      byId("basket-name").focus();
    };
    const label = texts.remove(name);
    const cross = el("button", { type: "button", class: "round", "aria-label": label, title: label, "data-remove": id, click }, "×");
    return el(
      "li",
      { "data-line": id, "data-pending": isPending },
      el("span", { class: "line-name" }, el("bdi", {}, name)),
      el("span", { class: "line-price" }, money(price, currency)),
      this.basket.isLocked ? null : cross,
    );
  }

  #keepFocus(id) {
    const button = [...byId("basket-lines").querySelectorAll("button")].find(({ dataset }) => dataset.remove === id);
    (button ?? byId("basket-name")).focus();
  }

  // ---- time

  #showTime() {
    const { booking, isLocked } = this.basket;
    const isTimed = booking !== null && !isLocked && !this.basket.isEmpty;
    byId("basket-time").hidden = !isTimed;
    byId("basket-clock").hidden = !isTimed;
    if (!isTimed) {
      byId("basket").classList.remove("urgent");
      this.#bookingId = null;
      return this.clock.stop();
    }
    if (booking.id !== this.#bookingId || booking.expires_in > this.#length) this.#length = booking.expires_in;
    this.#bookingId = booking.id;
    this.clock.run(booking.deadline);
    const step = this.#step;
    byId("basket-more").hidden = step === 0;
    byId("basket-more").textContent = texts.moreTime(duration(step));
    byId("basket-no-more").hidden = step > 0;
  }

  #showClock(left) {
    byId("basket-clock").textContent = clockFace(left);
    byId("basket-fill").style.width = `${Math.min(100, (100 * left) / this.#length)}%`;
    byId("basket").classList.toggle("urgent", left <= 60);
  }

  #warn(seconds) {
    const words = this.#step > 0 ? texts.warnSoon : texts.warnSoonLast;
    if (seconds === 60) say(words);
    else say(texts.warnNow, { isUrgent: true });
  }
}

/** "2 seats", or "3 tickets" where some have no number. */
export function countWords({ count, lines }) {
  return lines.pools.length ? texts.tickets(count) : texts.seats(count);
}
