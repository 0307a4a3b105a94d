"""Drawings: where bars stand, what the words say, and that a page comes out the same twice."""

import base64
import gzip
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar import Span, Timeline, draw, show_timelines
from autopar.display.text import sentences
from autopar.timeline.chrome_trace import trace_bytes

pytestmark = pytest.mark.usefixtures("no_windows")
RECORDED = "recorded on 2 × NVIDIA H200, 2026-11-21, torch 2.11.0"
STREAM, BUS = "GPU 0 stream 7", "GPU 0 copies to host"
LESS = "   . less than half of a mark's time"  # what each legend ends with
COMPUTING, COPYING = "GPU 0, computing", "GPU 0, copying to the host"
PRODUCT_S, COPY_S, COUNT, START_S = 2.62e-3, 1.16e-3, 50, 100.0
SVG = "{http://www.w3.org/2000/svg}"


def pipeline(first_copy_s, step_s, origin=RECORDED):
    starts = [START_S + i * PRODUCT_S for i in range(COUNT)]
    products = [Span(f"gemm {i}", STREAM, t, t + PRODUCT_S) for i, t in enumerate(starts)]
    starts = [START_S + first_copy_s + i * step_s for i in range(COUNT)]
    copies = [Span(f"copy {i}", BUS, t, t + COPY_S, "copy") for i, t in enumerate(starts)]
    return Timeline(products + copies, origin=origin)


SERIAL = pipeline(COUNT * PRODUCT_S, COPY_S)
OVERLAPPED = pipeline(PRODUCT_S, PRODUCT_S)
PANELS = {"serial": SERIAL, "overlapped": OVERLAPPED}
BOTH = draw(PANELS, title="E3", limit_s=0.1321)


def alone(*spans):
    return draw(Timeline(spans), title="t")


def parsed(drawing):
    return ET.fromstring(drawing._repr_html_().replace("&nbsp;", " "))


def svg_of(drawing):
    return parsed(drawing).find(f"{SVG}svg")


def hover(rect):
    return rect.findtext(f"{SVG}title") or ""


def bars(drawing):
    return [rect for rect in svg_of(drawing).iter(f"{SVG}rect") if hover(rect)]


def share(element, attribute):
    value = element.get(attribute)
    assert value.endswith("%")
    return float(value[:-1]) / 100


def words_of(drawing):
    """What the details say in sentences."""
    return " ".join("".join(line.itertext()) for line in parsed(drawing).findall("details/p"))


def texts(drawing):
    return [text.text for text in svg_of(drawing).iter(f"{SVG}text")]


def test_bars_stand_where_their_spans_do_on_one_scale_and_rows_name_their_panel_and_lane():
    rows, whole_s = svg_of(BOTH).findall(f".//{SVG}g[@data-lane]"), SERIAL.makespan_s
    lanes = [f"{name}: {lane}" for name in PANELS for lane in (COMPUTING, COPYING)]
    assert [row.get("data-lane") for row in rows] == lanes
    spans = {span.name: span for span in SERIAL.spans}
    for row, step_s, length_s, first_s in (
        (rows[0], PRODUCT_S, PRODUCT_S, 0.0),
        (rows[1], COPY_S, COPY_S, COUNT * PRODUCT_S),
        (rows[3], PRODUCT_S, COPY_S, PRODUCT_S),  # on the scale of the longer panel
    ):
        rects = row.findall(f"{SVG}rect")
        assert {hover(rect).split(":")[0] for rect in rects} <= spans.keys()
        assert len(rects) == COUNT
        for i, rect in enumerate(rects):
            at = share(rect, "x"), share(rect, "width")
            expected = ((first_s + i * step_s) / whole_s, length_s / whole_s)
            assert at == pytest.approx(expected, abs=1e-6)
    beyond = draw(Timeline([Span("a", "lane", 5, 6)]), title="t", limit_s=4.0)
    assert (bars(beyond)[0].get("x"), bars(beyond)[0].get("width")) == ("0%", "25%")


def test_rows_lie_under_one_another_with_their_names_between():
    own = Span("nccl", STREAM, 100.1, 100.2, "communication")
    drawing = draw({**PANELS, "three": Timeline([*SERIAL.spans, own])}, title="t")
    heights = sorted({(float(r.get("y")), float(r.get("height"))) for r in bars(drawing)})
    assert [height for _, height in heights] == [22, 15, 22, 15, 22, 18, 15]
    gaps = [low - up - height for (up, height), (low, _) in pairwise(heights)]
    assert [gap > 12 for gap in gaps] == [True] * 4 + [False, True]  # of two kinds on one lane
    assert min(gaps) > 0
    labels = [text for text in texts(BOTH) if text in (COMPUTING, COPYING)]
    assert labels == [COMPUTING, COPYING] * 2
    assert {"serial: 189.0 ms", "overlapped: 132.2 ms"} <= {*texts(BOTH)}


def test_kinds_differ_in_colour_in_height_and_in_the_legend():
    copy = Span("D2H", "GPU 0 copies", 3, 5, "copy")
    drawing = alone(Span("mm", STREAM, 0, 4), copy, Span("nccl", "GPU 0", 3, 5, "communication"))
    rows = svg_of(drawing).findall(f".//{SVG}g[@data-lane]")
    kinds = [row.get("class").removeprefix("autopar-") for row in rows]
    assert {*kinds} == {"compute", "copy", "communication"}
    for row, kind in zip(rows, kinds, strict=True):
        assert row.get("style").startswith(f"fill:var(--autopar-{kind}, #")
    assert len({row.find(f"{SVG}rect").get("height") for row in rows}) == 3
    assert {*texts(drawing)} & {*kinds, "host"} == {*kinds}
    assert str(drawing).endswith(f"# compute   = copy   ~ communication{LESS}")


def test_the_limit_is_a_dashed_line_at_its_time_that_words_break():
    limit = f"{SVG}line[@class='autopar-limit']"
    layers = svg_of(BOTH).findall(f"{SVG}g")
    (at,) = (i for i, layer in enumerate(layers) if layer.findall(limit))
    line = layers[at].find(limit)
    assert share(line, "x1") == share(line, "x2") == pytest.approx(0.1321 / SERIAL.makespan_s)
    assert line.get("stroke-dasharray")
    assert "limit 132.1 ms" in texts(BOTH)
    over = {one.text for layer in layers[at + 1 :] for one in layer}
    assert {"58.00 ms of copying not hidden", COMPUTING, "50 × copy"} <= over
    assert all("paint-order:stroke" in layer.get("style") for layer in layers[at + 1 :])
    assert not svg_of(draw(SERIAL, title="E3")).findall(f".//{limit}")
    for part, explained in ((1.01, True), (0.99, False)):  # a run may end before its limit
        words = words_of(draw(SERIAL, title="t", limit_s=part * SERIAL.makespan_s))
        assert ("one may end before it" in words) == explained


def test_words_on_a_bar_have_the_pages_colour_and_a_rim_of_the_bars():
    styles = {text.text: text.get("style") for text in svg_of(BOTH).iter(f"{SVG}text")}
    assert styles["50 × gemm"].startswith("fill:var(--color-background-primary, #fff)")
    assert styles["50 × gemm"].endswith(";stroke:var(--autopar-compute, #3b76c4)")
    assert styles["50 × copy"].startswith("fill:var(--color-background-primary, #000)")
    assert styles[COMPUTING] is None  # it stands beside the bars


def test_brackets_stand_where_copies_were_not_hidden_and_words_stay_inside():
    lines = svg_of(BOTH).findall(f".//{SVG}line[@class='autopar-bracket']")
    ends = sorted({round(share(line, name), 3) for line in lines for name in ("x1", "x2")})
    assert ends == [round(131 / 189, 3), 1.0]
    placed = {text.text: text for text in svg_of(BOTH).iter(f"{SVG}text")}
    anchors = {words: text.get("text-anchor") for words, text in placed.items()}
    assert anchors["58.00 ms of copying not hidden"] == "end"
    assert (anchors["0 ms"], anchors["50 ms"]) == ("start", "middle")


@settings(max_examples=50)
@given(st.floats(1e-6, 100.0))
def test_ticks_are_few_round_and_lie_within(scale_s):
    svg = svg_of(alone(Span("a", "lane", 0.0, scale_s)))
    axis = svg.find(f"{SVG}g[@class='autopar-axis']")
    shares = [share(line, "x1") for line in axis.findall(f"{SVG}line")]
    assert 2 < len(shares) <= 6
    assert shares[0] == 0
    assert shares[-1] <= 1 + 1e-6 < shares[-1] + shares[1] + 1e-5
    step = f"{shares[1] * scale_s:.3e}"
    assert step.split("e")[0] in ("1.000", "2.000", "2.500", "5.000")
    value, unit = axis.findall(f"{SVG}text")[1].text.split()
    assert float(value) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(float(step))


def test_hover_words_and_description_say_the_figures():
    assert hover(bars(BOTH)[1]) == "gemm 1: 2.620 ms, from 2.6 to 5.2 ms"
    words = words_of(BOTH)
    assert "serial: 189.0 ms from the first start to the last end. Copies 0.0 % hidden" in words
    assert f"Copies {100 * (COUNT - 1) / COUNT:.1f} % hidden behind compute." in words
    svg = svg_of(BOTH)
    title, desc = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert [svg.get("role"), title.text] == ["img", "E3"]
    assert [title.get("id"), desc.get("id")] == svg.get("aria-labelledby").split()
    assert "98.0 % hidden" in desc.text
    clocks = "Clocks of different lanes agree within 12.50 µs."
    assert clocks in sentences(replace(SERIAL, alignment_error_s=12.5e-6))
    assert clocks not in sentences(SERIAL)


def test_badges_say_where_it_was_measured():
    badge = parsed(BOTH).find("figcaption/span")
    assert (badge.get("class"), badge.text) == ("autopar-recorded", RECORDED)
    assert RECORDED not in words_of(BOTH)
    here = pipeline(0.2, 0.01, origin="this machine: CPU")
    mixed = draw({"here": here, "there": SERIAL}, title="t")
    classes = [span.get("class") for span in parsed(mixed).findall("figcaption/span")]
    assert classes == ["autopar-live", "autopar-recorded"]
    assert "(this machine: CPU)" in words_of(mixed)  # by panel, where they differ


def test_what_to_look_at_is_told_for_each_timeline_unless_the_caption_does():
    serial, overlapped = (f"copies {share} % hidden behind compute" for share in ("0.0", "98.0"))
    told = f"Look at 'serial': 189.0 ms, {serial}; 'overlapped': 132.2 ms, {overlapped}."
    captions = [line.text for line in parsed(BOTH).findall("figcaption/p")]
    assert captions == [told]
    own = draw(PANELS, title="E3", caption="Look at the end: 189 ms.")
    assert [line.text for line in parsed(own).findall("figcaption/p")] == [own.caption]
    assert "Look at the whole: 1.000 s." in alone(Span("mm", "GPU 0", 0, 1))._repr_html_()


def test_a_timeline_alone_has_the_scale_of_all_and_no_legend():
    figure = ET.fromstring(BOTH.panel("overlapped"))
    one, both = (
        {hover(bar): (bar.get("x"), bar.get("width")) for bar in svg.iter(f"{SVG}rect")}
        for svg in (figure, svg_of(draw({"overlapped": OVERLAPPED, "serial": SERIAL}, title="t")))
    )
    assert "" not in one
    assert one.items() <= both.items()
    assert figure.findtext(f".//{SVG}title") == "E3: overlapped"
    assert (figure.get("data-name"), figure.findtext("span")) == ("overlapped", RECORDED)
    assert not {*re.findall(r' id="[^"]+"', BOTH.panel("serial"))} & {
        *re.findall(r' id="[^"]+"', BOTH.panel("overlapped") + BOTH._repr_html_())
    }


def test_same_input_same_bytes_and_other_input_other_ids():
    html, other = (draw(PANELS, title="E3", limit_s=s)._repr_html_() for s in (0.1321, 0.1322))
    assert html == BOTH._repr_html_()
    again = draw(PANELS, title="E3", limit_s=0.1321, caption="again")._repr_html_()
    ids = [{*re.findall(r' id="([^"]+)"', one)} for one in (html, other, again)]
    assert [len(one) for one in ids] == [2, 2, 2]
    assert len(set.union(*ids)) == 6


def test_markup_in_names_is_shown_as_text():
    bad = "<script>alert('&')</script>"
    drawing = draw({bad: Timeline([Span(bad, bad, 0, 1)], origin=bad)}, title=bad, caption=bad)
    assert "<script" not in drawing._repr_html_()
    assert hover(bars(drawing)[0]).startswith(bad)
    assert bad in words_of(drawing)
    captions = [line.text for line in parsed(drawing).findall("figcaption/p")]
    assert captions == [bad, f"Look at {bad!r}: 1.000 s."]


def test_tables_and_traces_for_those_who_want_figures():
    details = parsed(BOTH).find("details")
    tables = details.findall(".//table")
    assert len(tables) == 2
    lanes = [["".join(c.itertext()) for c in row] for row in tables[0].findall("tbody/tr")]
    assert lanes == [
        [f"{COMPUTING} ({STREAM})", "compute", "50", "131.0 ms", "69.3 %"],
        [f"{COPYING} ({BUS})", "copy", "50", "58.00 ms", "30.7 %"],
    ]
    links = details.findall(".//a")
    names = [link.get("download") for link in links]
    assert names == ["e3-serial.json.gz", "e3-overlapped.json.gz"]
    head, _, data = links[0].get("href").partition(",")
    assert head == "data:application/gzip;base64"
    assert gzip.decompress(base64.b64decode(data)) == trace_bytes(SERIAL)


def test_short_neighbours_are_drawn_as_one_and_long_ones_among_them_are_seen():
    count, step_s = 21_000, 20e-6
    lengths = [3e-3 if i % 1_000 == 500 else step_s / 2 for i in range(count)]
    html = alone(
        *(Span("k", "x", i * step_s, i * step_s + s) for i, s in enumerate(lengths))
    )._repr_html_()
    assert len(html) < 100_000
    assert html.count("<rect") < 100
    assert html.count("<title>k: 3.000 ms") == 21
    opacity = re.search(r'opacity="([\d.]+)"><title>500 × k: ', html)
    assert float(opacity[1]) == pytest.approx(0.5, abs=0.01)  # half of it busy
    assert "21,000 spans, too many to carry" in html
    fine_s = 1 / 1_800  # of a second: as long, or as far apart, they are two
    for length, gap, bars_drawn in ((0.4, 0.9, 1), (1.1, 0.1, 2), (0.4, 1.1, 2)):
        at = (0.0, length), (length + gap, 2 * length + gap)
        pair = [Span("k", "x", *(end * fine_s for end in ends)) for ends in at]
        assert len(bars(alone(*pair, Span("m", "x", 0.5, 1)))) == bars_drawn + 1


def test_neighbours_that_touch_can_be_told_apart():
    drawing = alone(*(Span("k", "lane", i, i + 1) for i in range(3)), Span("k", "lane", 4, 5))
    assert [bar.get("opacity") for bar in bars(drawing)] == [None, "0.75", None, None]


def test_text_has_a_row_for_each_lane():
    lines = str(BOTH).splitlines()
    assert lines[:2] == ["E3", "serial: 189.0 ms"]
    rows = [line.split("|")[1] for line in lines if "|" in line]
    assert rows[:2] == ["#" * 37 + "." + " " * 16, " " * 37 + "=" * 17]  # 131.0 of 189.0 ms
    assert [len(row) for row in rows] == [54] * 4
    assert lines[-3:] == ["limit 132.1 ms", f"# compute   = copy{LESS}", RECORDED]
    assert "  copies 98.0 % hidden behind compute" in lines
    ends = [(0.1, 0.12), (0.5, 0.5001), (0.9999, 1.0)]  # however short and late
    text = str(alone(Span("a", "long", 0, 1), *(Span("b", "short", *at, "host") for at in ends)))
    assert text.splitlines()[3].split("|")[1] == " " * 6 + "-." + " " * 22 + "." + " " * 28 + "."
    often = str(alone(*(Span("a", "often", i, i + 0.1) for i in range(600))))
    assert often.splitlines()[2].split("|")[1] == "." * 60  # busy for a tenth, and not a full bar


def test_spans_without_length_are_drawn():
    drawing = alone(Span("mark", "lane", 3.0, 3.0))
    assert bars(drawing)[0].get("width") == "0%"
    assert "0 s from the first start" in words_of(drawing)
    assert "|. " in str(drawing)


def test_long_names_are_cut_in_the_picture_only():
    lane = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu>"
    drawing = alone(Span("k", lane, 0, 1))
    assert lane not in texts(drawing)
    assert any(text.endswith("\u2026") and lane.startswith(text[:-1]) for text in texts(drawing))
    assert lane in "".join(parsed(drawing).find("details").itertext())


@pytest.mark.parametrize(
    ("timelines", "options", "error"),
    [
        ({"a": SERIAL, "b": Timeline(())}, {}, "timeline 'b' has no spans"),
        ({}, {}, "timelines is empty"),
        (SERIAL, {"title": " "}, "title is ' '"),
        (SERIAL, {"limit_s": -1}, "limit_s is -1"),
        (SERIAL, {"caption": 3}, "caption is of type int"),
        ({1: SERIAL}, {}, "a name in timelines is of type int"),
        ([SERIAL], {}, "timelines is of type list; expected"),
        ({"a": SERIAL.spans}, {}, r"timelines\['a'\] is of type tuple; expected a Timeline"),
    ],
)
def test_what_cannot_be_drawn_is_refused(timelines, options, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for how in (draw, lambda timelines, **options: show_timelines(timelines, "a", **options)):
        with pytest.raises(TypeError if "of type" in error else ValueError, match=error):
            how(timelines, **{"title": "t", **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("timelines", [SERIAL, PANELS])
def test_it_is_shown_in_both_ways(timelines, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOPAR_RICH", raising=False)
    drawing = show_timelines(timelines, "a_run", title="A run", caption="Read it.", limit_s=4.5)
    assert drawing == draw(timelines, title="A run", caption="Read it.", limit_s=4.5)
    assert (tmp_path / "a_run.png").stat().st_size > 1000
    assert str(drawing) in capsys.readouterr().out


BAD = "bad \ud800\x00\x1b[31m\ufffe"  # neither a page nor a font may have any of these
ODD = Timeline((Span(BAD, f"half of $x^$ 漢字 {BAD}", 0.0, 1.0),), origin=BAD)


@pytest.mark.parametrize("kind", [str, lambda path: path])
@pytest.mark.parametrize("timelines", [SERIAL, ODD, {"one": SERIAL, f"$x^$ {BAD}": ODD}])
def test_a_drawing_is_saved_by_the_ending_of_the_name(timelines, kind, tmp_path):
    drawing = draw(timelines, title=f"A run of $x^$ {BAD}", caption="Read it.", limit_s=4.5)
    for ending in ("svg", "html", "png", "SVG"):
        drawing.save(kind(tmp_path / f"run.{ending}"))
        with pytest.raises(FileNotFoundError, match=r"no folder .*missing'; make it first"):
            drawing.save(tmp_path / "missing" / f"run.{ending}")
    assert ET.parse(tmp_path / "run.svg").getroot().tag == f"{SVG}svg"
    page = (tmp_path / "run.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Read it." in page
    assert not {*BAD} & {*page} - {*"bad [31m"}
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"run\.pdf'; expected a name that ends in \.svg, \.html"):
        drawing.save(tmp_path / "run.pdf")
