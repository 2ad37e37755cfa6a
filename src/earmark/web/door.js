// The page for the door: takes a code from the camera or the keyboard, and shows whether it admits.

import { uuid } from "./api.js";
import { NoNetwork, Refused, check, doorKey, forgetKey, readList, rememberKey, undo } from "./door-api.js";
import { startCamera, whyNoCamera } from "./door-camera.js";
import { canHash, checkOffline, hasList, queue, refuseAdmittedHere, sendQueue, takeList } from "./door-offline.js";
import { byId, el } from "./dom.js";
import { fillIn, placeName, shortMoment, texts } from "./ticket-language.js";

const EVENT = "earmark.door-event";
const LAST_MAX = 10;
const SEND_AGAIN_MS = 15_000;
const own = texts.door;

let unanswered = null; // a scan whose answer was lost keeps its nonce: the same scan again is counted once
let undoable = null;
let stopCamera = null;

// ---- the key and the event

function begin() {
  fillIn(own);
  document.title = own.title;
  byId("event").value = new URLSearchParams(location.search).get("event") ?? sessionStorage.getItem(EVENT) ?? "";
  byId("entry").addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    rememberKey(byId("key").value);
    sessionStorage.setItem(EVENT, byId("event").value.trim());
    byId("key").value = "";
    enter();
  });
  byId("forget").addEventListener("click", leave);
  byId("check").addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    scan(byId("code").value);
  });
  byId("camera").addEventListener("click", toggleCamera);
  byId("undo").addEventListener("click", undoLast);
  byId("take").addEventListener("click", take);
  byId("send").addEventListener("click", send);
  addEventListener("online", sendWaiting);
  setInterval(sendWaiting, SEND_AGAIN_MS);
  if (doorKey()) enter();
}

function enter() {
  byId("entry").hidden = true;
  byId("work").hidden = false;
  byId("forget").hidden = false;
  byId("door-event").textContent = eventId();
  byId("door-event").hidden = eventId() === "";
  showQueue();
  sendWaiting();
  byId("code").focus();
}

function leave() {
  forgetKey();
  stopCamera?.();
  location.reload();
}

const eventId = () => sessionStorage.getItem(EVENT) ?? "";

// ---- a scan

async function scan(code) {
  if (!code.trim()) return;
  const nonce = unanswered?.code === code ? unanswered.nonce : uuid();
  unanswered = { code, nonce };
  byId("result").setAttribute("aria-busy", "true");
  try {
    show(refuseAdmittedHere(code, nonce) ?? (await checkOnline(code, nonce)), own.admitted);
    unanswered = null;
  } catch (error) {
    await failed(error, code, nonce);
  }
  byId("result").removeAttribute("aria-busy");
  byId("code").value = "";
  byId("code").focus();
}

/** What waits is sent first: until then the server does not know whom this door let in. */
async function checkOnline(code, nonce) {
  const unsent = await sendWaiting();
  if (unsent instanceof NoNetwork) throw unsent;
  return check(code, nonce, eventId());
}

async function failed(error, code, nonce) {
  if (error instanceof Refused) return say("refused", own.refused, refusalText(error));
  if (!(error instanceof NoNetwork)) throw error;
  if (!hasList()) return say("refused", own.refused, own.noNetwork);
  if (!canHash()) return say("refused", own.refused, own.needsHttps);
  show(await checkOffline(code, nonce), own.admittedOffline);
  unanswered = null;
  showQueue();
}

function refusalText({ status, message }) {
  if (status === 401 || status === 403) return own.badKey;
  if (status === 429) return own.tooFast;
  return status >= 500 ? own.serverError : message;
}

function show(answer, admittedTitle) {
  const admitted = answer.result === "admitted";
  const offline = admittedTitle === own.admittedOffline;
  const why = admitted ? "" : own.reasons[answer.reason];
  const first = answer.reason === "already_admitted" && answer.admitted_at;
  say(answer.result, admitted ? admittedTitle : own.refused, [why, first && own.firstAt(shortMoment(first))], answer);
  undoable = admitted && !offline ? answer.nonce : null;
  byId("undo").hidden = undoable === null;
}

function say(result, title, sentences, { place = null, event = null } = {}) {
  const why = [sentences].flat().filter(Boolean).join(" ");
  const name = [place && placeName(place), event?.name].filter(Boolean).join(" · ");
  byId("result").hidden = false;
  byId("result").dataset.result = result;
  byId("result-sign").textContent = result === "admitted" ? "✓" : "✗";
  byId("result-title").textContent = title;
  byId("result-place").textContent = name;
  byId("result-why").textContent = why;
  byId("undo").hidden = true;
  undoable = null;
  const sign = result === "admitted" ? "✓" : "✗";
  byId("last").prepend(el("li", {}, [shortMoment(new Date()), sign, name, why].filter(Boolean).join(" ")));
  while (byId("last").children.length > LAST_MAX) byId("last").lastElementChild.remove();
}

async function undoLast() {
  const nonce = undoable;
  byId("undo").hidden = true;
  try {
    await undo(nonce);
    say("refused", own.undone, "");
  } catch (error) {
    const gone = error instanceof Refused && error.code === "undo_refused";
    say("refused", own.refused, gone ? own.undoRefused : own.serverError);
  }
}

// ---- the camera

async function toggleCamera() {
  if (stopCamera) return endCamera();
  const missing = await whyNoCamera();
  if (missing) return showCameraMissing(own[missing]);
  byId("video").hidden = false;
  try {
    stopCamera = await startCamera(byId("video"), scan);
  } catch {
    byId("video").hidden = true;
    return showCameraMissing(own.cameraRefused);
  }
  byId("camera").textContent = own.cameraStop;
}

function endCamera() {
  stopCamera();
  stopCamera = null;
  byId("video").hidden = true;
  byId("camera").textContent = own.camera;
}

function showCameraMissing(sentence) {
  byId("camera-missing").textContent = sentence;
  byId("camera-missing").hidden = false;
  byId("code").focus();
}

// ---- without a network

async function take() {
  if (!eventId()) return facts(own.needsEvent);
  if (!canHash()) return facts(own.needsHttps);
  try {
    const { tickets, made, cancelUntil } = await readList(eventId());
    takeList(tickets);
    facts(own.taken(tickets.length, shortMoment(made)));
    byId("cancel-until").hidden = cancelUntil === null;
    if (cancelUntil) byId("cancel-until").textContent = own.mayCancelUntil(shortMoment(cancelUntil));
  } catch (error) {
    facts(error instanceof Refused ? refusalText(error) : own.serverError);
  }
}

const facts = (sentence) => (byId("list-facts").textContent = sentence);

function showQueue() {
  const waiting = queue().length;
  byId("queue-facts").textContent = waiting ? own.waiting(waiting) : own.nothingWaits;
  byId("send").hidden = waiting === 0;
}

let sending = null;

const sendWaiting = () => (doorKey() && queue().length ? send() : null);

/** One at a time: a scan, the network's return and the timer may all ask for it. Returns the error that stopped it. */
const send = () => (sending ??= sendAll().finally(() => (sending = null)));

async function sendAll() {
  try {
    const answered = await sendQueue();
    showQueue();
    if (answered.length) byId("queue-facts").textContent = own.sent(answered.length);
    showConflicts(answered.filter((one) => one.result === "conflict"));
    return null;
  } catch (error) {
    showQueue();
    if (error instanceof Refused) byId("queue-facts").textContent = refusalText(error);
    return error;
  }
}

function showConflicts(conflicts) {
  if (!conflicts.length) return;
  const lines = conflicts.map(({ place, reason, scanned_at }) =>
    el("li", {}, own.conflict(place ? placeName(place) : "?", own.reasons[reason], shortMoment(scanned_at))));
  byId("conflicts").replaceChildren(el("p", {}, own.conflicts), el("ul", {}, ...lines));
  byId("conflicts").hidden = false;
}

begin();
