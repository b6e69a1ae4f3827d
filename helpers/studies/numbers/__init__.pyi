from ._blocks import Blocks as Blocks, encode_blocks as encode_blocks
from ._formats import FORMATS as FORMATS, Format as Format
from ._integers import Quantised as Quantised, quantise as quantise, saturating_product as saturating_product
from .figures import draw_bits as draw_bits, draw_format as draw_format
