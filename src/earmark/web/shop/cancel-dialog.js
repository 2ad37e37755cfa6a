// Asks before a booking is cancelled, and says first what the event's rules give back.

import { byId } from "../dom.js";
import { serverNow } from "../api.js";
import { contents, money, texts } from "./language.js";

export class CancelDialog {
  #answer = () => {};

  constructor() {
    this.node = byId("cancel");
    byId("cancel-keep").addEventListener("click", () => this.node.close());
    byId("cancel-now").addEventListener("click", () => {
      this.#answer(true);
      this.node.close();
    });
    this.node.addEventListener("close", () => this.#answer(false));
  }

  /** Resolves with whether the buyer wants to cancel it. */
  asks(booking, event) {
    byId("cancel-text").textContent = texts.cancelText(contents(booking));
    byId("cancel-money").textContent = moneyWords(booking, event);
    this.node.showModal();
    return new Promise((resolve) => (this.#answer = resolve));
  }
}

// The server decides by the same rules at the moment of the cancellation.
function moneyWords({ total }, event) {
  if (total.amount === 0) return "";
  const { starts_at: start, refund_until_seconds: until } = event;
  const isLate = start !== null && until !== null && serverNow() >= new Date(Date.parse(start) - 1000 * until);
  if (isLate) return texts.cancelNoRefund;
  const fee = Math.min(total.amount, Math.ceil((total.amount * event.refund_fee_percent) / 100) + event.refund_fee_fixed);
  const refund = money(total.amount - fee, total.currency);
  if (total.amount === fee) return texts.cancelNoRefund;
  return fee ? texts.cancelRefundFee(refund, money(fee, total.currency)) : texts.cancelRefund(refund);
}
