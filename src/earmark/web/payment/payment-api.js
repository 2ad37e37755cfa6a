// The requests of the payment form: the booking, how it can be paid, and paying. Refusals and silence are errors.

const TIMEOUT_MS = 20_000;
const ROOT = new URL("../../", import.meta.url); // where the server is mounted

/** The server refused, with its reason. */
export class PaymentRefused extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
    this.code = body.code ?? null;
    this.why = body.why ?? null;
    this.state = body.state ?? null;
    this.total = body.total ?? null;
    this.field = body.errors?.[0]?.path ?? null;
  }
}

/** No answer, or none that can be read: whether the request had an effect is unknown. */
export class NoAnswer extends Error {}

/** Calls as a buyer: with a buyer's token, or without one by the guest's cookie. */
export function paymentApi({ token = null } = {}) {
  const booking = (id) => `v1/bookings/${encodeURIComponent(id)}`;
  const ask = (method, path, options) => send(method, path, { token, ...options });
  return {
    readBooking: (id) => ask("GET", booking(id)),
    listPayments: async (id) => (await ask("GET", `${booking(id)}/payments`)).payments,
    listMethods: (eventId) => ask("GET", `v1/events/${encodeURIComponent(eventId)}/payment-methods`),
    readResult: (key) => ask("GET", `v1/idempotency/${encodeURIComponent(key)}`),
    pay: (id, key, body) => ask("POST", `${booking(id)}/pay`, { body, headers: { "Idempotency-Key": key } }),
  };
}

async function send(method, path, { token, body, headers = {} }) {
  const response = await fetch(new URL(path, ROOT), {
    method,
    headers: {
      ...headers,
      ...(body && { "Content-Type": "application/json" }),
      ...(token && { Authorization: `Bearer ${token}` }),
    },
    body: body && JSON.stringify(body),
    cache: "no-store",
    credentials: token ? "omit" : "same-origin",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  }).catch(() => {
    throw new NoAnswer();
  });
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new PaymentRefused(response.status, answer ?? {});
  if (answer === null) throw new NoAnswer();
  return answer;
}
