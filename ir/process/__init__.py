"""Tools of the process, not of the IR: settings, locks, errors, digests, lazy imports. Standard library only."""
