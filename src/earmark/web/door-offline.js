// Checks tickets without a network: by a list of hashes that was taken along, and a queue of admissions to send back.

import { sendOffline } from "./door-api.js";

const QUEUE = "earmark.door-queue";
const SENT_AT_ONCE = 100;

let list = null; // by hash
const admittedHere = new Map(); // by code: what this tab let in without a network, also after it was sent

export const canHash = () => globalThis.crypto?.subtle !== undefined;
export const hasList = () => list !== null;

/** Takes a list along; it is forgotten when the tab is closed. It does not have the admissions that wait to be sent. */
export function takeList(tickets) {
  remember(queue());
  list = new Map(tickets.map((ticket) => [ticket.hash, ticket]));
}

/** The refusal of a ticket that this door let in without a network, which the server may not know yet; null of others. */
export function refuseAdmittedHere(code, nonce) {
  const plain = plainOf(code);
  const admission = admittedHere.get(plain) ?? queue().find((scan) => scan.code === plain);
  return admission ? { ...refusal("already_admitted", nonce), admitted_at: admission.scanned_at } : null;
}

/** Judges a code by the list, and queues the admission. The same answer as the server's, with what the list knows. */
export async function checkOffline(code, nonce) {
  const plain = plainOf(code);
  const ticket = list.get(await hashOf(plain));
  const place = ticket?.place ?? null;
  const here = refuseAdmittedHere(plain, nonce);
  if (here) return { ...here, place };
  const reason = whyRefused(ticket);
  if (reason !== null) return { ...refusal(reason, nonce), admitted_at: ticket?.admitted_at ?? null, place };
  const scan = { code: plain, nonce, scanned_at: new Date().toISOString() };
  remember([scan]);
  writeQueue([...queue(), scan]);
  const { scanned_at } = scan;
  return { result: "admitted", reason, nonce, scanned_at, admitted_at: scanned_at, place, event: null };
}

/** The admissions that wait to be sent. They survive the closing of the tab. */
export const queue = () => JSON.parse(localStorage.getItem(QUEUE) ?? "[]");

/** Sends what waits, and returns what the server said to each. A repeat of what it has is no second admission. */
export async function sendQueue() {
  const answered = [];
  while (queue().length) {
    const part = queue().slice(0, SENT_AT_ONCE);
    remember(part); // a list that was taken along before does not have them
    const { scans } = await sendOffline(part);
    answered.push(...scans);
    const done = new Set(part.map((scan) => scan.nonce));
    writeQueue(queue().filter((scan) => !done.has(scan.nonce)));
  }
  return answered;
}

const plainOf = (code) => code.replace(/[\s-]+/g, "").toLowerCase();

const remember = (scans) => scans.forEach((scan) => admittedHere.set(scan.code, scan));

const refusal = (reason, nonce) => ({
  result: "refused", reason, nonce, scanned_at: new Date().toISOString(), admitted_at: null, place: null, event: null,
});

function whyRefused(ticket) {
  if (ticket === undefined) return "unknown";
  return ticket.reason ?? (ticket.admitted_at === null ? null : "already_admitted");
}

const writeQueue = (scans) => localStorage.setItem(QUEUE, JSON.stringify(scans));

async function hashOf(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
