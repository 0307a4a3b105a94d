"""Tables: figures, alignment, badges and what is refused."""

import math
import xml.etree.ElementTree as ET

import pytest

from autopar.display.format import badge, figures, like, short_origins, unit_of
from autopar.display.table import compare, tabulate
from autopar.records.record import Findings
from autopar.timing.measurement import Measurement, limits_of

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


def rows_of(table):
    """The rows of the table as HTML, by name."""
    return {text_of(row.find("th")): row for row in parsed(table).findall(".//tbody/tr")}


def test_a_limit_has_a_star_where_the_times_of_its_parts_are_noisy():
    findings = Findings([serial, overlapped, noisy])
    limit_s = 2 * findings.limit_s(["noisy"])
    table = compare(findings, limit_s=limit_s, parts=["overlapped", "noisy"])
    assert column(table, "limit") == ["2.000 s *", "-  ", "-  "]
    assert "* limit: of parts whose times are noisy, noisy" in table.notes
    for quiet in ({"limit_s": 0.1, "parts": ["overlapped"]}, {"parts": ["noisy"]}):
        table = compare(findings, **quiet)
        assert not any("* limit" in note for note in table.notes)


@pytest.mark.parametrize(
    ("header", "cell", "noted"),
    [
        ("saved", "-0.1 %", True),
        ("saved", "100.1%", True),
        ("saved", "0.0 %", False),
        ("saved", "100.0 %", False),
        ("share saved", "-12.5 %", True),
        ("gain", "-12.5 %", False),
    ],
)
def test_a_share_hidden_that_can_not_be_is_said_to_be_noise(header, cell, noted):
    notes = tabulate(["way", header], [["a", cell]]).notes
    assert notes == (
        ("saved below 0 % or above 100 %: by noise, or as parts hinder each other",) * noted
    )


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


def test_a_time_below_its_limit_is_said_to_be_so_and_the_limit_may_have_another_name():
    table = compare([serial], limit_s=0.2, limit_name="estimate")
    assert {"estimate", "estimate / time"} <= set(table.headers)
    assert column(table, "estimate / time") == ["105.8 %"]
    beaten = "over 100 %: faster than its limit; one of measured times has a spread, too"
    assert beaten in compare([serial, overlapped], limit_s=0.13).notes
    assert beaten not in compare([serial, overlapped], limit_s=0.126).notes


def test_limits_by_label_and_mappings_of_measurements():
    table = compare({"a": serial, "b": overlapped}, limit_s={"overlapped": 0.063})
    assert column(table, "limit") == ["-", "63.00 ms"]
    assert column(table, "limit / time") == ["-", "50.0 %"]
    assert compare(Findings([serial])) == compare([serial])  # or what has them
    assert compare([overlapped]).headers == ("work", "median", "spread (IQR)")  # what can be filled


def test_rows_of_text_are_aligned_and_say_where_they_are_from():
    lines = str(compare([serial, noisy], caption="Two ways", baseline="serial")).splitlines()
    assert lines[0] == "Two ways"
    assert lines[1].startswith("work")
    assert set(lines[2]) == {"-", " "}
    assert lines[3].index(" ms  ") == lines[4].index(" s *") - 1  # digits end in one column
    assert lines[5:] == [LIVE, f"* noisy: {noisy.warning}", "speed-up: over serial"]
    assert repr(compare([serial])) == str(compare([serial]))


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
    assert text_of(box.find("p")) == f"* noisy: {noisy.warning}"


@pytest.mark.parametrize(("origin", "kind"), [(LIVE, "live"), (RECORDED, "recorded")])
def test_badge_tells_recorded_from_live(origin, kind):
    table = parsed(tabulate(["a", "b"], [["1", "2"]], origin=origin))
    span = table.find(".//caption//span/span")
    assert (span.get("class"), span.text) == (f"autopar-{kind}", origin)


def test_rows_from_several_places_say_which():
    elsewhere = Measurement("serial", (0.001, 0.002, 0.003), origin=RECORDED)
    fast = Measurement("overlapped", (0.001, 0.001, 0.001), origin=RECORDED)
    table = compare([serial, overlapped, elsewhere, fast], baseline="serial")
    here, there = "this machine: CPU", "recorded on 2 × NVIDIA H200"
    assert column(table, "where") == [here, here, there, there]
    assert column(table, "speed-up") == ["1.00 ×", "1.50 ×", "1.00 ×", "2.00 ×"]
    assert table.origins == (LIVE, RECORDED)
    assert column(compare([serial, fast], baseline="serial"), "speed-up") == ["1.00 ×", "189.00 ×"]
    html = table._repr_html_()
    assert html.count('class="autopar-live"') == html.count('class="autopar-recorded"') == 1


def test_markup_in_words_is_shown_as_text():
    bad = "<script>alert('&')</script>"
    table = tabulate([bad, bad], [[bad, bad]], caption=bad, origin=bad, notes=[bad])
    assert "<script" not in table._repr_html_()
    box = parsed(table)  # would not parse with a bare & in it
    assert box.get("aria-label") == bad
    assert text_of(box.find(".//td")) == bad
    assert text_of(box.find("p")) == bad


def test_columns_of_words_are_aligned_to_the_left():
    table = tabulate(["a", "b", "c"], [["x", "2 × H200", "1.5"], ["y", "-", "-"]])
    kinds = [td.get("class") for td in parsed(table).findall(".//tbody/tr[1]/td")]
    assert kinds == [None, "num"]
    assert str(table).splitlines()[2:] == ["x  2 × H200  1.5", "y  -           -"]


PART = Measurement("part", (0.1, 0.1, 0.1))


@pytest.mark.parametrize(
    ("measurements", "options", "error"),
    [
        ([], {}, "measurements is empty.* a race's, see its `failed`"),
        (
            Findings([], checks={"b: equal to a": False}),
            {},
            "check failed: b: equal to a; expected",
        ),
        (
            [serial],
            {"limit_s": 131},
            "limit_s is 131 seconds for 'serial', .* Give seconds, not ms",
        ),
        ([serial, serial], {}, "several with label 'serial'"),
        ([serial], {"baseline": "x"}, r"baseline names 'x'.*'serial'"),
        ([serial], {"highlight": "none"}, "highlight names 'none'"),
        ([serial], {"baseline": "serial", "parts": ["copy"]}, "parts names 'copy'"),
        ([serial, PART], {"limit_s": {"oops": 1.0}}, "limit_s names 'oops'.*'serial', 'part'"),
        ([serial], {"limit_s": {"serial": -1.0}}, r"limit_s\['serial'\] is -1.0"),
        ([serial], {"limit_s": math.nan}, r"limit_s\['serial'\] is nan"),
    ],
)
def test_comparisons_of_what_is_not_there_are_refused(measurements, options, error):
    with pytest.raises(ValueError, match=error):
        compare(measurements, **options)


@pytest.mark.parametrize(
    ("measurements", "options", "error"),
    [
        ([0.1], {}, r"measurements\[0\] is of type float; expected a Measurement"),
        (serial, {}, r"measurements is <Measurement: serial.*compare\(\[it\]\)"),
        ([serial], {"parts": "add"}, "parts is 'add'; expected labels"),
    ],
)
def test_what_is_not_several_measurements_is_refused(measurements, options, error):
    with pytest.raises(TypeError, match=error):
        compare(measurements, **options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 3},
        {"rows": ["1"]},
        {"headers": "a"},
        {"headers": [1]},
        {"notes": "ab"},
        {"notes": [3]},
    ],
)
def test_cells_are_several_and_no_letters_and_what_is_said_around_them_is_text(wrong):
    ((argument, _),) = wrong.items()
    with pytest.raises(TypeError, match=rf"^{argument}.* is .*; expected "):
        tabulate(**{"headers": ["a"], "rows": [["1"]], **wrong})


def test_parts_are_paler_the_row_of_interest_bold_and_a_limit_is_not_that_of_a_part():
    rows = [Measurement(name, (time_s,) * 3) for name, time_s in (("a", 1), ("b", 4), ("all", 5))]
    table = compare(rows, limit_s=4.0, parts=["a", "b"], highlight="all")
    looks = {name: row.get("style") for name, row in rows_of(table).items()}
    assert looks == {"a": "opacity:0.7", "b": "opacity:0.7", "all": "font-weight:bold"}
    assert column(table, "limit / time") == ["-", "-", "80.0 %"]
    raced = compare(rows, baseline="all", parts=["a", "b"])
    assert column(raced, "speed-up") == ["-", "-", "1.00 ×"]
    given = compare(rows, limit_s={"a": 0.5, "all": 4.0}, parts=["a", "b"])
    assert column(given, "limit / time") == ["50.0 %", "-", "80.0 %"]
    for plain in (compare(rows), compare(rows, limit_s=4.0)):
        assert not any(row.get("style") for row in rows_of(plain).values())


@pytest.mark.parametrize("argument", ["caption", "limit_name"])
def test_words_of_a_comparison_are_text(argument):
    with pytest.raises(TypeError, match=f"{argument} is of type int; expected a few words"):
        compare([serial, overlapped], **{argument: 5})


def test_a_bar_is_as_long_as_the_limit_is_of_the_time_and_there_is_none_without_a_limit():
    away = Measurement("away", (0.1, 0.1, 0.1), origin="recorded on H200")
    table = compare([serial, overlapped, away], limit_s={"serial": 0.0945, "away": 0.2})
    shown = {
        name: [style for cell in row.findall("td") if "gradient" in (style := cell.get("style"))]
        for name, row in rows_of(table).items()
    }
    assert [len(bars) for bars in shown.values()] == [1, 0, 1]
    assert "50.0%" in shown["serial"][0]
    assert "100.0%" in shown["away"][0]  # twice the limit is no longer than the cell
    assert parsed(table).find("table").get("class") == "autopar-table autopar-first-4"  # where
    here = compare([serial, overlapped], limit_s=0.0945)
    assert parsed(here).find("table").get("class") == "autopar-table autopar-first-3"
    plain = compare([serial, overlapped])._repr_html_()
    assert "gradient" not in plain
    assert "autopar-first" not in plain


def test_rows_say_their_machine_where_there_are_several():
    rows = [["a", "1"], ["b", "2"], ["c", "3"]]
    one, other = "recorded on H200, 2026", "measured live on CPU, 2026"
    table = tabulate(["row", "µs"], rows, origin=[one, other, one])
    assert table.headers == ("row", "where", "µs")
    here, there = "measured live on CPU", "recorded on H200"
    assert column(table, "where") == [there, here, there]
    assert table.origins == (one, other)
    assert "where" not in tabulate(["row", "µs"], rows, origin=[one] * 3).headers
    with pytest.raises(ValueError, match=r"rows\[1\] has 1 cells"):
        tabulate(["a", "b"], [["1", "2"], ["3"]])
    with pytest.raises(ValueError, match="rows is empty"):
        tabulate(["a", "b"], [])


def test_limit_and_origin_and_unit_alone():
    assert limits_of(["a", "b"], None) == (None, None)
    assert limits_of(["a", "a"], {"a": 2}) == (2.0, 2.0)
    assert badge("<b>") == '<span class="autopar-live">&lt;b&gt;</span>'
    # The machine alone does not tell these apart.
    assert short_origins(["GPU, May", "GPU, June", ""]) == ["GPU, May", "GPU, June", "-"]
    assert unit_of(2e-6) == ("µs", 1e-6)
    assert like(0.0, 0.1) == "0 ms"
    assert (figures(0.0), figures(12345.6)) == ("0", "12346")
