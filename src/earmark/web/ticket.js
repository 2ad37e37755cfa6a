// The page of a booking: its event, and one ticket with a QR code for each seat and each unit. It only reads.

import { byId, el } from "./dom.js";
import { fillIn, inGroups, moment, money, placeName, shortMoment, texts } from "./ticket-language.js";
import { correction, generate } from "./vendor/lean-qr/index.mjs";
import { toSvg } from "./vendor/lean-qr/extras/svg.mjs";

const QUIET_MODULES = 4; // the margin that a scanner needs around a QR code
const own = texts.ticket;
const secret = location.pathname.split("/").at(-1);

async function show() {
  fillIn(own);
  document.title = own.title;
  const answer = await fetch(`../v1/tickets/page/${encodeURIComponent(secret)}`, { cache: "no-store" }).catch(() => null);
  if (!answer?.ok) return fail(answer?.status === 404 ? own.unknown : own.unreachable);
  const page = await answer.json().catch(() => null);
  if (page === null) return fail(own.unreachable);
  showEvent(page);
  showNotice(page);
  const units = countUnits(page.tickets);
  byId("tickets").replaceChildren(...page.tickets.map((one) => ticketCard(page, one, units.get(one.place.id) ?? 1)));
}

function fail(sentence) {
  byId("event-name").textContent = own.title;
  notice(sentence, "bad");
}

function notice(sentence, kind) {
  byId("notice").dataset.kind = kind;
  byId("notice").textContent = sentence;
  byId("notice").hidden = false;
}

function showEvent({ booking_id, event, state, tickets, total }) {
  document.title = `${own.title}: ${event.name}`;
  byId("event-name").textContent = event.name;
  byId("event-start").textContent = event.starts_at ? moment(event.starts_at) : own.noStart;
  byId("facts").textContent = `${own.booking(booking_id)} · ${own.total(money(total))}`;
  byId("calendar").hidden = event.starts_at === null;
  byId("calendar").setAttribute("href", `${encodeURIComponent(secret)}/calendar.ics`);
  const valid = tickets.some((one) => one.code !== null);
  byId("actions").hidden = false;
  byId("print").hidden = !valid;
  byId("keep").hidden = !valid;
  byId("print").addEventListener("click", () => print());
  document.body.dataset.state = state;
}

function showNotice({ state, tickets }) {
  if (state === "cancelled") notice(own.cancelled, "bad");
  else if (state !== "confirmed") notice(own.notConfirmed, "bad");
  else if (tickets.some((one) => one.code === null)) notice(own.partly, "warning");
}

/** How many valid units of each pool there are: a unit is named "2 of 3". */
function countUnits(tickets) {
  const units = new Map();
  for (const { place, code } of tickets) {
    if (place.kind === "pool" && code !== null) units.set(place.id, (units.get(place.id) ?? 0) + 1);
  }
  return units;
}

function ticketCard({ event }, ticket, units) {
  const place = placeName(ticket.place, Math.max(units, ticket.place.unit));
  return el(
    "article",
    { class: "card ticket", "data-place": ticket.place.id, "data-valid": String(ticket.code !== null) },
    el(
      "div",
      { class: "about" },
      el("h2", {}, place),
      el("p", {}, event.name),
      el("p", { class: "quiet" }, event.starts_at ? moment(event.starts_at) : own.noStart),
      ticket.place.category && el("p", { class: "quiet small" }, ticket.place.category),
      ticket.admitted_at && el("p", { class: "used" }, own.used(shortMoment(ticket.admitted_at))),
      ticket.code === null && el("p", { class: "gone" }, own.gone),
      ticket.code && el("p", { class: "quiet small screen" }, own.secret),
    ),
    ticket.code && qrCode(ticket.code, place),
  );
}

/** White in a dark scheme too: many scanners cannot read an inverted code. */
function qrCode(code, place) {
  const drawn = toSvg(generate(code, { minCorrectionLevel: correction.M }), document, {
    on: "#000", off: "#fff", pad: QUIET_MODULES, scale: 8,
  });
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", own.qr(place));
  return el(
    "figure",
    { class: "qr" },
    drawn,
    el("figcaption", {}, el("span", { class: "quiet small" }, own.code), el("code", {}, inGroups(code))),
  );
}

show();
