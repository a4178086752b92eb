"""The page, in a headless Chromium; skipped without `chromium`, `chromedriver` or the package selenium."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from kernmill.serve import page
from kernmill.serve.limits import ServerOptions

from .conftest import Running, loaded, running

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_the_page_is_small_and_needs_nothing_else() -> None:
    text = page.html()
    assert len(text.encode()) < 60_000
    assert "innerHTML" not in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")  # the name of a format
    assert "'sha256-" in page.policy()
    assert "unsafe" not in page.policy()


def test_the_page_is_sent_with_its_policy(server: Running) -> None:
    answered = server.ask("/")
    assert answered.body.decode() == page.html()
    assert answered.headers["content-security-policy"] == page.policy()
    assert answered.headers["x-content-type-options"] == "nosniff"


@pytest.fixture(scope="module")
def talking(stories: str) -> Generator[Running]:
    """A server whose model continues the text of the messages."""
    with running({"stories": stories}, ServerOptions(slots=2, template=PLAIN, context=512), loaded) as found:
        yield found


@pytest.fixture(scope="module")
def browser(talking: Running) -> Generator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1100,760"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        found.get(f"{talking.url}/")
        yield found
    finally:
        found.quit()


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait for something; the limit is for a machine that is busy."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited for {what}")


def all_of(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def say(browser: Any, text: str) -> None:
    browser.find_element("id", "input").send_keys(text + "\ue007")  # Enter


def is_idle(browser: Any) -> bool:
    return bool(browser.find_element("id", "send").is_displayed())


def setting(browser: Any, **values: str) -> None:
    browser.find_element("id", "settings").click()
    for name, value in values.items():
        field = browser.find_element("id", f"s-{name}")
        if field.tag_name != "select":
            field.clear()
        field.send_keys(value)
    browser.find_element("id", "close").click()


def test_a_conversation_in_a_browser(browser: Any) -> None:
    until(lambda: browser.find_element("id", "model").get_attribute("value") == "stories", "the models")
    setting(browser, temperature="0", max_tokens="60")
    say(browser, "Once upon a time")
    until(lambda: all_of(browser, ".assistant .text p"), "the first text")
    until(lambda: is_idle(browser), "the end")
    text = all_of(browser, ".assistant .text")[0].text
    assert text.startswith(", there was a little girl named Lily.")
    assert "60 tokens" in all_of(browser, ".assistant .under")[0].text
    until(lambda: "of 2 slots" in browser.find_element("id", "state").text, "the state")
    assert "MiB" in browser.find_element("id", "state").text

    buttons = [one for one in all_of(browser, ".assistant button") if one.text == "Regenerate"]
    buttons[0].click()
    until(lambda: all_of(browser, ".assistant .under span") and is_idle(browser), "the second answer")
    assert all_of(browser, ".assistant .text")[0].text == text

    browser.refresh()  # conversations are kept in the browser
    until(lambda: all_of(browser, ".assistant .text"), "the kept conversation")
    assert all_of(browser, ".assistant .text")[0].text == text
    assert [row.text.split("\n")[0] for row in all_of(browser, "#list li")] == ["Once upon a time"]
    if "PAGE_PICTURE" in os.environ:
        until(lambda: "slots" in browser.find_element("id", "state").text, "the state")
        browser.save_screenshot(os.environ["PAGE_PICTURE"])


def test_stop_edit_and_a_second_conversation(browser: Any) -> None:
    setting(browser, max_tokens="480", temperature="1")
    browser.find_element("id", "new").click()
    assert all_of(browser, ".empty")
    say(browser, "Tim had a dog")
    until(lambda: all_of(browser, ".assistant .text p"), "the first text")
    browser.find_element("id", "input").send_keys("\ue00c")  # Escape
    until(lambda: is_idle(browser), "the end")
    assert all_of(browser, ".assistant .under span")[0].text in ("stopped",) or is_idle(browser)
    assert len(all_of(browser, "#list li")) == 2
    edits = [one for one in all_of(browser, ".user button") if one.text == "Edit"]
    edits[0].click()
    assert browser.find_element("id", "input").get_attribute("value") == "Tim had a dog"
    assert all_of(browser, "article") == []
    browser.find_element("id", "input").clear()
    all_of(browser, "#list li button:first-child")[1].click()
    assert len(all_of(browser, "article")) == 2


def test_an_error_is_shown(browser: Any) -> None:
    browser.find_element("id", "new").click()
    say(browser, "word " * 600)
    until(lambda: all_of(browser, "article .error"), "the error")
    assert "context" in all_of(browser, "article .error")[0].text


def test_narrow_screens_and_dark_colors(browser: Any) -> None:
    light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    setting(browser, theme="dark")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != light
    browser.set_window_size(500, 700)  # the narrowest that it takes
    try:
        side = browser.find_element("id", "side")
        until(lambda: not side.is_displayed(), "the side to leave")
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        browser.find_element("id", "open").click()
        until(side.is_displayed, "the side to come")
    finally:
        browser.set_window_size(1100, 760)


def test_the_console_has_no_errors(browser: Any) -> None:
    found = [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert [line for line in found if "400 (Bad Request)" not in line] == []
