// The shop on a page of another site: a seat map, a line that says what is in the basket, and a button that leads to the
// checkout on Earmark's own site. docs/howto/embed-the-shop.md.

import * as api from "../api.js";
import { Basket } from "./basket.js";
import { Clock } from "./clock.js";
import { clockFace, contents, list, money, seatName, texts } from "./language.js";
import { connectMap, showBasketOnMap } from "./map-and-basket.js";
import { wordsFor } from "./refusal-words.js";

/**
 * map: an <earmark-seat-map> with its `event`. summary: where the basket's contents, sum and time are written. button: leads
 * to the checkout. onMessage(words): what went wrong; without it, the summary says so. Resolves with the basket.
 */
export async function embed({ map, summary, button, onMessage = null }) {
  const eventId = map.getAttribute("event");
  map.removeAttribute("event"); // the element begins with it, and shall have the token by then
  await Promise.all([import("../earmark-seat-map.js"), api.enter()]);
  map.token = api.bearer();
  map.setAttribute("event", eventId);
  const event = await api.readEvent(eventId);
  const tell = onMessage ?? ((words) => (summary.textContent = words));
  const basket = new Basket({
    eventId: event.id,
    onChange: () => show(),
    onSeat: (id, result) => map.setHoldResult(id, result),
    onRefusal: (error, { taken }) => tell(taken.length ? texts.taken(list(taken.map(seatName)), taken.length) : wordsFor(error)),
  });
  const clock = new Clock({
    onTick: (left) => (summary.textContent = summaryOf(basket, event, left)),
    onEnd: () => runOut(basket, tell),
  });
  const show = () => {
    showBasketOnMap(map, basket);
    button.disabled = basket.booking === null || basket.isBusy;
    if (basket.booking) clock.run(basket.booking.deadline);
    else clock.stop();
    summary.textContent = basket.booking ? summaryOf(basket, event, clock.left) : texts.basketEmpty;
  };
  api.whenTokenEnds(async () => {
    map.token = api.bearer();
    await basket.load().catch(() => {});
    tell(texts.begunAnew);
  });
  connectMap(map, basket);
  button.textContent ||= texts.checkout;
  button.addEventListener("click", () => location.assign(api.checkoutPage(basket.booking.id)));
  // The browser's "back" from the checkout may show this page as it was left.
  addEventListener("pageshow", () => basket.load().catch((error) => tell(wordsFor(error))));
  show();
  return basket;
}

function summaryOf(basket, { currency }, left) {
  return `${contents(basket.lines)} · ${money(basket.total, currency)} · ${clockFace(left)}`;
}

async function runOut(basket, tell) {
  const { booking } = basket;
  await basket.load().catch(() => {});
  if (booking && basket.booking?.id !== booking.id) tell(texts.timeIsUp(contents(booking)));
}
