"""Tables: figures, alignment, badges and what is refused."""

import math
import xml.etree.ElementTree as ET

import pytest

from autopar.display.format import badge, figures, like, short_origins, unit_of
from autopar.display.table import compare, tabulate
from autopar.records.record import Findings
from autopar.timing.measurement import Measurement

LIVE = "this machine: CPU, 2 threads, torch 2.13.0"
RECORDED = "recorded on 2 × NVIDIA H200, 2026-11-21, torch 2.11.0"

serial = Measurement("serial", (0.188, 0.189, 0.190), flops=1.89e12, origin=LIVE)
overlapped = Measurement("overlapped", (0.126, 0.126, 0.126), origin=LIVE)
noisy = Measurement("noisy", (1.0, 2.0, 3.0), size_bytes=4e9, origin=LIVE)


def column(table, header):
    i = table.headers.index(header)
    return [row[i] for row in table.rows]


def parsed(table):
    return ET.fromstring(table._repr_html_().replace("&nbsp;", " "))


def text_of(element):
    return "".join(element.itertext())


def test_figures_of_each_row():
    table = compare([serial, overlapped, noisy], limit_s=0.0945, baseline="serial")
    assert column(table, "work") == ["serial", "overlapped", "noisy"]
    medians = [cell.strip() for cell in column(table, "median")]
    assert medians == ["189.0 ms", "126.0 ms", "2.000 s *"]
    assert column(table, "spread (IQR)") == ["1.0 ms", "0 ms", "1.0 s"]
    assert column(table, "TFLOP/s") == ["10.0", "-", "-"]
    assert column(table, "GB/s") == ["-", "-", "2.00"]
    assert column(table, "limit") == ["94.50 ms"] * 3
    assert column(table, "limit / time") == ["50.0 %", "75.0 %", "4.7 %"]
    assert column(table, "speed-up") == ["1.00 ×", "1.50 ×", "0.09 ×"]
    assert compare([overlapped]).headers == ("work", "median", "spread (IQR)")  # what can be filled


def test_limits_by_label_below_time_and_by_another_name():
    table = compare({"a": serial, "b": overlapped}, limit_s={"overlapped": 0.063})
    assert column(table, "limit") == ["-", "63.00 ms"]
    assert column(table, "limit / time") == ["-", "50.0 %"]
    assert column(compare([serial], limit_s=0.2, limit_name="plan"), "plan / time") == ["105.8 %"]
    beaten = "over 100 %: faster than its limit; one made of measured times has a spread, too"
    assert beaten in compare([serial, overlapped], limit_s=0.13).notes
    assert beaten not in compare([serial, overlapped], limit_s=0.126).notes
    assert compare(Findings([serial])) == compare([serial])  # or what has them


def test_text_is_aligned_and_says_where_it_is_from():
    lines = str(compare([serial, noisy], caption="Two ways", baseline="serial")).splitlines()
    assert lines[0] == "Two ways"
    assert lines[1].startswith("work")
    assert {*lines[2]} == {"-", " "}
    assert lines[3].index(" ms  ") == lines[4].index(" s *") - 1  # digits end in one column
    assert lines[5:] == [
        LIVE,
        "Look at 'serial': 189.0 ms.",
        f"* {noisy.warning}",
        "speed-up: over 'serial'",
    ]
    table = tabulate(["a", "b", "c"], [["x", "2 × H200", "1.5%"], ["y", "-", "-"]])
    assert repr(table).splitlines()[2:] == ["x  2 × H200  1.5 %", "y  -             -"]
    kinds = [td.get("class") for td in parsed(table).findall(".//tbody/tr[1]/td")]
    assert kinds == [None, "num"]


def test_the_row_to_look_at_is_told_with_its_figures():
    given = {"limit_s": 0.0945, "baseline": "serial"}
    look = "126.0 ms, 1.50 × the speed of 'serial', the limit is 75.0 % of its time"
    told = compare([serial, overlapped], highlight="overlapped", **given).notes
    assert told[0] == f"Look at 'overlapped': {look}."
    assert compare([serial], highlight="serial").notes == ("Look at 'serial': 189.0 ms.",)
    assert len(told) == 1  # over what a speed-up is, is said there
    assert compare([serial, overlapped], **given).notes == told  # it is the fastest one
    both = compare([serial, overlapped], highlight=["serial", "overlapped"], **given)
    assert both.highlight == ("serial", "overlapped")
    assert both.notes == (
        f"Look at 'serial': 189.0 ms, the limit is 50.0 % of its time; {told[0][8:]}",
    )
    del given["limit_s"]
    best = compare([noisy, overlapped, serial], **given)
    assert (best.highlight, best.notes[0][:25]) == (("overlapped",), "Look at 'overlapped': 126")
    assert compare([serial, overlapped]).notes == ()  # nothing tells which
    alike = Measurement("alike", (0.125, 0.1255, 0.126), origin=LIVE)
    other = Measurement("other", (0.1254, 0.1256, 0.1262), origin=LIVE)
    assert compare([other, alike], baseline="other").highlight == ()  # within their spread


def test_a_speed_up_near_one_is_not_called_one_in_its_row_or_below():
    slower = Measurement("slower", (0.1899, 0.1899, 0.1899), origin=LIVE)
    table = compare([serial, slower], baseline="serial", highlight="slower")
    assert column(table, "speed-up") == ["1.00 ×", "0.995 ×"]
    assert "0.995 × the speed of 'serial'" in table.notes[0]


def test_without_a_baseline_the_row_to_look_at_is_furthest_from_its_limit():
    limits_s = {"serial": 0.1, "overlapped": 0.12, "noisy": 1.9}
    table = compare([overlapped, serial, noisy], limit_s=limits_s)
    assert table.highlight == ("serial",)
    assert table.notes[0] == "Look at 'serial': 189.0 ms, the limit is 52.9 % of its time."


def test_rows_to_look_at_are_told_with_their_cells():
    rows = [["a", "-", " 5 ms"], ["b", "2", "6 ms"], ["c", "3", "7 ms"]]
    table = tabulate(["work", "GPUs", "time"], rows, highlight=["a", "c"], notes=["more"])
    assert table.notes == ("Look at 'a': time 5 ms; 'c': GPUs 3, time 7 ms.", "more")
    bold = [row.get("style") for row in parsed(table).findall(".//tbody/tr")]
    assert bold == ["font-weight:bold", None, "font-weight:bold"]
    one = tabulate(["memory", "how much"], [["pinned", "5 MiB"]], highlight=["pinned"])
    assert one.notes == ("Look at 'pinned': 5 MiB.",)


def test_one_line_for_all_rows_that_are_noisy():
    noisier = Measurement("noisier", (1.0, 2.0, 5.0))
    spread = "the middle half of the samples spreads over up to 100 % of the median"
    assert compare([noisy, noisier]).notes == (f"* noisy: {spread}",)


def test_html_is_a_captioned_table_in_a_box_for_the_keyboard():
    box = parsed(compare([serial, noisy], caption="Two ways"))
    assert box.tag == "div"
    named = [box.get(name) for name in ("tabindex", "role", "aria-label")]
    assert named == ["0", "group", "Two ways"]
    assert text_of(box.find("table/caption")) == f"Two ways {LIVE}"
    assert [th.get("scope") for th in box.findall("table/thead/tr/th")] == ["col"] * 5
    rows = box.findall("table/tbody/tr")
    assert [text_of(row.find("th[@scope='row']")) for row in rows] == ["serial", "noisy"]
    assert all(cell.get("class") == "num" for row in rows for cell in row.findall("td"))
    assert text_of(rows[1].find("td")) == "2.000 s *"
    assert "2.000&nbsp;s" in compare([noisy])._repr_html_()  # on one line
    assert text_of(box.find("p")) == f"* {noisy.warning}"
    assert parsed(tabulate(["a", "b"], [["1", "2"]])).find("table/caption") is None


def test_rows_from_several_places_say_which():
    elsewhere = Measurement("serial", (0.001, 0.002, 0.003), origin=RECORDED)
    fast = Measurement("overlapped", (0.001, 0.001, 0.001), origin=RECORDED)
    table = compare([serial, overlapped, elsewhere, fast], baseline="serial")
    here, there = "this machine: CPU", "recorded on 2 × NVIDIA H200"
    assert table.headers[:2] == ("work", "where")
    assert column(table, "where") == [here, here, there, there]
    assert column(table, "speed-up") == ["1.00 ×", "1.50 ×", "1.00 ×", "2.00 ×"]
    assert table.origins == (LIVE, RECORDED)
    assert column(compare([serial, fast], baseline="serial"), "speed-up") == ["1.00 ×", "189.00 ×"]
    badges = {
        span.get("class"): span.text for span in parsed(table).findall(".//caption//span/span")
    }
    assert badges == {"autopar-live": LIVE, "autopar-recorded": RECORDED}
    alike = tabulate(["row", "µs"], [["a", "1"], ["b", "2"]], origin=[LIVE, LIVE])
    assert (alike.headers, alike.origins) == (("row", "µs"), (LIVE,))


def test_markup_in_words_is_shown_as_text():
    bad = "<script>alert('&')</script>"
    table = tabulate([bad, bad], [[bad, bad]], caption=bad, origin=bad, notes=[bad])
    assert "<script" not in table._repr_html_()
    box = parsed(table)  # would not parse with a bare & in it
    assert box.get("aria-label") == bad
    assert text_of(box.find(".//td")) == text_of(box.find("p")) == bad
    assert badge("<b>") == '<span class="autopar-live">&lt;b&gt;</span>'


def test_parts_are_paler_the_row_of_interest_bold_and_a_limit_is_not_that_of_a_part():
    def looks(table):
        rows = parsed(table).findall(".//tbody/tr")
        return {text_of(row.find("th")): row.get("style") for row in rows}

    rows = [Measurement(name, (time_s,) * 3) for name, time_s in (("a", 1), ("b", 4), ("all", 5))]
    table = compare(rows, limit_s=4.0, baseline="all", parts=["a", "b"], highlight="all")
    assert looks(table) == {"a": "opacity:0.7", "b": "opacity:0.7", "all": "font-weight:bold"}
    assert column(table, "limit / time") == ["-", "-", "80.0 %"]
    assert column(table, "speed-up") == ["-", "-", "1.00 ×"]
    given = compare(rows, limit_s={"a": 0.5, "all": 4.0}, parts=["a", "b"])
    assert column(given, "limit / time") == ["50.0 %", "-", "80.0 %"]
    assert {*looks(compare(rows)).values()} == {None}


def test_a_bar_is_as_long_as_the_share_and_there_is_none_without_a_limit():
    def bars(table):
        cells = [row.findall("td") for row in parsed(table).findall(".//tbody/tr")]
        return [[td.get("style") for td in row if "gradient" in td.get("style")] for row in cells]

    away = Measurement("away", (0.1, 0.1, 0.1), origin="recorded on H200")
    table = compare([serial, overlapped, away], limit_s={"serial": 0.0945, "away": 0.2})
    shown = bars(table)
    assert [len(row) for row in shown] == [1, 0, 1]
    assert "transparent 0" in shown[0][0]
    assert "50.0%" in shown[0][0]
    assert "100.0%" in shown[2][0]  # twice the limit is no longer than the cell
    plain = compare([serial, overlapped])
    assert bars(plain) == [[], []]
    # A bar of characters, which is for terminals, is one too; a share alone has none.
    drawn = tabulate(["a", "busy", "saved"], [["x", "   9.5 % #.........", "9.5 %"]])
    assert [len(row) for row in bars(drawn)] == [1]
    assert [text_of(td) for td in parsed(drawn).findall(".//td")] == ["9.5 %", "9.5 %"]


@pytest.mark.parametrize(
    ("measurements", "options", "error"),
    [
        ([], {}, "measurements is empty"),
        (Findings([], checks={"b equal to a": False}), {}, "check failed: b equal to a; expected"),
        ([serial, serial], {}, "several with label 'serial'"),
        ([serial], {"baseline": "x"}, r"baseline names 'x'.*'serial'"),
        ([serial], {"highlight": "none"}, "highlight names 'none'"),
        ([serial], {"highlight": 3}, "highlight is 3; expected a label"),
        ([serial], {"baseline": "serial", "parts": ["copy"]}, "parts names 'copy'"),
        ([serial, noisy], {"limit_s": {"oops": 1.0}}, "limit_s names 'oops'.*'serial', 'noisy'"),
        ([serial], {"limit_s": math.nan}, r"limit_s\['serial'\] is nan"),
        ([0.1], {}, r"measurements\[0\] is of type float; expected a Measurement"),
        (serial, {}, r"measurements is <Measurement: serial.*compare\(\[it\]\)"),
        ([serial], {"parts": "add"}, "parts is 'add'; expected labels"),
    ],
)
def test_comparisons_of_what_is_not_there_are_refused(measurements, options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        compare(measurements, **options)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"rows": 3}, "^rows is 3"),
        ({"rows": ["1"]}, r"^rows\[0\] is '1'"),
        ({"headers": "a"}, "^headers is 'a'"),
        ({"headers": [1]}, r"^headers\[0\] is of type int"),
        ({"notes": "ab"}, "^notes is 'ab'"),
        ({"highlight": "1"}, "^highlight is '1'"),
        ({"highlight": ["2"]}, "^highlight names '2'"),
        ({"rows": []}, "^rows is empty"),
        ({"rows": [["1"], ["3", "4"]]}, r"^rows\[1\] has 2 cells"),
    ],
)
def test_cells_are_several_as_many_as_headers_and_no_letters(wrong, error):
    with pytest.raises((TypeError, ValueError), match=f"{error}.*; expected "):
        tabulate(**{"headers": ["a"], "rows": [["1"]], **wrong})


def test_numbers_and_origins_alone():
    # The machine alone does not tell these apart.
    assert short_origins(["GPU, May", "GPU, June", ""]) == ["GPU, May", "GPU, June", "-"]
    assert unit_of(2e-6) == ("µs", 1e-6)
    assert (like(0.0, 0.1), like(0.00123, 0.1), like(0.0123, 0.1)) == ("0 ms", "1.2 ms", "12.3 ms")
    assert (like(0.000123, 0.1), figures(0.0), figures(12345.6)) == ("0.12 ms", "0", "12346")


def test_numbers_without_end_stop_no_table():
    extreme = Measurement("extreme", (1e-300,) * 3, flops=1e308, size_bytes=1e308)
    assert "inf" in str(compare([extreme, Measurement("plain", (1, 2, 3))], baseline="plain"))
    assert str(compare([Measurement("large", (1e-3,) * 3, flops=1e308)])).count("inf") == 0
