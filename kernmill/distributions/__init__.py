"""Probability distributions by PyTorch's names: samples, log-probabilities, entropies and divergences."""

from typing import TYPE_CHECKING as _CHECKING

from ..methods.other_names import DISTRIBUTIONS as _DISTRIBUTIONS
from ..methods.other_names import named_in as _named_in
from ..methods.other_names import not_in as _not_in
from .base import Distribution
from .continuous import Cauchy, Exponential, Gumbel, HalfNormal, Laplace, LogNormal, MultivariateNormal, Normal, Uniform
from .discrete import Bernoulli, Categorical, Geometric
from .divergence import kl_divergence
from .gamma_family import Beta, Dirichlet, Gamma, Poisson, StudentT

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Cauchy",
    "Dirichlet",
    "Distribution",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfNormal",
    "Laplace",
    "LogNormal",
    "MultivariateNormal",
    "Normal",
    "Poisson",
    "StudentT",
    "Uniform",
    "kl_divergence",
]

if not _CHECKING:  # to a checker it would be every name that there could be

    def __getattr__(name: str) -> object:
        """Raise the error for an unknown distribution, with what makes it of those that are here."""
        raise _not_in(__name__, name, _named_in(_DISTRIBUTIONS, name))
