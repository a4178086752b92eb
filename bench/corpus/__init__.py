"""The corpus: the kernels of the bench set and of ONNX models as files, and times of candidate schedules of each.

Tests freeze the schedules of these kernels; the estimate of times is fitted to the times and compared with them.
`python -m bench.corpus kernels` collects the kernels again, `measure` the times. `rank` and `fit` compare the estimate
with the times, `choice` the schedules that are chosen without measuring. `seconds` says how long choosing takes, and
`constants` which named numbers of the optimizer decide anything.
"""
