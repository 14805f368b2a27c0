"""A page in the distribution's Chromium, driven by Playwright."""

import pathlib
import shutil

import pytest

PHONES = (360, 375)  # widths in CSS pixels


def chromium_path() -> str:
    """The installed Chromium; skips the test without one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    return found


class Page:
    """A page of its own, with what it requested and what went wrong in it since it was opened."""

    def __init__(self, page):
        self.page, self.errors, self.requests = page, [], []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: pathlib.Path, fragment="", width=1280, height=900, scheme="light"):
        """Opens a page of ours and waits until it has drawn everything."""
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size({"width": width, "height": height})
        self.open_file(path, fragment)
        self.wait('document.readyState === "complete" && document.documentElement.dataset.ready === "true"')

    def open_file(self, path: pathlib.Path, fragment=""):
        self.page.goto("about:blank")  # otherwise another fragment of the same page does not load it again
        self.errors.clear()
        self.requests.clear()
        self.page.goto(path.resolve().as_uri() + (f"#{fragment}" if fragment else ""))

    def js(self, expression: str):
        return self.page.evaluate(expression)

    def wait(self, expression: str, seconds: float = 120):
        self.page.wait_for_function(expression, timeout=1000 * seconds)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.text_content()

    def click(self, selector: str):
        """Clicks the middle of an element's first line, which nothing may cover.

        Not Playwright's own click: in text columns Chromium tells it where the element would be in a single column.
        """
        element = self.page.locator(selector).first
        element.scroll_into_view_if_needed()
        x, y, covering = element.evaluate("""(e) => {
            const box = e.getClientRects()[0], x = box.left + box.width / 2, y = box.top + box.height / 2;
            const hit = document.elementFromPoint(x, y);
            return [x, y, e.contains(hit) ? null : String(hit?.outerHTML)];
        }""")
        assert covering is None, f"{selector} is covered by {covering}"
        self.page.mouse.click(x, y)

    def select(self, selector: str, value: str):
        self.page.select_option(selector, value)

    def focus(self, selector: str):
        self.page.locator(selector).first.focus()

    def press(self, keys: str):
        self.page.keyboard.press(keys)

    def hover(self, selector: str, x: float = 0.5, y: float = 0.5):
        """Moves the mouse over a point of an element, given as fractions of its size."""
        element = self.page.locator(selector).first
        element.scroll_into_view_if_needed()
        box = element.bounding_box()
        for nudge in (2, 0):  # a chart reacts to movement
            self.page.mouse.move(box["x"] + x * box["width"] + nudge, box["y"] + y * box["height"])

    def screenshot(self, path: pathlib.Path):
        self.page.screenshot(path=path, full_page=True)

    def assert_clean(self):
        """The page drew everything, without errors, and loaded nothing from elsewhere."""
        assert self.js("document.documentElement.dataset.errors") is None
        assert not self.errors, self.errors
        schemes = {url.split(":")[0] for url in self.requests}
        assert schemes <= {"file", "data", "blob", "about"}, self.requests
        tags = self.js('[...document.querySelectorAll("[src], link[href], [action]")].map((e) => e.src || e.href)')
        assert all(tag.startswith("data:") for tag in tags), tags

    def assert_fits(self, width: int):
        """Nothing is wider than the window, so the page does not scroll sideways."""
        wide = self.js("""[...document.querySelectorAll("main *")].filter((e) => e.scrollWidth > e.clientWidth + 1 &&
            getComputedStyle(e).overflowX === "visible" && e.getBoundingClientRect().right > innerWidth)
            .map((e) => e.id || e.className || e.tagName)""")
        assert self.js("document.documentElement.scrollWidth") <= width, wide
        self.page.mouse.wheel(200, 0)
        assert self.js("scrollX") == 0, wide

    def assert_controls_have_names(self):
        nameless = self.js("""[...document.querySelectorAll("button, input, [role=img], [tabindex]")].filter((e) =>
            !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)""")
        assert nameless == [], nameless
