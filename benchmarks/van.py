"""Compare EPS's transports (vans) with bare sockets and with copying memory, between two processes on one machine.

    python benchmarks/van.py [--sizes 40,400] [--rounds 12] [--output out.json] [--picture out.png] [--quick]

Large messages: an array of float32 is pushed or pulled as one message, back to back.  Small messages: a round trip of
100 floats.  The requesting thread reads each reply itself, like a worker's (`Replies`).  Both are also measured with
and without mutual authentication.  JSON goes to standard output, a table to standard error.

A variant is compared with the reference measured next to it in the same round; the bars are for medians of these
ratios.  A bare socket is used in two ways, in pieces of 1 MB or in one call with MSG_WAITALL; the one with the better
median counts.  An ordinary array that is copied into shared memory and out again has no bar: two copies reach at most
half the speed of one.  The cost of the token is "within noise" if two connections without it differ by more than the
bar.

    python benchmarks/van.py --redraw van.json --picture van.png     # draw an earlier result

The exit code is 1 if a bar is missed; with --quick it is 0, because two rounds are too few for bars.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import van_measure as measure  # noqa: E402
from benchmarks.bench_common import (  # noqa: E402
    Bar,
    Sampler,
    end_in_order,
    exit_code,
    machine,
    parse_with_results,
    picture_file,
    plotting,
    positive,
    redrawn,
    run_to_the_end,
    say,
    write_json,
)
from eps.net.arrays.memory import tune_malloc  # noqa: E402

LARGE_BAR, SHM_BAR, SMALL_BAR, AUTHENTICATION_BAR = 0.9, 0.6, 1.5, 1.01
#: Variants without a bar, and why.
TWO_COPIES = "shm, ordinary, copied out"
TWO_COPIES_NOTE = "no bar: two copies, one after the other, have half the speed of one at most"
#: Variants in the picture of small round trips, and the reference of their bars.
ROUND_TRIPS = (("tcp", "raw tcp"), ("unix", "raw unix"), ("shm", "raw unix"))


def best_raw(results: dict[str, Any], family: str, direction: str) -> str:
    """Return the fastest way to use a bare socket of a family."""
    names = [name for name in results if name.startswith(f"raw {family}")]
    return max(names, key=lambda name: results[name][direction]["gb_per_s"]["median"])


def paired(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Return the median of a / b, round by round."""
    return round(statistics.median(x / y for x, y in zip(a["values"], b["values"], strict=True)), 4)


def large_bars(size_mb: float, results: dict[str, Any]) -> list[Bar]:
    """Return the bars of large messages with their measured values."""
    bars = []
    for direction in measure.DIRECTIONS:
        for transport in ("tcp", "unix"):
            name = best_raw(results, transport, direction)
            value = paired(results[transport][direction]["gb_per_s"], results[name][direction]["gb_per_s"])
            bars.append(Bar(f"{size_mb:g} MB {direction}, {transport} / {name}", value, LARGE_BAR, True))
        for variant in results:
            if variant.startswith("shm") and variant != TWO_COPIES:
                bars.append(Bar(*of_memcpy(size_mb, direction, variant, results), SHM_BAR, True))
    return bars


def of_memcpy(size_mb: float, direction: str, variant: str, results: dict[str, Any]) -> tuple[str, float]:
    """Return (name, speed relative to copying memory) of a transport over shared memory."""
    value = paired(results[variant][direction]["gb_per_s"], results["memcpy"]["push"]["gb_per_s"])
    return f"{size_mb:g} MB {direction}, {variant} / memcpy", value


def without_bars(size_mb: float, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of large messages without a bar."""
    found = [of_memcpy(size_mb, direction, TWO_COPIES, results) for direction in measure.DIRECTIONS]
    return [{"name": name, "measured": value, "note": TWO_COPIES_NOTE} for name, value in found]


def small_bars(results: dict[str, Any]) -> list[Bar]:
    """Return the bars of small messages."""
    return [
        Bar(
            f"round trip, {van} / {raw}", paired(results[van]["median_us"], results[raw]["median_us"]), SMALL_BAR, False
        )
        for van, raw in ROUND_TRIPS
    ]


def authentication_bars(small: dict[str, Any], results: dict[str, Any]) -> list[Bar]:
    """Return the bars of mutual authentication on one host; the notes have the noise."""
    push, ping = results["push_ms"], {name: entry["median_us"] for name, entry in small.items()}
    found = []
    for name, values, plain, again, proved in (
        ("40 MB push over tcp, token / no token", push, "open", "open again", "token"),
        ("round trip over tcp, token / no token", ping, "tcp", measure.AGAIN, "tcp, token"),
        ("control call, private folder / open port", results["unary_call_us"], "open", "open again", "token"),
    ):
        alike = paired(values[again], values[plain])
        note, noise = f"two connections without proof: {alike:g}", round(abs(alike - 1), 4)
        found.append(Bar(name, paired(values[proved], values[plain]), AUTHENTICATION_BAR, False, note, noise))
    return found


def table(result: dict[str, Any], bars: Sequence[Bar]) -> str:
    """Return the results as a table."""
    lines = []
    for size, variants in result["large"].items():
        lines.append(
            f"\n{size + ' MB':<30} {'push GB/s (range)':>21} {'CPU-s/GB':>11}   {'pull GB/s':>19} {'CPU-s/GB':>11}"
        )
        for name, directions in variants.items():
            cells = [f"{name:<30}"]
            for entry in directions.values():
                speed = entry["gb_per_s"]
                cells.append(
                    f"{speed['median']:>8.2f} ({speed['min']:.2f}-{speed['max']:.2f})".rjust(21)
                    + f" {entry['cpu_s_per_gb_requester']:>5.3f}/{entry['cpu_s_per_gb_listener']:.3f}"
                )
            lines.append(" ".join(cells))
    lines.append(f"\n{'round trip of 100 floats':<30} {'median us (range)':>22} {'p99 us':>8} {'CPU us':>11}")
    for name, entry in result["small"].items():
        middle = entry["median_us"]
        shown = f"{middle['median']:.1f} ({middle['min']:.1f}-{middle['max']:.1f})"
        here, there = entry["cpu_us_requester"]["median"], entry["cpu_us_listener"]["median"]
        lines.append(f"{name:<30} {shown:>22} {entry['p99_us']['median']:>8.1f} {here:>5.1f}/{there:.1f}")
    for what, variants in result["authentication"].items():
        shown = ", ".join(f"{name} {entry['median']:.2f}" for name, entry in variants.items())
        lines.append(f"\n{what}: {shown}")
    lines += ["", *(bar.line() for bar in bars)]
    lines += [f"-  {entry['name']}: {entry['measured']:g}  ({entry['note']})" for entry in result["without_bars"]]
    noise = result["noise"]
    lines.append(
        f"others used {noise['foreign_cores_median']:.2f} cores (median), {noise['foreign_cores_max']:.2f} at most; "
        f"{noise['samples_above_limit']} of {noise['samples']} samples were not quiet"
    )
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw speeds and round trips, with their bars."""
    pyplot = plotting()
    sizes = result["large"]
    figure, axes = pyplot.subplots(1, len(sizes) + 1, figsize=(5.5 * (len(sizes) + 1), 4.5), squeeze=False)
    for axis, (size, variants) in zip(axes[0], sizes.items(), strict=False):
        _draw_large(axis, variants)
        axis.set_title(f"{size} MB, GB/s")
    _draw_small(axes[0][-1], result["small"])
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _draw_large(axis: Any, variants: dict[str, Any]) -> None:
    """Draw one size, without variants that copy nothing, whose speed would not fit."""
    kept = [name for name in variants if not name.startswith("raw") and name != "shm, array of van.empty"]
    kept = [best_raw(variants, "tcp", "push"), best_raw(variants, "unix", "push"), *kept]
    for place, direction in enumerate(measure.DIRECTIONS):
        values = [variants[name].get(direction, variants[name]["push"])["gb_per_s"]["median"] for name in kept]
        axis.barh([i + 0.4 * place for i in range(len(kept))], values, 0.4, label=direction)
    for row, name in enumerate(kept):
        for place, direction in enumerate(measure.DIRECTIONS):
            if name in ("tcp", "unix"):
                base, limit = variants[best_raw(variants, name, direction)][direction], LARGE_BAR
            elif name.startswith("shm") and name != TWO_COPIES:
                base, limit = variants["memcpy"]["push"], SHM_BAR
            else:
                continue
            _mark(axis, limit, variants[name][direction]["gb_per_s"], base["gb_per_s"], row + 0.4 * place, 0.2)
    axis.plot([], [], color="tab:red", label="promised, at least")
    axis.set_yticks([i + 0.2 for i in range(len(kept))], kept)
    axis.legend()


def _draw_small(axis: Any, results: dict[str, Any]) -> None:
    """Draw round trips, on a logarithmic axis."""
    names = list(results)
    axis.barh(names, [results[name]["median_us"]["median"] for name in names])
    for van, raw in ROUND_TRIPS:
        _mark(axis, SMALL_BAR, results[van]["median_us"], results[raw]["median_us"], names.index(van), 0.4)
    axis.plot([], [], color="tab:red", label="promised, at most")
    axis.set_xscale("log")
    axis.set_xlim(left=5)
    shown_us = [us for us in (5, 10, 20, 50, 100, 200, 500, 1000) if us <= axis.get_xlim()[1]]
    axis.set_xticks(shown_us, [str(us) for us in shown_us])
    axis.set_xticks([], minor=True)
    axis.set_title("round trip of 100 floats, us (median)")
    axis.legend()


def _mark(axis: Any, limit: float, own: dict[str, Any], base: dict[str, Any], place: float, half: float) -> None:
    """Draw a mark at the bar; approximate, because a bar is for the ratios of rounds, not for the drawn medians."""
    value = own["median"] * limit / paired(own, base)
    axis.plot([value, value], [place - half, place + half], color="tab:red")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description="Measure the vans against bare sockets and against copying memory.")
    parser.add_argument("--sizes", default="40,400", metavar="MB,...", help="sizes of large messages, joined by commas")
    parser.add_argument("--rounds", type=positive, default=12, help="rounds; each measures every case once")
    parser.add_argument("--patience", type=float, default=300.0, metavar="S", help="limit of all waits for quiet")
    return parse_with_results(parser, argv, "40 MB, two rounds, no waits: check that it works", picture_file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, with ``--quick`` 0."""
    arguments = parse_arguments(argv)
    if redrawn(arguments, draw):
        return 0
    end_in_order()
    return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure and write the results; return the exit code."""
    sizes_mb = [40.0] if arguments.quick else [float(text) for text in arguments.sizes.split(",")]
    rounds = 2 if arguments.quick else arguments.rounds
    tune_malloc()
    with tempfile.TemporaryDirectory(prefix="eps-van-") as scratch:
        peer = measure.Peer.start(Path(scratch))
        try:
            sampler = Sampler([peer.process.pid], 0.0 if arguments.quick else arguments.patience)
            say("round trips")
            small = measure.small(peer, sampler, rounds)
            say("authentication")
            authentication = measure.authentication(peer, sampler, rounds)
            bars = [*small_bars(small), *authentication_bars(small, authentication)]
            large: dict[str, Any] = {}
            unpromised: list[dict[str, Any]] = []
            for size_mb in sizes_mb:
                say(f"{size_mb:g} MB")
                found = measure.large(peer, sampler, round(size_mb * 1e6), rounds)
                large[f"{size_mb:g}"] = found
                bars += large_bars(size_mb, found)
                unpromised += without_bars(size_mb, found)
        finally:
            peer.end()
    result = {
        "machine": machine(),
        "noise": sampler.noise(),
        "large": large,
        "small": small,
        "authentication": authentication,
        "bars": [bar.as_dict() for bar in bars],
        "without_bars": unpromised,
    }
    text = json.dumps(result, indent=1)
    write_json(arguments.output, text)
    if arguments.picture:
        draw(result, arguments.picture)
    say(table(result, bars))
    print(text)
    return exit_code(bars, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
