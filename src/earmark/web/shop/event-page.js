// The page of an event: its seats, whether they are on sale, and the buyer's basket. The server decides; this page shows it.

import "../earmark-seat-map.js";
import * as api from "../api.js";
import { byId, el } from "../dom.js";
import { Basket } from "./basket.js";
import { BasketView } from "./basket-view.js";
import { clockFace, contents, duration, language, list, moment, seatName, texts } from "./language.js";
import { connectMap, showBasketOnMap } from "./map-and-basket.js";
import { hideNotice, notify, notifyError, runPage, say } from "./page-frame.js";
import { saleState } from "./sale-state.js";

const LOOK_AGAIN_MS = 1000;
const PAYMENT_MS = 4000;

let event = null;
let basket = null;
let view = null;
let available = null; // free seats and units, as the map says
let sale = null;
let paymentTimer = null;
const map = () => byId("map");

runPage({ open, refresh: () => basket?.load() ?? Promise.resolve() });

// ---- opening

async function open() {
  const events = await api.listEvents();
  event = await findEvent(events, new URLSearchParams(location.search).get("event"));
  showEvent(events);
  if (!event) return;
  if (!basket) start();
  await basket.load();
  byId("basket").hidden = false;
  map().inert = false;
  show();
}

// Once, though the page is opened again and again until the server answers.
function start() {
  basket = new Basket({ eventId: event.id, onChange: show, onSeat: showSeat, onRefusal: refuse });
  view = new BasketView({ basket, event, does });
  startMap();
}

async function findEvent(events, wanted) {
  const listed = events.find(({ id }) => id === wanted);
  if (listed || !wanted) return listed ?? events[0] ?? null;
  return api.readEvent(wanted).catch((error) => {
    if (error.code !== "event_unknown") throw error;
    notify("warning", texts.eventUnknown);
    return null;
  });
}

function showEvent(events) {
  byId("title").textContent = event?.name ?? texts.nothingOnSale;
  document.title = event ? `${event.name} · Earmark` : "Earmark";
  byId("event-facts").textContent = event?.starts_at ? moment(event.starts_at) : "";
  byId("events").hidden = events.length < 2;
  byId("events").replaceChildren(
    ...events.map(({ id, name }) =>
      el("a", { href: `?event=${encodeURIComponent(id)}`, "aria-current": id === event?.id ? "page" : null }, el("bdi", {}, name)),
    ),
  );
  byId("events").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function startMap() {
  const element = map();
  element.inert = true; // until the basket is known: the first choice is added to it
  element.lang = language;
  element.token = api.bearer();
  connectMap(element, basket, { canChange, left: () => sale.left });
  element.addEventListener("earmark-availability", ({ detail }) => countAvailable(detail));
  element.setAttribute("event", event.id);
  byId("seats").hidden = false;
}

// ---- what the buyer does

/** Whether the basket can be changed now, for more or for less; if not, the page says why. */
function canChange({ isMore }) {
  hideNotice();
  if (basket.isLocked) notify("warning", texts.paymentOpen, { words: texts.toPayment, act: goToCheckout });
  else if (isMore && sale.name === "soon") notify("warning", texts.notYetOnSale);
  else if (isMore && sale.name === "over") notify("warning", texts.noLongerOnSale);
  else return true;
  return false;
}

const does = {
  removeSeat: (id) => basket.dropSeat(id),
  removePool: (id) => basket.setUnits({ id, units: 0 }),
  clear: async () => {
    basket.clear();
    byId("basket-name").focus();
    await basket.settled();
    if (basket.isEmpty) say(texts.basketEmptied);
  },
  extend: async (seconds) => {
    const booking = await basket.extend(seconds);
    if (booking) say(texts.moreTimeGiven(clockFace(booking.expires_in)));
  },
  checkout: goToCheckout,
  runOut,
};

async function goToCheckout() {
  await basket.settled();
  if (basket.booking) location.assign(api.checkoutPage(basket.booking.id));
}

// The countdown has ended here; the server decides, and its answer is waited for.
async function runOut() {
  const { booking } = basket;
  await basket.load().catch(() => setTimeout(runOut, LOOK_AGAIN_MS));
  if (!booking || basket.booking?.id === booking.id) return show();
  tellRunOut(booking);
}

function tellRunOut(booking) {
  notify("warning", texts.timeIsUp(contents(booking)), {
    words: texts.holdAgain,
    act: async () => (await basket.holdAgain(booking)) && notify("good", texts.heldAgain),
  });
}

// ---- refusals

function refuse(error, { taken, yours, isOnMap }) {
  if (error.code === "booking_expired" && basket.booking === null) return notifyError(error);
  if (yours.length) return notify("warning", texts.yours(list(yours.map(seatName))));
  if (taken.length === 0) notifyError(error);
  else if (!isOnMap) notify("warning", texts.taken(list(taken.map(seatName)), taken.length));
  view.show();
}

// ---- showing it

function showSeat(id, result) {
  map().setHoldResult(id, result);
}

function countAvailable({ seats, units }) {
  available = seats + units;
  show();
}

function show() {
  if (!basket || !view) return;
  view.show();
  showOwn();
  showSale();
  clearTimeout(paymentTimer);
  if (basket.isLocked) paymentTimer = setTimeout(lookAtPayment, PAYMENT_MS);
}

// A payment ends without this page: at the gateway, or in another tab.
async function lookAtPayment() {
  await basket.load().catch(() => show());
}

/** What the map shows as the buyer's own, and how much more it lets the buyer choose. */
function showOwn() {
  showBasketOnMap(map(), basket);
  if (event.per_buyer_max === null) return;
  const units = basket.lines.pools.reduce((sum, pool) => sum + pool.units, 0);
  map().setAttribute("max-selected", Math.max(1, event.per_buyer_max - basket.countElsewhere - units));
}

let saleTimer = null;

function showSale() {
  clearTimeout(saleTimer);
  const before = sale?.name;
  sale = saleState({
    event,
    now: api.serverNow(),
    available,
    inBasket: basket.count,
    elsewhere: basket.countElsewhere,
  });
  const { title, text } = saleWords(sale);
  byId("sale").hidden = title === null;
  byId("sale").dataset.state = sale.name;
  byId("sale-title").textContent = title ?? "";
  byId("sale-text").textContent = text;
  byId("sale-clock").hidden = sale.name !== "soon";
  byId("sale-clock").textContent = sale.name === "soon" ? texts.saleOpensIn(duration(sale.opensIn)) : "";
  byId("limit-hint").hidden = sale.limit == null;
  byId("limit-hint").textContent = limitWords(sale);
  if (before === "soon" && sale.name === "open") notify("good", texts.saleOpen);
  if (sale.name === "soon") saleTimer = setTimeout(showSale, LOOK_AGAIN_MS);
}

function limitWords({ limit, left }) {
  if (limit == null) return "";
  return left > 0 ? texts.limitHint(limit, left) : `${texts.limitTitle(limit)}. ${texts.limit}`;
}

function saleWords({ name, opensAt, closedAt, limit, isBought }) {
  switch (name) {
    case "soon":
      return { title: texts.saleOpensTitle, text: texts.saleOpens(moment(opensAt)) };
    case "over":
      return { title: texts.saleOverTitle, text: texts.saleOver(moment(closedAt)) };
    case "soldOut":
      return { title: basket.isEmpty ? texts.soldOutTitle : null, text: texts.soldOut };
    case "limit": // with a basket it is said beside the map: what is above the map would move it under a finger
      return { title: isBought ? texts.limitTitle(limit) : null, text: texts.limitBought };
    default:
      return { title: null, text: "" };
  }
}
