"""Drawings: where bars stand, what the words say, and that a page comes out the same twice."""

import base64
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar import Span, Timeline, draw
from autopar.display.text import sentences
from autopar.timeline.chrome_trace import trace_bytes

RECORDED = "recorded on 2 × NVIDIA H200, 2026-11-21, torch 2.11.0"
STREAM, BUS = "GPU 0 stream 7", "GPU 0 copies to host"
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
    said = parsed(drawing).findall("details/p")
    return " ".join(" ".join("".join(line.itertext()) for line in said).split())


def texts(drawing):
    return [text.text for text in svg_of(drawing).iter(f"{SVG}text")]


def test_bars_stand_where_their_spans_do_on_one_scale():
    rects, whole_s = bars(BOTH), SERIAL.makespan_s  # the longer panel; the shorter has its scale
    assert len(rects) == 4 * COUNT
    for timeline, of_panel in ((SERIAL, rects[: 2 * COUNT]), (OVERLAPPED, rects[2 * COUNT :])):
        by_name = {hover(rect).split(":")[0]: rect for rect in of_panel}
        assert len(by_name) == len(timeline.spans)
        for span in timeline.spans:
            at = share(by_name[span.name], "x"), share(by_name[span.name], "width")
            expected = ((span.start_s - START_S) / whole_s, span.duration_s / whole_s)
            assert at == pytest.approx(expected, abs=1e-6)
    beyond = draw(Timeline([Span("a", "lane", 5, 6)]), title="t", limit_s=4.0)
    assert (bars(beyond)[0].get("x"), bars(beyond)[0].get("width")) == ("0%", "25%")


def test_lanes_lie_under_one_another_without_touching():
    heights = sorted({(float(r.get("y")), float(r.get("height"))) for r in bars(BOTH)})
    assert len(heights) == 4
    for (upper, height), (lower, _) in pairwise(heights):
        assert upper + height + 12 <= lower  # a lane's name fits between
    labels = [text for text in texts(BOTH) if text in (COMPUTING, COPYING)]
    assert labels == [COMPUTING, COPYING] * 2
    assert {"serial: 189.0 ms", "overlapped: 132.2 ms"} <= set(texts(BOTH))


def test_kinds_differ_in_colour_in_height_by_hatching_and_in_the_legend():
    copy = Span("D2H", "GPU 0 copies", 3, 5, "copy")
    drawing = alone(Span("mm", STREAM, 0, 4), copy, Span("nccl", "GPU 0", 3, 5, "communication"))
    svg, heights, lines = svg_of(drawing), set(), {}
    for group in svg.findall(f".//{SVG}g[@data-lane]"):
        heights.add(group.find(f"{SVG}rect[@height]").get("height"))
        kind, style = group.get("class").removeprefix("autopar-"), group.get("style")
        pattern = re.search(r"fill:url\(#([\w-]+)\)", style)
        tile = svg.find(f".//{SVG}pattern[@id='{pattern[1]}']") if pattern else None
        lines[kind] = 0 if tile is None else len(tile.findall(f"{SVG}line"))
        inked = style if tile is None else ET.tostring(tile, encoding="unicode")
        assert f"fill:var(--autopar-{kind}, #" in inked
    assert lines == {"compute": 0, "copy": 1, "communication": 2}
    assert len(heights) == 3
    assert set(texts(drawing)) & {*lines, "host"} == lines.keys()
    assert str(drawing).endswith("# compute   = copy   ~ communication")
    assert "Copies 50.0 % hidden behind compute, communication 50.0 % hidden" in words_of(drawing)


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
    assert ";stroke:var(--autopar-copy, " in styles["50 × copy"]
    assert styles[COMPUTING] is None  # it stands beside the bars


def test_rows_of_bars_name_their_panel_and_lane_for_scripts():
    rows = svg_of(BOTH).findall(f".//{SVG}g[@data-lane]")
    lanes = [f"{name}: {lane}" for name in PANELS for lane in (COMPUTING, COPYING)]
    assert [row.get("data-lane") for row in rows] == lanes
    assert sum(len(row.findall(f"{SVG}rect")) for row in rows) == len(bars(BOTH))
    assert svg_of(alone(Span("a", "lane", 0, 1))).find(f".//{SVG}g[@data-lane='lane']") is not None


def test_axis_has_round_times_from_zero():
    placed = svg_of(BOTH).findall(f".//{SVG}text[@text-anchor]")
    axis = {text.text: share(text, "x") for text in placed if re.fullmatch(r"\d+ ms", text.text)}
    expected = {f"{ms} ms": pytest.approx(ms / 189.0, abs=1e-5) for ms in (0, 50, 100, 150)}
    assert axis == expected


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.floats(1e-6, 100.0))
def test_ticks_are_few_round_and_lie_within(scale_s):
    lines = svg_of(alone(Span("a", "lane", 0.0, scale_s))).iter(f"{SVG}line")
    shares = [share(line, "x1") for line in lines if line.get("stroke-opacity")]
    assert 2 < len(shares) <= 6
    assert shares[0] == 0
    assert shares[-1] <= 1 + 1e-6 < shares[-1] + shares[1] + 1e-5
    step = f"{shares[1] * scale_s:.3e}"
    assert step.split("e")[0] in ("1.000", "2.000", "2.500", "5.000")


def test_hover_and_words_say_the_figures():
    assert hover(bars(BOTH)[1]) == "gemm 1: 2.620 ms, from 2.6 to 5.2 ms"
    words = words_of(BOTH)
    for said in (
        f"serial: 189.0 ms from the first start to the last end. Busy: {STREAM} 131.0 ms",
        f"{BUS} 58.00 ms. Copies 0.0 % hidden behind compute.",
        # All but the last copy run behind a product.
        f"Copies {100 * (COUNT - 1) / COUNT:.1f} % hidden behind compute.",
    ):
        assert said in words
    assert "Clocks" not in words
    clocks = "Clocks of different lanes agree within 12.50 µs."
    assert clocks in sentences(replace(SERIAL, alignment_error_s=12.5e-6))


def test_image_is_named_and_described_for_screen_readers():
    svg = svg_of(BOTH)
    assert svg.get("role") == "img"
    title, desc = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert [title.get("id"), desc.get("id")] == svg.get("aria-labelledby").split()
    assert title.text == "E3"
    assert "98.0 % hidden" in desc.text


def test_badges_say_where_it_was_measured():
    badge = parsed(BOTH).find("figcaption/span")
    assert (badge.get("class"), badge.text) == ("autopar-recorded", RECORDED)
    assert RECORDED not in words_of(BOTH)
    here = pipeline(0.2, 0.01, origin="this machine: CPU")
    mixed = draw({"here": here, "there": SERIAL}, title="t")
    classes = [span.get("class") for span in parsed(mixed).findall("figcaption/span")]
    assert classes == ["autopar-live", "autopar-recorded"]
    assert "(this machine: CPU)" in words_of(mixed)  # by panel, where they differ


def test_same_input_same_bytes_and_other_input_other_ids():
    html, other = (draw(PANELS, title="E3", limit_s=s)._repr_html_() for s in (0.1321, 0.1322))
    assert html == BOTH._repr_html_()
    ids, other_ids = (set(re.findall(r' id="([^"]+)"', one)) for one in (html, other))
    assert len(ids) == 3
    assert ids.isdisjoint(other_ids)


def test_markup_in_names_is_shown_as_text():
    bad = "<script>alert('&')</script>"
    timeline = Timeline([Span(bad, bad, 0, 1)], origin=bad)
    drawing = draw({bad: timeline}, title=bad, caption=bad)
    assert "<script" not in drawing._repr_html_()
    assert hover(bars(drawing)[0]).startswith(bad)
    assert bad in words_of(drawing)
    assert [line.text for line in parsed(drawing).findall("figcaption/p")] == [bad]


def test_tables_and_traces_for_those_who_want_figures():
    details = parsed(BOTH).find("details")
    tables = details.findall(".//table")
    assert len(tables) == 2
    lanes = [["".join(c.itertext()) for c in row] for row in tables[0].findall("tbody/tr")]
    assert lanes == [
        [STREAM, "compute", "50", "131.0 ms", "69.3 %"],
        [BUS, "copy", "50", "58.00 ms", "30.7 %"],
    ]
    links = details.findall(".//a")
    assert [link.get("download") for link in links] == ["e3-serial.json", "e3-overlapped.json"]
    head, _, data = links[0].get("href").partition(",")
    assert head == "data:application/json;base64"
    assert base64.b64decode(data) == trace_bytes(SERIAL)


def test_of_very_many_spans_short_neighbours_are_drawn_as_one():
    count, step_s = 6_000, 20e-6
    lengths = [3e-3 if i % 1_000 == 500 else step_s / 2 for i in range(count)]
    drawing = alone(*(Span("k", "x", i * step_s, i * step_s + s) for i, s in enumerate(lengths)))
    titles = {hover(rect): rect for rect in bars(drawing)}
    assert len(bars(drawing)) < 50
    assert sum(title.startswith("k: 3.000 ms") for title in titles) == 6
    merged = next(title for title in titles if title.startswith("500 × k: "))
    opacity = float(titles[merged].get("opacity", "1"))
    assert opacity == pytest.approx(0.5, abs=0.01)  # half of it busy
    assert "drawn as one" in words_of(drawing)
    assert "drawn as one" not in words_of(BOTH)
    assert "6,000 spans, too many to carry" in "".join(parsed(drawing).itertext())


# Lanes of 1,000 spans are drawn in full.
@pytest.mark.parametrize(
    ("gap", "many", "expected"), [(0.4, 1_000, 1), (0.6, 1_000, 2), (0.4, 997, 998)]
)
def test_neighbours_half_a_pixel_apart_stay_two(gap, many, expected):
    pixel_s = 1 / 900
    start_s = 0.5 + pixel_s / 4 + gap * pixel_s
    pair = (Span("a", "x", 0.5, 0.5 + pixel_s / 4), Span("b", "x", start_s, start_s + 1e-9))
    others = (Span("m", "x", i * 1e-9, (i + 1) * 1e-9) for i in range(many))
    drawn = bars(alone(*others, *pair, Span("long", "x", 0.9, 1.0)))
    assert len(drawn) - 2 == expected  # beside the long one, and the many that are one


def test_neighbours_that_touch_can_be_told_apart():
    drawing = alone(*(Span("k", "lane", i, i + 1) for i in range(3)), Span("k", "lane", 4, 5))
    assert [bar.get("opacity") for bar in bars(drawing)] == [None, "0.75", None, None]


def test_text_has_a_row_for_each_lane():
    lines = str(BOTH).splitlines()
    assert lines[:2] == ["E3", "serial: 189.0 ms"]
    rows = [line.split("|")[1] for line in lines if "|" in line]
    assert [len(row) for row in rows] == [54] * 4
    assert rows[:2] == ["#" * 38 + " " * 16, " " * 37 + "=" * 17]  # 131.0 of 189.0 ms
    assert rows[3].rstrip().endswith("=")
    assert lines[-3:] == ["limit 132.1 ms", "# compute   = copy", RECORDED]
    assert "  copies 98.0 % hidden behind compute" in lines


def test_text_shows_a_span_however_short_and_late():
    ends = [(0.1, 0.12), (0.5, 0.5001), (0.9999, 1.0)]
    text = str(alone(Span("a", "long", 0, 1), *(Span("b", "short", *at, "host") for at in ends)))
    assert text.splitlines()[3].split("|")[1] == " " * 6 + "-" + " " * 23 + "-" + " " * 28 + "-"


def test_spans_without_length_are_drawn():
    drawing = alone(Span("mark", "lane", 3.0, 3.0))
    assert bars(drawing)[0].get("width") == "0%"
    assert "0 s from the first start" in words_of(drawing)
    assert "mark" in drawing._repr_html_()
    assert "#" in str(drawing)


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
        (Timeline(()), {}, "the timeline has no spans"),
        ({}, {}, "timelines is empty"),
        (SERIAL, {"title": " "}, "title is ' '"),
        (SERIAL, {"limit_s": -1}, "limit_s is -1"),
        (SERIAL, {"caption": 3}, "caption is of type int"),
        ({1: SERIAL}, {}, "a name in timelines is of type int"),
        ([SERIAL], {}, "timelines is of type list; expected"),
        ({"a": SERIAL.spans}, {}, r"timelines\['a'\] is of type tuple; expected a Timeline"),
    ],
)
def test_what_cannot_be_drawn_is_refused(timelines, options, error):
    with pytest.raises(TypeError if "of type" in error else ValueError, match=error):
        draw(timelines, **{"title": "t", **options})


def test_only_its_own_gpu_hides_a_copy():
    def hidden(*spans):
        return sentences(Timeline(spans))[2]

    gemm, copy = Span("gemm", STREAM, 0, 4), Span("D2H", BUS, 2, 6, "copy")
    other = Span("gemm", "GPU 1 stream 7", 0, 8)
    other_copy = Span("D2H", "GPU 1 copies to host", 6, 10, "copy")
    both = "GPU 0: copies 50.0 % hidden behind compute, GPU 1: copies 50.0 % hidden behind compute."
    assert hidden(gemm, copy, other, other_copy) == both
    ranked = [replace(span, lane=f"rank 1 {span.lane}") for span in (gemm, copy, other, other_copy)]
    assert hidden(*ranked).startswith("Rank 1 GPU 0: copies 50.0 %")
    on_cpu = Span("mm", "CPU lane 1", 5, 6)
    assert hidden(gemm, copy, other, on_cpu) == "Copies 50.0 % hidden behind compute."
    assert hidden(copy, other) == "Copies 0.0 % hidden behind compute."
    of_a_graph = (replace(gemm, lane="cuda:0 #0"), replace(copy, lane="cuda:0 to cuda:1"))
    assert hidden(*of_a_graph, Span("mm", "cuda:1 #0", 4, 6)).startswith("Copies 50.0 %")
    assert hidden(*of_a_graph, other, other_copy) == both  # one name for a GPU, by any lane
    assert len(sentences(Timeline([copy]))) == 2  # nothing computes


def test_sentences_name_few_lanes_and_do_not_take_a_lane_for_the_kind_of_its_name():
    lanes = [Span("k", f"lane {i}", 0, 1) for i in range(10)]
    assert sentences(Timeline(lanes))[1].endswith("lane 7 1.000 s, and 2 more lanes.")
    spans = [Span("a", "copy", 0, 1), Span("b", "bus", 2, 3, "copy")]
    assert "Busy: copy 1.000 s, bus 1.000 s." in sentences(Timeline(spans))


def test_nested_ranges_are_in_layers_with_their_names():
    ends = {"forward": (0, 2), "brief": (2, 2.01), "backward": (2, 4), "step": (0, 4)}
    drawing = alone(*(Span(name, "host", *at, "host") for name, at in ends.items()))
    heights = {hover(bar).split(":")[0]: int(bar.get("y")) for bar in bars(drawing)}
    assert heights["step"] < heights["forward"] == heights["backward"] < heights["brief"]
    assert ends.keys() - {"brief"} == ends.keys() & {*texts(drawing)}, "there is no room for it"
