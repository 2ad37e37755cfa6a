// One script tag gives a page <earmark-seat-map>: <script type="module" src="…/web/earmark-seat-map.js"></script>

import { EarmarkSeatMap } from "./seat-map/element.js";

if (!customElements.get("earmark-seat-map")) customElements.define("earmark-seat-map", EarmarkSeatMap);

export { EarmarkSeatMap };
