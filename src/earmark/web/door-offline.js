// Checks tickets without a network: by a list of hashes that was taken along, and a queue of admissions to send back.

import { sendOffline } from "./door-api.js";

const QUEUE = "earmark.door-queue";
const SENT_AT_ONCE = 100;

let list = null; // by hash
const admittedHere = new Set();

export const canHash = () => globalThis.crypto?.subtle !== undefined;
export const hasList = () => list !== null;

/** Takes a list along; it is forgotten when the tab is closed. */
export function takeList(tickets) {
  list = new Map(tickets.map((ticket) => [ticket.hash, ticket]));
}

/** Judges a code by the list, and queues the admission. The same answer as the server's, with what the list knows. */
export async function checkOffline(code, nonce) {
  const plain = code.replace(/[\s-]+/g, "").toLowerCase();
  const hash = await hashOf(plain);
  const ticket = list.get(hash);
  const reason = whyRefused(ticket, hash);
  const scannedAt = new Date().toISOString();
  if (reason === null) {
    admittedHere.add(hash);
    writeQueue([...queue(), { code: plain, nonce, scanned_at: scannedAt }]);
  }
  return {
    result: reason === null ? "admitted" : "refused",
    reason, nonce, scanned_at: scannedAt, admitted_at: ticket?.admitted_at ?? null, place: ticket?.place ?? null,
    event: null,
  };
}

/** The admissions that wait to be sent. They survive the closing of the tab. */
export const queue = () => JSON.parse(localStorage.getItem(QUEUE) ?? "[]");

/** Sends what waits, and returns what the server said to each. A repeat of what it has is no second admission. */
export async function sendQueue() {
  const answered = [];
  while (queue().length) {
    const part = queue().slice(0, SENT_AT_ONCE);
    const { scans } = await sendOffline(part);
    answered.push(...scans);
    const done = new Set(part.map((scan) => scan.nonce));
    writeQueue(queue().filter((scan) => !done.has(scan.nonce)));
  }
  return answered;
}

function whyRefused(ticket, hash) {
  if (ticket === undefined) return "unknown";
  if (ticket.reason !== null) return ticket.reason;
  return ticket.admitted_at !== null || admittedHere.has(hash) ? "already_admitted" : null;
}

const writeQueue = (scans) => localStorage.setItem(QUEUE, JSON.stringify(scans));

async function hashOf(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
