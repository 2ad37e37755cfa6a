// Connects <earmark-seat-map> with a basket: what the buyer does on the map changes the basket, and the map shows it.

/**
 * canChange({isMore}): whether the basket can be changed now, for more or for less. left(): how many seats and units the
 * buyer may still add.
 */
export function connectMap(map, basket, { canChange = () => true, left = () => Infinity } = {}) {
  map.setAttribute("holds-each-seat", "");
  map.addEventListener("earmark-toggle", (choice) => {
    const { seat, isSelected } = choice.detail;
    if (!canChange({ isMore: isSelected })) return choice.preventDefault();
    if (isSelected) basket.addSeat(seat);
    else basket.dropSeat(seat.id);
  });
  map.addEventListener("earmark-pool", ({ detail: { pool: id, units, price } }) => {
    const before = basket.lines.pools.find((line) => line.id === id)?.units ?? 0;
    if (canChange({ isMore: units > before })) basket.setUnits({ id, units, price });
    else showBasketOnMap(map, basket);
  });
  // The server chooses the best seats for a new basket; for a basket with seats in it, the map proposes them.
  map.addEventListener("earmark-best-available", (choice) => {
    const { count, category, price } = choice.detail;
    if (!canChange({ isMore: true })) return choice.preventDefault();
    if (!basket.isEmpty || basket.isBusy || count > left()) return;
    choice.preventDefault();
    basket.holdBest({ count, ...(category && { category }), ...(price != null && { price_max: price }) });
  });
}

/** Shows the basket's seats and units as the buyer's own. */
export function showBasketOnMap(map, basket) {
  const { seats, pools } = basket.lines;
  map.ownBooking = [...seats, ...basket.others.flatMap((booking) => booking.seats)];
  map.ownUnits = Object.fromEntries(pools.map(({ id, units }) => [id, units]));
}
