// All requests of the shop's pages: the caller's credential, one Idempotency-Key per attempt, and refusals as Problem values.

const ROOT = new URL("../", import.meta.url); // where the server is mounted
const TIMEOUT_MS = 10_000;
const RETRY_PAUSES_MS = [400, 1200];
const KEY = "earmark.key";
const WALK_IN = "earmark.walk-in";
const CONTACTS = "earmark.contacts";
const CONTACTS_MAX = 50;
const PAGES_MAX = 10;

/** A refusal of the server, with its reason. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
    this.code = body.code ?? null;
    this.seats = body.seats ?? [];
    this.facts = body;
  }
}

/** The server did not answer; whether the request had an effect is unknown. */
export class Unreachable extends Error {
  constructor() {
    super("The server does not answer. Check your connection and try again: trying again is safe.");
  }
}

// ---- the caller

/** The box office key of this tab, or null. */
export const officeKey = () => sessionStorage.getItem(KEY);
export const rememberKey = (key) => sessionStorage.setItem(KEY, key.trim());
export const forgetKey = () => sessionStorage.removeItem(KEY);

/** Takes a key from `#key=…` and wipes it from the address bar, so that it is not shared or bookmarked. */
export function takeKeyFromAddress() {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!key) return;
  rememberKey(key);
  history.replaceState(null, "", location.pathname + location.search);
}

// ---- a buyer who comes from a page of another site

/** Whether the page is the server's own, so that a guest's cookie counts. */
export const isAtHome = ROOT.origin === location.origin;

// A page of another site keeps its guest's token in memory: no cookie counts there, and no other page finds it. A checkout
// has here the token that was handed over to it.
let guestToken = null;
let tellTokenEnded = () => {};

/** Sends this guest's token from now on, in this page alone; null: the guest that this browser is. */
export const actAs = (token) => (guestToken = token);

/** Calls tell() when the guest's token had ended, once this page is another guest. */
export const whenTokenEnds = (tell) => (tellTokenEnded = tell);

/** The sites whose pages the operator lets lead buyers here. */
export async function listAllowedOrigins() {
  return (await request("GET", "/web/allowed-origins.json")).body.origins;
}

/** What the page's elements send in `Authorization`: null where the guest's cookie says who the buyer is. */
export const bearer = () => guestToken ?? (withoutGuests ? officeKey() : null);

/** The address of a booking's checkout. From another site it hands the buyer's token over, where no server is told it. */
export function checkoutPage(bookingId) {
  const page = new URL(`checkout?booking=${encodeURIComponent(bookingId)}`, ROOT);
  if (guestToken) page.hash = new URLSearchParams({ token: guestToken });
  return page.href;
}

// Without guests every request is sent with the key, and names the buyer itself.
let withoutGuests = false;

/** Makes this browser a guest, or keeps the guest it was. False: the server allows no guests and a key is needed. */
export async function enter() {
  if (guestToken) return true;
  try {
    await becomeGuest();
  } catch (error) {
    if (!(error instanceof Problem) || ![401, 403, 404].includes(error.status)) throw error;
    withoutGuests = true;
    return officeKey() !== null;
  }
  return true;
}

// Scripts cannot read the cookie; a guest whose cookie is still valid keeps their name.
async function becomeGuest() {
  const { body } = await request("POST", "/v1/guests", { body: {} });
  guestToken = body.token ?? null;
}

function walkIn() {
  if (!sessionStorage.getItem(WALK_IN)) sessionStorage.setItem(WALK_IN, `walk-in-${uuid()}`);
  return sessionStorage.getItem(WALK_IN);
}

// ---- requests

export async function listEvents() {
  return (await ask("/v1/events")).body.events;
}

export async function readEvent(id) {
  return (await ask(`/v1/events/${encodeURIComponent(id)}`)).body;
}

/** This buyer's bookings, oldest first; a hold that has lapsed but was not yet swept has ended. */
export async function listBookings(filters = {}) {
  const bookings = [];
  for (let cursor = null, pages = 0; pages === 0 || (cursor && pages < PAGES_MAX); pages++) {
    const query = new URLSearchParams({ ...filters, ...(withoutGuests && { buyer: walkIn() }), limit: 200, ...(cursor && { cursor }) });
    const answer = await ask(`/v1/bookings?${query}`);
    bookings.push(...answer.body.bookings.map((one) => withDeadline(one, answer)));
    cursor = answer.body.next_cursor;
  }
  return bookings;
}

export async function readBooking(id) {
  const answer = await ask(path(id));
  return withDeadline(answer.body, answer);
}

const who = () => withoutGuests && { buyer: walkIn() };

/** Holds seats and units; `best` asks for so many seats of the server's choice instead of named ones. */
export const hold = (eventId, { seats = [], pools = {}, best = null }) =>
  post("/v1/bookings", { event_id: eventId, ...who(), pools, ...(best ? { best_available: best } : { seats }) });

/** What a hold shall have more and less; `pools` says how many units it shall have of those that are named. */
export const change = (id, { addSeats, dropSeats, pools }) =>
  post(`${path(id)}/change`, { add_seats: addSeats, drop_seats: dropSeats, pools });

export const extend = (id, seconds) => post(`${path(id)}/extend`, { seconds });
export const release = (id) => post(`${path(id)}/release`, {});
export const cancel = (id) => post(`${path(id)}/cancel`, {});

/** For the box office only: records that the money was taken. */
export const confirm = (id, paymentId) =>
  post(`${path(id)}/confirm`, { payment_id: paymentId, payment_method: "cash" }, { byKey: true });

/** Whom a booking's tickets are for, `{name, email, language}`; null where this browser has not said it yet. */
export async function readContact(id) {
  if (!contactsGiven().includes(id)) return null; // a request for what is not there would stand in the console as an error
  const answer = await unlessMissing(["contact_unknown"], () => ask(`${path(id)}/contact`));
  return answer && answer.body;
}

export async function saveContact(id, contact) {
  const { body } = await insist(() => again(() => request("POST", `${path(id)}/contact`, { body: contact })));
  localStorage.setItem(CONTACTS, JSON.stringify([...contactsGiven().filter((one) => one !== id), id].slice(-CONTACTS_MAX)));
  return body;
}

const contactsGiven = () => JSON.parse(localStorage.getItem(CONTACTS)) ?? [];

/** The address of the page with a booking's tickets; null where it has none. */
export async function ticketPage(id) {
  const answer = await unlessMissing(["booking_not_confirmed"], () => ask(`${path(id)}/tickets`));
  return answer && new URL(answer.body.page, ROOT).href; // it has the prefix under which the server is mounted
}

async function unlessMissing(codes, read) {
  try {
    return await read();
  } catch (error) {
    if (codes.includes(error.code)) return null;
    throw error;
  }
}

// ---- the server's clock

let serverAhead = 0; // milliseconds, by the last response

/** The time of day by the server's clock, within a second: the browser's own may be wrong. */
export const serverNow = () => new Date(Date.now() + serverAhead);

function noteServerTime(response) {
  const said = Date.parse(response.headers.get("Date") ?? "");
  if (!Number.isNaN(said)) serverAhead = said - Date.now();
}

const path = (id) => `/v1/bookings/${encodeURIComponent(id)}`;

// ---- sending

/** A read. */
async function ask(url, options = {}) {
  return again(() => request("GET", url, options));
}

// Attempts whose outcome is unknown keep their key: the same request again is the same attempt.
const unanswered = new Map();

async function post(url, body, { byKey = false } = {}) {
  const attempt = `${url} ${JSON.stringify(body)}`;
  const key = unanswered.get(attempt) ?? uuid();
  unanswered.set(attempt, key);
  const send = () => request("POST", url, { body, byKey, headers: { "Idempotency-Key": key } });
  const answer = await insist(byKey ? send : () => again(send)).catch((error) => {
    if (!isOpen(error)) unanswered.delete(attempt);
    throw error;
  });
  unanswered.delete(attempt);
  // A replayed response is as old as the first one: its expires_in is no longer right.
  if (answer.headers.has("Idempotency-Replayed")) return readBooking(answer.body.id);
  return withDeadline(answer.body, answer);
}

async function insist(send) {
  for (const pause of RETRY_PAUSES_MS) {
    try {
      return await send();
    } catch (error) {
      if (!isOpen(error)) throw error;
    }
    await new Promise((wake) => setTimeout(wake, pause));
  }
  return send();
}

const isOpen = (error) =>
  error instanceof Unreachable || error.status >= 500 || error.code === "idempotency_in_progress";

/** A request; a guest whose cookie or token has ended becomes a new guest, and it is repeated. */
async function again(send) {
  const token = guestToken;
  try {
    return await send();
  } catch (error) {
    if (error.status !== 401 || withoutGuests) throw error;
  }
  if (guestToken === token) await becomeGuestAnew();
  return send();
}

// Of requests that are refused at the same moment, the first asks for the new guest.
let becoming = null;

function becomeGuestAnew() {
  const hadToken = guestToken !== null;
  guestToken = null;
  becoming ??= becomeGuest()
    .then(() => {
      if (hadToken) tellTokenEnded(); // not waited for: it waits for the request that is repeated
    })
    .finally(() => (becoming = null));
  return becoming;
}

async function request(method, url, { body, headers = {}, byKey = false, signal } = {}) {
  const sentAt = performance.now();
  const credential = byKey ? officeKey() : bearer();
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(new URL(`.${url}`, ROOT), {
    method,
    headers: {
      ...headers,
      ...(body && { "Content-Type": "application/json" }),
      ...(credential && { Authorization: `Bearer ${credential}` }),
    },
    body: body && JSON.stringify(body),
    cache: "no-store",
    credentials: credential ? "omit" : "same-origin", // one identity per call
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  }).catch(() => {
    throw new Unreachable();
  });
  noteServerTime(response);
  return { status: response.status, headers: response.headers, body: await content(response), sentAt };
}

async function content(response) {
  if (response.status === 304) return null;
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Problem(response.status, body ?? {});
  if (body === null) throw new Unreachable(); // the response was cut off: the request may have had an effect
  return body;
}

// Counted from the sending, so the page's countdown ends a moment before the server's, never after.
const withDeadline = (booking, { sentAt }) => ({ ...booking, deadline: sentAt + 1000 * (booking.expires_in ?? 0) });

/** A random UUID, also where the page is not served over HTTPS. */
export function uuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
