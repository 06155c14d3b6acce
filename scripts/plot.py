#!/usr/bin/env python3
"""Plots of "packetloom bench device --json": throughput and latency over batch size, throughput over the number of rules;
and of "packetloom bench chain --json": throughput over workers and over flows, latency over the offered load."""

import argparse
import json
import math
import os
import re
import statistics
import sys
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

EPILOG = """\
Writes into FOLDER, each where the input has what it shows, of "packetloom bench device":
  throughput-batch.svg   packets a second over the batch size
  latency-batch.svg      microseconds that a batch takes over the batch size, both axes linear
  latency-batch-log.svg  the same, both axes logarithmic
  throughput-rules.svg   packets a second over the number of rules
of "packetloom bench chain":
  throughput-workers.svg packets a second over the number of workers, and what perfect scaling of one would be
  throughput-flows.svg   packets a second over the number of flows
  latency-offered.svg    microseconds that a packet takes over the load that is offered

examples:
  packetloom bench device --rules acl1_10k.rules --headers acl1_10k.trace --algorithm linear,masks \\
      --batch 64,1024,16384,262144,1048576 --json > batches.jsonl
  python3 scripts/plot.py -o plots batches.jsonl

  for n in 1 2 4 8; do packetloom bench chain --workers $n --json; done > workers.jsonl
  packetloom bench chain --offered 1,2,5,10 --json > offered.jsonl
  python3 scripts/plot.py -o plots workers.jsonl offered.jsonl

Exit codes: 0, 1 where a plot cannot be written, 2 wrong usage or bad input."""

# Each has a contrast of 3 to 1 to white at least; lines differ in their markers too.
COLOURS = ("#0072b2", "#d55e00", "#008f68", "#b8589a", "#a67c00", "#4b3a94")
GREY, DARK, GRID = "#666666", "#222222", "#e4e4e4"
CORE_DASHES = ("2 3", "7 3", "7 3 2 3")
IDEAL_DASHES = "4 3"
# Of a radius of about 4, around 0 0.
MARKERS = (
    "m-3.7 0a3.7 3.7 0 1 0 7.4 0a3.7 3.7 0 1 0 -7.4 0z",
    "m-3.3 -3.3h6.6v6.6h-6.6z",
    "m0 -4.4l4.2 7.4h-8.4z",
    "m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
    "m0 4.4l-4.2 -7.4h8.4z",
    "m-1.4 -4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
    "m-4.2 0l2.1 -3.7h4.2l2.1 3.7l-2.1 3.7h-4.2z",
)
# Lines that differ by more than this are shown on a logarithmic axis.
FAR = 30
# Each bench's: numbers, those of them that are more than 0, texts, and what no row is without.
NUMBERS = {
    "device": (
        "batch", "mpps", "mpps_min", "mpps_max", "latency_us_p50", "latency_us_p99", "core_mpps", "rules", "rounds",
        "offered_mpps",
    ),
    "chain": (
        "batch", "mpps", "p25", "p75", "latency_us_p50", "latency_us_p99", "workers", "flows", "packet_size", "new_flows",
        "flood", "rounds", "offered_mpps",
    ),
}  # fmt: skip
POSITIVE = {"device": ("batch",), "chain": ("batch", "p25", "p75", "workers", "flows", "offered_mpps")}
TEXTS = {
    "device": ("algorithm", "transport", "workload", "device"),
    "chain": ("workload", "device", "on", "transport", "distribution"),
}
NEEDED = {"device": ("algorithm", "batch", "mpps"), "chain": ("workers", "flows", "batch", "mpps")}
LEAST, MOST = 1e-9, 1e15


class Bad(Exception):
    """Input that cannot be plotted."""


def say(text):
    print(f"plot.py: {text}", file=sys.stderr)


# Reading.


@dataclass
class Row:
    """A line of the input; what it lacks is None, or "" where it is text."""

    # "device", "chain", or "load": a chain at an offered load.
    kind: str
    batch: float
    mpps: float
    mpps_min: float | None = None
    mpps_max: float | None = None
    latency_us_p50: float | None = None
    latency_us_p99: float | None = None
    core_mpps: float | None = None
    rules: float | None = None
    rounds: float | None = None
    offered_mpps: float | None = None
    workers: float | None = None
    flows: float | None = None
    packet_size: float | None = None
    new_flows: float | None = None
    flood: bool | None = None
    algorithm: str = ""
    transport: str = ""
    workload: str = ""
    distribution: str = ""
    device: str = ""
    specialised: bool | None = None
    family: str = ""


def no_constant(name):
    raise ValueError(f"{name} is no number of JSON")


def clean(text):
    """Text that XML can hold, on one line."""
    return re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text).strip()


def line_of(*benches):
    return "a line of " + " or ".join(f'"packetloom bench {bench} --json"' for bench in benches)


def row(text, where, called):
    try:
        value = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise Bad(f"{where}: not JSON; expected {line_of('device', 'chain')}") from None
    if not isinstance(value, dict):
        raise Bad(f"{where}: expected a JSON object")
    workload = value.get("workload")
    is_chain = value.get("algorithm") is None and isinstance(workload, str) and workload.startswith("chain ")
    bench = "chain" if is_chain else "device"
    for name in NEEDED[bench]:
        # A chain on a device has no workers.
        if value.get(name) is None and not (name == "workers" and value.get("on")):
            benches = ("device", "chain") if name == "algorithm" else (bench,)
            raise Bad(f'{where}: no "{name}"; expected {line_of(*benches)}')
    fields = {}
    for name in NUMBERS[bench]:
        number = value.get(name)
        if number is not None:
            fits = isinstance(number, (int, float)) and (number == 0 or LEAST <= number <= MOST)
            if isinstance(number, bool) or not fits:
                raise Bad(f'{where}: "{name}": expected a number, 0 or from {LEAST:g} to {MOST:g}')
            number = float(number)
        fields[name] = number
    for name in POSITIVE[bench]:
        if fields[name] == 0:
            raise Bad(f'{where}: "{name}": expected more than 0')
    for name in TEXTS[bench]:
        words = value.get(name)
        if words is not None and not isinstance(words, str):
            raise Bad(f'{where}: "{name}": expected text')
        fields[name] = clean(words or "")
    if is_chain:
        return row_of_chain(fields, called)
    specialised = value.get("specialised")
    if specialised is not None and not isinstance(specialised, bool):
        raise Bad(f'{where}: "specialised": expected true or false')
    workload = re.sub(r"^device ", "", fields["workload"])
    workload = re.sub(r"(\.(rules|txt|json|gz|xz))+(?=,|$)", "", workload)
    fields["workload"] = workload if called is None else called
    family = without_size(workload, fields["rules"]) if called is None else called
    return Row("device", **fields, specialised=specialised, family=family)


def row_of_chain(fields, called):
    workload = re.sub(r"^chain ?|\.toml$", "", fields["workload"])
    fields["workload"] = workload if called is None else called
    # Which device of its kind.
    fields["device"] = fields.pop("on") or fields["device"]
    # A count of what was sent, which no two runs share.
    fields["flood"] = fields["flood"] is not None
    quartiles = fields.pop("p25"), fields.pop("p75")
    if None not in quartiles:
        fields["mpps_min"], fields["mpps_max"] = 1e3 / max(quartiles), 1e3 / min(quartiles)
    return Row("chain" if fields["offered_mpps"] is None else "load", **fields)


def without_size(workload, rules):
    """Rule sets of different sizes are one line over the number of rules: "acl1_10k" of 9,603 rules is "acl1"."""
    for size in reversed(list(re.finditer(r"[-_ ]?(\d+(?:\.\d+)?)([kKmM]?)(?![0-9A-Za-z])", workload))):
        number = float(size[1]) * {"": 1, "k": 1e3, "m": 1e6}[size[2].lower()]
        if rules and rules / 2 <= number <= rules * 2:
            return workload[: size.start()] + workload[size.end() :] or "rules"
    return workload


def read(files, called):
    rows = []
    for file in files:
        name = "standard input" if file == "-" else file
        try:
            if file == "-":
                data = sys.stdin.buffer.read()
            else:
                with open(file, "rb") as opened:
                    data = opened.read()
        except (OSError, ValueError) as error:
            raise Bad(f"{name}: {getattr(error, 'strerror', None) or error}") from None
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            where = f"{name}:{number}"
            try:
                text = line.decode()
            except UnicodeDecodeError:
                raise Bad(f"{where}: not UTF-8") from None
            if text.strip():
                rows.append(row(text, where, called))
    if not rows:
        raise Bad(f"{', '.join('standard input' if file == '-' else file for file in files)}: no rows")
    return rows


def bench_of(kind):
    return "device" if kind == "device" else "chain"


# From rows to lines.


@dataclass
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    p99: float | None = None


@dataclass
class Line:
    label: str
    points: list
    rows: list
    colour: str = GREY
    marker: str = ""
    dashes: str = ""
    kind: str = ""


def grouped(items, key):
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def several(rows, name):
    return len({getattr(row, name) for row in rows}) > 1


def several_rules(row, rows):
    """Whether its workload has several numbers of rules."""
    return several([other for other in rows if other.workload == row.workload], "rules")


CHAIN = (
    "kind", "workload", "workers", "flows", "distribution", "new_flows", "flood", "packet_size", "batch", "device",
    "transport", "offered_mpps",
)  # fmt: skip
# What the points of a line have in common, by what it is over.
KEYS = {
    "batch": ("kind", "algorithm", "transport", "workload", "rules", "device", "specialised", "offered_mpps"),
    "rules": ("kind", "algorithm", "transport", "family", "device", "specialised", "offered_mpps"),
    **{over: tuple(name for name in CHAIN if name != over) for over in ("workers", "flows", "offered_mpps")},
}


def key(row, over):
    return tuple(getattr(row, name) for name in KEYS[over])


def of_one_batch(rows):
    """For lines over numbers of rules: of each the batch size with most of them."""
    if any(row.rules == 0 for row in rows):
        say("rows of 0 rules are not in the plot over rules, whose axis is logarithmic")
    chosen = set()
    for of_line in grouped([row for row in rows if row.rules], lambda row: key(row, "rules")).values():
        by_batch = grouped(of_line, lambda row: row.batch).items()
        best = max(by_batch, key=lambda item: (len({row.rules for row in item[1]}), item[0]))[1]
        chosen.update(map(id, best))
    return [row for row in rows if id(row) in chosen]


def swept(rows):
    """The rows of the plots, by what these are over.

    What is part of a line in one plot is no lonely point in another. Nothing where no line has two points.
    """
    kinds = grouped(rows, lambda row: row.kind)
    device, chain = kinds.get("device", []), kinds.get("chain", [])
    candidates = {
        "batch": device,
        "rules": of_one_batch(device),
        "workers": [row for row in chain if row.workers is not None],
        "flows": chain,
        "offered_mpps": kinds.get("load", []),
    }
    long = {}
    for over, fit in candidates.items():
        of_lines = grouped(fit, lambda row: key(row, over)).items()
        long[over] = {of_key for of_key, of_line in of_lines if several(of_line, over)}

    def is_long(row, over):
        return key(row, over) in long[over]

    return {
        over: [row for row in fit if is_long(row, over) or long[over] and not any(is_long(row, other) for other in long)]
        for over, fit in candidates.items()
    }


# Of what tells lines apart, how it is said.
WORDS = {
    "algorithm": str,
    "transport": str,
    "specialised": lambda value: "compiled for the rules" if value else "for any rules",
    "workload": str,
    "family": str,
    "workers": lambda value: f"{number(value)} worker{'' if value == 1 else 's'}",
    "flows": lambda value: f"{number(value)} flows",
    "distribution": str,
    "new_flows": lambda value: f"{number(value)} new flows a second",
    "flood": lambda value: "under a flood" if value else "",
    "rules": lambda value: f"{number(value)} rules",
    "packet_size": lambda value: f"packets of {number(value)} bytes",
    "batch": lambda value: f"batches of {count(value)}",
    "device": str,
    "offered_mpps": lambda value: f"{number(value)} Mpps offered",
}


def in_words(row, name):
    value = getattr(row, name)
    return "" if value is None else WORDS[name](value)


def label(row, rows, over):
    """What tells this line from the others of the plot."""
    parts = []
    for name in WORDS:
        if name == over or name not in KEYS[over] and name != "batch":
            continue
        differs = several_rules(row, rows) if name == "rules" else several(rows, name)
        if differs or name == "algorithm":
            parts.append(in_words(row, name))
    return ", ".join(filter(None, parts)) or row.workload


def line(name, rows, over, latency):
    """What was measured more than once is the median, with the lowest and the highest of all."""
    points = []
    for x, same in sorted(grouped(rows, lambda row: getattr(row, over)).items()):
        if latency:
            same = [row for row in same if row.latency_us_p50 is not None]
            tails = [row.latency_us_p99 for row in same if row.latency_us_p99 is not None]
            if same:
                p50 = statistics.median(row.latency_us_p50 for row in same)
                points.append(Point(x, p50, p99=statistics.median(tails) if tails else None))
            continue
        point = Point(x, statistics.median(row.mpps for row in same))
        lows = [row.mpps if row.mpps_min is None else row.mpps_min for row in same]
        highs = [row.mpps if row.mpps_max is None else row.mpps_max for row in same]
        if min(lows) < max(highs):
            point.low, point.high = min(lows), max(highs)
        points.append(point)
    return Line(name, points, rows)


def lines(rows, over, latency, styles):
    found = []
    for of_line in grouped(rows, lambda row: key(row, over)).values():
        name = label(of_line[0], rows, over)
        made = line(name, of_line, over, latency)
        if made.points:
            style = styles.setdefault(name, len(styles))
            made.colour, made.marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
            found.append(made)
    return found


def ideals(plotted):
    """What as many times one worker would be, for lines over workers that begin with one."""
    found = []
    for one in plotted:
        first, last = one.points[0], one.points[-1]
        if first.x == 1 < last.x:
            points = [Point(1, first.y), Point(last.x, first.y * last.x)]
            found.append(Line("", points, [], one.colour, dashes=IDEAL_DASHES, kind="ideal"))
    return found


def cores(rows, over):
    """One core of the machine beside; it does not know the batch sizes of the device."""
    name = "family" if over == "rules" else "workload"
    found = []
    measured = [row for row in rows if row.core_mpps]
    for same in grouped(
        measured, lambda row: (getattr(row, name), row.device, row.rules if over == "batch" else None)
    ).values():
        kind, device = getattr(same[0], name), same[0].device
        parts = ["one core"]
        if several(measured, name) and kind:
            parts.append(kind)
        if over == "batch" and several_rules(same[0], measured) and same[0].rules is not None:
            parts.append(f"{number(same[0].rules)} rules")
        if several(measured, "device") and device:
            parts.append(f"beside {device}")
        by_x = grouped(same, lambda row: row.rules if over == "rules" else None)
        points = [Point(x, statistics.median(row.core_mpps for row in at)) for x, at in by_x.items()]
        points.sort(key=lambda point: point.x or 0)
        found.append(Line(", ".join(parts), points, same, dashes=CORE_DASHES[len(found) % len(CORE_DASHES)], kind="core"))
    return found


def far(plotted, core):
    """Whether lines differ by much at the same place."""
    at = {}
    for one in plotted:
        for point in one.points:
            at.setdefault(point.x, []).append(point.y)
    for one in core:
        for point in one.points:
            for x in at if point.x is None else [point.x]:
                at.setdefault(x, []).append(point.y)
    positive = [[y for y in ys if y > 0] for ys in at.values()]
    return any(max(ys) > FAR * min(ys) for ys in positive if ys)


# Numbers and axes.


def number(value):
    """2500 as 2,500; 0.25 as it is; four digits at least."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def is_binary(value):
    return value >= 1 and value == int(value) and int(value) & (int(value) - 1) == 0


def count(value):
    """Powers of two from 1024 with IEC prefixes, and what is a multiple of these."""
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << shift and value % (1 << shift) == 0:
            return f"{number(value / (1 << shift))} {unit}"
    return number(value)


@dataclass
class Axis:
    """Values from low to high, mapped to 0 to 1."""

    log: bool
    low: float
    high: float
    ticks: list
    minor: list = field(default_factory=list)
    text: object = number

    def at(self, value):
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(highest, binary=False, text=number, least=0):
    """From 0, in steps of no less than the least."""
    highest = highest or 1
    if binary:
        step = max(2 ** math.ceil(math.log2(highest / 8)), least)
    else:
        power = 10 ** math.floor(math.log10(highest / 5))
        step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if highest / (power * nice) <= 6)
    top = max(math.ceil(highest / step - 1e-9), 1)
    return Axis(False, 0, top * step, [at * step for at in range(top + 1)], text=text)


def decimals(low, high, digits):
    """Numbers of these first digits from low to high."""
    powers = range(math.floor(math.log10(low)) - 1, math.floor(math.log10(high)) + 2)
    values = (digit * (10**power if power >= 0 else 1 / 10**-power) for power in powers for digit in digits)
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def log_axis(low, high, fit, text=number):
    """To the next 1, 2 or 5 on both sides; where `fit`, from the lowest to the highest."""
    if not fit:
        low = decimals(low / 10, low, (1, 2, 5))[-1]
        high = decimals(high, high * 10, (1, 2, 5))[0]
        if low == high:
            low, high = low / 10, high * 10
    ticks = decimals(low, high, (1,))
    minor = decimals(low, high, range(2, 10)) if len(ticks) < 8 else []
    if len(ticks) > 8:
        ticks = ticks[:: math.ceil(len(ticks) / 8)]
    elif len(ticks) < 3:
        ticks = decimals(low, high, (1, 2, 5))
        if len(ticks) < 2:
            ticks = [low, high]
    return Axis(True, low, high, ticks, minor, text)


def binary_axis(low, high):
    first, last = int(math.log2(low)), int(math.log2(high))
    step = math.ceil((last - first) / 8)
    return Axis(True, low, high, [2.0**power for power in range(first, last + 1, step)], text=count)


# Drawing.

LEFT, TOP, WIDE, HIGH, BELOW = 74, 64, 560, 340, 54
PAD, ROW, LETTER = 12, 20, 6.7


def px(value):
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def shortened(text, letters):
    return text if len(text) <= letters else text[: max(letters - 1, 1)].rstrip() + "…"


def listed(names):
    names = [name for name in dict.fromkeys(names) if name]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"


def title(rows, over):
    name = "family" if over == "rules" else "workload"
    what, device = listed(getattr(row, name) for row in rows), listed(row.device for row in rows)
    return " on ".join(part for part in (what, device) if part) or f"packetloom bench {bench_of(rows[0].kind)}"


def svg(plotted, core, x, y, names, heading, below):
    """A plot; `core` are the lines to compare with, and `names` those of the axes."""
    entries = [(one, "line") for one in plotted] + [(one, "core") for one in core if one.kind == "core"]
    if any(one.kind == "ideal" for one in core):
        entries.append(("perfect scaling", IDEAL_DASHES))
    if any(point.p99 is not None for one in plotted for point in one.points):
        entries += [("median", ""), ("99th percentile", "5 3")]
    texts = [shortened(getattr(one, "label", one), 60) for one, _ in entries]
    legend = LEFT + WIDE + 22
    width = max(math.ceil(legend + 34 + LETTER * max(map(len, texts)) + 10), 760)
    height = max(TOP + HIGH + BELOW, TOP + ROW * len(entries) + 14)
    right, bottom = LEFT + WIDE, TOP + HIGH

    def at_x(value):
        return LEFT + PAD + x.at(value) * (WIDE - 2 * PAD)

    def at_y(value):
        return bottom - y.at(value) * HIGH

    def text(left, top, words, more=""):
        return f'<text x="{px(left)}" y="{px(top)}"{more}>{escape(words)}</text>'

    def path(commands, colour, more=""):
        return f'<path d="{commands}" stroke="{colour}"{more}/>'

    def through(places):
        return "M" + "L".join(f"{px(left)} {px(top)}" for left, top in places)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="none">',
        f"<title>{escape(heading)}: {escape(below)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<g fill="{DARK}">',
        text(LEFT, 26, shortened(heading, int((width - LEFT) / 8.8)), ' font-size="15" font-weight="bold"'),
        text(LEFT, 46, shortened(below, int((width - LEFT) / 6)), f' fill="{GREY}"'),
        text(LEFT + WIDE / 2, bottom + 42, names[0], ' text-anchor="middle"'),
        f'<text transform="translate(18 {px(TOP + HIGH / 2)})rotate(-90)" text-anchor="middle">{escape(names[1])}</text>',
    ]
    out += [text(at_x(tick), bottom + 20, x.text(tick), ' text-anchor="middle"') for tick in x.ticks]
    out += [text(LEFT - 9, at_y(tick) + 4, y.text(tick), ' text-anchor="end"') for tick in y.ticks]
    out.append("</g>")
    grid = "".join(f"M{LEFT} {px(at_y(tick))}h{WIDE}" for tick in y.ticks)
    out.append(path(grid, GRID))
    marks = "".join(f"M{px(at_x(tick))} {bottom}v5" for tick in x.ticks)
    marks += "".join(f"M{px(at_x(tick))} {bottom}v3" for tick in x.minor)
    marks += "".join(f"M{LEFT} {px(at_y(tick))}h-5" for tick in y.ticks)
    marks += "".join(f"M{LEFT} {px(at_y(tick))}h-3" for tick in y.minor)
    out.append(path(f"M{LEFT} {TOP}V{bottom}H{right}{marks}", DARK))
    for one in core:
        places = [(at_x(point.x), at_y(point.y)) for point in one.points if point.x is not None]
        if not places:
            places = [(left, at_y(one.points[0].y)) for left in (LEFT, right)]
        elif len(places) == 1:
            places = [(places[0][0] + by, places[0][1]) for by in (-PAD, PAD)]
        wide = 1.6 if one.kind == "core" else 1
        more = f' class="{one.kind}" stroke-width="{wide}" stroke-dasharray="{one.dashes}"'
        out.append(path(through(places), one.colour, more))
    # All lines are below all markers.
    for one in plotted:
        bars = ""
        for point in one.points:
            if point.low is not None:
                left, low, high = at_x(point.x), at_y(point.low), at_y(point.high)
                bars += f"M{px(left - 3)} {px(low)}h6M{px(left - 3)} {px(high)}h6M{px(left)} {px(low)}V{px(high)}"
        if bars:
            out.append(path(bars, one.colour, ' class="spread"'))
        tails = [(at_x(point.x), at_y(point.p99)) for point in one.points if point.p99 is not None]
        if len(tails) == 1:
            tails = [(tails[0][0] + by, tails[0][1]) for by in (-6, 6)]
        if tails:
            out.append(path(through(tails), one.colour, ' class="p99" stroke-width="1.3" stroke-dasharray="5 3"'))
        if len(one.points) > 1:
            places = [(at_x(point.x), at_y(point.y)) for point in one.points]
            out.append(path(through(places), one.colour, ' class="line" stroke-width="1.8" stroke-linejoin="round"'))
    for one in plotted:
        out.append(f'<g fill="{one.colour}" stroke="#ffffff" stroke-width="0.8">')
        for point in one.points:
            said = f"{one.label}: {x.text(point.x)}, {number(point.y)}"
            if point.low is not None:
                said += f" ({number(point.low)} to {number(point.high)})"
            if point.p99 is not None:
                said += f", 99th {number(point.p99)}"
            place = f"M{px(at_x(point.x))} {px(at_y(point.y))}"
            out.append(f'<path class="marker" d="{place}{one.marker}"><title>{escape(said)}</title></path>')
        out.append("</g>")
    for at, ((one, kind), words) in enumerate(zip(entries, texts)):
        middle = TOP + 8 + ROW * at
        sample = f"M{legend} {middle}h26"
        if kind == "line":
            out.append(path(sample, one.colour, ' stroke-width="1.8"'))
            out.append(f'<path d="M{legend + 13} {middle}{one.marker}" fill="{one.colour}" stroke="#ffffff" stroke-width="0.8"/>')
        else:
            dashes = one.dashes if kind == "core" else kind
            out.append(path(sample, GREY, ' stroke-width="1.6"' + (f' stroke-dasharray="{dashes}"' if dashes else "")))
        out.append(text(legend + 34, middle + 4, words, f' fill="{DARK}"'))
    out.append("</svg>\n")
    return "\n".join(out).encode()


def batch_axis(plotted, log):
    xs = [point.x for one in plotted for point in one.points]
    binary = all(map(is_binary, xs))
    if not log:
        return linear_axis(max(xs), binary, count if binary else number)
    return binary_axis(min(xs), max(xs)) if binary else log_axis(min(xs), max(xs), True)


def without_zeros(plotted):
    """A logarithmic axis has no 0."""
    left_out = 0
    for one in plotted:
        left_out += sum(point.y <= 0 for point in one.points)
        one.points = [point for point in one.points if point.y > 0]
        for point in one.points:
            point.p99 = point.p99 or None
    if left_out:
        say(f"{left_out} points of 0 are not in a plot with a logarithmic axis")
    return [one for one in plotted if one.points]


def scale(plotted, core, factor):
    for one in plotted + core:
        for point in one.points:
            for name in ("y", "low", "high", "p99"):
                if getattr(point, name) is not None:
                    setattr(point, name, getattr(point, name) * factor)


def range_of(plotted, core=()):
    """The lowest value above 0 and the highest; a spread that reaches down to 0 leaves the axis."""
    values = [value for one in [*plotted, *core] for point in one.points for value in (point.y, point.low, point.high, point.p99)]
    values = [value for value in values if value]
    return (min(values), max(values)) if values else (1, 1)


def longest(plotted):
    """Whether there is a line, not points alone."""
    return max((len(one.points) for one in plotted), default=0) > 1


def beneath(rows, over, latency):
    """The second line of a plot."""
    is_chain = bench_of(rows[0].kind) == "chain"
    parts = [f"latency of a {'packet' if is_chain else 'batch'}" if latency else "median throughput"]
    rules = {row.rules for row in rows}
    transports = {row.transport for row in rows}
    rounds = {row.rounds for row in rows}
    batches = {row.batch for row in rows}
    if over == "batch" and len(rules) == 1 and None not in rules:
        parts[0] += f" at {number(rules.pop())} rules"
    if over == "rules" and len(batches) == 1:
        parts[0] += f" in batches of {count(batches.pop())} packets"
    if len(transports) == 1 and "" not in transports:
        parts.append(transports.pop())
    for name in ("workers", "flows", "distribution", "new_flows", "flood", "packet_size", "batch"):
        if is_chain and name != over and not several(rows, name):
            parts.append(in_words(rows[0], name))
    if not latency and any(row.mpps_min is not None for row in rows):
        of = f" of {number(rounds.pop())} rounds" if len(rounds) == 1 and None not in rounds and rounds != {1.0} else ""
        parts.append(f"bars: quartiles{of}" if is_chain else f"bars from the lowest to the highest{of}")
    joined = "; ".join(filter(None, parts))
    return joined[0].upper() + joined[1:]


def across(plotted, over, log):
    """The axis of what a plot is over, and its name."""
    xs = [point.x for one in plotted for point in one.points]
    if over == "batch":
        return batch_axis(plotted, log), "Batch (packets)"
    if over == "workers":
        return linear_axis(max(xs), binary=True, least=1), "Workers"
    if over == "offered_mpps":
        return linear_axis(max(xs)), "Offered (Mpps)"
    return log_axis(min(xs), max(xs), True), over.capitalize()


def throughput(rows, over, styles):
    plotted, core = lines(rows, over, False, styles), cores(rows, over)
    # How throughput scales is seen where both axes begin at 0.
    log = over != "workers" and far(plotted, core)
    if log:
        plotted = without_zeros(plotted)
    if not longest(plotted):
        return None
    if over == "workers":
        core = ideals(plotted)
    low, high = range_of(plotted, core)
    giga = high >= 1000 and (low >= 10 or not log)
    if giga:
        scale(plotted, core, 1e-3)
        low, high = low / 1e3, high / 1e3
    y = log_axis(low, high, False) if log else linear_axis(high)
    x, name = across(plotted, over, True)
    names = (name, f"Throughput ({'Gpps' if giga else 'Mpps'})")
    return svg(plotted, core, x, y, names, title(rows, over), beneath(rows, over, False))


def latency(rows, over, log, styles):
    """With logarithmic axes or not; over an offered load, time has one where it differs by much."""
    plotted = lines(rows, over, True, styles)
    low, high = range_of(plotted)
    log = log or over == "offered_mpps" and high > FAR * low
    if log:
        plotted = without_zeros(plotted)
    if not longest(plotted):
        return None
    shown = [row for one in plotted for row in one.rows]
    low, high = range_of(plotted)
    unit = "µs"
    if low >= 1000 if log else high >= 10_000:
        scale(plotted, [], 1e-3)
        low, high, unit = low / 1e3, high / 1e3, "ms"
    x, name = across(plotted, over, log)
    y = log_axis(low, high, False) if log else linear_axis(high)
    return svg(plotted, [], x, y, (name, f"Latency ({unit})"), title(shown, over), beneath(shown, over, True))


# Each bench's plots, with what they are over.
PLOTS = {
    "device": {
        "throughput-batch.svg": "batch",
        "latency-batch.svg": "batch",
        "latency-batch-log.svg": "batch",
        "throughput-rules.svg": "rules",
    },
    "chain": {
        "throughput-workers.svg": "workers",
        "throughput-flows.svg": "flows",
        "latency-offered.svg": "offered_mpps",
    },
}
# What a line has two of at least, and what the input has none of where no line has.
ACROSS = {
    "batch": "batch sizes",
    "rules": "numbers of rules",
    "workers": "numbers of workers",
    "flows": "numbers of flows",
    "offered_mpps": "offered loads",
}
EXPECTED = {
    "device": "several batch sizes or several numbers of rules of one algorithm",
    "chain": "several numbers of workers or of flows, or several offered loads, of one chain",
}


def plots(rows, benches):
    """Names of files, what they are over, and what is in them or None."""
    of_plots = swept(rows)
    styles = {}
    made = []
    for bench in benches:
        for name, over in PLOTS[bench].items():
            fit = of_plots[over]
            if fit and name.startswith("latency"):
                plot = latency(fit, over, name.endswith("-log.svg"), styles)
            else:
                plot = fit and throughput(fit, over, styles)
            made.append((name, over, plot))
    return made


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", metavar="FILE", nargs="*", default=["-"], help="JSON lines; - or none: standard input")
    parser.add_argument("-o", "--out", metavar="FOLDER", default="plots", help="where plots go (default: %(default)s)")
    parser.add_argument(
        "--workload", metavar="NAME", help="what all workloads are called: rule sets of any name become one line over rules"
    )
    args = parser.parse_args()
    try:
        called = None if args.workload is None else clean(args.workload)
        rows = read(args.files, called)
        benches = [bench for bench in PLOTS if any(bench_of(row.kind) == bench for row in rows)]
        made = plots(rows, benches)
        if not any(plot for _, _, plot in made):
            raise Bad(
                f"{', '.join('standard input' if file == '-' else file for file in args.files)}: no plottable rows; "
                f"expected {', or '.join(EXPECTED[bench] for bench in benches)}"
            )
    except Bad as bad:
        say(bad)
        return 2
    try:
        os.makedirs(args.out, exist_ok=True)
        for name, over, plot in made:
            file = os.path.join(args.out, name)
            if not plot:
                with_latencies = " with latencies" if "latency" in name else ""
                say(f"{file}: not written; no line has two {ACROSS[over]}{with_latencies}")
                continue
            with open(file, "wb") as opened:
                opened.write(plot)
            print(file, flush=True)
    except (OSError, ValueError) as error:
        say(f"{args.out}: {getattr(error, 'strerror', None) or error}")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
