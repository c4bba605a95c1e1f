// The search: all words that are typed must occur in a section; those of titles and headings count more.

(() => {
  const MOST = 12;
  const field = document.getElementById("search");
  const found = document.getElementById("found");
  const up = document.body.dataset.up;
  const sections = (window.searchIndex ?? []).map(([address, title, heading, words]) => (
    { address, title, heading, words, parts: [title, heading, words].map((one) => one.toLowerCase()) }));

  const element = (tag, name, ...children) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.append(...children);
    return made;
  };

  // Returns how well a section fits: 0 if one of the words does not occur in it.
  function score({ parts: [title, heading, words] }, wanted) {
    let sum = 0;
    for (const word of wanted) {
      const points = (title.includes(word) ? 4 : 0) + (heading.includes(word) ? 6 : 0)
        + Math.min(3, words.split(word).length - 1);
      if (!points) return 0;
      sum += points;
    }
    return sum;
  }

  // Returns the words around the first place where one of the words occurs, with the places marked.
  function snippet({ words }, wanted) {
    const at = Math.max(0, Math.min(...wanted.map((one) => words.toLowerCase().indexOf(one)).filter((one) => one >= 0)) - 50);
    const text = words.slice(Number.isFinite(at) ? at : 0).slice(0, 170);
    const line = element("span", "muted");
    const pattern = new RegExp(`(${wanted.map((one) => one.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "i");
    text.split(pattern).forEach((part, number) => line.append(number % 2 ? element("mark", "", part) : part));
    return line;
  }

  function show() {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 8);
    found.hidden = !wanted.length;
    if (!wanted.length) return;
    const hits = sections.map((one) => [score(one, wanted), one]).filter(([points]) => points)
      .sort(([one], [other]) => other - one).slice(0, MOST);
    found.replaceChildren(hits.length ? element("ul", "", ...hits.map(([, one]) => {
      const link = element("a", "", element("b", "", one.title), one.heading && one.heading !== one.title ? ` › ${one.heading}` : "");
      link.href = up + one.address;
      return element("li", "", link, snippet(one, wanted));
    })) : element("p", "muted", "Nothing was found."));
  }

  field.addEventListener("input", show);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !found.hidden) {
      field.value = "";
      show();
    } else if (event.key === "/" && !event.target.closest("input, textarea")) {
      event.preventDefault();
      field.focus();
    }
  });
  found.addEventListener("click", (event) => { if (event.target.closest("a")) { field.value = ""; show(); } });

  // In a wide window the list of all pages is always open.
  const contents = document.getElementById("contents");
  const wide = matchMedia("(min-width: 900px)");
  const unfold = () => { contents.open = wide.matches; };
  wide.addEventListener("change", unfold);
  unfold();
})();
