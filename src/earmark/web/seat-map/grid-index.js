// Finds seats by place: the plan is cut into square cells, and each cell lists its seats.

const CELL = 2; // in units of a seat
const CELLS_PER_SEAT_MAX = 4;

export class GridIndex {
  /** x and y of all seats, and a box around them. */
  constructor(x, y, box) {
    this.x = x;
    this.y = y;
    this.box = box;
    const area = Math.max(1, (box.right - box.left) * (box.bottom - box.top));
    this.cell = Math.max(CELL, Math.sqrt(area / (CELLS_PER_SEAT_MAX * Math.max(1, x.length))));
    this.columns = Math.max(1, Math.ceil((box.right - box.left) / this.cell));
    this.lines = Math.max(1, Math.ceil((box.bottom - box.top) / this.cell));
    this.#fill();
  }

  // Counting sort: the seats of cell c are items[starts[c]] to items[starts[c + 1] - 1].
  #fill() {
    const cellOf = Uint32Array.from(this.x, (x, seat) => this.#line(this.y[seat]) * this.columns + this.#column(x));
    this.starts = new Uint32Array(this.columns * this.lines + 1);
    for (const cell of cellOf) this.starts[cell + 1]++;
    for (let cell = 0; cell < this.columns * this.lines; cell++) this.starts[cell + 1] += this.starts[cell];
    const next = this.starts.slice();
    this.items = new Uint32Array(this.x.length);
    cellOf.forEach((cell, seat) => (this.items[next[cell]++] = seat));
  }

  #column = (x) => bound(Math.floor((x - this.box.left) / this.cell), this.columns - 1);
  #line = (y) => bound(Math.floor((y - this.box.top) / this.cell), this.lines - 1);

  /** Calls visit(seat) for each seat in the cells that a rectangle touches: some may be a little outside. */
  forEachIn({ left, top, right, bottom }, visit) {
    const [from, to] = [this.#column(left), this.#column(right)];
    for (let line = this.#line(top); line <= this.#line(bottom); line++) {
      const end = this.starts[line * this.columns + to + 1];
      for (let at = this.starts[line * this.columns + from]; at < end; at++) visit(this.items[at]);
    }
  }

  /** The seat nearest to a point, at most so far away; -1 if there is none. */
  nearest(x, y, distanceMax) {
    let [best, least] = [-1, distanceMax * distanceMax];
    this.forEachIn(around(x, y, distanceMax), (seat) => {
      const [dx, dy] = [this.x[seat] - x, this.y[seat] - y];
      if (dx * dx + dy * dy > least) return;
      best = seat;
      least = dx * dx + dy * dy;
    });
    return best;
  }
}

/** The square around a point. */
export const around = (x, y, half) => ({ left: x - half, right: x + half, top: y - half, bottom: y + half });

const bound = (value, most) => Math.min(Math.max(0, value), most);
