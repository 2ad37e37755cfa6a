// Where the map comes from: the stream of changes, and while that does not work, the whole map every few seconds.

import { readEvents } from "./event-stream.js";

const POLL_SECONDS = 2;
const POLLS_BETWEEN_STREAMS = 10; // while only polls work, the stream is tried again so often
const PAUSE_SECONDS_MAX = 15;
const SILENCE_MS_MAX = 45_000; // the server sends a sign of life every 15 seconds
const FIRST_BYTES_MS_MAX = 8_000; // a proxy that buffers lets nothing through

/** A response that is not the one that was asked for. */
export class ServerRefusal extends Error {
  constructor(status, detail) {
    super(detail || `The server answered ${status}.`);
    this.status = status;
  }
}

export class MapSource {
  #stop = new AbortController();
  #lastId = null;
  #tag = null;
  #failures = 0;
  #isLive = false;
  #isGuest = false;

  /**
   * server: the base URL; token(): the buyer's token or null. Calls onEvent(event), onMap(map, since when it
   * was there), onChange(seats and pools),
   * onLink("live" | "connecting" | "polling" | "lost"), and onRefusal(error) once if the server refuses for good.
   */
  constructor({ server, eventId, token, onEvent, onMap, onChange, onLink, onRefusal }) {
    this.base = `${server}/v1/events/${encodeURIComponent(eventId)}`;
    this.server = server;
    Object.assign(this, { token, onEvent, onMap, onChange, onLink, onRefusal });
  }

  async start() {
    const { signal } = this.#stop;
    try {
      this.onEvent(await this.#retry(async () => (await this.#get("")).json()));
      while (!signal.aborted) await this.#follow();
    } catch (error) {
      if (!signal.aborted) this.onRefusal(error);
    }
  }

  stop() {
    this.#stop.abort();
  }

  async #follow() {
    await this.#untilVisible();
    const isOver = await this.#stream().then((pause) => this.#pause(pause).then(() => true), this.#unlessRefused);
    if (isOver || this.#stop.signal.aborted) return;
    for (let polls = 0; polls < POLLS_BETWEEN_STREAMS && !this.#stop.signal.aborted; polls++) {
      await this.#untilVisible();
      await this.#poll().then(() => this.#linked("polling"), this.#unlessRefused);
      await this.#pause(Math.min(PAUSE_SECONDS_MAX, POLL_SECONDS * 2 ** this.#failures));
    }
  }

  // An error that another try may mend is counted; any other ends the source.
  #unlessRefused = (error) => {
    if (error instanceof ServerRefusal && [400, 401, 403, 404].includes(error.status)) throw error;
    this.#failures = Math.min(this.#failures + 1, 4);
    if (this.#failures > 1 && !this.#stop.signal.aborted) this.onLink("lost");
    return false;
  };

  #linked(link) {
    this.#failures = 0;
    this.#isLive = link === "live";
    this.onLink(link);
  }

  async #retry(ask) {
    for (;;) {
      const answer = await ask().catch(this.#unlessRefused);
      if (answer) return answer;
      await this.#pause(2 ** this.#failures);
      if (this.#stop.signal.aborted) throw new DOMException("stopped", "AbortError");
    }
  }

  // ---- the stream

  /** Follows the event until the stream ends; resolves with how many seconds to wait before the next one. */
  async #stream() {
    const silence = new AbortController();
    let alarm = setTimeout(() => silence.abort(), FIRST_BYTES_MS_MAX);
    const onBytes = () => {
      clearTimeout(alarm);
      alarm = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
    };
    const onHidden = () => document.hidden && silence.abort();
    document.addEventListener("visibilitychange", onHidden);
    try {
      const headers = this.#lastId === null ? {} : { "Last-Event-ID": this.#lastId };
      const response = await this.#get("/stream", { headers, signal: silence.signal });
      for await (const event of readEvents(response.body, onBytes)) {
        if (event.type === "end") return JSON.parse(event.data).retry_seconds;
        this.#take(event);
      }
      throw new Error("The stream broke off.");
    } catch (error) {
      if (document.hidden) return 0; // closed by us: one connection less for the other tabs
      throw error;
    } finally {
      if (this.#isLive && !this.#stop.signal.aborted) this.#linked("connecting");
      clearTimeout(alarm);
      silence.abort();
      document.removeEventListener("visibilitychange", onHidden);
    }
  }

  #take({ type, id, data }) {
    const began = performance.now();
    if (type === "snapshot") this.onMap(JSON.parse(data), began);
    if (type === "delta") this.onChange(JSON.parse(data));
    this.#lastId = id ?? this.#lastId;
    this.#linked("live");
  }

  // ---- polls

  async #poll() {
    const headers = this.#tag ? { "If-None-Match": this.#tag } : {};
    const response = await this.#get("/seats", { headers });
    if (response.status === 304) return;
    this.#tag = response.headers.get("ETag");
    this.#lastId = null; // the number of this map is not known: the next stream begins with a whole map
    const text = await response.text();
    const began = performance.now();
    this.onMap(JSON.parse(text), began);
  }

  // ---- requests

  async #get(path, options = {}) {
    if (!this.token() && this.#isHome) await this.#becomeGuest();
    return checked(await this.#send(this.base + path, options));
  }

  // On its own site a page without a token is a guest: the server sets a cookie that scripts cannot read. A guest whose
  // cookie is still valid stays the same guest.
  async #becomeGuest() {
    if (this.#isGuest) return;
    const { ok, status } = await this.#send(`${this.server}/v1/guests`, { method: "POST" });
    if (!ok) throw new ServerRefusal(status === 404 ? 401 : status); // without guests a token is needed
    this.#isGuest = true;
  }

  get #isHome() {
    return new URL(this.server, location.href).origin === location.origin;
  }

  #send(url, { headers = {}, method = "GET", signal } = {}) {
    const token = this.token();
    return fetch(url, {
      method,
      headers: { ...headers, ...(token && { Authorization: `Bearer ${token}` }) },
      credentials: token ? "omit" : "same-origin",
      cache: "no-store",
      signal: signal ? AbortSignal.any([signal, this.#stop.signal]) : this.#stop.signal,
    });
  }

  // ---- waiting

  #pause(seconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, 1000 * seconds);
      this.#stop.signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
  }

  #untilVisible() {
    if (!document.hidden) return Promise.resolve();
    return new Promise((resolve) => {
      const look = () => {
        if (document.hidden && !this.#stop.signal.aborted) return;
        document.removeEventListener("visibilitychange", look);
        resolve();
      };
      document.addEventListener("visibilitychange", look);
      this.#stop.signal.addEventListener("abort", look, { once: true });
    });
  }
}

async function checked(response) {
  if (response.ok || response.status === 304) return response;
  const body = await response.json().catch(() => ({}));
  throw new ServerRefusal(response.status, body.detail);
}
