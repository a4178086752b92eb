"""Lowering: towards the machine. Rules that depend on a stage or a target are here; laws of any graph are in
ir/algebra/."""
