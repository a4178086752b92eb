"""Recommend films by matrix factorization: `python examples/factorization.py [--steps N]`.

Ratings are made up from hidden tastes. Users and films get vectors; their product predicts a rating.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from kernmill import Tensor, jit, manual_seed, nn, no_grad


class Factorization(nn.Module):
    """A vector for each user and each film; the rating is their inner product."""

    def __init__(self, users: int, films: int, width: int) -> None:
        self.users, self.films = nn.Embedding(users, width), nn.Embedding(films, width)

    def forward(self, user: Tensor, film: Tensor) -> Tensor:
        return (self.users(user) * self.films(film)).sum(1)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--films", type=int, default=200)
    options = parser.parse_args(given)
    random = np.random.default_rng(0)
    tastes, kinds = random.normal(size=(options.users, 4)), random.normal(size=(options.films, 4))
    ratings = (tastes @ kinds.T).astype(np.float32)
    manual_seed(0)
    model = Factorization(options.users, options.films, 8)
    optimizer = nn.optim.Adam(model.parameters(), lr=2e-2)

    @jit
    def step(user: Tensor, film: Tensor, rating: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(user, film).mse_loss(rating)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for number in range(options.steps):
        user, film = random.integers(0, options.users, 2048), random.integers(0, options.films, 2048)
        loss = step(Tensor(user), Tensor(film), Tensor(ratings[user, film]))
        if number % 100 == 0:
            print(f"step {number}: loss {loss.item():.3f}")
    with no_grad():
        predicted = (model.users.weight @ model.films.weight.T).numpy()
    best = predicted[0].argsort()[::-1][:3]
    error = np.abs(predicted - ratings).mean() / np.abs(ratings).mean()
    print(f"films for the first user: {', '.join(map(str, best))}; mean error {100 * error:.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
