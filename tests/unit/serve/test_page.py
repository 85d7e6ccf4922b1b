"""The page for people, in a real browser: what it draws, says to a screen reader, and asks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.browser import CHROMIUM, browser
from kit.serving import served
from kit.tables import tier
from streamhouse_spark import StorageError, Transaction, Warehouse
from streamhouse_spark.log.tiering_failures import describe_failure, record_failure
from streamhouse_spark.serve import app

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
PICTURES = os.environ.get("STREAMHOUSE_TEST_PICTURES")
"""A folder for pictures, to be looked at."""
LABELS = "[...document.querySelectorAll('svg.chart')].map(e => e.ariaLabel)"


@pytest.fixture
def warehouse(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "REFRESH_MS", 0)
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("sales.orders", "id BIGINT, amount DOUBLE").append([{"id": n} for n in range(40)])
    warehouse.create_table("sales.clicks", "id BIGINT")
    return warehouse


@pytest.fixture
def page(tmp_path):
    with browser(tmp_path / "profile") as page:
        yield page


def test_the_page_charts_rows_and_lag(warehouse, page):
    orders = warehouse.table("sales.orders")
    with served(warehouse) as url:
        page.show(url, prefers_color_scheme="light", prefers_reduced_motion="reduce")
        page.wait("document.querySelectorAll('#tables tr').length == 2")
        assert page.run(LABELS) == [
            "Rows in a second: no figures yet",
            "Rows tiered a second: no figures yet",
            "Rows that are not in the lake: no figures yet",
        ]
        orders.append([{"id": n} for n in range(600)])
        page.run("look()")
        rows_in, tiered, lag = page.run(LABELS)
        assert "Rows in a second: 0 now" not in rows_in
        assert tiered.startswith("Rows tiered a second: 0 now, 0 at most")
        assert lag.startswith("Rows that are not in the lake: 640 now, 640 at most")
        tier(orders)
        page.run("look()")
        rows_in, tiered, lag = page.run(LABELS)
        assert rows_in.startswith("Rows in a second: 0 now")
        assert "Rows tiered a second: 0 now" not in tiered
        assert lag.startswith("Rows that are not in the lake: 0 now, 640 at most")
        assert page.run("document.querySelectorAll('svg.chart path').length") == 3
        page.run("at('charted').value = 'sales.clicks'; at('charted').onchange()")
        assert all("0 now, 0 at most" in label for label in page.run(LABELS))
        assert page.run("document.getAnimations().length") == 0
        assert {address.rsplit("/", 1)[0] for address in page.asked} <= {url, f"{url}/api/v1"}


@pytest.mark.long
def test_a_screen_reader_and_a_keyboard_are_enough(warehouse, page):
    with served(warehouse) as url:
        page.show(url)
        page.wait("document.querySelectorAll('#tables tr').length == 2")
        page.run("look()")
        assert [name.partition(":")[0] for name in page.names_of("image") if "second" in name] == [
            "Rows in a second",
            "Rows tiered a second",
        ]
        assert "Pause" in page.names_of("button")
        assert "Of" in page.names_of("combobox")
        page.run("document.querySelector('#as-table summary').focus()")
        page.key("Enter", 13)
        page.wait("document.querySelectorAll('#points tr').length >= 1")
        heads = ["Time", "Rows in / s", "Rows tiered / s", "Not in the lake"]
        assert page.run("[...document.querySelectorAll('#as-table thead th')].map(e => e.textContent)") == heads
        page.run("at('pause').focus()")
        page.key("Enter", 13)
        assert page.run("at('pause').ariaPressed") == "true"
        asked = len([address for address in page.asked if "overview" in address])
        page.run("new Promise(done => setTimeout(done, 3500))")
        assert len([address for address in page.asked if "overview" in address]) == asked, "it was paused"


@pytest.mark.long
def test_the_page_shows_facts_of_a_table(warehouse, page):
    orders = warehouse.table("sales.orders")
    orders.move_consumer("dashboard", {0: 30})
    orders.append([{"id": 1}], transaction=Transaction("checkout", 7))
    for _ in range(2):
        tier(orders)
        orders.append([{"id": n} for n in range(5)])
    with served(warehouse) as url:
        page.show(url)
        page.wait("document.querySelectorAll('#tables tr').length == 2")
        page.run("[...document.querySelectorAll('button.name')].find(b => b.textContent == 'sales.orders').focus()")
        page.key("Enter", 13)
        page.wait("document.querySelectorAll('#facts dt').length >= 9")
        names = page.run("[...document.querySelectorAll('#facts dt')].map(e => e.textContent)")
        facts = dict(
            zip(names, page.run("[...document.querySelectorAll('#facts dd')].map(e => e.textContent)"), strict=True)
        )
        assert facts["Columns"] == "id int64, amount double"
        assert facts["Last rounds"].startswith("5 rows, ")
        assert facts["Failed rounds"] == "none that their services noted"
        assert facts["Readers"].startswith("dashboard, 21 rows behind, seen ")
        assert facts["Writers"].startswith("checkout, version 7, ")
        page.run("document.querySelector('#facts button').focus()")
        page.key("Enter", 13)
        page.wait("[...document.querySelectorAll('#facts dd')].at(-1).textContent.startsWith('$')")
        assert "PUT and LIST" in page.run("document.activeElement.textContent"), "a screen reader reads it"
        for view in page.run("[...at('view').options].map(o => o.value)"):
            page.run(f"at('view').value = '{view}'; read()")
            refused = view in ("$partitions", "$lineage")
            assert refused or page.run("at('query-status').textContent").endswith(" rows"), view


def fail(table, error, ago_ms=0, work="tiering"):
    now_ms = table.storage.now_ms() - ago_ms
    failed = describe_failure(work, error, host="tierer-0", rows=40, now_ms=now_ms, duration_ms=1500)
    record_failure(table.storage, table.uuid, failed)


@pytest.mark.long
def test_the_page_shows_failing_rounds(warehouse, page):
    orders = warehouse.table("sales.orders")
    orders.alter_properties({"table.datalake.freshness": "0s"})
    fail(orders, RuntimeError("a row is 4711"), ago_ms=2 * 3_600_000, work="maintenance")
    fail(orders, StorageError("the store refused"), ago_ms=60_000)
    fail(orders, StorageError("the store refused"), ago_ms=5_000)
    with served(warehouse) as url:
        page.show(url)
        page.wait("document.querySelectorAll('#tables tr').length == 2")
        assert page.run("[...document.querySelectorAll('span.failing')].map(e => e.textContent)") == [
            "StorageError, 5 s ago"
        ]
        page.run("open('sales.orders')")
        page.wait("document.querySelectorAll('#facts li').length == 2")
        store, upkeep = page.run("[...document.querySelectorAll('#facts li')].map(e => e.textContent)")
        assert store.startswith("tiering failed 2 times since ")
        assert "on tierer-0, after 2 s with 40 rows that waited: STORAGE: the store refused" in store
        assert upkeep.startswith("maintenance failed ")
        assert upkeep.endswith("RuntimeError, whose text is in the log of that process; no service has retried since")
        assert "4711" not in page.run("document.body.textContent")
        tier(orders)
        page.run("look(); open('sales.orders')")
        page.wait("document.querySelectorAll('span.failing').length == 0")
        page.wait("document.querySelector('#facts li').textContent.endsWith('; it succeeded later')")


@pytest.mark.parametrize("size", ["1280,900", "390,900"])
def test_a_long_name_leaves_room_for_the_other_columns(warehouse, tmp_path, size):
    warehouse.create_table("sales." + "a_name_of_sixty_letters_" * 3, "id BIGINT")
    with served(warehouse) as url, browser(tmp_path / "own", size) as page:
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=int(size.split(",")[0]),
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.show(url)
        page.wait("document.querySelectorAll('#tables tr').length == 3")
        right = (
            "[...document.querySelectorAll('#tables tr')].map(row => row.children[{}].getBoundingClientRect().right)"
        )
        last, rows = (max(page.run(right.format(column))) for column in (8, 1))
        width = page.run("innerWidth")
        assert rows <= width, "the number of rows is seen without scrolling"
        assert width < 1000 or last <= width, "and on a wide screen all columns are"


def test_an_empty_table_has_no_bar_and_a_primary_key_counts_changes(warehouse, page):
    warehouse.create_table("sales.keyed", "id BIGINT", primary_key=["id"]).upsert([{"id": 1}])
    warehouse.table("sales.keyed").upsert([{"id": 1}])
    with served(warehouse) as url:
        page.show(url)
        page.wait("document.querySelectorAll('#tables tr').length == 3")
        cells = page.run(
            "[...document.querySelectorAll('#tables tr')].map(row => [...row.children].map(e => e.textContent))"
        )
        by_name = {cell[0]: cell for cell in cells}
        assert by_name["sales.clicks"][3] == "no rows"
        assert by_name["sales.keyed"][1].endswith(" changes")
        assert page.run("document.querySelectorAll('.share').length") == 2


@pytest.mark.long
@pytest.mark.parametrize(("scheme", "size"), [("light", "1200,1000"), ("dark", "1200,1000"), ("light", "400,900")])
def test_it_can_be_looked_at(warehouse, tmp_path, scheme, size):
    orders = warehouse.table("sales.orders")
    with served(warehouse) as url, browser(tmp_path / "own", size) as page:
        page.show(url, prefers_color_scheme=scheme)
        page.wait("document.querySelectorAll('#tables tr').length == 2")
        for number in range(8):
            orders.append([{"id": n} for n in range(50 * (number % 3 + 1))])
            if number % 3 == 2:
                tier(orders)
            page.run("look()")
        orders.alter_properties({"table.datalake.freshness": "0s"})
        orders.append([{"id": 1}])
        fail(orders, StorageError("the store refused: it wants a larger disk, or fewer rows"))
        page.run("at('as-table').open = true; look(); open('sales.orders')")
        page.wait("document.querySelectorAll('#rows tr').length > 0")
        page.wait("document.querySelectorAll('#facts li').length == 1")
        page.wait("document.querySelectorAll('span.failing').length == 1")
        ground = page.run("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        lines = "[...document.querySelectorAll('svg.chart path')].map(e => getComputedStyle(e).stroke)"
        assert len({*page.run(lines), ground}) == 4, "each line is seen, and told from the others"
        page.picture(Path(PICTURES or tmp_path) / f"page-{scheme}-{size.split(',')[0]}.png")
