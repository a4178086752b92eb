"""From a kernel to a program: the cache on disk, the compiling side, the search for schedules, and checks."""
