"""Probability distributions by PyTorch's names: samples, log-probabilities, entropies and divergences."""

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
