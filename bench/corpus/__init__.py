"""The corpus: the kernels of the bench set as files, and times of candidate schedules of each.

Tests freeze the schedules of these kernels; the estimate of times is fitted to the times and compared with them.
`python -m bench.corpus kernels` collects the kernels again, `python -m bench.corpus measure` the times.
"""
