// Fetches repeatedly while the page is visible: pauses in a hidden tab, slows down while the server does not answer.

const SILENCE_SECONDS_MAX = 15;

export class Poller {
  #timer = null;
  #running = null;
  #failures = 0;

  /** ask(signal) fetches once; onLink(true or false) is called with whether the server answered. */
  constructor({ ask, seconds, onLink }) {
    this.ask = ask;
    this.seconds = seconds;
    this.onLink = onLink;
    document.addEventListener("visibilitychange", () => this.#onVisibility());
  }

  /** Fetches at once; a request that is still open is aborted, for its response would be stale. */
  async now() {
    this.stop();
    const running = (this.#running = new AbortController());
    try {
      await this.ask(running.signal);
      this.#failures = 0;
    } catch {
      this.#failures += 1;
    }
    if (running.signal.aborted) return;
    this.onLink(this.#failures === 0);
    if (!document.hidden) this.#timer = setTimeout(() => this.now(), this.#pause());
  }

  stop() {
    clearTimeout(this.#timer);
    this.#running?.abort();
  }

  #onVisibility() {
    if (document.hidden) this.stop();
    else if (this.#running) this.now(); // not before the first fetch
  }

  #pause() {
    return 1000 * Math.min(SILENCE_SECONDS_MAX, this.seconds * 2 ** this.#failures);
  }
}
