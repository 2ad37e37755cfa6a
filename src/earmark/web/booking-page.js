// The page: what is on sale, what this buyer has chosen and what they hold. The server decides; this page shows it.

import * as api from "./api.js";
import { byId, el, svg } from "./dom.js";
import { HoldCard } from "./booking-card.js";
import { STATES, SeatMap, seatPicture } from "./seat-map.js";
import { Poller } from "./poller.js";
import { PoolList } from "./pool-quantity-picker.js";
import { claim, count, list, moment, money } from "./format.js";

const POLL_SECONDS = 2;
const GRACE_MS = 300; // this page's clock is a moment early

let event = null;
let seats = new Map(); // id → seat, from the server's last response
let pools = new Map();
let tag = null;
let isHolding = false;
let peeked = null; // the seat pointed at, described under the map
const selected = new Set(); // seat ids
const units = new Map(); // pool id → how many
const cards = new Map(); // booking id → its card
const owned = new Map(); // seat id → "mine" or "owned", by the cards

const price = (thing) => money(thing.price, event.currency);
const map = new SeatMap(byId("map"), { onToggle: toggle, onPeek: peek, price });
const poolList = new PoolList(byId("pool-list"), { onChange: want, price });
const poller = new Poller({ ask: readSeats, seconds: POLL_SECONDS, onLink: showLink });

// ---- opening

async function open() {
  api.takeKeyFromAddress();
  showOffice();
  if (!(await api.enter())) return askForKey();
  const events = await api.listEvents();
  event = await findEvent(events, new URLSearchParams(location.search).get("event"));
  showEvent(events);
  if (!event) return;
  await refreshHolds();
  await poller.now();
  byId("scroll").scrollLeft = (byId("map").clientWidth - byId("scroll").clientWidth) / 2;
}

async function findEvent(events, wanted) {
  const listed = events.find(({ id }) => id === wanted);
  return listed ?? (wanted ? await api.readEvent(wanted) : events[0] ?? null);
}

function askForKey() {
  byId("event-name").textContent = "Welcome";
  byId("entry").hidden = false;
}

function showEvent(events) {
  byId("event-name").textContent = event?.name ?? "Nothing is on sale yet";
  document.title = event ? `${event.name} · Earmark` : "Earmark";
  byId("event-facts").textContent = event?.starts_at ? moment(event.starts_at) : "";
  byId("events").hidden = events.length < 2;
  byId("events").replaceChildren(
    ...events.map(({ id, name }) =>
      el("a", { href: `?event=${encodeURIComponent(id)}`, "aria-current": id === event.id ? "page" : null }, name),
    ),
  );
}

// ---- responses of the server

async function readSeats(signal) {
  const news = await api.readSeats(event.id, { tag, signal });
  if (signal.aborted || news === null) return;
  tag = news.tag;
  seats = new Map(news.seats.map((seat) => [seat.id, seat]));
  pools = new Map((news.pools ?? []).map((pool) => [pool.id, pool]));
  if (!isHolding) dropWhatIsGone();
  show();
}

// Another buyer was faster: name the seats that were taken, keep the rest.
function dropWhatIsGone() {
  const gone = [...selected].filter((id) => stateOf(seats.get(id)) !== "selected");
  const taken = gone.filter((id) => !seats.get(id)?.mine);
  gone.forEach((id) => selected.delete(id));
  for (const [id, wanted] of units) setUnits(id, Math.min(wanted, pools.get(id)?.available ?? 0));
  if (taken.length) notifyTaken(taken, `${list(taken)} ${taken.length > 1 ? "have" : "has"} just been taken.`);
}

function notifyTaken(taken, detail) {
  const rest = selected.size + units.size > 0 ? " The rest of your selection is still here." : "";
  notify("warning", detail + rest);
  map.flash(taken);
}

async function refreshHolds() {
  const [held, paid] = await Promise.all([api.listBookings(event.id, "held"), api.listBookings(event.id, "confirmed")]);
  const current = new Set([...held, ...paid].map(({ id }) => id));
  for (const id of [...cards.keys()]) if (!current.has(id)) dropCard(id);
  [...paid, ...held].forEach(keepCard);
}

// ---- what the buyer does

function toggle(id) {
  if (!selected.delete(id)) selected.add(id);
  hideNotice();
  show();
}

function want(id, wanted) {
  setUnits(id, wanted);
  hideNotice();
  show();
}

function setUnits(id, wanted) {
  if (wanted > 0) units.set(id, wanted);
  else units.delete(id);
}

async function hold(submit) {
  submit.preventDefault();
  if (isHolding || selected.size + units.size === 0) return;
  isHolding = true;
  showSelection();
  try {
    const booking = await api.hold(event.id, [...selected], Object.fromEntries(units));
    booking.seats.forEach(({ id }) => selected.delete(id));
    booking.pools.forEach(({ id }) => units.delete(id));
    keepCard(booking).focus();
    notify("good", `${claim(booking)}: on hold for you. Pay before the clock runs out.`);
  } catch (error) {
    refuse(error);
  } finally {
    isHolding = false;
    show();
    poller.now();
  }
}

const paymentIds = new Map(); // one per booking: pressing twice is the same payment

const act = {
  hasKey: () => api.officeKey() !== null,
  giveKey: (key) => {
    api.rememberKey(key);
    showOffice();
  },
  say: (words) => (byId("aloud").textContent = words),
  extend: (card, seconds) =>
    attempt(card, async () => {
      keepCard(await api.extend(card.booking.id, seconds));
      notify("good", "You have more time.");
    }),
  release: (card) =>
    attempt(card, async () => {
      const booking = await api.release(card.booking.id);
      dropCard(booking.id);
      notify("good", `${claim(booking)}: released.`);
      byId("selection-name").focus();
    }),
  confirm: (card) =>
    attempt(card, async () => {
      const { id } = card.booking;
      if (!paymentIds.has(id)) paymentIds.set(id, `box-office-${api.uuid()}`);
      keepCard(await api.confirm(id, paymentIds.get(id)).catch(refuseKey(card))).focus();
      notify("good", `${claim(card.booking)}: paid, and yours.`);
    }),
  expire: (card) => setTimeout(runOut, GRACE_MS, card),
};

async function attempt(card, verb) {
  try {
    await verb();
  } catch (error) {
    notify("bad", error.message);
    if ([404, 409, 410].includes(error.status)) await refreshHolds().catch(() => {});
  }
  show();
  poller.now();
}

// The countdown has ended here; the server decides, and its response is waited for.
async function runOut(card) {
  const { id } = card.booking;
  if (!cards.has(id) || card.countdown.left > 0) return;
  try {
    const booking = await api.readBooking(id);
    const isLive = booking.state === "confirmed" || (booking.state === "held" && booking.expires_in > 0);
    if (isLive) keepCard(booking);
    else lose(booking);
  } catch {
    setTimeout(runOut, 1000 * POLL_SECONDS, card);
  }
  show();
  poller.now();
}

function lose(booking) {
  dropCard(booking.id);
  notify("warning", `Time is up for ${claim(booking)}. What is still free can be selected again.`);
}

// ---- refusals

function refuse(error) {
  if (error.code !== "seats_taken") return notify("bad", error.message);
  error.seats.forEach((id) => selected.delete(id));
  notifyTaken(error.seats, error.message);
}

// A key that may not sell cannot confirm: forget it and ask for another.
const refuseKey = (card) => (error) => {
  if (![401, 403].includes(error.status)) throw error;
  api.forgetKey();
  showOffice();
  card.askForKey();
  throw new Error("This key was refused: it is not a box office key of this server.");
};

function notify(kind, words) {
  byId("notice").dataset.kind = kind;
  byId("notice-text").textContent = words;
  byId("notice").hidden = false;
}

const hideNotice = () => (byId("notice").hidden = true);

// ---- showing it

function keepCard(booking) {
  const card = cards.get(booking.id);
  if (card) card.update(booking);
  else cards.set(booking.id, new HoldCard(booking, act));
  if (!card) byId("holds").prepend(cards.get(booking.id).node);
  countOwned();
  return cards.get(booking.id);
}

function dropCard(id) {
  cards.get(id)?.remove();
  cards.delete(id);
  countOwned();
}

function countOwned() {
  owned.clear();
  for (const { booking } of cards.values())
    for (const { id } of booking.seats) owned.set(id, booking.state === "confirmed" ? "owned" : "mine");
}

function stateOf(seat) {
  if (!seat) return "blocked";
  if (owned.has(seat.id)) return owned.get(seat.id);
  if (seat.mine) return seat.state === "booked" ? "owned" : "mine";
  return seat.state === "available" && selected.has(seat.id) ? "selected" : seat.state;
}

function show() {
  byId("room").hidden = seats.size === 0;
  byId("pools").hidden = pools.size === 0;
  byId("selection").hidden = false;
  map.update([...seats.values()], stateOf);
  poolList.update([...pools.values()], (id) => units.get(id) ?? 0);
  peek(peeked);
  showLegend();
  showSelection();
}

function showLegend() {
  const tally = new Map(Object.keys(STATES).map((state) => [state, 0]));
  for (const seat of seats.values()) tally.set(stateOf(seat), tally.get(stateOf(seat)) + 1);
  const shown = [...tally].filter(([state, number]) => number > 0 || state === "available");
  byId("legend").replaceChildren(
    ...shown.map(([state, number]) =>
      el("li", {}, symbol(state), `${capital(STATES[state].words)} `, el("span", { class: "quiet" }, number)),
    ),
  );
}

function symbol(state) {
  const seat = svg("g", { class: "seat", "data-state": state }, ...seatPicture(state));
  return svg("svg", { viewBox: "-16 -16 32 32", class: "map", "aria-hidden": "true" }, seat);
}

const capital = (words) => words[0].toUpperCase() + words.slice(1);

function showSelection() {
  const chosen = [...selected].map((id) => seats.get(id)).filter(Boolean);
  const counted = [...units].map(([id, wanted]) => ({ id, wanted, price: wanted * pools.get(id).price }));
  const amount = [...chosen, ...counted].reduce((sum, one) => sum + one.price, 0);
  const isEmpty = chosen.length + counted.length === 0;
  byId("selection").classList.toggle("empty", isEmpty);
  byId("selection-empty").hidden = !isEmpty;
  showChips([
    ...chosen.map((seat) => ({ name: seat.id, amount: price(seat), remove: () => toggle(seat.id) })),
    ...counted.map((pool) => {
      return { name: `${pool.wanted} × ${pool.id}`, amount: price(pool), remove: () => want(pool.id, 0) };
    }),
  ]);
  const pieces = chosen.length + counted.reduce((sum, { wanted }) => sum + wanted, 0);
  byId("selection-count").textContent = isEmpty ? "" : count(pieces, chosen.length === pieces ? "seat" : "ticket");
  byId("selection-total").textContent = isEmpty ? "" : money(amount, event.currency);
  byId("hold").disabled = isEmpty;
  byId("hold").setAttribute("aria-busy", isHolding);
  byId("hold").textContent = isHolding ? "Holding…" : "Hold";
}

// Rendered again only when they differ: a button in use keeps its focus while updates arrive.
function showChips(chips) {
  const rendered = chips.map(({ name, amount }) => `${name} ${amount}`).join("\n");
  if (byId("selection-list").dataset.rendered === rendered) return;
  byId("selection-list").dataset.rendered = rendered;
  byId("selection-list").replaceChildren(...chips.map(chip));
}

function chip({ name, amount, remove }) {
  const click = () => {
    remove();
    byId("selection-name").focus();
  };
  const button = el("button", { type: "button", class: "plain", "aria-label": `Remove ${name}`, click }, "×");
  return el("li", {}, el("strong", {}, name), amount, button);
}

function peek(node) {
  peeked = node;
  byId("peek").textContent = node?.getAttribute("aria-label") ?? "";
}

function showLink(isUp) {
  byId("link").dataset.up = isUp;
  byId("link").textContent = isUp ? "Live" : "Connection lost, trying again…";
}

function showOffice() {
  byId("office").hidden = api.officeKey() === null;
}

// ---- wiring

byId("selection").addEventListener("submit", hold);
byId("notice-close").addEventListener("click", hideNotice);
byId("office-forget").addEventListener("click", () => {
  api.forgetKey();
  showOffice();
});
byId("entry").addEventListener("submit", (submit) => {
  submit.preventDefault();
  api.rememberKey(byId("entry-key").value);
  location.reload();
});
// performance.now() may stop while the machine sleeps.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && event) refreshHolds().then(show, () => {});
});

open().catch((error) => {
  byId("event-name").textContent = "Something is missing";
  notify("bad", error.message);
  if (!api.needsKey()) return;
  api.forgetKey();
  askForKey();
});
