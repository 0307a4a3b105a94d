"""What pictures call lanes, leave out, write into bars and bracket, in all their forms."""

import re

import pytest

from autopar import Span, Timeline, draw, plot

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
    """All texts of a drawing, in order."""
    svg = draw(timelines, title="t")._repr_html_().split("<details>")[0]
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def plotted(timeline):
    """Names of rows, and what else is written, by matplotlib."""
    ax = plot.timeline(timeline)
    rows = [label.get_text() for label in ax.get_yticklabels()]
    return rows, [text.get_text() for text in ax.texts if text.get_text()]


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
        ("host\nstream $7$", "host\nstream $7$"),
    ],
)
def test_lanes_are_named_for_people_and_those_of_a_program_stay(lane, title):
    timeline = work(("k", lane, 0, 1))
    assert plotted(timeline)[0] == [title]
    assert title in drawn(timeline)
    assert lane in draw(timeline, title="t")._repr_html_().split("<details>")[1]


@pytest.mark.parametrize(
    ("kind", "does"), [("communication", "communicating"), ("copy", "copying")]
)
def test_lanes_that_only_communicate_or_copy_do_not_compute(kind, does):
    spans = [Span("nccl", "GPU 0 stream 20", 0, 1, kind), Span("mm", COMPUTING, 0, 1)]
    assert plotted(Timeline(spans))[0] == ["GPU 0, computing", f"GPU 0, {does}"]


def test_text_has_nothing_that_a_terminal_obeys():
    timeline = Timeline([Span("a\x1b[31m", "l\x1b[2J", 0, 1)])
    assert "\x1b" not in str(draw(timeline, title="t\x1b[0m"))


def test_rows_are_by_device_in_the_same_order_whatever_began_first():
    lanes = [
        *("rank 2 cuda:0", "mine", "GPU 1 stream 7", "cuda:0 to host", "GPU 0, beside", "cuda:0"),
        *("GPU 10 stream 7", "rank 10 cuda:0", "host", "CPU lane"),
    ]
    expected = [
        *("CPU lane", "CPU, annotated ranges", "GPU 0, computing", "GPU 0, copying to the host"),
        *("GPU 0, beside", "GPU 1, computing", "GPU 10, computing", "rank 2 GPU 0, computing"),
        *("rank 10 GPU 0, computing", "mine"),
    ]
    for order in (lanes, lanes[::-1]):
        timeline = work(*(("k", lane, i, i + 9) for i, lane in enumerate(order)))
        assert plotted(timeline)[0] == expected
        rows = [line.split("  |")[0].strip() for line in str(draw(timeline, title="t")).split("\n")]
        assert [row for row in rows if row in expected] == expected


def test_lanes_of_one_title_are_counted_and_none_is_lost():
    lanes = ["GPU 0 stream 7", "GPU 0 stream 9", "GPU 0, computing, 1 of 2"]
    rows, _ = plotted(work(*(("k", lane, 0, 1) for lane in lanes)))
    assert rows == ["GPU 0, computing, 1 of 2", "GPU 0, computing, 2 of 2", lanes[-1]]


def test_a_lane_that_does_next_to_nothing_is_left_out_and_said_to_be():
    brief, whole = ("k", "GPU 0 stream 9", 0.5, 0.509), ("k", COMPUTING, 0, 1)
    named = "GPU 0, computing, 2 of 2"
    said = f"Left out, as busy for less than 1 % of the time: {named}."
    drawing = draw(work(whole, brief), title="t")
    assert said in str(drawing)
    assert said in drawing._repr_html_()
    assert plotted(work(whole, brief))[0] == ["GPU 0, computing, 1 of 2"]
    assert named in plotted(work(whole, ("k", "GPU 0 stream 9", 0.5, 0.52)))[0]
    lanes = [("k", f"lane {i:04}", 0, 1e-3) for i in range(1000)]  # too many to name them
    assert "lane 0007; 992 more." in str(draw(work(("k", "busy", 0, 1), *lanes), title="t"))


def test_nothing_is_left_out_where_all_lanes_are_brief_or_the_other_panel_is_longer():
    many = work(*(("k", f"lane {i:03}", i, i + 1) for i in range(200)))
    assert len(plotted(many)[0]) == 200
    short = work(("k", COMPUTING, 0, 1), ("D2H", TO_HOST, 1, 2), scale=1e-3)
    for timelines in (many, short, {"short": short, "long": work(("k", COMPUTING, 0, 1))}):
        assert "Left out" not in str(draw(timelines, title="t"))


def test_bars_that_touch_say_what_most_of_them_are_or_how_many():
    same = [("mm", COMPUTING, i, i + 1) for i in range(5)]
    other = [(f"{i} nvjet_tst_128", COMPUTING, i, i + 1) for i in range(10, 20)]
    names = ["potrf", "gemm", *(f"gemm_{i}" for i in range(1, 11))]
    mixed = [(name, "cuda:1", i, i + 1) for i, name in enumerate(names)]
    copies = [("Memcpy DtoH (Device -> Pinned)", TO_HOST, i, i + 1) for i in range(20, 30)]
    timeline = work(*same, *other, *mixed, *copies)
    for words in (drawn(timeline), plotted(timeline)[1]):
        assert {"5 × mm", "10 kernels", "11 × gemm, 1 more", "10 copies"} <= set(words)
    assert "task 3" in drawn(work(("task 3", "CPU lane", 0, 1)))


def test_fills_of_memory_are_no_kernels():
    fills = [("Memset (Device)", COMPUTING, i + 0.9, i + 1) for i in range(10)]
    kernels = [("cutlass_80_simt_sgemm", COMPUTING, i, i + 0.9) for i in range(10)]
    for words in (drawn(work(*fills, *kernels)), plotted(work(*fills, *kernels))[1]):
        assert "10 kernels, 10 fills" in words  # the spans of the table


def test_no_words_stand_where_bars_are_apart_or_on_bars_of_another_kind():
    apart = [("mm", COMPUTING, i, i + 0.7) for i in range(50)]
    within = Span("D2H", "mine", 20, 30, "copy"), Span("nccl", "mine", 0, 50, "communication")
    lanes = {"GPU 0, computing", "mine", "copy", "compute", "communication"}
    words = drawn(Timeline([*work(*apart).spans, *within]))
    assert not [one for one in words if one not in lanes and not one.endswith(" s")]


@pytest.mark.parametrize("name", ["a name of a kernel that is long", "", " "])
def test_bars_say_nothing_where_it_does_not_fit_or_nothing_is_to_say(name):
    timeline = work((name, COMPUTING, 0, 1))
    assert "GPU 0, computing" in drawn(timeline)
    assert not [words for words in drawn(timeline) if words.strip() == name.strip()]
    tight = work(("mm", COMPUTING, 0, 0.04), ("mm", COMPUTING, 0.5, 0.54), ("k", "mine", 0, 1))
    assert "mm" not in drawn(tight)
    assert "mm" not in plotted(tight)[1]


def test_names_of_two_kinds_that_take_turns_on_a_lane_do_not_lie_on_each_other():
    spans = [Span("mm", "lane", i, i + 0.5) for i in range(200)]
    copies = [Span("D2H", "lane", i + 0.5, i + 1, "copy") for i in range(200)]
    assert not [words for words in drawn(Timeline(spans + copies)) if "×" in words]


def brackets(timelines):
    return [words for words in drawn(timelines) if "not hidden" in words]


def test_a_bracket_says_how_long_a_gpu_copied_and_did_not_compute():
    timeline = work(("mm", COMPUTING, 0, 6), ("D2H", TO_HOST, 4, 10))
    assert brackets(timeline) == ["4.000 s of copying not hidden"]
    assert brackets(timeline)[0] in plotted(timeline)[1]
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
    assert not [words for words in plotted(work(*spans))[1] if "not hidden" in words]


def test_each_of_several_gpus_has_a_bracket_that_says_which_and_is_the_same_each_time():
    one = [("mm", COMPUTING, 0, 6), ("D2H", TO_HOST, 6, 8)]
    two = [("mm", "cuda:1", 0, 6), ("D2H", "cuda:1 to host", 6, 10)]
    both = [f"GPU {i}: {s}.000 s of copying not hidden" for i, s in ((0, 2), (1, 4))]
    assert brackets(work(*two, *one)) == both
    assert [words for words in plotted(work(*one, *two))[1] if "not hidden" in words] == both
    odd = [(name, f"$x^$ {lane}", *ends) for name, lane, *ends in one + two]
    plot.timeline(work(*odd)).figure.canvas.draw()
    assert brackets(work(*odd)) == [f"$x^$ {words}" for words in both]
    hides = ("D2H", TO_HOST, 2, 6), ("mm", COMPUTING, 0, 6)  # all of it
    assert brackets(work(*hides, *two)) == both[1:]
    assert brackets({"a": work(*one), "b": work(*two[:1])}) == ["2.000 s of copying not hidden"]
