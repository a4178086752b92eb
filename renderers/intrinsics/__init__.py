"""What LLVM IR has no instruction for: one file for each architecture, named by `Target.instructions`."""
