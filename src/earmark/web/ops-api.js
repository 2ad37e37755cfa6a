// The console's requests, with the operator's key. The key is only in this tab's session storage, never in a URL.

import { Problem, Unreachable } from "./api.js";

const TIMEOUT_MS = 10_000;
const KEY = "earmark.ops-key";

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const rememberKey = (key) => sessionStorage.setItem(KEY, key.trim());
export const forgetKey = () => sessionStorage.removeItem(KEY);

/** The state of the service. */
export const readState = (signal) => request("GET", "/v1/ops", { signal });

/** Whether the server is ready; this needs no key, so it works when other requests fail. */
export async function isReady() {
  const answer = await fetch("./readyz", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) }).catch(() => null);
  return answer?.ok ?? false;
}

export const breakLock = (key) => request("DELETE", `/v1/locks/${encodeURIComponent(key)}`);

/** A booking with its history and its payments. */
export async function readBooking(id) {
  const path = `/v1/bookings/${encodeURIComponent(id)}`;
  const requests = [request("GET", path), request("GET", `${path}/history`), request("GET", `${path}/payments`)];
  const [booking, { entries }, { payments }] = await Promise.all(requests);
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
    credentials: "omit", // authenticate by the key alone, not by a guest's cookie
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  }).catch(() => {
    throw new Unreachable();
  });
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Problem(response.status, body ?? {});
  if (body === null) throw new Unreachable();
  return body;
}
