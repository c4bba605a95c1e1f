// The address as the state of a page: everything behind the #, so that nothing of it is sent to any server.

// Writes what is shown into the address, without a new entry in the history and without drawing again.
export function permalink(name, parameters) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
}
