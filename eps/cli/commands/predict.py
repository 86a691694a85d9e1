"""``eps predict``."""

from __future__ import annotations

import argparse
import json
import sys

from eps.cli.exits import EXIT_OK
from eps.job.display import number_text, ordered_metrics
from eps.spec.results import check_result
from eps.storage.locations import location


def predict(args: argparse.Namespace) -> int:
    """Print or write predictions, and metrics where labels are known."""
    from eps.job.predict import load, predict_file, values_text, write_values

    check_result("--out", args.out)
    found = predict_file(load(args.model, code=args.code), args.data, args.labels, format=args.format)
    if args.out:
        write_values(location(args.out), found.values)
    else:
        sys.stdout.write(values_text(found.values))
        sys.stdout.flush()
    # If predictions go to standard output, the summary must not mix with them.
    stream = sys.stdout if args.out else sys.stderr
    if args.json:
        print(json.dumps({"rows": len(found.values), "metrics": found.metrics}), file=stream)
    else:
        told = "".join(f", {name} {number_text(value)}" for name, value in ordered_metrics(found.metrics))
        print(f"{len(found.values)} rows{told or ', no labels to compare with'}", file=stream)
    return EXIT_OK
