"""The pure modules of `<earmark-seat-map>`, imported into a browser: geometry, neighbours, states, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .seat_map_host import SeatMapPage

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Visitor

pytestmark = pytest.mark.browser

FIND = "const from = (file) => import(`/web/seat-map/${file}.js`);"


@pytest.fixture
def run(visitor: Visitor) -> Callable[..., Any]:
    """Runs the body of a function in a page that shows no event."""
    SeatMapPage(visitor).open("", wait=False)

    def inside(body: str, argument: Any = None) -> Any:
        return visitor.page.evaluate(f"async (given) => {{ {FIND} {body} }}", argument)

    return inside


def seats_of(*rows: str, section: str | None = None) -> list[dict[str, Any]]:
    """Seats without coordinates: `A:1-4` is row A with the numbers 1 to 4."""
    found: list[dict[str, Any]] = []
    for text in rows:
        row, numbers = text.split(":")
        first, last = map(int, numbers.split("-"))
        found += [
            {"id": f"{row}{n}", "row": row, "number": n, "section": section, "price": 100, "state": "available"}
            for n in range(first, last + 1)
        ]
    return found


def test_rows_without_coordinates_are_centred_before_the_stage(run: Callable[..., Any]) -> None:
    """A short row stands in the middle, a number that is missing leaves its gap, and the stage is before all."""
    seats = [seat for seat in seats_of("A:1-6", "B:1-4") if seat["id"] != "A3"]
    plan = run(
        "const { makePlan } = await from('geometry'); const p = makePlan(given);"
        "return { x: [...p.x], y: [...p.y], stage: p.stage };",
        seats,
    )
    assert plan["x"] == [-2.5, -1.5, 0.5, 1.5, 2.5, -1.5, -0.5, 0.5, 1.5]
    assert all(high < low for high, low in zip(plan["y"][:4], plan["y"][5:], strict=True))
    assert plan["stage"]["bottom"] < min(plan["y"])


@pytest.mark.parametrize(
    "width, lines", [(12, ["204", "from €32", "338 left"]), (6, ["204"]), (0.8, [])], ids=["wide", "narrow", "slim"]
)
def test_labels_of_sections_stay_inside_them(run: Callable[..., Any], width: float, lines: list[str]) -> None:
    """A slanted section has less room above and below its middle: all lines, the name alone, or nothing."""
    written = run(
        """
        const { drawSectionSummary } = await from('draw-surroundings');
        const outline = [[0, 0], [given, 0], [given + 4, 8], [4, 8]];
        const written = [];
        const measureText = (text) => ({ width: text.length * 7 });
        const pen = { measureText, fillText: (text) => text && written.push(text) };
        const section = { outline, middle: { x: given / 2 + 2, y: 4 } };
        const lines = ['204', 'from €32', '338 left'];
        drawSectionSummary(pen, { section, camera: { scale: 9, x: 0, y: 0 }, theme: {}, lines });
        return written;
        """,
        width,
    )
    assert written == lines


def test_odd_numbers_side_by_side_leave_no_gaps(run: Callable[..., Any]) -> None:
    """Many houses number one side 1, 3, 5."""
    seats = [seat for seat in seats_of("A:1-7") if seat["number"] % 2]
    assert run("const { makePlan } = await from('geometry'); return [...makePlan(given).x];", seats) == [
        -1.5,
        -0.5,
        0.5,
        1.5,
    ]


@pytest.mark.parametrize("unit", [1.0, 25.0, 0.01])
def test_coordinates_of_any_unit_become_seats(run: Callable[..., Any], unit: float) -> None:
    """Whatever a planner drew in, the distance of two seats is one; rows may be turned."""
    seats = [
        {"id": f"s{n}", "row": "A", "number": n, "price": 1, "x": 3 * unit * n / 5, "y": 4 * unit * n / 5}
        for n in range(1, 6)
    ]
    plan = run(
        "const { makePlan } = await from('geometry'); const p = makePlan(given);"
        "return { gap: Math.hypot(p.x[1] - p.x[0], p.y[1] - p.y[0]), row: [...p.rows[0].seats] };",
        seats,
    )
    assert plan["gap"] == pytest.approx(1, abs=1e-3)
    assert plan["row"] == [0, 1, 2, 3, 4]


def test_the_grid_finds_the_nearest_seat_of_thousands(run: Callable[..., Any]) -> None:
    """The index agrees with a look at every seat."""
    wrong = run(
        """
        const { GridIndex } = await from("grid-index");
        let state = 7;
        const chance = () => (state = (state * 16807) % 2147483647) / 2147483647;
        const x = Float32Array.from({ length: 3000 }, () => 200 * chance());
        const y = Float32Array.from({ length: 3000 }, () => 90 * chance());
        const index = new GridIndex(x, y, { left: 0, right: 200, top: 0, bottom: 90 });
        let wrong = 0;
        for (let turn = 0; turn < 500; turn++) {
          const [px, py] = [220 * chance() - 10, 110 * chance() - 10];
          let [best, least] = [-1, 9];
          x.forEach((_, seat) => {
            const away = (x[seat] - px) ** 2 + (y[seat] - py) ** 2;
            if (away < least) [best, least] = [seat, away];
          });
          wrong += index.nearest(px, py, 3) !== best;
        }
        return wrong;
        """
    )
    assert wrong == 0


def test_arrow_keys_reach_every_seat_of_a_curved_plan(run: Callable[..., Any]) -> None:
    """No seat is out of reach of the keyboard, in arcs of turned rows as in straight ones."""
    reached = run(
        """
        const { makePlan } = await from("geometry");
        const { nextSeat } = await from("neighbours");
        const seats = [];
        for (let row = 0; row < 12; row++) {
          for (let at = 0; at < 30 + row; at++) {
            const angle = (at - (29 + row) / 2) / (16 + row);
            const [x, y] = [(16 + row) * Math.sin(angle), (16 + row) * Math.cos(angle)];
            seats.push({ id: `${row}-${at}`, row: String(row), number: at, section: "bowl", price: 1, x, y });
          }
        }
        const plan = makePlan(seats);
        const found = new Set([0]);
        for (const seat of found)
          for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]) found.add(nextSeat(plan, seat, key));
        return { reached: found.size, seats: seats.length };
        """
    )
    assert reached["reached"] == reached["seats"]


def test_the_best_seats_leave_no_single_seat(run: Callable[..., Any]) -> None:
    """A seat alone between two groups is hard to sell; it is left only where nothing else is free."""
    body = """
        const { makePlan } = await from("geometry");
        const { bestSeats } = await from("best-available");
        const free = new Set(given.free);
        const found = bestSeats(makePlan(given.seats), 2, (seat) => free.has(given.seats[seat].id));
        return found?.map((seat) => given.seats[seat].id) ?? null;
    """
    seats = seats_of("A:1-5")
    everything = [seat["id"] for seat in seats]
    assert run(body, {"seats": seats, "free": everything}) in (["A1", "A2"], ["A4", "A5"])
    assert run(body, {"seats": seats, "free": ["A2", "A3", "A4"]}) in (["A2", "A3"], ["A3", "A4"])
    assert run(body, {"seats": seats, "free": ["A1", "A3", "A5"]}) is None


def test_a_camera_keeps_the_point_under_the_fingers(run: Callable[..., Any]) -> None:
    """Zoom moves everything but the point that is pointed at, within limits and back to the whole plan."""
    told = run(
        """
        const camera = await from("camera");
        const [view, box] = [{ width: 800, height: 600 }, { left: 0, top: 0, right: 100, bottom: 80 }];
        const whole = camera.fit(box, view);
        const pixel = { x: 300, y: 200 };
        const [before, near] = [camera.toPlan(whole, pixel), camera.clamp(camera.zoomAt(whole, 4, pixel), box, view)];
        const after = camera.toPlan(near, pixel);
        const out = camera.clamp(camera.zoomAt(near, 0.001, pixel), box, view);
        const far = camera.clamp(camera.zoomAt(whole, 1000, pixel), box, view);
        const moved = Math.hypot(before.x - after.x, before.y - after.y);
        return { moved, out: out.scale / whole.scale, far: far.scale };
        """
    )
    assert told["moved"] < 1e-6
    assert told["out"] == pytest.approx(1)
    assert told["far"] == 64


def test_a_state_is_one_byte_with_one_look(run: Callable[..., Any]) -> None:
    """What the server says goes before what was selected, and what is the buyer's own before what is held."""
    looks = run(
        """
        const { told, lookName, SELECTED, FILTERED, PENDING } = await from("seat-states");
        const look = (state, mine, bits = 0) => lookName(told(bits, { state, mine }));
        return [
          look("available", false), look("available", false, SELECTED), look("available", false, FILTERED),
          look("available", false, SELECTED | FILTERED), look("held", false, SELECTED),
          look("held", false, SELECTED | PENDING), look("held", true), look("booked", true),
          look("booked", false, SELECTED), look("blocked", false), look("new", false),
        ];
        """
    )
    assert looks == [
        "available",
        "selected",
        "filtered",
        "selected",
        "held",
        "selected",
        "heldForYou",
        "yours",
        "sold",
        "blocked",
        "blocked",
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stream_is_read_however_it_is_cut(run: Callable[..., Any], size: int) -> None:
    """The network cuts text anywhere, also between the two line ends that separate events."""
    text = 'event: snapshot\nid: 1\ndata: {"a":1}\n\n: \nid: 5\n\nretry: 10\nevent: end\ndata: {"b":2}\n\n'
    events = run(
        """
        const { readEvents } = await from("event-stream");
        const bytes = new TextEncoder().encode(given.text);
        const body = new ReadableStream({
          start(stream) {
            for (let at = 0; at < bytes.length; at += given.size) stream.enqueue(bytes.slice(at, at + given.size));
            stream.close();
          },
        });
        const events = [];
        for await (const event of readEvents(body)) events.push(event);
        return events;
        """,
        {"text": text, "size": size},
    )
    assert events == [
        {"type": "snapshot", "id": "1", "data": '{"a":1}'},
        {"type": "comment", "id": "5", "data": ""},
        {"type": "end", "id": None, "data": '{"b":2}'},
    ]


def test_every_language_has_the_same_words(run: Callable[..., Any]) -> None:
    """A text that one language lacks would be empty on the screen."""
    shapes = run(
        """
        const shape = (value) => typeof value === "object"
          ? Object.keys(value).sort().map((key) => `${key}:${shape(value[key])}`).join(" ")
          : typeof value === "function" ? value.length : typeof value;
        const texts = await Promise.all(["en", "de"].map((tag) => import(`/web/texts/seat-map-${tag}.js`)));
        return texts.map((one) => shape(one.default));
        """
    )
    assert shapes[0] == shapes[1]
