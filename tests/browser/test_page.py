#!/usr/bin/env python3
"""The web page in a headless Chromium: every panel used by mouse and by keys, in both themes and at two widths, without an error on
the console. Screenshots go to the folder that SCREENSHOTS names.

Needs Selenium, chromium and chromedriver; without them it is skipped (exit status 77), unless LATTICE_CI is set."""

import base64
import os
import pathlib
import shutil
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("LATTICE_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests" / "server"))
SCREENSHOTS = os.environ.get("SCREENSHOTS")

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    missing = [tool for tool in ("chromium", "chromedriver") if not shutil.which(tool)]
except ImportError:
    missing = ["selenium"]
if missing:
    print(f"no {' and no '.join(missing)}: the page is not tested", file=sys.stderr)
    sys.exit(1 if os.environ.get("LATTICE_CI") else 77)

from support import Server  # noqa: E402

MODELS = ("bert-cls", "qwen3-reranker", "qwen3.5-text")
WIDTHS = {"narrow": (360, 740), "wide": (1280, 900)}


def browser(width, height, dark):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return driver


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*MODELS)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def open(self, width="wide", dark=False, server=None):
        driver = browser(*WIDTHS[width], dark)
        self.addCleanup(driver.quit)
        driver.get(f"http://127.0.0.1:{(server or self.server).port}/")
        return driver

    def wait(self, driver, condition, seconds=60):
        return WebDriverWait(driver, seconds, poll_frequency=0.1).until(condition)

    def find(self, driver, css):
        return driver.find_element(By.CSS_SELECTOR, css)

    def all(self, driver, css):
        return driver.find_elements(By.CSS_SELECTOR, css)

    def said(self, driver, panel):
        return self.find(driver, f"#{panel}-said").text

    def loaded(self, driver):
        self.wait(driver, lambda d: self.all(d, "#embed-model option"))

    def check_console(self, driver):
        self.assertEqual([entry["message"] for entry in driver.get_log("browser")], [])

    def check_fits(self, driver):
        """No sideways scrolling of the page, and everything that is used has a name."""
        self.assertLessEqual(driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth"), 0)
        nameless = driver.execute_script("""
            return [...document.querySelectorAll("input, select, textarea")].filter(e => !e.labels.length && !e.getAttribute("aria-label")).map(e => e.id)
              .concat([...document.querySelectorAll("button")].filter(e => !e.textContent.trim()).map(e => e.id));""")
        self.assertEqual(nameless, [])

    def shoot(self, driver, name):
        self.check_fits(driver)
        if SCREENSHOTS:
            os.makedirs(SCREENSHOTS, exist_ok=True)
            height = driver.execute_script("return document.documentElement.scrollHeight")
            width = driver.execute_script("return window.innerWidth")
            image = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}})
            pathlib.Path(SCREENSHOTS, f"{name}.png").write_bytes(base64.b64decode(image["data"]))

    def use_every_panel(self, driver, name):
        self.loaded(driver)
        self.find(driver, "#embed-form [type=submit]").click()
        self.wait(driver, lambda d: "vectors of" in self.said(d, "embed"))
        self.assertEqual(len(self.all(driver, "#heat tbody tr")), 6)
        self.assertEqual(len(self.all(driver, "#plot circle")), 6)
        diagonal = [self.all(driver, f"#heat tbody tr:nth-child({i}) td:nth-child({i + 1})")[0].text for i in range(1, 7)]
        self.assertEqual(diagonal, ["1.00"] * 6)
        self.shoot(driver, f"{name}-embed")

        self.find(driver, "#tab-rerank").click()
        self.find(driver, "#rerank-form [type=submit]").click()
        self.wait(driver, lambda d: "documents" in self.said(d, "rerank"))
        scores = [float(bar.text) for bar in self.all(driver, "#rerank-results .bar")]
        self.assertEqual(len(scores), 4)
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.shoot(driver, f"{name}-rerank")

        self.find(driver, "#tab-chat").click()
        self.find(driver, "#chat-tokens").clear()
        self.find(driver, "#chat-tokens").send_keys("40")
        self.find(driver, "#chat-text").send_keys("Hello", Keys.ENTER)
        self.wait(driver, lambda d: "a second" in self.said(d, "chat"))
        self.assertEqual(len(self.all(driver, ".said.user")), 1)
        self.assertTrue(self.find(driver, ".said.assistant span").text)
        self.shoot(driver, f"{name}-chat")

        self.find(driver, "#tab-live").click()
        self.wait(driver, lambda d: len(self.all(d, ".chart")) == 8 and "MB" in self.find(d, "#live").text)
        self.find(driver, "#tab-embed").click()
        self.find(driver, "#embed-form [type=submit]").click()
        self.find(driver, "#tab-live").click()
        # Two readings after the request: rates are drawn then.
        self.wait(driver, lambda d: any("L" in (path.get_attribute("d") or "") for path in self.all(d, ".chart path")))
        self.shoot(driver, f"{name}-live")
        self.check_console(driver)

    def test_wide_light(self):
        self.use_every_panel(self.open("wide", False), "wide-light")

    def test_wide_dark(self):
        self.use_every_panel(self.open("wide", True), "wide-dark")

    def test_narrow_light(self):
        self.use_every_panel(self.open("narrow", False), "narrow-light")

    def test_narrow_dark(self):
        self.use_every_panel(self.open("narrow", True), "narrow-dark")

    def test_by_keys_alone(self):
        driver = self.open()
        self.loaded(driver)
        focused = lambda: driver.switch_to.active_element  # noqa: E731
        press = lambda *keys: focused().send_keys(*keys)  # noqa: E731
        for _ in range(10):
            if focused().get_attribute("id") == "tab-embed":
                break
            press(Keys.TAB)
        self.assertEqual(focused().get_attribute("id"), "tab-embed")
        press(Keys.ARROW_RIGHT)
        self.assertEqual(focused().get_attribute("id"), "tab-rerank")
        self.assertTrue(self.find(driver, "#panel-rerank").is_displayed())
        press(Keys.END)
        self.assertEqual(focused().get_attribute("id"), "tab-live")
        press(Keys.ARROW_RIGHT)
        self.assertEqual(focused().get_attribute("id"), "tab-embed")
        press(Keys.HOME, Keys.ARROW_RIGHT)
        for _ in range(10):
            press(Keys.TAB)
            if focused().get_attribute("id") == "rerank-query":
                break
        press(Keys.ENTER)
        self.wait(driver, lambda d: "documents" in self.said(d, "rerank"))
        self.check_console(driver)

    def test_stop_ends_a_stream(self):
        driver = self.open()
        self.loaded(driver)
        self.find(driver, "#tab-chat").click()
        self.find(driver, "#chat-tokens").clear()
        self.find(driver, "#chat-tokens").send_keys("100000")
        # A tiny model streams faster than a hand: the stop is pressed from within, when the first text is there.
        driver.execute_script("""
            new MutationObserver((_, o) => { if (document.querySelector(".said.assistant span")?.textContent) { o.disconnect(); document.getElementById("chat-stop").click(); } })
              .observe(document.getElementById("chat-log"), { childList: true, subtree: true, characterData: true });""")
        self.find(driver, "#chat-text").send_keys("Go on", Keys.ENTER)
        self.wait(driver, lambda d: self.said(d, "chat") not in ("", "computing…"))
        self.assertIn(self.said(driver, "chat"), ("stopped",))
        self.assertFalse(self.find(driver, "#chat-stop").is_enabled())
        self.find(driver, "#chat-new").click()
        self.assertEqual(self.all(driver, ".said"), [])
        self.check_console(driver)

    def test_errors_are_said_where_they_happen(self):
        driver = self.open()
        self.loaded(driver)
        texts = self.find(driver, "#embed-texts")
        texts.clear()
        texts.send_keys("only one")
        self.find(driver, "#embed-form [type=submit]").click()
        self.wait(driver, lambda d: "Two texts" in self.said(d, "embed"))
        self.assertIn("bad", self.find(driver, "#embed-said").get_attribute("class"))
        self.check_console(driver)

    def test_what_no_model_does_is_said(self):
        with Server("bert-cls") as server:
            driver = self.open(server=server)
            self.loaded(driver)
            self.find(driver, "#tab-chat").click()
            self.assertIn("No model that generates text", self.said(driver, "chat"))
            self.assertFalse(self.find(driver, "#chat-send").is_enabled())

    def test_a_key_is_asked_for(self):
        with Server("bert-cls", options=("--api-key", "secret")) as server:
            driver = self.open(server=server)
            self.wait(driver, lambda d: self.find(d, "#key").is_displayed())
            self.find(driver, "#key").send_keys("secret", Keys.ENTER)
            self.loaded(driver)
            self.find(driver, "#embed-form [type=submit]").click()
            self.wait(driver, lambda d: "vectors of" in self.said(d, "embed"))


if __name__ == "__main__":
    unittest.main()
