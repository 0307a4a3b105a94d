"""Drawings: where bars stand, what the words say, and that a page comes out the same twice."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.display.svg import Drawing, draw
from autopar.display.text import sentences
from autopar.timeline.chrome_trace import trace_bytes
from autopar.timeline.span import Span, Timeline

RECORDED = "recorded on 2 × NVIDIA H200, 2026-11-21, torch 2.11.0"
STREAM, BUS = "GPU 0 stream 7", "GPU 0 copies to host"
COMPUTING, COPYING = "GPU 0, computing", "GPU 0, copying to the host"
PRODUCT_S, COPY_S, COUNT, START_S = 2.62e-3, 1.16e-3, 50, 100.0
SVG = "{http://www.w3.org/2000/svg}"


def pipeline(first_copy_s: float, step_s: float, origin: str = RECORDED) -> Timeline:
    products = [
        Span(f"gemm {i}", STREAM, START_S + i * PRODUCT_S, START_S + (i + 1) * PRODUCT_S)
        for i in range(COUNT)
    ]
    starts = [START_S + first_copy_s + i * step_s for i in range(COUNT)]
    copies = [Span(f"copy {i}", BUS, t, t + COPY_S, "copy") for i, t in enumerate(starts)]
    return Timeline(tuple(products + copies), origin=origin)


serial = pipeline(COUNT * PRODUCT_S, COPY_S)
overlapped = pipeline(PRODUCT_S, PRODUCT_S)
both = draw({"serial": serial, "overlapped": overlapped}, title="E3", limit_s=0.1321)


def parsed(drawing: Drawing) -> ET.Element:
    return ET.fromstring(drawing._repr_html_().replace("&nbsp;", " "))


def svg_of(drawing: Drawing) -> ET.Element:
    svg = parsed(drawing).find(f"{SVG}svg")
    assert svg is not None
    return svg


def title_of(rect: ET.Element) -> str:
    return rect.findtext(f"{SVG}title") or ""


def bars(drawing: Drawing) -> list[ET.Element]:
    return [rect for rect in svg_of(drawing).iter(f"{SVG}rect") if title_of(rect)]


def share(element: ET.Element, attribute: str) -> float:
    value = element.get(attribute, "")
    assert value.endswith("%")
    return float(value[:-1]) / 100


def words_of(drawing: Drawing) -> str:
    """What the details say in sentences."""
    said = parsed(drawing).findall("details/p")
    return " ".join(" ".join("".join(line.itertext()) for line in said).split())


def texts(drawing: Drawing) -> list[str]:
    return [text.text or "" for text in svg_of(drawing).iter(f"{SVG}text")]


def test_bars_stand_where_their_spans_do_on_one_scale() -> None:
    rects = bars(both)
    assert len(rects) == 4 * COUNT
    whole_s = serial.makespan_s  # the longer panel; the shorter has the same scale
    for timeline, of_panel in ((serial, rects[: 2 * COUNT]), (overlapped, rects[2 * COUNT :])):
        by_name = {title_of(rect).split(":")[0]: rect for rect in of_panel}
        assert len(by_name) == len(timeline.spans)
        for span in timeline.spans:
            rect = by_name[span.name]
            start_s = span.start_s - START_S
            assert share(rect, "x") == pytest.approx(start_s / whole_s, abs=1e-6)
            assert share(rect, "width") == pytest.approx(span.duration_s / whole_s, abs=1e-6)


def test_lanes_lie_under_one_another_without_touching() -> None:
    heights = sorted({(float(r.get("y", "")), float(r.get("height", ""))) for r in bars(both)})
    assert len(heights) == 4
    for (upper, height), (lower, _) in pairwise(heights):
        assert upper + height + 12 <= lower  # a lane's name fits between
    labels = [text for text in texts(both) if text in (COMPUTING, COPYING)]
    assert labels == [COMPUTING, COPYING] * 2
    assert {"serial: 189.0 ms", "overlapped: 132.2 ms"} <= set(texts(both))


def test_kinds_differ_in_colour_in_height_by_hatching_and_in_the_legend() -> None:
    spans = (
        *(Span("mm", "GPU 0 stream 7", 0, 4), Span("D2H", "GPU 0 copies", 3, 5, "copy")),
        Span("all-reduce", "GPU 0 stream 20", 3, 5, "communication"),
    )
    drawing = draw(Timeline(spans), title="t")
    svg, heights, lines = svg_of(drawing), [], {}
    for group in svg.findall(f".//{SVG}g[@class]"):
        heights.append(group.find(f"{SVG}rect[@height]").get("height"))  # type: ignore[union-attr]
        kind, style = group.get("class", "")[len("autopar-") :], group.get("style", "")
        pattern = re.search(r"fill:url\(#([\w-]+)\)", style)
        tile = svg.find(f".//{SVG}pattern[@id='{pattern[1]}']") if pattern else None
        lines[kind] = 0 if tile is None else len(tile.findall(f"{SVG}line"))
        inked = style if tile is None else ET.tostring(tile, encoding="unicode")
        assert f"fill:var(--autopar-{kind}, #" in inked
    assert lines == {"compute": 0, "copy": 1, "communication": 2}
    assert len(set(heights)) == 3
    legend = {"compute", "copy", "communication", "host"}
    assert set(texts(drawing)) & legend == lines.keys()
    assert str(drawing).endswith("# compute   = copy   ~ communication")
    assert "Copies 50.0 % hidden behind compute, communication 50.0 % hidden" in words_of(drawing)


def test_the_limit_is_a_dashed_line_at_its_time() -> None:
    line = svg_of(both).find(f".//{SVG}line[@class='autopar-limit']")
    assert line is not None
    assert share(line, "x1") == share(line, "x2") == pytest.approx(0.1321 / serial.makespan_s)
    assert line.get("stroke-dasharray")
    assert "limit 132.1 ms" in texts(both)
    without = draw(serial, title="E3")
    assert svg_of(without).find(f".//{SVG}line[@class='autopar-limit']") is None


def test_words_break_the_line_of_the_limit() -> None:
    layers = svg_of(both).findall(f"{SVG}g")
    limit = f"{SVG}line[@class='autopar-limit']"
    (line,) = (i for i, layer in enumerate(layers) if layer.findall(limit))
    over = {one.text for layer in layers[line + 1 :] for one in layer}
    assert {"58.00 ms of copying not hidden", COMPUTING, "50 copies"} <= over
    assert all("paint-order:stroke" in layer.get("style", "") for layer in layers[line + 1 :])


def test_a_limit_beyond_the_end_widens_the_scale() -> None:
    rect = bars(draw(Timeline((Span("a", "lane", 5, 6),)), title="t", limit_s=4.0))[0]
    assert (rect.get("x"), rect.get("width")) == ("0%", "25%")


def test_a_run_that_ends_before_its_limit_is_explained() -> None:
    said = "one may end before it"
    assert said in words_of(draw(serial, title="t", limit_s=1.01 * serial.makespan_s))
    assert said not in words_of(draw(serial, title="t", limit_s=0.99 * serial.makespan_s))


def test_axis_has_round_times_from_zero() -> None:
    placed = [text for text in svg_of(both).iter(f"{SVG}text") if text.get("text-anchor")]
    axis = {t.text: share(t, "x") for t in placed if re.fullmatch(r"\d+ ms", t.text or "")}
    assert list(axis) == ["0 ms", "50 ms", "100 ms", "150 ms"]
    for label, x in axis.items():
        assert label is not None
        assert x == pytest.approx(float(label.split()[0]) / 189.0, abs=1e-5)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.floats(1e-6, 100.0))
def test_ticks_are_few_round_and_lie_within(scale_s: float) -> None:
    svg = svg_of(draw(Timeline((Span("a", "lane", 0.0, scale_s),)), title="t"))
    shares = [share(line, "x1") for line in svg.iter(f"{SVG}line") if line.get("stroke-opacity")]
    assert 2 < len(shares) <= 6
    assert shares[0] == 0
    assert shares[-1] <= 1 + 1e-6 < shares[-1] + shares[1] + 1e-5
    step = f"{shares[1] * scale_s:.3e}"
    assert step.split("e")[0] in ("1.000", "2.000", "2.500", "5.000")


def test_hover_and_words_say_the_figures() -> None:
    titles = [title_of(rect) for rect in bars(both)]
    assert titles[1] == "gemm 1: 2.620 ms, from 2.6 to 5.2 ms"
    words = words_of(both)
    assert (
        f"serial: 189.0 ms from the first start to the last end. Busy: {STREAM} 131.0 ms" in words
    )
    assert f"{BUS} 58.00 ms. Copies 0.0 % hidden behind compute." in words
    # All but the last copy run behind a product.
    assert f"Copies {100 * (COUNT - 1) / COUNT:.1f} % hidden behind compute." in words
    assert "Clocks" not in words
    assert "Clocks of different lanes agree within 12.50 µs." in sentences(
        Timeline(serial.spans, alignment_error_s=12.5e-6)
    )


def test_image_is_named_and_described_for_screen_readers() -> None:
    svg = svg_of(both)
    ids = svg.get("aria-labelledby", "").split()
    assert svg.get("role") == "img"
    title, desc = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert [title.get("id"), desc.get("id")] == ids
    assert title.text == "E3"
    assert "98.0 % hidden" in (desc.text or "")


def test_badges_say_where_it_was_measured() -> None:
    badge = parsed(both).find("figcaption/span")
    assert badge is not None
    assert (badge.get("class"), badge.text) == ("autopar-recorded", RECORDED)
    assert RECORDED not in words_of(both)
    here = pipeline(0.2, 0.01, origin="this machine: CPU")
    mixed = draw({"here": here, "there": serial}, title="t")
    classes = [span.get("class") for span in parsed(mixed).findall("figcaption/span")]
    assert classes == ["autopar-live", "autopar-recorded"]
    assert "(this machine: CPU)" in words_of(mixed)  # by panel, where they differ


def test_same_input_same_bytes_and_other_input_other_ids() -> None:
    again = draw({"serial": serial, "overlapped": overlapped}, title="E3", limit_s=0.1321)
    other = draw({"serial": serial, "overlapped": overlapped}, title="E3", limit_s=0.1322)
    assert again._repr_html_() == both._repr_html_()

    def ids(drawing: Drawing) -> set[str]:
        return set(re.findall(r' id="([^"]+)"', drawing._repr_html_()))

    assert len(ids(both)) == 3
    assert ids(both).isdisjoint(ids(other))


def test_markup_in_names_is_shown_as_text() -> None:
    bad = "<script>alert('&')</script>"
    timeline = Timeline((Span(bad, bad, 0, 1),), origin=bad)
    drawing = draw({bad: timeline}, title=bad, caption=bad)
    assert "<script" not in drawing._repr_html_()
    assert title_of(bars(drawing)[0]).startswith(bad)
    assert bad in words_of(drawing)
    assert [line.text for line in parsed(drawing).findall("figcaption/p")] == [bad]


def test_tables_and_traces_for_those_who_want_figures() -> None:
    details = parsed(both).find("details")
    assert details is not None
    tables = details.findall(".//table")
    assert len(tables) == 2
    lanes = [["".join(c.itertext()) for c in row] for row in tables[0].findall("tbody/tr")]
    assert lanes == [
        [STREAM, "compute", "50", "131.0 ms", "69.3 %"],
        [BUS, "copy", "50", "58.00 ms", "30.7 %"],
    ]
    links = details.findall(".//a")
    assert [link.get("download") for link in links] == ["e3-serial.json", "e3-overlapped.json"]
    head, _, data = links[0].get("href", "").partition(",")
    assert head == "data:application/json;base64"
    assert base64.b64decode(data) == trace_bytes(serial)


def test_of_very_many_spans_short_neighbours_are_drawn_as_one() -> None:
    count, step_s = 6_000, 20e-6
    lengths = [3e-3 if i % 1_000 == 500 else step_s / 2 for i in range(count)]
    spans = tuple(
        Span("k", "lane", i * step_s, i * step_s + length) for i, length in enumerate(lengths)
    )
    drawing = draw(Timeline(spans), title="t")
    rects = bars(drawing)
    assert len(rects) < 50
    assert sum(title_of(rect).startswith("k: 3.000 ms") for rect in rects) == 6
    merged = next(rect for rect in rects if "spans" in title_of(rect))
    assert title_of(merged).startswith("500 spans: ")
    assert float(merged.get("opacity", "1")) == pytest.approx(0.5, abs=0.01)  # half of it busy
    assert "drawn as one" in words_of(drawing)
    assert "drawn as one" not in words_of(both)
    assert "6,000 spans, too many to carry" in "".join(parsed(drawing).itertext())


def test_neighbours_half_a_pixel_apart_stay_two() -> None:
    pixel_s = 1 / 900

    def drawn(gap_s: float, count: int = 1_000) -> int:
        """How many bars two spans make, a gap apart, beside many that are one, and a long one."""
        start_s = 0.5 + pixel_s / 4 + gap_s
        pair = (Span("a", "x", 0.5, 0.5 + pixel_s / 4), Span("b", "x", start_s, start_s + 1e-9))
        many = (Span("m", "x", i * 1e-9, (i + 1) * 1e-9) for i in range(count))
        spans = (*many, *pair, Span("long", "x", 0.9, 1.0))
        return len(bars(draw(Timeline(spans), title="t"))) - 2

    assert drawn(0.4 * pixel_s) == 1
    assert drawn(0.6 * pixel_s) == 2
    assert drawn(0.4 * pixel_s, count=997) == 997 - 1 + 2  # lanes of 1,000 are drawn in full


def test_neighbours_that_touch_can_be_told_apart() -> None:
    spans = (*(Span("k", "lane", i, i + 1) for i in range(3)), Span("k", "lane", 4, 5))
    paler = [bar.get("opacity") for bar in bars(draw(Timeline(spans), title="t"))]
    assert paler == [None, "0.75", None, None]


def test_text_has_a_row_for_each_lane() -> None:
    lines = str(both).splitlines()
    assert lines[0] == "E3"
    assert lines[1] == "serial: 189.0 ms"
    rows = [line.split("|")[1] for line in lines if "|" in line]
    assert [len(row) for row in rows] == [60] * 4
    compute, copy = rows[0], rows[1]
    assert compute == "#" * 42 + " " * 18  # 131.0 of 189.0 ms
    assert copy == " " * 42 + "=" * 18
    assert rows[3].rstrip().endswith("=")
    assert lines[-3:] == ["limit 132.1 ms", "# compute   = copy", RECORDED]
    assert "  copies 98.0 % hidden behind compute" in lines


def test_text_shows_a_span_however_short_and_late() -> None:
    shorts = [Span("b", "short", t, t + 1e-4, "host") for t in (0.5, 0.9999)]
    first = Span("b", "short", 0.1, 0.12, "host")
    text = str(draw(Timeline((Span("a", "long", 0, 1), first, *shorts)), title="t"))
    assert text.splitlines()[3].split("|")[1] == " " * 6 + "-" + " " * 23 + "-" + " " * 28 + "-"


def test_a_lane_called_like_a_kind_is_not_mixed_up_with_it() -> None:
    spans = (Span("a", "copy", 0, 1), Span("b", "bus", 2, 3, "copy"))
    assert "Busy: copy 1.000 s, bus 1.000 s." in sentences(Timeline(spans))


def test_spans_without_length_are_drawn() -> None:
    drawing = draw(Timeline((Span("mark", "lane", 3.0, 3.0),)), title="t")
    assert bars(drawing)[0].get("width") == "0%"
    assert "0 s from the first start" in words_of(drawing)
    assert "mark" in drawing._repr_html_()
    assert "#" in str(drawing)


def test_long_names_are_cut_in_the_picture_only() -> None:
    lane = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu>"
    drawing = draw(Timeline((Span("k", lane, 0, 1),)), title="t")
    assert lane not in texts(drawing)
    assert any(text.endswith("\u2026") and lane.startswith(text[:-1]) for text in texts(drawing))
    assert lane in "".join(parsed(drawing).find("details").itertext())  # type: ignore[union-attr]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="timeline 'b' has no spans"):
        draw({"a": serial, "b": Timeline(())}, title="t")
    with pytest.raises(ValueError, match="timelines is empty"):
        draw({}, title="t")
    with pytest.raises(ValueError, match="the timeline has no spans"):
        draw(Timeline(()), title="t")
    with pytest.raises(ValueError, match="title is ' '"):
        draw(serial, title=" ")
    with pytest.raises(ValueError, match="limit_s is -1"):
        draw(serial, title="t", limit_s=-1)
    with pytest.raises(TypeError, match="a name in timelines is of type int"):
        draw({1: serial}, title="t")  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="caption is of type int"):
        draw(serial, title="t", caption=3)  # type: ignore[arg-type]


def test_only_its_own_gpu_hides_a_copy() -> None:
    def hidden(*spans: Span) -> str:
        return sentences(Timeline(spans))[2]

    gemm, copy = (
        Span("gemm", "GPU 0 stream 7", 0, 4),
        Span("D2H", "GPU 0 copies to host", 2, 6, "copy"),
    )
    other = Span("gemm", "GPU 1 stream 7", 0, 8)
    other_copy = Span("D2H", "GPU 1 copies to host", 6, 10, "copy")
    both = "PU 0: copies 50.0 % hidden behind compute, GPU 1: copies 50.0 % hidden behind compute."
    assert hidden(gemm, copy, other, other_copy) == f"G{both}"
    ranked = [replace(span, lane=f"rank 1 {span.lane}") for span in (gemm, copy, other, other_copy)]
    assert hidden(*ranked).startswith("Rank 1 GPU 0: copies 50.0 %")
    on_cpu = Span("mm", "CPU lane 1", 5, 6)
    assert hidden(gemm, copy, other, on_cpu) == "Copies 50.0 % hidden behind compute."
    assert hidden(copy, other) == "Copies 0.0 % hidden behind compute."
    of_a_graph = (replace(gemm, lane="cuda:0 #0"), replace(copy, lane="cuda:0 to cuda:1"))
    assert hidden(*of_a_graph, Span("mm", "cuda:1 #0", 4, 6)).startswith("Copies 50.0 %")
    assert hidden(*of_a_graph, other, other_copy) == f"G{both}"  # one name for a GPU, by any lane
    assert len(sentences(Timeline((copy,)))) == 2  # nothing computes
    lanes = (Span("k", f"lane {i}", 0, 1) for i in range(10))
    assert sentences(Timeline(tuple(lanes)))[1].endswith("lane 7 1.000 s, and 2 more lanes.")


def test_nested_ranges_are_in_layers_with_their_names() -> None:
    step, forward = Span("step", "host", 0, 4, "host"), Span("forward", "host", 0, 2, "host")
    backward, brief = Span("backward", "host", 2, 4, "host"), Span("brief", "host", 2, 2.01, "host")
    drawing = draw(Timeline((forward, brief, backward, step)), title="A model")
    heights = {title_of(bar).split(":")[0]: int(bar.get("y", "")) for bar in bars(drawing)}
    assert heights["step"] < heights["forward"] == heights["backward"] < heights["brief"]
    assert {"step", "forward", "backward"} <= set(texts(drawing))
    assert "brief" not in texts(drawing), "there is no room for it"
