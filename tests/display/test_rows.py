"""What pictures call lanes, leave out, write into bars and bracket, in all their forms."""

import re
from dataclasses import replace

import pytest

from autopar import Span, Timeline, draw, plot
from autopar.display.rows import layout_of
from autopar.display.text import sentences

pytestmark = pytest.mark.usefixtures("no_windows")
COMPUTING, TO_HOST = "GPU 0 stream 7", "GPU 0 copies to host"


def work(*spans, scale=1.0):
    """Spans by name, lane, start and end; copies are told by their lane."""
    kinds = ["copy" if re.search("cop| to | from ", lane) else "compute" for _, lane, *_ in spans]
    return Timeline([
        Span(name, lane, start * scale, end * scale, kind)
        for (name, lane, start, end), kind in zip(spans, kinds, strict=True)
    ])  # fmt: skip


def drawn(timelines):
    """All texts of a drawing, in order; matplotlib's figure has them, too."""
    svg = draw(timelines, title="t")._repr_html_().split("<details>")[0]
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    ax = plot.timeline(timelines)
    ax.figure.canvas.draw()
    plotted = {text.get_text() for text in ax.texts} - {""}
    assert plotted == {
        one for one in words if not re.fullmatch(r"[\d.]+ (s|ms|µs)|host|co[mp]\w+|", one)
    }
    return words


@pytest.mark.parametrize(
    ("lane", "title"),
    [
        ("host", "CPU, annotated ranges"),
        ("cpu", "CPU, computing"),
        ("cuda:1 #0", "GPU 1, computing"),
        ("cuda:1 from host", "GPU 1, copying from the host"),
        ("cuda:1 to cuda:0", "GPU 1, copying to GPU 0"),
        ("rank 2 GPU 0 copies to host", "rank 2 GPU 0, copying to the host"),
        ("GPU 0 copies to a peer", "GPU 0, copying to other GPUs"),
        ("GPU 0 copies within", "GPU 0, copying within its memory"),
        ("my products on GPU 0", "my products on GPU 0"),
        ("host\nstream $7$", "host stream $7$"),
    ],
)
def test_lanes_are_named_for_people_and_those_of_a_program_stay(lane, title):
    timeline = work(("k", lane, 0, 1))
    assert title in drawn(timeline)
    assert lane in draw(timeline, title="t")._repr_html_().split("<details>")[1]


@pytest.mark.parametrize(
    ("kind", "does"), [("communication", "communicating"), ("copy", "copying")]
)
def test_lanes_that_only_communicate_or_copy_do_not_compute_and_come_later(kind, does):
    spans = [Span("nccl", "GPU 0 stream 3", 0, 1, kind), Span("mm", COMPUTING, 0, 1)]
    titles = [words for words in drawn(Timeline(spans)) if "GPU" in words]
    assert titles == ["GPU 0, computing", f"GPU 0, {does}"]


def test_rows_are_by_device_in_the_same_order_whatever_began_first():
    lanes = [
        *("rank 2 cuda:0", "mine", "GPU 1 stream 7", "cuda:0 to host", "GPU 0, beside", "cuda:0"),
        *("GPU 10 stream 7", "rank 10 cuda:0", "host", "CPU lane"),
    ]
    expected = [
        *("CPU, annotated ranges", "CPU lane", "GPU 0, computing", "GPU 0, copying to the host"),
        *("GPU 0, beside", "GPU 1, computing", "GPU 10, computing", "rank 2 GPU 0, computing"),
        *("rank 10 GPU 0, computing", "mine"),
    ]
    for order in (lanes, lanes[::-1]):
        timeline = work(*(("k", lane, i, i + 9) for i, lane in enumerate(order)))
        assert [words for words in drawn(timeline) if words in expected] == expected
        rows = [line.split("  |")[0].strip() for line in str(draw(timeline, title="t")).split("\n")]
        assert [row for row in rows if row in expected] == expected


def test_lanes_of_one_title_are_counted_and_none_is_lost():
    lanes = ["GPU 0 stream 7", "GPU 0 stream 9", "GPU 0, computing, 1 of 2"]
    titles = [
        words for words in drawn(work(*(("k", lane, 0, 1) for lane in lanes))) if "," in words
    ]
    assert titles == ["GPU 0, computing, 1 of 2", "GPU 0, computing, 2 of 2", lanes[-1]]


def test_a_lane_that_does_next_to_nothing_is_left_out_and_said_to_be():
    brief, whole = ("k", "GPU 0 stream 9", 0.5, 0.509), ("k", COMPUTING, 0, 1)
    named = "GPU 0, computing, 2 of 2"
    said = f"Left out, as busy for less than 1 % of the time: {named}."
    drawing = draw(work(whole, brief), title="t")
    assert said in str(drawing)
    assert said in drawing._repr_html_()
    assert named not in drawn(work(whole, brief))
    assert named in drawn(work(whole, ("k", "GPU 0 stream 9", 0.5, 0.52)))
    lanes = [("k", f"lane {i:04}", 0, 1e-3) for i in range(1000)]  # too many to name them
    assert "lane 0007; 992 more." in str(draw(work(("k", "busy", 0, 1), *lanes), title="t"))


def test_nothing_is_left_out_where_all_lanes_are_brief_or_the_other_panel_is_longer():
    many = work(*(("k", f"lane {i:03}", i, i + 1) for i in range(200)))
    short = work(("k", COMPUTING, 0, 1), ("D2H", TO_HOST, 1, 2), scale=1e-3)
    for timelines in (many, short, {"short": short, "long": work(("k", COMPUTING, 0, 1))}):
        assert "Left out" not in str(draw(timelines, title="t"))


def test_bars_that_touch_say_what_most_of_them_are_or_how_many():
    same = [("mm", COMPUTING, i, i + 1) for i in range(5)]
    # Fills of memory are no kernels.
    other = [(f"{i} nvjet_tst_128", COMPUTING, i, i + 1) for i in range(10, 20)]
    other.append(("Memset (Device)", COMPUTING, 19, 20))
    names = ["potrf", "gemm", *(f"gemm_{i}" for i in range(1, 11))]
    mixed = [(name, "cuda:1", i, i + 1) for i, name in enumerate(names)]
    copies = [("Memcpy DtoH (Device -> Pinned)", TO_HOST, i, i + 1) for i in range(20, 30)]
    words = drawn(work(*same, *other, *mixed, *copies))
    assert {"5 × mm", "10 kernels", "11 × gemm, 1 more", "10 copies"} <= {*words}
    assert "task 3" in drawn(work(("task 3", "CPU lane", 0, 1)))


@pytest.mark.parametrize("name", ["a name of a kernel that is long", "", " "])
def test_bars_say_nothing_where_they_are_apart_or_it_does_not_fit_or_nothing_is_to_say(name):
    for spans in (
        [(name, COMPUTING, 0, 1)],
        [("mm", COMPUTING, i, i + 0.7) for i in range(50)],
        [("mm", COMPUTING, 0, 0.04), ("mm", COMPUTING, 0.5, 0.54), ("k" * 20, COMPUTING, 0.8, 1)],
    ):
        words = [one for one in drawn(work(*spans)) if not one.endswith(" s")]
        assert words == ["GPU 0, computing", "compute"]


@pytest.mark.parametrize(
    ("name", "share", "written"),
    [
        ("products", 1, ["products"]),
        ("forward and backward", 0.2, ["forward \u2026"]),
        ("products", 0.1, []),  # of four letters nobody guesses it
        ("step", 0.1, ["step"]),
    ],
)
def test_the_name_of_a_range_is_cut_where_enough_of_it_is_left(name, share, written):
    run = Timeline([Span(name, "host", 0, share, "host")])
    (row,) = layout_of([("", run)], 1).rows
    assert [label.words for label in row.labels] == written


def test_nested_ranges_are_in_layers_with_their_names():
    ends = {"forward": (0, 2), "brief": (2, 2.01), "backward": (2, 4), "step": (0, 4)}
    run = Timeline([Span(name, "host", *at, "host") for name, at in ends.items()])
    bars = re.findall(r'y="(\d+)"[^>]*><title>(\w+)', draw(run, title="t")._repr_html_())
    heights = {name: int(y) for y, name in bars}
    assert heights["step"] < heights["forward"] == heights["backward"] < heights["brief"]
    assert ends.keys() - {"brief"} == ends.keys() & {*drawn(run)}, "there is no room for it"


def brackets(timelines):
    return [words for words in drawn(timelines) if "not hidden" in words]


def test_a_bracket_says_how_long_a_gpu_copied_and_did_not_compute():
    timeline = work(("mm", COMPUTING, 0, 6), ("D2H", TO_HOST, 4, 10))
    assert brackets(timeline) == ["4.000 s of copying not hidden"]
    pauses = [("D2H", TO_HOST, i / 10, i / 10 + 0.05) for i in range(60, 100)]
    timeline = work(("mm", COMPUTING, 0, 6), *pauses)
    assert brackets(timeline) == ["2.000 s of copying not hidden"]  # of four seconds


@pytest.mark.parametrize(
    "spans",
    [
        [("mm", COMPUTING, 0, 6), ("D2H", TO_HOST, 1, 6)],  # all is hidden
        [("mm", COMPUTING, 0, 9.5), ("D2H", TO_HOST, 5, 10)],  # next to all
        [("D2H", TO_HOST, 0, 6)],  # nothing computes
        [("mm", "GPU 1 stream 7", 0, 6), ("D2H", TO_HOST, 6, 10)],  # nothing does there
        [("mm", COMPUTING, 0, 0), ("D2H", TO_HOST, 0, 0)],  # nothing takes any time
    ],
)
def test_there_is_no_bracket_without_need(spans):
    assert brackets(work(*spans)) == []


def test_each_of_several_gpus_has_a_bracket_that_says_which_and_is_the_same_each_time():
    one = [("mm", COMPUTING, 0, 6), ("D2H", TO_HOST, 6, 8)]
    two = [("mm", "cuda:1", 0, 6), ("D2H", "cuda:1 to host", 6, 10)]
    both = [f"GPU {i}: {s}.000 s of copying not hidden" for i, s in ((0, 2), (1, 4))]
    assert brackets(work(*two, *one)) == brackets(work(*one, *two)) == both
    hides = ("D2H", TO_HOST, 2, 6), ("mm", COMPUTING, 0, 6)  # all of it
    assert brackets(work(*hides, *two)) == both[1:]
    assert brackets({"a": work(*one), "b": work(*two[:1])}) == ["2.000 s of copying not hidden"]


def test_only_its_own_gpu_hides_a_copy():
    def hidden(*spans):
        return sentences(Timeline(spans))[1:]

    gemm, copy = Span("gemm", COMPUTING, 0, 4), Span("D2H", TO_HOST, 2, 6, "copy")
    other = Span("gemm", "cuda:1", 0, 8)
    other_copy = Span("D2H", "GPU 1 copies to host", 6, 10, "copy")
    both = "GPU 0: copies 50.0 % hidden behind compute, GPU 1: copies 50.0 % hidden behind compute."
    assert hidden(gemm, copy, other, other_copy) == [both]  # one name for a GPU, by any lane
    ranked = [replace(span, lane=f"rank 1 {span.lane}") for span in (gemm, copy, other, other_copy)]
    assert hidden(*ranked) == [both.replace("GPU", "rank 1 GPU").replace("rank", "Rank", 1)]
    assert hidden(copy, other) == ["Copies 0.0 % hidden behind compute."]
    assert hidden(gemm, replace(copy, lane="bus")) == ["Copies 50.0 % hidden behind compute."]
    assert hidden(gemm, replace(copy, kind="communication"))[0].startswith("Communication 50.0 %")
    assert hidden(copy) == []  # nothing computes
