from ._programs import (
    CPU_PRODUCTS as CPU_PRODUCTS,
    CUDA_PRODUCTS as CUDA_PRODUCTS,
    CUDA_TILES as CUDA_TILES,
    InstructionCounts as InstructionCounts,
    ProductTimes as ProductTimes,
    count_instructions as count_instructions,
    cpu_source as cpu_source,
    cuda_source as cuda_source,
    error_share as error_share,
    make_product as make_product,
    measure_products as measure_products,
)
from .figures._products import draw_products as draw_products
from .figures._tiles import draw_tiles as draw_tiles
