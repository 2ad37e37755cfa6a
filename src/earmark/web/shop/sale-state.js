// Whether the buyer can choose anything now, known before the first click.

/** "soon", "over", "soldOut", "limit" or "open", and what belongs to it. */
export function saleState({ event, now, available, inBasket, elsewhere }) {
  const [opens, closes] = [event.sale_opens_at, event.sale_closes_at].map((moment) => moment && new Date(moment));
  if (opens && now < opens) return { name: "soon", opensAt: opens, opensIn: (opens - now) / 1000 };
  if (closes && now >= closes) return { name: "over", closedAt: closes };
  const limit = event.per_buyer_max;
  const left = limit === null ? Infinity : limit - elsewhere - inBasket;
  if (left <= 0) return { name: "limit", limit, left: 0, isBought: inBasket === 0 };
  if (available === 0) return { name: "soldOut", limit, left };
  return { name: "open", limit, left };
}
