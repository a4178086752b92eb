"""How the loops of a kernel are cut: the actions, and who chooses them."""

from . import proposals as proposals
from .actions import VERBS as VERBS
from .actions import Action as Action
from .actions import apply_actions as apply_actions
from .actions import fits as fits
from .actions import parse_schedule as parse_schedule
from .actions import show_schedule as show_schedule
from .blocks import block_plan as block_plan
from .blocks import is_nested as is_nested
from .dots import dot_plan as dot_plan
from .heuristic import choose as choose
from .heuristic import choose_actions as choose_actions
from .look import look as look
from .look import main_group as main_group
from .look import nest_iterations as nest_iterations
from .packing import in_blocks as in_blocks
from .plan import Plan as Plan
from .products import Product as Product
from .products import find_product as find_product
from .rows import kept_loops as kept_loops
from .rows import rows_as_lanes as rows_as_lanes
from .search import body_size as body_size
from .search import is_reasonable as is_reasonable
from .search import neighbours as neighbours
from .search import optimized as optimized
from .tiles import tile_plan as tile_plan
