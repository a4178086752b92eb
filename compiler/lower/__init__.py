"""Lowering: towards the machine. What depends on a stage or a target is here; what is always true is in ir/algebra/."""
