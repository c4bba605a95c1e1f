// Light, dark, or as in the system: remembered in this browser.

(() => {
  const THEMES = ["auto", "light", "dark"];
  const page = document.documentElement;
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const keep = (name) => { try { localStorage.setItem("theme", name); } catch { /* a browser that keeps nothing */ } };
  const dress = (name) => {
    page.dataset.theme = name;
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[name];
    button.setAttribute("aria-label", `Theme: ${name}`);
  };
  dress(THEMES.includes(stored()) ? stored() : "auto");
  addEventListener("DOMContentLoaded", () => {
    dress(page.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      const name = THEMES[(THEMES.indexOf(page.dataset.theme) + 1) % THEMES.length];
      keep(name);
      dress(name);
    });
  });
})();
