// Light or dark before the first paint: the reader's last choice, else the system's.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("kepsvgp-theme");
  } catch {
    chosen = null;
  }
  const apply = () => {
    root.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("kepsvgp-theme"));
  };
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const tell = () => button.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
    tell();
    document.addEventListener("kepsvgp-theme", tell);
    button.addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("kepsvgp-theme", chosen);
      } catch {
        // a page from disk may have no storage; the choice then lasts as long as the page
      }
      apply();
    });
  });
  apply();
})();
