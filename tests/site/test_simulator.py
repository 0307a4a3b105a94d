"""The simulator: its schedule is right, in Python and on the page, and a person can use it."""

import json
import random
import shutil
import subprocess
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prediction import COMPUTE, FROM_HOST, TO_HOST, Prediction
from reader import ROOT, WIDE, Reader, needs_site

import autopar as ap
from autopar.display.format import format_seconds

STATIC = ROOT / "docs" / "_static"
SAID = "copying to the GPU", "computing", "copying to the host"
LANES = dict(zip(SAID, (FROM_HOST, COMPUTE, TO_HOST), strict=True))
SETTINGS = 200
RUN = """
const script = require("fs").readFileSync(process.argv[1], "utf8");
const { predict, inWords } = require("vm").runInThisContext(`${script}; Simulator`);
const settings = JSON.parse(require("fs").readFileSync(0, "utf8"));
const found = settings.map(predict).map((one) => ({ ...one, words: inWords(one.makespan / 1e3) }));
console.log(JSON.stringify(found));
"""
COUNTS = st.integers(1, 7)
TIMES = st.integers(1, 5)  # ticks: sums of whole numbers are exact
COPIES = st.integers(0, 5)
CASES = st.builds(Prediction, COUNTS, TIMES, COPIES, COPIES, COUNTS, st.integers(1, 3))
many = settings(max_examples=100)


def by_ticks(one):
    """Start of each stage, found by trying at each tick which of the streams' heads can begin."""
    seconds = {FROM_HOST: one.from_host_s, COMPUTE: one.compute_s, TO_HOST: one.to_host_s}
    begun, tick, seconds = {}, 0, {lane: taken_s for lane, taken_s in seconds.items() if taken_s}
    stages, names = [*seconds], {1: "AAA", 2: "BAB", 3: "BAC"}[one.streams]
    stream_of = dict(zip((FROM_HOST, COMPUTE, TO_HOST), names, strict=True))
    every = [(chunk, lane) for chunk in range(one.chunks) for lane in stages]

    def place_in_line(stage):  # chunk i is begun behind what chunk i - slots ends with
        chunk, place = stage[0], stages.index(stage[1])
        return ((chunk, place) if place else (chunk - one.slots, len(stages))), chunk

    def is_done(chunk, lane):
        return (chunk, lane) in begun and begun[chunk, lane] + seconds[lane] <= tick

    waiting = sorted(every, key=place_in_line)
    while waiting:
        for stream in "ABC":
            queue = [stage for stage in waiting if stream_of[stage[1]] == stream]
            busy = any(stream_of[lane] == stream and not is_done(_, lane) for _, lane in begun)
            if not queue or busy:
                continue
            chunk, lane = queue[0]
            before = stages[: stages.index(lane)]
            holding = {chunk for chunk, _ in begun if not is_done(chunk, stages[-1])}
            has_slot = before or len(holding) < one.slots
            if has_slot and all(is_done(chunk, each) for each in before):
                waiting.remove(queue[0])
                begun[chunk, lane] = tick
        tick += 1
    return begun


@many
@given(CASES)
def test_stages_begin_when_a_simulation_by_ticks_begins_them(one):
    spans = one.timeline.spans
    assert {(int(span.name.split()[1]), span.lane): span.start_s for span in spans} == by_ticks(one)


def makespan_s(one, slots, streams):
    return replace(one, slots=slots, streams=streams).timeline.makespan_s


@many
@given(CASES)
def test_one_stream_or_slot_takes_the_sum_and_three_of_each_the_limit(one):
    times = (one.from_host_s, one.compute_s, one.to_host_s)
    all_s = [one.chunks * stage_s for stage_s in times]
    for count in (1, 2, 3, one.chunks):
        assert makespan_s(one, count, 1) == sum(all_s)
        assert makespan_s(one, 1, min(count, 3)) == sum(all_s)
    closed_s = sum(all_s) / one.chunks + (one.chunks - 1) / one.chunks * max(all_s)
    assert one.limit_s == pytest.approx(closed_s)
    for slots in (3, 4, one.chunks + 3):
        assert makespan_s(one, slots, 3) == one.limit_s
        if not (one.from_host_s and one.to_host_s):
            assert makespan_s(one, slots - 1, 2) == one.limit_s


def test_the_limit_is_the_records_and_its_timeline_is_met():
    record = ap.newest_record("e3_compute_and_copy")
    count = record.parameters["count"]
    compute_s, copy_s = (record.measurements[part].min_s / count for part in ("products", "copies"))
    for streams, way in ((1, "one stream"), (2, "two streams")):
        one = Prediction(count, compute_s, to_host_s=copy_s, slots=count, streams=streams)
        assert one.limit_s == pytest.approx(record.limit_s(["products", "copies"], pieces=count))
        seen = record.timelines[way]
        assert one.timeline.makespan_s == pytest.approx(seen.makespan_s, rel=0.05)
        assert one.timeline.hidden() == pytest.approx(seen.hidden(), abs=0.05)


def random_setting(chance):
    """Times are any, or whole, so that many ends coincide."""
    time = chance.choice([chance.random, lambda: chance.randint(1, 4)])
    return Prediction(
        chunks=chance.randint(1, 40),
        compute_s=time(),
        from_host_s=chance.choice([0, time()]),
        to_host_s=chance.choice([0, time()]),
        slots=chance.randint(1, 10),
        streams=chance.randint(1, 3),
    )


@pytest.mark.skipif(
    not shutil.which("node"), reason="node, which runs the script, is not installed"
)
def test_the_pages_script_predicts_what_the_package_does():
    chance = random.Random(0)
    predictions = [random_setting(chance) for _ in range(SETTINGS)]
    given = json.dumps([asdict(one) for one in predictions])
    command = ["node", "-e", RUN, str(STATIC / "simulator.js")]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found) == SETTINGS
    for one, result in zip(predictions, found, strict=True):
        spans = {
            (span["name"], LANES[span["stage"]["lane"]]): (span["start"], span["end"])
            for span in result["spans"]
        }
        timeline = one.timeline
        # The same sums in the same order: equal to the last bit.
        assert spans == {
            (span.name, span.lane): (span.start_s, span.end_s) for span in timeline.spans
        }
        assert result["makespan"] == timeline.makespan_s
        assert result["limit"] == one.limit_s
        assert result["words"].replace("\u00a0", " ") == format_seconds(timeline.makespan_s / 1e3)
        times = (one.from_host_s, one.compute_s, one.to_host_s)
        parts_s = [one.chunks * time_s for time_s in times if time_s]
        if len(parts_s) > 1:
            assert result["hidden"] == pytest.approx(
                ap.hidden_share(parts_s, timeline.makespan_s), abs=1e-9
            )
        assert result["busy"] == pytest.approx(max(parts_s) / timeline.makespan_s)


@pytest.fixture
def page(browser):
    """Section 3 of the chapter, in Chromium."""
    reader = Reader(browser, WIDE)
    page = reader.open("chapter/3_computing_and_copying.html")
    assert page.locator(".autopar-simulator").count() == 1, "section 3 has no simulator"
    yield page
    reader.context.close()
    assert reader.faults == []


def shown(page, part):
    return page.text_content(f"[data-part={part}]").replace("\u00a0", " ")


@needs_site
def test_a_reader_changes_the_schedule_by_keyboard(page):
    record = ap.newest_record("e3_compute_and_copy")
    limit = format_seconds(record.limit_s(["products", "copies"], pieces=50))
    serial = Prediction(50, **times_of(record), slots=50, streams=1).timeline
    assert not page.is_visible("[data-static]")
    assert (shown(page, "makespan"), shown(page, "limit")) == (limit, limit)
    assert shown(page, "measured") == format_seconds(record.timelines["two streams"].makespan_s)
    assert bars(page, "measured") == bars(page, "predicted") == 100
    assert f"Predicted: {limit}, and the limit is {limit}" in shown(page, "words")
    # From the first control to the second, which has the streams: one for everything.
    page.focus("[name=run]")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowUp")
    assert shown(page, "makespan") == format_seconds(serial.makespan_s)
    assert page.input_value("[name=run]") == "1"
    assert shown(page, "measured") == format_seconds(record.timelines["one stream"].makespan_s)
    page.focus("[name=chunks]")
    page.keyboard.press("ArrowLeft")
    fewer = Prediction(49, **times_of(record), slots=49, streams=1)
    assert shown(page, "makespan") == format_seconds(fewer.timeline.makespan_s)
    assert shown(page, "limit") == format_seconds(fewer.limit_s)
    assert shown(page, "measured") == "none"
    assert (bars(page, "predicted"), bars(page, "measured")) == (98, 0)
    assert page.input_value("[name=run]") == ""
    page.select_option("[name=ways]", "from_host_s to_host_s")
    assert bars(page, "predicted") == 3 * 49
    page.select_option("[name=run]", "0")
    assert shown(page, "makespan") == limit
    said = page.locator("[role=status]", has_text=f"Predicted: {limit}")  # a little later
    said.wait_for()


def times_of(record):
    products, copies = (record.measurements[part].min_s / 50 for part in ("products", "copies"))
    return {"compute_s": products, "to_host_s": copies}


def bars(page, which):
    return page.locator(f".autopar-simulator g[data-lane$='{which}'] > rect").count()


def test_a_reader_looks_into_a_timeline_by_keyboard_and_pointer(browser):
    copies = [ap.Span(f"copy: {i}", "bus", i + 0.5, i + 1.0, "copy") for i in range(4)]
    products = [ap.Span(f"mm {i}", "stream", float(i), i + 1.0) for i in range(4)]
    drawing = ap.draw(ap.Timeline(products + copies), title="Four products")
    page = browser.new_page()
    page.set_content(drawing._repr_html_())
    page.add_style_tag(content=(STATIC / "timeline.css").read_text("utf-8"))
    page.add_script_tag(content=(STATIC / "timeline.js").read_text("utf-8"))
    figure = page.locator(".autopar-figure")
    told = figure.locator(".autopar-tools span")
    where = "document.activeElement.querySelector('title').textContent"
    assert figure.locator("svg [tabindex='0']").count() == 1, "a drawing is one tab stop"
    svg = figure.locator("svg").first
    svg.locator("[tabindex='0']").focus()
    assert page.evaluate(where) == "mm 0: 1.000 s, from 0 to 1.0 s"
    keys = "ArrowRight", "End", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"
    names = "mm 1", "mm 3", "mm 3", "copy: 3", "copy: 2", "mm 2"
    for key, name in zip(keys, names, strict=True):
        page.keyboard.press(key)
        assert page.evaluate(where).startswith(f"{name}: ")
    assert told.text_content() == "stream · 1.000 s, from 2.0 to 3.0 s · mm 2"
    width = svg.bounding_box()["width"]
    ticks = svg.locator(".autopar-axis text").count()
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert svg.bounding_box()["width"] == pytest.approx(4 * width, abs=1)
    assert "0.5 s" in svg.locator(".autopar-axis text").all_text_contents()
    box = figure.locator(".autopar-zoom").bounding_box()
    focused = page.locator("rect:focus").bounding_box()
    assert figure.locator(".autopar-zoom").evaluate("(box) => box.scrollLeft") > width
    assert box["x"] <= focused["x"] + focused["width"] / 2 <= box["x"] + box["width"]
    page.keyboard.press("0")
    assert svg.bounding_box()["width"] == pytest.approx(width, abs=1)
    assert svg.locator(".autopar-axis text").count() == ticks
    figure.get_by_label("Zoom in").click()
    assert svg.bounding_box()["width"] == pytest.approx(2 * width, abs=1)
    figure.locator("rect", has_text="mm 0").hover()
    assert told.text_content().endswith("mm 0")
    page.close()


def test_without_scripts_the_prediction_is_a_figure(extension):
    record = ap.newest_record("e3_compute_and_copy")
    html = extension("simulator").markup(record)
    static = html.partition("<div data-static>")[2]
    assert html.count(" hidden data-live") == 3
    assert "hidden" not in static.partition("<svg")[0]
    assert f"measured: {format_seconds(record.timelines['two streams'].makespan_s)}" in static
    assert html.count(record.origin) == 2  # by the live picture, and by the figure
