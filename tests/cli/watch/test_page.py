"""The page in a browser: what it shows, on a desk and on a phone, and that no text becomes HTML."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mview.cli.watch.site import Site
from mview.cli.watch.told import RunTold
from mview.store.lease import Lease
from tests.cli.watch.conftest import serving
from tests.cli.watch.made import EVIL
from tests.services.fixtures import running

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def browser():
    """A browser for all tests of this file."""
    from tests.services.browser import Browser

    with running("Chromium", Browser) as started:
        yield started


@pytest.fixture
def site(made):
    """The site of the store, beside a run that told something, and that run's lease."""
    told, at = RunTold(), {"time": "2026-11-24T03:00:00Z"}
    events = [
        {"event": "message", "text": EVIL},
        {
            "event": "load",
            "table": f"crm.{EVIL}",
            "read": 40,
            "rows": 20,
            "total": 60,
            "done": False,
        },
    ]
    told.follow(json.dumps(at | event) for event in events)
    site = Site(made.config, made.mask, told)
    site._epochs.follow()
    with Lease(made.store.lease):
        yield site


#: The text of the page, nothing that is not shown, and whether it can be scrolled sideways.
TEXT = "document.body.innerText"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def check(browser, width):
    """Nothing of a store is an element, nothing is scrolled sideways, nothing was refused."""
    assert browser.ask("document.querySelectorAll('main img, main b, main script').length") == 0
    assert browser.ask("window.hacked") is None
    assert browser.ask("document.documentElement.clientWidth") == width
    assert browser.ask(FITS)
    assert browser.said == []


@pytest.mark.parametrize("width", [1280, 360])
def test_the_overview(site, browser, width):
    with serving(site.answer) as served:
        browser.open(served.url, width)
        browser.wait("document.querySelector('#graph svg')")
        text = browser.ask(TEXT)
        assert "runs" in browser.ask("document.getElementById('runner').textContent")
        for part in ("shop.orders", "1,234 rows", "SELF_MAINTAINED", "Loading", "not filled yet"):
            assert part in text, part
        assert "Time of epochs, by stage" in text
        assert "It is not known of any epoch" not in text
        assert EVIL in text
        assert "50 rows count, 2 chunks" in text
        assert browser.ask("document.querySelectorAll('#graph .edge').length") == 6
        assert browser.ask("document.querySelectorAll('#graph .box').length") == 7
        assert browser.ask("document.querySelectorAll('#overview .pair rect.c2').length") == 4
        check(browser, width)


@pytest.mark.parametrize("width", [1280, 360])
def test_a_view(site, browser, width):
    with serving(site.answer) as served:
        browser.open(f"{served.url}#/view/open_orders", width)
        browser.wait("document.querySelector('#sample table.rows td')")
        browser.wait("document.getElementById('plan').textContent.includes('DELTA_JOIN')")
        assert f"'{EVIL}******'" in browser.ask("document.getElementById('sql').textContent")
        assert f"{EVIL}: string" in browser.ask("document.querySelector('#sample thead').innerText")
        assert "NULL" in browser.ask("document.getElementById('sample').innerText")
        check(browser, width)
        browser.open(f"{served.url}#/view/totals", width)
        browser.wait("document.body.innerText.includes('Orders by <b>status</b>')")
        check(browser, width)
        browser.open(f"{served.url}#/view/%3Cimg%20src%3Dx%3E%ZZ", width)
        browser.wait("document.body.innerText.includes('There is no such view')")
        check(browser, width)


def test_what_is_wrong_is_shown(made, browser):
    site = Site(made.config, made.mask)
    latest = made.log.latest()
    halted = replace(latest.views["totals"], halted=f"cannot be computed: {EVIL}", stale=True)
    made.log.publish(replace(latest, epoch=4, views={**latest.views, "totals": halted}))
    site._epochs.follow()
    with serving(site.answer) as served:
        browser.open(served.url, 360)
        browser.wait("document.querySelector('#reasons')")
        text = browser.ask(TEXT)
        assert "stopped: nobody runs it" in text
        assert "nobody runs the store, and open_orders promises no freshness" in text
        assert f"cannot be computed: {EVIL}" in text
        assert "HALTED" in text
        check(browser, 360)
        browser.open(f"{served.url}#/view/totals", 360)
        browser.wait("document.querySelector('#facts dl')")
        assert browser.ask("document.querySelector('#facts dd .bad').textContent") == "HALTED"


@pytest.mark.parametrize(
    ("most", "shown"), [(1, "0 1"), (3, "0 2 3"), (999, "0 500 999"), (0, "0 1")]
)
def test_a_grid_has_a_line_for_each_value_that_can_be(site, browser, most, shown):
    """A chart of one row had the lines 0, 1 and 1, and one of 999 rows went up to 1,049."""
    with serving(site.answer) as served:
        browser.open(served.url, 1280)
        browser.wait("document.querySelector('#graph svg')")
        drawn = (
            "const { bars } = await import('/charts.js'); const { count } = await import('/dom.js')"
        )
        bar = f"{{ end: 'epoch 7', label: '', parts: {{ a: {most} }} }}"
        browser.ask(
            f"(async () => {{ {drawn}; window.drawn = bars(400, '', [{bar}], ['a'], count); }})()"
        )
        browser.wait("window.drawn")
        texts = "[...window.drawn.querySelectorAll('text')].map((each) => each.textContent)"
        assert browser.ask(f"{texts}.join(' ').trim()") == f"{shown} epoch 7"


def test_a_page_that_nobody_serves_any_more_says_so(made, browser):
    with serving(Site(made.config, made.mask).answer) as served:
        browser.open(served.url, 1280)
        browser.wait("document.querySelector('#graph svg')")
    browser.wait("document.querySelector('#lost')")
    text = browser.ask(TEXT)
    assert "nobody serves this page any more" in text
    assert "What is shown is of" in text
    assert "open_orders" in text, "it stays"
