// One try to pay, kept in the tab: its key and its request stay the same until it is answered, so that a reload, a double
// click or a lost answer pays once.

import { uuid } from "../api.js";

export class PaymentTry {
  #place;

  constructor(bookingId) {
    this.#place = `earmark.payment.${bookingId}`;
  }

  /** { key, body, chosen, payment, answered }, or null where this tab has not tried to pay. */
  get last() {
    return JSON.parse(sessionStorage.getItem(this.#place));
  }

  /** The try for this choice of a card: the last one if it was for the same and was not answered, else a new one. */
  begin(chosen, body) {
    const last = this.last;
    if (last && !last.answered && last.chosen === chosen) return last;
    return this.#keep({ key: uuid(), body, chosen, payment: null, answered: false });
  }

  /** It is the payment with this id, which is still being decided. */
  opened(payment) {
    if (this.last) this.#keep({ ...this.last, payment });
  }

  /** It was decided, or opened nothing: the next one gets a key of its own. */
  answered() {
    if (this.last) this.#keep({ ...this.last, answered: true });
  }

  #keep(one) {
    sessionStorage.setItem(this.#place, JSON.stringify(one));
    return one;
  }
}
