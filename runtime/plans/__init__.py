"""Plans: the key of a graph, its plan in memory and on disk, plans for several sizes, launches ready to run."""
