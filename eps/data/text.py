"""Raw text to hashed counts of words and pairs of words."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy import sparse

from eps.data.raw import RawData, labels_from_strings
from eps.errors import ConfigError, DataError

#: Hash buckets where the number of features is not given.
DEFAULT_BUCKETS = 1 << 18


def parse_text(contents: Sequence[tuple[str, bytes]], *, features: int | None = None, labelled: bool = True) -> RawData:
    """Read lines of text as counts of their words and pairs of neighbouring words.

    Words are what blanks divide, in lower case.  A word or pair counts in bucket CRC-32 modulo ``features``, which is
    the same in every process and version; two that meet in a bucket add up.  Weights (tf-idf, presence) are left to
    the normaliser, since they may use the training part only.

    Parameters
    ----------
    contents : sequence of (str, bytes)
        Names and unpacked files.  One file: ``label TAB text`` in each line.  Several: text only, and the label is
        the number of the file from 0.
    features : int or None
        Hash buckets; None is :data:`DEFAULT_BUCKETS`.
    labelled : bool
        False for one file without labels.

    Returns
    -------
    RawData
        ``X`` is CSR.

    Raises
    ------
    DataError
        A line has no label where it needs one, or there is no line.
    """
    num_buckets = DEFAULT_BUCKETS if features is None else features
    if not 1 <= num_buckets < 2**31:
        raise ConfigError(f"features is {num_buckets}, but text is hashed to 1 .. 2^31 - 1 buckets")
    split_label = labelled and len(contents) == 1
    labels: list[str] = []
    buckets: list[int] = []
    ends = [0]
    for number, (name, content) in enumerate(contents):
        for line, raw_line in enumerate(content.split(b"\n"), 1):
            if not raw_line.strip():
                continue
            text = raw_line.decode("utf-8", errors="replace")
            if split_label:
                label, tab, text = text.partition("\t")
                if not tab or not label.strip():
                    raise DataError(f"{name}:{line}: {text[:60] or label[:60]}: a line must be label TAB text")
                labels.append(label.strip())
            else:
                labels.append(str(number))
            words = text.lower().encode("utf-8").split()
            grams = words + [first + b" " + second for first, second in pairwise(words)]
            buckets.extend(zlib.crc32(gram) % num_buckets for gram in grams)
            ends.append(len(buckets))
    if not labels:
        raise DataError(f"{contents[0][0]}: empty file: data needs at least one row")
    index_type = np.int32 if len(buckets) < 2**31 else np.int64
    X = sparse.csr_matrix(
        (np.ones(len(buckets), np.float32), np.array(buckets, index_type), np.array(ends, index_type)),
        shape=(len(labels), num_buckets),
    )
    X.sum_duplicates()
    if not labelled:
        return RawData(X=X, y=None, format="text")
    y, classes = labels_from_strings(labels, contents[0][0])
    return RawData(X=X, y=y, classes=classes, format="text")
