"""Profiles: what a program launched, compiled and waited for, as a table, a trace and a report."""

from .profiled import Profile as Profile
from .profiled import profile as profile

__all__ = ["Profile", "profile"]
