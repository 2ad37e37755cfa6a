// One booking in the list: what it is, how it stands, and what the buyer can do with it.

import * as api from "../api.js";
import { el } from "../dom.js";
import { Clock } from "./clock.js";
import { clockFace, duration, money, moment, momentBriefly, seatName, texts } from "./language.js";
import { moreTime } from "./more-time.js";
import { say } from "./page-frame.js";

export class BookingCard {
  #clock = null;

  /** does: {extend, release, cancel, runOut}, each with the booking. */
  constructor({ booking, event, does }) {
    Object.assign(this, { booking, event, does });
    this.node = el(
      "article",
      { class: "card booking", "data-booking": booking.id, "data-state": booking.state, tabindex: -1, "aria-label": this.#label },
      el("header", {}, el("h3", { dir: "auto" }, event?.name ?? booking.event_id), this.#state()),
      event?.starts_at ? el("p", { class: "quiet" }, moment(event.starts_at)) : null,
      this.#lines(),
      this.#notes(),
      this.#actions(),
    );
    if (booking.state === "confirmed") this.#addTickets();
  }

  stop() {
    this.#clock?.stop();
  }

  get #label() {
    return `${this.event?.name ?? this.booking.event_id}, ${texts.states[this.booking.state]}`;
  }

  #state() {
    const words = el("span", { class: "state" }, texts.states[this.booking.state]);
    if (this.booking.state !== "held") return words;
    const face = el("span", { class: "clock", role: "timer", "aria-label": texts.timeLeft });
    this.#clock = new Clock({
      onTick: (left) => {
        face.textContent = clockFace(left);
        this.node?.classList.toggle("urgent", left <= 60);
      },
      onWarning: (seconds) => say(seconds === 60 ? texts.warnSoonLast : texts.warnNow, { isUrgent: seconds === 20 }),
      onEnd: () => this.does.runOut(),
    });
    queueMicrotask(() => this.#clock.run(this.booking.deadline));
    return el("span", { class: "state" }, `${texts.states.held} `, face);
  }

  #lines() {
    const { seats, pools, total } = this.booking;
    const line = (name, amount) =>
      el("li", {}, el("span", { class: "line-name" }, el("bdi", {}, name)), el("span", { class: "line-price" }, money(amount, total.currency)));
    return el(
      "ul",
      { class: "lines" },
      seats.map((seat) => line(seatName(seat), seat.price)),
      pools.map(({ id, units, price }) => line(texts.units(units, id), units * price)),
      el("li", { class: "sum" }, el("span", {}, texts.total), el("strong", {}, money(total.amount, total.currency))),
    );
  }

  #notes() {
    const until = this.booking.cancellable_until;
    return until ? el("p", { class: "quiet small" }, texts.cancelUntil(momentBriefly(until))) : null;
  }

  #actions() {
    const { booking, does } = this;
    const page = `checkout?booking=${encodeURIComponent(booking.id)}`;
    this.actions = el("p", { class: "actions" });
    if (booking.state === "held") {
      const step = moreTime(booking, this.event);
      const more = { type: "button", click: () => does.extend(booking) };
      this.actions.append(
        el("a", { class: "button main", href: page }, texts.pay),
        ...(step ? [el("button", more, texts.moreTime(duration(step)))] : []),
        el("button", { type: "button", click: () => does.release(booking) }, texts.release),
      );
    }
    if (booking.state === "paying") this.actions.append(el("a", { class: "button main", href: page }, texts.toPayment));
    if (booking.cancellable_until) {
      this.actions.append(el("button", { type: "button", click: () => does.cancel(booking) }, texts.cancel));
    }
    return this.actions;
  }

  async #addTickets() {
    const url = await api.ticketPage(this.booking.id);
    if (url) this.actions.prepend(el("a", { class: "button main", href: url }, texts.openTickets));
  }
}
