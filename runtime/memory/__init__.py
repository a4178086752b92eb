"""Memory: blocks that are reused, buffers, and who holds them. It knows no device."""
