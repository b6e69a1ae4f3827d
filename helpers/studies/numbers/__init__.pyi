from ._blocks import Blocks as Blocks, encode_blocks as encode_blocks, round_nvfp4 as round_nvfp4
from ._characters import (
    CharacterModel as CharacterModel,
    CharacterText as CharacterText,
    character_text as character_text,
    plant_outlier as plant_outlier,
    train_characters as train_characters,
)
from ._formats import FORMATS as FORMATS, Format as Format
from ._integers import (
    Quantised as Quantised,
    quantise as quantise,
    saturating_product as saturating_product,
)
from .figures import draw_bits as draw_bits, draw_format as draw_format
