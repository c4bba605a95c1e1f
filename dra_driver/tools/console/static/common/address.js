// The address as the state of a page: all of it comes after the #, so that browsers send none of it to a server.

// Writes the state into the address, without a new entry in the history and without drawing the page again.
export function permalink(name, parameters) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
}
