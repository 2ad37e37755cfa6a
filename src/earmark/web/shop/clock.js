// A countdown by the server's clock: the server sends the seconds that are left, and the browser's monotonic clock counts
// them. The browser's wall clock, which may be wrong, is never read.

const WARN_SECONDS = [60, 20];

export class Clock {
  #timer = null;
  #deadline = 0;
  #warned = 0; // of WARN_SECONDS, how many were said

  /** onTick(secondsLeft) at once and at every full second; onWarning(60 or 20) as each is reached; onEnd() once. */
  constructor({ onTick, onWarning = () => {}, onEnd = () => {} }) {
    Object.assign(this, { onTick, onWarning, onEnd });
    // A tab in the background, and a computer that slept, may have missed seconds.
    document.addEventListener("visibilitychange", () => !document.hidden && this.#timer && this.#tick());
  }

  /** Seconds until the end. */
  get left() {
    return Math.max(0, (this.#deadline - performance.now()) / 1000);
  }

  get isRunning() {
    return this.#timer !== null;
  }

  /** Counts towards a deadline, which is a performance.now() in milliseconds. */
  run(deadline) {
    if (this.isRunning && deadline === this.#deadline) return;
    this.#deadline = deadline;
    const { left } = this;
    // What is already past when the count begins is said once, as the latest of them.
    const passed = WARN_SECONDS.filter((seconds) => left <= seconds).length;
    this.#warned = Math.max(0, passed - 1);
    this.#tick();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  #tick() {
    clearTimeout(this.#timer);
    const { left } = this;
    this.onTick(left);
    if (left === 0) return this.#end();
    if (left <= WARN_SECONDS[this.#warned]) this.onWarning(WARN_SECONDS[this.#warned++]);
    this.#timer = setTimeout(() => this.#tick(), untilNextSecond(left));
  }

  #end() {
    this.stop();
    this.onEnd();
  }
}

// A little late rather than early, so that the countdown never shows one second twice.
const untilNextSecond = (left) => (left - Math.ceil(left) + 1) * 1000 + 5;
