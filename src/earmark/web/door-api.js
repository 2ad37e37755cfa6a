// The requests of the page for the door. The key is this tab's, and no request has cookies.

const TIMEOUT_MS = 8_000;
const KEY = "earmark.door-key";

export const doorKey = () => sessionStorage.getItem(KEY);
export const rememberKey = (key) => sessionStorage.setItem(KEY, key.trim());
export const forgetKey = () => sessionStorage.removeItem(KEY);

/** The server answered, and not with what was asked for. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.detail ?? `The server answered ${status}.`);
    this.status = status;
    this.code = body?.code ?? null;
  }
}

/** The server did not answer: whether the request had an effect is unknown. */
export class NoNetwork extends Error {}

export const check = (code, nonce, eventId) =>
  ask("POST", "v1/tickets/check", { code, nonce, ...(eventId && { event_id: eventId }) });

export const undo = (nonce) => ask("POST", "v1/tickets/undo", { nonce });

export const sendOffline = (scans) => ask("POST", "v1/tickets/offline-scans", { scans });

/** All pages of the list of an event: its tickets, when the first page was made, and until when buyers may cancel. */
export async function readList(eventId) {
  const tickets = [];
  let made = null;
  let cancelUntil = null;
  let cursor = null;
  do {
    const query = new URLSearchParams({ limit: "200", ...(cursor && { cursor }) });
    const page = await ask("GET", `v1/events/${encodeURIComponent(eventId)}/tickets/offline-list?${query}`);
    tickets.push(...page.tickets);
    made ??= page.made_at;
    cancelUntil = page.buyers_may_cancel_until;
    cursor = page.next_cursor;
  } while (cursor);
  return { tickets, made, cancelUntil };
}

async function ask(method, url, body) {
  const answer = await fetch(url, {
    method,
    headers: { Authorization: `Bearer ${doorKey()}`, ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  }).catch(() => {
    throw new NoNetwork();
  });
  const value = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, value);
  if (value === null) throw new NoNetwork(); // the response was cut off: the request may have had an effect
  return value;
}
