"""The report of made-up results: what stands on the page, and that it works in a browser."""

import math
import os
import re
import shutil
from html.parser import HTMLParser

import pandas as pd
import pytest
from made_report import EMPTY, experiment, score, table, write_page, write_results
from splade_rescale.best import best_scales
from splade_rescale.errors import UserError
from splade_rescale.expansions import heaviest, scales_shown
from splade_rescale.report_figures import NAMES, write_figures
from splade_rescale.report_table import number

HEADLINE = {"msmarco-dev": "RR@10", "trec-dl-2019": "nDCG@10"}
SIZES = {"laptop": (1366, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("report"))


class Links(HTMLParser):
    """All that a page loads or links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset")]


def test_the_best_scale_is_the_one_of_the_highest_score_among_those_that_ended_ok():
    best = best_scales(table(experiment()), HEADLINE).set_index(["dataset", "backbone"])
    assert best.loc[("msmarco-dev", "bert-base"), "best_k"] == "1"
    # roberta diverges at k = 1; 3.6 / 4 is nearest to the best norm.
    row = best.loc[("msmarco-dev", "roberta")]
    assert (row.best_k, row.k1_status) == ("4", "diverged")
    assert row.best_score == score("roberta", 4, "msmarco-dev")
    assert row.gain == pytest.approx(row.best_score - 0.004)


def test_no_scale_is_best_where_none_ended_ok():
    frame = table(experiment())
    frame.loc[frame["backbone"] == "albert", "status"] = "collapsed-zero"
    best = best_scales(frame, HEADLINE).set_index(["dataset", "backbone"])
    row = best.loc[("msmarco-dev", "albert")]
    assert row.best_k == ""
    assert math.isnan(row.best_score)


def test_the_page_asks_nothing_of_another_place(page):
    links = Links(page.read_text()).found
    assert links
    assert {link.split(":")[0] for link in links if not link.startswith("#")} == {"data"}


def test_every_figure_has_its_data_beside_it(page):
    figures = page.parent / "figures"
    for name in NAMES:
        assert (figures / f"{name}.svg").read_text().count("<svg") == 1
        assert len(pd.read_csv(figures / f"{name}.csv")) > 0, name


def test_rows_of_the_table_are_set_off(page):
    text = page.read_text()
    body = text.partition('<table id="table"')[2].partition("</table>")[0]
    rows = re.findall(r'<tr class="([a-z ]*)">', body)
    of = table(experiment())
    best = best_scales(of, HEADLINE)
    assert len(rows) == len(of)
    assert rows.count("best") == (best["best_k"] != "").sum() == len(best)
    assert rows.count("failed") == (of["status"] != "ok").sum() - rows.count("baseline") > 0
    assert rows.count("baseline") == of["seed"].isna().sum() > 0
    for word in ("collapsed-zero", "diverged", "snakemake --cores all", "0.254"):
        assert word in text


def test_text_of_the_data_is_no_markup(page):
    text = page.read_text()
    assert "birds </script>" not in text
    assert "<b>follow</b>" not in text


def test_a_missing_file_is_named(tmp_path):
    cells = write_results(tmp_path, experiment())
    log = next(cell for cell in cells if cell.k).model_folder / "train_log.csv"
    log.unlink()
    with pytest.raises(UserError, match=re.escape(str(log))):
        write_figures(cells, tmp_path / "results", tmp_path / "figures")


def test_the_scales_whose_expansions_are_shown():
    assert scales_shown(["1", "4", "16"], "4") == ["1", "4"]
    assert scales_shown(["2", "16", "auto"], "16") == ["2", "16"]
    assert scales_shown(["1", "4"], "") == ["1"]
    assert scales_shown(["auto"], "auto") == ["auto"]


def test_the_heaviest_terms_come_first_and_equal_ones_by_id():
    from scipy import sparse

    vector = sparse.csr_array([[0.0, 1.0, 2.0, 1.0, 0.0]])
    names = ["a", "b", "c", "d", "e"]
    found = heaviest(vector, {3}, names, 3)
    assert found == {"active": 3, "terms": [["c", 2.0, False], ["b", 1.0, False], ["d", 1.0, True]]}


def test_numbers_as_text():
    assert number(-0.1234) == "−0.123"
    assert number(math.inf) == "not finite"
    assert number(math.nan) == number(None) == ""


@pytest.fixture(scope="module")
def browser():
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no browser test: install Debian's chromium and chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:  # Chromium's sandbox is not for root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as running:
        yield running


@pytest.mark.parametrize("size", SIZES)
def test_in_a_browser(browser, page, size):
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())

    # Nothing wider than the window: what is too wide scrolls in a box of its own.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(
        "return [...document.images].filter(i => i.offsetParent).every("
        "i => i.complete && i.naturalWidth > 0)"
    )

    def column(heading):
        """Values of a column of the table of runs, from top to bottom."""
        return browser.execute_script(
            """
            const table = document.querySelector("table.sortable");
            const heads = [...table.tHead.rows[0].cells].map(c => c.textContent.trim());
            const place = heads.findIndex(h => h.startsWith(arguments[0]));
            const values = [...table.tBodies[0].rows].map(r => r.cells[place].dataset.value);
            return [place, values];
            """,
            heading,
        )

    place, before = column("FLOPS")
    assert len(before) == len(table(experiment()))
    for descending in (False, True):
        browser.execute_script(
            "document.querySelector('table.sortable').tHead.rows[0]"
            ".cells[arguments[0]].querySelector('button').click()",
            place,
        )
        _, after = column("FLOPS")
        assert sorted(after) == sorted(before)
        numbers = [float(value) for value in after if value]
        assert numbers == sorted(numbers, reverse=descending)
        assert after[len(numbers) :] == [""] * before.count("")  # what is empty comes last

    def terms():
        return browser.execute_script(
            "return [...document.querySelectorAll('#viewer-lists li')].map(i => i.textContent)"
        )

    shown = terms()
    assert any("bird" in term for term in shown)
    browser.execute_script(
        "const s = document.getElementById('viewer-backbone'); s.selectedIndex = 1;"
        "s.dispatchEvent(new Event('change'))"
    )
    assert terms() != shown  # roberta has no term left at k = 1
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_made_up_table_has_the_columns_of_a_real_one():
    assert set(EMPTY) <= set(table(experiment()).columns)
