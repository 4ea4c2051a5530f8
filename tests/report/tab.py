"""A page of the report in a real browser."""

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Tab:
    """A page from disk, with everything it complained about or asked for."""

    def __init__(self, browser, path, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda message: self._heard(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss())
        )
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(
            "#examples-list .tile, #examples-list .absent", state="attached"
        )

    def _heard(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def settle(self) -> None:
        """Waits until what was asked for has been drawn."""
        self.page.evaluate("() => new Promise((f) => requestAnimationFrame(() => setTimeout(f)))")

    def choose(self, section: str, label: str, value: str) -> None:
        """Chooses an option in a section."""
        field = self.page.locator(f"#{section}-body label.field", has_text=label)
        field.locator("select").select_option(value)
        self.settle()

    def slide(self, value: float) -> None:
        self.page.evaluate(
            """(value) => {
                const slider = document.getElementById("slider");
                slider.value = value;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            value,
        )
        self.settle()

    def rows(self, selector: str) -> list[list[str]]:
        """The text of a table's body."""
        return self.page.evaluate(
            """(selector) => [...document.querySelectorAll(`${selector} tbody tr`)]
                .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))""",
            selector,
        )

    def positions(self, place: str) -> list[int]:
        """Positions of all examples in a list, in their order."""
        while self.page.locator(f"{place} .more").is_visible():
            self.page.click(f"{place} .more")
        tiles = "nodes => nodes.map(n => +n.dataset.position)"
        return self.page.eval_on_selector_all(f"{place} .tile", tiles)

    def close(self) -> None:
        """No page may complain, ask or speak up."""
        self.context.close()
        assert self.complaints == []
        assert self.dialogs == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []
