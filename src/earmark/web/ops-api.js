// What the console asks of the server, by the operator's key. The key is in this tab's memory alone, never in an address.

import { Problem, Unreachable } from "./api.js";

const TIMEOUT_MS = 10_000;
const KEY = "earmark.ops-key";

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const rememberKey = (key) => sessionStorage.setItem(KEY, key.trim());
export const forgetKey = () => sessionStorage.removeItem(KEY);

/** How the service fares. */
export const look = (signal) => request("GET", "/v1/ops", { signal });

/** Whether the server takes bookings; this needs no key, so it can be asked when nothing else answers. */
export async function isReady() {
  const answer = await fetch("./readyz", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) }).catch(() => null);
  return answer?.ok ?? false;
}

export const breakLock = (key) => request("DELETE", `/v1/locks/${encodeURIComponent(key)}`);

/** A booking with its history and its payments. */
export async function readBooking(id) {
  const path = `/v1/bookings/${encodeURIComponent(id)}`;
  const asked = [request("GET", path), request("GET", `${path}/history`), request("GET", `${path}/payments`)];
  const [booking, { entries }, { payments }] = await Promise.all(asked);
  return { booking, entries, payments };
}

/** Why a seat is, or is not, available. */
export const explainSeat = (event, seat) =>
  request("GET", `/v1/events/${encodeURIComponent(event)}/seats/${encodeURIComponent(seat)}/explain`);

async function request(method, url, { signal } = {}) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(`.${url}`, {
    method,
    headers: { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` },
    cache: "no-store",
    credentials: "omit", // the key speaks, and nobody else
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  }).catch(() => {
    throw new Unreachable();
  });
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Problem(response.status, body ?? {});
  if (body === null) throw new Unreachable();
  return body;
}
