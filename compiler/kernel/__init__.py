"""The loop half: facts about one kernel, and the passes that transform its loops."""
