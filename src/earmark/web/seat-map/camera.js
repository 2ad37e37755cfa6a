// Which part of the plan is seen: pure functions over {scale, x, y}. A point of the plan is at scale * point + offset.

export const SEAT_PX_TO_REACT = 24; // below, a tap zooms to the section instead
export const SEAT_PX_TO_SHOW = 8; // below, sections are drawn as areas
const SEAT_PX_MAX = 64;
const SEAT_PX_FIT_MAX = 44;
const MARGIN_PX = 18;
const EDGE_PX = 90; // how far beyond its edge a plan may be moved

/** All of a box in the middle of a view. */
export function fit(box, view, { margin = MARGIN_PX, least = 0, most = SEAT_PX_FIT_MAX } = {}) {
  const [width, height] = [box.right - box.left, box.bottom - box.top];
  const scale = Math.min((view.width - 2 * margin) / width, (view.height - 2 * margin) / height);
  return lookAt({ x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2 }, view, bound(scale, least, most));
}

/** A point of the plan in the middle of a view. */
export const lookAt = (point, view, scale) => ({
  scale,
  x: view.width / 2 - scale * point.x,
  y: view.height / 2 - scale * point.y,
});

/** Zoomed by a factor, while the point of the plan at this pixel stays there. */
export function zoomAt(camera, factor, pixel) {
  const scale = camera.scale * factor;
  return {
    scale,
    x: pixel.x - (pixel.x - camera.x) * factor,
    y: pixel.y - (pixel.y - camera.y) * factor,
  };
}

/** Within the limits of zoom, and not moved away from the plan. */
export function clamp(camera, box, view) {
  const whole = fit(box, view);
  const scale = bound(camera.scale, whole.scale, Math.max(SEAT_PX_MAX, whole.scale));
  const middle = { x: view.width / 2, y: view.height / 2 };
  const zoomed = scale === camera.scale ? camera : zoomAt(camera, scale / camera.scale, middle);
  return {
    scale,
    x: clampAxis(zoomed.x, scale * box.left, scale * box.right, view.width),
    y: clampAxis(zoomed.y, scale * box.top, scale * box.bottom, view.height),
  };
}

// What fits stays inside; what does not may be moved until a little beyond its edge.
function clampAxis(offset, from, to, size) {
  const [least, most] = [MARGIN_PX - from, size - MARGIN_PX - to];
  if (least <= most) return bound(offset, least, most);
  const edge = Math.min(EDGE_PX, size / 4);
  return bound(offset, size - edge - to, edge - from);
}

export const toPlan = (camera, pixel) => ({
  x: (pixel.x - camera.x) / camera.scale,
  y: (pixel.y - camera.y) / camera.scale,
});
export const toPixel = (camera, point) => ({
  x: point.x * camera.scale + camera.x,
  y: point.y * camera.scale + camera.y,
});

/** The part of the plan that is seen, with a seat's width around it. */
export function seen(camera, view) {
  const [from, to] = [toPlan(camera, { x: 0, y: 0 }), toPlan(camera, { x: view.width, y: view.height })];
  return { left: from.x - 1, top: from.y - 1, right: to.x + 1, bottom: to.y + 1 };
}

/** Moved as little as needed so that a point is inside the view, with room around it. */
export function reveal(camera, point, view, room = 60) {
  const pixel = toPixel(camera, point);
  const into = (at, size) => bound(at, Math.min(room, size / 2), Math.max(size - room, size / 2)) - at;
  return { ...camera, x: camera.x + into(pixel.x, view.width), y: camera.y + into(pixel.y, view.height) };
}

/** Between two cameras, by a part from 0 to 1: zoomed evenly, so that a point both see moves in a straight line. */
export function between(from, to, part) {
  const scale = from.scale * (to.scale / from.scale) ** part;
  const share = to.scale === from.scale ? part : (scale - from.scale) / (to.scale - from.scale);
  return { scale, x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
}

const bound = (value, least, most) => Math.min(Math.max(value, least), most);
