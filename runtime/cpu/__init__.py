"""The CPU: what it is, code for it through LLVM, loading that code, and the native thread pool."""
