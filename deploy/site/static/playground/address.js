// The address as the state of the page: a selector, how it is judged, and the name of a profile; never pasted slices.

import { PASTED, fleetName } from "./api.js";

// Writes the state into the address, without a new entry in the history and without drawing the page again.
export function permalink(name, parameters) {
  const fleet = fleetName() === PASTED ? "" : fleetName();
  const query = new URLSearchParams(Object.entries({ fleet, ...parameters }).filter(([, value]) => value)).toString();
  history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
}
