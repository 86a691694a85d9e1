"""The vans against bare sockets and against copying memory, two processes on one machine.

    python benchmarks/van.py [--sizes 40,400] [--rounds 12] [--output out.json] [--picture out.png] [--quick]

Large: an array of float32 there (push) or here (pull) as one message, back to back.  Small: 100 floats there and back.
Authentication: the same with and without the job's token.  JSON goes to standard output, a table to standard error.

A variant is compared with what was measured beside it in the same round: medians of these ratios are what the bars are
about.  Of two ways to use a bare socket (in pieces of 1 MB, or all in one call with MSG_WAITALL), the one with the
better median counts.
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
from benchmarks.bench_common import Bar, Sampler, machine, new_file, plotting, positive, say, write_json  # noqa: E402
from eps.van.memory import tune_malloc  # noqa: E402

LARGE_BAR, SHM_BAR, SMALL_BAR, AUTHENTICATION_BAR = 0.9, 0.6, 1.5, 1.01


def best_raw(results: dict[str, Any], family: str, direction: str) -> str:
    """Return the fastest way to use a bare socket of a family."""
    names = [name for name in results if name.startswith(f"raw {family}")]
    return max(names, key=lambda name: results[name][direction]["gb_per_s"]["median"])


def paired(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Return the median of a / b, round by round."""
    return round(statistics.median(x / y for x, y in zip(a["values"], b["values"], strict=True)), 4)


def large_bars(size_mb: float, results: dict[str, Any]) -> list[Bar]:
    """Return what is promised of large messages, and what was measured."""
    bars = []
    for direction in measure.DIRECTIONS:
        for transport in ("tcp", "unix"):
            name = best_raw(results, transport, direction)
            value = paired(results[transport][direction]["gb_per_s"], results[name][direction]["gb_per_s"])
            bars.append(Bar(f"{size_mb:g} MB {direction}, {transport} / {name}", value, LARGE_BAR, True))
        for variant in results:
            if variant.startswith("shm"):
                value = paired(results[variant][direction]["gb_per_s"], results["memcpy"]["push"]["gb_per_s"])
                note = "two copies, one after the other: 0.5 at most" if variant == "shm, ordinary, copied out" else ""
                bars.append(Bar(f"{size_mb:g} MB {direction}, {variant} / memcpy", value, SHM_BAR, True, note))
    return bars


def small_bars(results: dict[str, Any]) -> list[Bar]:
    """Return what is promised of small messages."""
    pairs = (("tcp", "raw tcp"), ("unix", "raw unix"), ("shm", "raw unix"))
    return [
        Bar(
            f"round trip, {van} / {raw}", paired(results[van]["median_us"], results[raw]["median_us"]), SMALL_BAR, False
        )
        for van, raw in pairs
    ]


def authentication_bars(small: dict[str, Any], results: dict[str, Any]) -> list[Bar]:
    """Return what is promised of the token once a connection is there; the notes say what noise alone gives."""
    push, ping = results["push_ms"], {name: entry["median_us"] for name, entry in small.items()}
    found = []
    for name, values, plain, again, token in (
        ("40 MB push", push, "open", "open again", "token"),
        ("round trip", ping, "tcp", measure.AGAIN, "tcp, token"),
    ):
        note = f"two connections without a token: {paired(values[again], values[plain]):g}"
        value = paired(values[token], values[plain])
        found.append(Bar(f"{name} over tcp, token / no token", value, AUTHENTICATION_BAR, False, note))
    return found


def table(result: dict[str, Any], bars: Sequence[Bar]) -> str:
    """Return the results for people."""
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
    noise = result["noise"]
    lines.append(
        f"others used {noise['foreign_cores_median']:.2f} cores (median), {noise['foreign_cores_max']:.2f} at most; "
        f"{noise['samples_above_limit']} of {noise['samples']} samples were not quiet"
    )
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw speeds beside those of bare sockets and of memory."""
    pyplot = plotting()
    if pyplot is None:
        return
    sizes = result["large"]
    figure, axes = pyplot.subplots(1, len(sizes) + 1, figsize=(5.5 * (len(sizes) + 1), 4.5), squeeze=False)
    for axis, (size, variants) in zip(axes[0], sizes.items(), strict=False):
        kept = [name for name in variants if not name.startswith("raw") and "van.empty" not in name]
        kept = [best_raw(variants, "tcp", "push"), best_raw(variants, "unix", "push"), *kept]
        for place, direction in enumerate(measure.DIRECTIONS):
            values = [variants[name].get(direction, variants[name]["push"])["gb_per_s"]["median"] for name in kept]
            axis.barh([i + 0.4 * place for i in range(len(kept))], values, 0.4, label=direction)
        axis.set_yticks([i + 0.2 for i in range(len(kept))], kept)
        axis.set_title(f"{size} MB, GB/s")
        axis.legend()
    names = list(result["small"])
    axes[0][-1].barh(names, [result["small"][name]["median_us"]["median"] for name in names])
    axes[0][-1].set_title("round trip of 100 floats, us (median)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's values."""
    parser = argparse.ArgumentParser(description="Measure the vans against bare sockets and against copying memory.")
    parser.add_argument("--sizes", default="40,400", metavar="MB,...", help="of large messages, joined by commas")
    parser.add_argument("--rounds", type=positive, default=12, help="times that each case is measured")
    parser.add_argument("--patience", type=float, default=300.0, metavar="S", help="for waiting until others are quiet")
    parser.add_argument("--output", type=new_file, help="write the JSON here too")
    parser.add_argument("--picture", type=new_file, help="draw a picture (needs matplotlib)")
    parser.add_argument("--quick", action="store_true", help="40 MB, two rounds, no waiting: does it work?")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = parse_arguments(argv)
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
            for size_mb in sizes_mb:
                say(f"{size_mb:g} MB")
                found = measure.large(peer, sampler, round(size_mb * 1e6), rounds)
                large[f"{size_mb:g}"] = found
                bars += large_bars(size_mb, found)
        finally:
            peer.end()
    result = {
        "machine": machine(),
        "noise": sampler.noise(),
        "large": large,
        "small": small,
        "authentication": authentication,
        "bars": [bar.as_dict() for bar in bars],
    }
    text = json.dumps(result, indent=1)
    write_json(arguments.output, text)
    if arguments.picture:
        draw(result, arguments.picture)
    say(table(result, bars))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
