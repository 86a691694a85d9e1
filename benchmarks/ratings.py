"""Ratings drawn from a law that is known: rank, noise and popularity.

A user gives an item ``3.5 + b_u + b_i + p_u . q_i`` plus noise.  Biases are normal with standard deviation 0.4, and so
that ``p_u . q_i`` over ``rank`` factors has standard deviation 0.5, each factor is normal.  The noise is the root mean
squared error that the best model leaves.

The k-th most active user is drawn with a probability proportional to ``1 / k^zipf_users``, the k-th most popular item
with one proportional to ``1 / k^zipf_items``, under random ids.  A user rates an item at most once.  So the head is
flatter than the law where it says more ratings than there are users.

    python benchmarks/ratings.py ratings.npz --users 50000 --items 20000 --ratings 10000000 --rank 32
    eps run --data ratings.npz --test 0.1 --model mf --rank 32 ...
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MEAN, BIAS_STD, INTERACTION_STD = 3.5, 0.4, 0.5
#: Rows of text that are written at a time.
_ROWS = 1 << 16


@dataclass(frozen=True)
class Law:
    """What ratings are drawn from.

    Raises
    ------
    ValueError
        More than half of all pairs would have to be rated.
    """

    users: int = 1000
    items: int = 1700
    ratings: int = 100_000
    rank: int = 8
    #: Standard deviation.
    noise: float = 0.5
    zipf_users: float = 0.6
    zipf_items: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        if 2 * self.ratings > self.users * self.items:
            raise ValueError(f"{self.ratings} ratings are more than half of {self.users} x {self.items} pairs")

    def draw(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return pairs of user and item from 0, shape (n, 2), in random order, and their ratings, shape (n,)."""
        rng = np.random.default_rng(self.seed)
        pairs = self._pairs(rng)
        sizes = (self.users, self.items)
        # The product of two factors has their variances' product; a sum of ``rank`` of them so many times that.
        scale = np.sqrt(INTERACTION_STD / np.sqrt(self.rank))
        p, q = (rng.normal(scale=scale, size=(size, self.rank)).astype(np.float32) for size in sizes)
        b, c = (rng.normal(scale=BIAS_STD, size=size) for size in sizes)
        ratings = MEAN + rng.normal(scale=self.noise, size=len(pairs))
        for start in range(0, len(pairs), _ROWS):
            part = slice(start, start + _ROWS)
            user, item = pairs[part].T
            ratings[part] += b[user] + c[item] + np.einsum("nk,nk->n", p[user], q[item])
        return pairs, ratings

    def _pairs(self, rng: np.random.Generator) -> NDArray[np.int64]:
        laws = ((self.users, self.zipf_users), (self.items, self.zipf_items))
        ids = [rng.permutation(size) for size, _ in laws]
        shares = [np.cumsum(np.arange(1, size + 1) ** -exponent) for size, exponent in laws]
        found = np.empty(0, np.int64)
        while found.size < self.ratings:
            missing = self.ratings - found.size + self.ratings // 8
            user, item = (
                own[np.searchsorted(share, rng.random(missing) * share[-1])]
                for own, share in zip(ids, shares, strict=True)
            )
            found = np.unique(np.concatenate([found, user * self.items + item]))
        chosen = rng.permutation(found)[: self.ratings]
        return np.stack(np.divmod(chosen, self.items), axis=1)

    def write(self, path: Path) -> None:
        """Write the ratings as lines of ``user item rating``, or as arrays if the name ends in .npz."""
        pairs, ratings = self.draw()
        if path.suffix == ".npz":
            np.savez(path, X=pairs, y=ratings)
            return
        with path.open("w", encoding="ascii") as file:
            for start in range(0, len(pairs), _ROWS):
                rows = zip(pairs[start : start + _ROWS].tolist(), ratings[start : start + _ROWS].tolist(), strict=True)
                file.writelines(f"{user}\t{item}\t{rating:.4f}\n" for (user, item), rating in rows)


def main() -> None:
    """Write ratings to a file."""
    parser = argparse.ArgumentParser(description="Write ratings drawn from a law that is known.")
    parser.add_argument("out", type=Path, metavar="FILE", help="text, or arrays if the name ends in .npz")
    for name, default in Law().__dict__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    values = vars(parser.parse_args())
    out = values.pop("out")
    try:
        Law(**values).write(out)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
