// A countdown on the browser's monotonic clock: the server sends the seconds left, the wall clock is never read.

export class Countdown {
  #timer = null;

  /** Calls onTick(secondsLeft) at once and at every full second, and onZero() once at the end. */
  constructor({ deadline, onTick, onZero }) {
    this.onTick = onTick;
    this.onZero = onZero;
    this.restart(deadline);
  }

  /** Seconds until the deadline, which is a performance.now() in milliseconds. */
  get left() {
    return Math.max(0, (this.deadline - performance.now()) / 1000);
  }

  restart(deadline) {
    this.stop();
    this.deadline = deadline;
    this.#tick();
  }

  stop() {
    clearTimeout(this.#timer);
  }

  #tick() {
    const left = this.left;
    this.onTick(left);
    if (left === 0) this.onZero();
    else this.#timer = setTimeout(() => this.#tick(), untilNextSecond(left));
  }
}

// A little late rather than early, so that the countdown never shows one second twice.
const untilNextSecond = (left) => (left - Math.ceil(left) + 1) * 1000 + 5;
