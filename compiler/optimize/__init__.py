"""How the loops of a kernel are cut: the actions, and who chooses them."""

from .actions import Action as Action
from .actions import apply_actions as apply_actions
from .actions import parse_schedule as parse_schedule
from .actions import show_schedule as show_schedule
from .dots import dot_actions as dot_actions
from .heuristic import choose_actions as choose_actions
