"""Reports and statistics as HTML, taken apart by the standard library's parser."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from unit.random_traces import random_trace
from unit.traces import Call, Op, trace_of

ALLOWED = {"div", "table", "thead", "tbody", "tfoot", "tr", "th", "td", "p", "br"}
LEFT, RIGHT = "text-align: left", "text-align: right"


@pytest.fixture(autouse=True)
def _c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")


class Page(HTMLParser):
    """Rows of a table by section, how their cells are aligned, and the paragraphs.

    It takes nothing but the elements of a table, closed in order, with a ``style`` at most.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: dict[str, list[list[str]]] = {}
        self.styles: list[list[str | None]] = []
        self.paragraphs: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a cell, a row, a section or a paragraph."""
        assert tag in ALLOWED
        assert [name for name, _ in attrs] == (["style"] if tag in ("th", "td") else [])
        if tag == "br":
            self.paragraphs[-1] += "\n"
            return
        self.open.append(tag)
        if tag == "p":
            self.paragraphs.append("")
        elif tag in ("thead", "tbody", "tfoot"):
            self.sections[tag] = []
        elif tag == "tr":
            self.sections[self.open[-2]].append([])
            self.styles.append([])
        elif tag in ("th", "td"):
            self.sections[self.open[-3]][-1].append("")
            self.styles[-1].append(attrs[0][1])

    def handle_endtag(self, tag: str) -> None:
        """It ends what began last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text stands in cells and paragraphs only."""
        if self.open and self.open[-1] in ("th", "td"):
            self.sections[self.open[-3]][-1][-1] += data
        elif self.open and self.open[-1] == "p":
            self.paragraphs[-1] += data
        else:
            assert data.isspace()

    def handle_comment(self, data: str) -> None:
        """There is none, nor anything else but elements and text."""
        raise AssertionError(f"a comment: {data}")

    handle_decl = handle_pi = unknown_decl = handle_comment


def test_report() -> None:
    """The classic table's cells, a sum, a total for each device, the configuration."""
    trace = trace_of(
        [
            Op("add", 0, 1000, "int64[4], (int64[])"),
            Op("mul", 1000, 4000, "int64[4]", "hexagon0", flags=2),
            Op("mul", 4000, 8000, "int64[4]", "hexagon0", flags=2),
        ],
        [Call(0, 10_000)],
        configuration={"Number of threads": "6", "<b>": "a & b"},
    )
    page = Page(trace.report()._repr_html_())
    assert page.sections == {
        "thead": [["Name", "Duration (us)", "Percent", "Device", "Count", "Argument Shapes"]],
        "tbody": [
            ["mul", "7.00", "70.00", "hexagon0", "2", "int64[4]"],
            ["add", "1.00", "10.00", "cpu0", "1", "int64[4], (int64[])"],
        ],
        "tfoot": [
            ["Sum", "8.00", "80.00", "", "3", ""],
            ["Total", "10.00", "", "cpu0", "1", ""],
            ["Total", "10.00", "", "hexagon0", "1", ""],
        ],
    }
    assert page.styles == [[LEFT, RIGHT, RIGHT, LEFT, RIGHT, LEFT]] * 6
    assert page.paragraphs == ["Number of threads: 6\n<b>: a & b"]


def test_statistics() -> None:
    """The cells of the printed table, and its configuration."""
    ops = [Op("add", 0, 1000, "int64[4]"), Op("add", 0, 4000, "int64[4]", "cpu0", "extern")]
    report = trace_of(ops, configuration={"Executor": "VM"}).report()
    page = Page(report.statistics("shapes")._repr_html_())
    times = ["Mean (us)", "Std (us)", "Min (us)", "Median (us)", "P95 (us)", "Max (us)"]
    assert page.sections == {
        "thead": [["Name", "Total (us)", "Percent", "Count", *times, "Argument Shapes"]],
        "tbody": [
            [
                "add",
                "5.00",
                "125.00",
                "2",
                "2.50",
                "1.50",
                "1.00",
                "2.50",
                "3.85",
                "4.00",
                "int64[4]",
            ]
        ],
    }
    assert page.styles == [[LEFT, *[RIGHT] * 9, LEFT]] * 2
    assert page.paragraphs == ["Executor: VM"]


def test_names_can_not_become_markup() -> None:
    """Markup, quotes and entities show as they are, what can't be shown as in a terminal."""
    shown = {
        "<script>alert(1)</script>": "<script>alert(1)</script>",
        "\"><img src=x onerror='alert(1)'>": "\"><img src=x onerror='alert(1)'>",
        "a & b &lt; &#60;": "a & b &lt; &#60;",
        "</td></table><!-- ]]>": "</td></table><!-- ]]>",
        "\x1b[31m\0\n": "\\x1b[31m\\x00\\n",
        "\u202e\udcff": "\\u202e\\udcff",
        "x" * 5000: "x" * 4096 + "... (5,000 characters)",
    }
    trace = trace_of(
        [Op(name, 0, 1, "int64[]") for name in shown],
        [Call(0, 1, "<i>&amp;")],
        configuration={key: key for key in shown},
    )
    report = trace.report()
    for page in (Page(report._repr_html_()), Page(report.statistics()._repr_html_())):
        assert [row[0] for row in page.sections["tbody"]] == list(shown.values())
        assert page.paragraphs == ["\n".join(f"{text}: {text}" for text in shown.values())]
    page = Page(report.statistics("invocation")._repr_html_())
    assert [row[0] for row in page.sections["tbody"]] == ["<i>&amp; #0"]
    for seed in range(5):
        hostile = random_trace(seed).report(calls="all")
        for text in (hostile._repr_html_(), hostile.statistics("vm")._repr_html_()):
            Page(text).rawdata.encode()  # no lone surrogate is left


def test_rows_are_limited() -> None:
    """A hundred rows show, the longest; the others are counted, and part of the sum."""
    ops = [Op(f"op{i}", 0, 1000 + i, "int64[]") for i in range(1201)]
    report = trace_of(ops, [Call(0, 10_000)]).report()
    whole, spread = Page(report._repr_html_()), Page(report.statistics()._repr_html_())
    for page in (whole, spread):
        longest = [row[0] for row in page.sections["tbody"]]
        assert longest == [f"op{i}" for i in range(1200, 1100, -1)]
        assert page.paragraphs == ["1101 more rows; print it to see all"]
    assert whole.sections["tfoot"][0] == ["Sum", "1921.60", "19216.00", "", "1201", ""]
    hundred = trace_of(ops[:100]).report()
    assert Page(hundred._repr_html_()).paragraphs == []


def test_nothing_to_show() -> None:
    """An empty trace is a table without rows."""
    report = trace_of([]).report()
    assert Page(report._repr_html_()).sections["tbody"] == []
    assert Page(report.statistics()._repr_html_()).sections["tbody"] == []
