"""Counting what the compilers of CUDA 12 made: their listings read, and what is missing named."""

import pytest

from helpers.native import _cubin as cubin_file
from helpers.studies.constant_weights import _recording as recorded_counts


def test_a_listing_of_sm_60_is_read_in_todays_words():
    listing = """
\t.section\t.text.evaluate,"ax",@progbits
.text.evaluate:
        /*0008*/                   MOV R1, c[0x0][0x20] ;
        /*0010*/         {         FFMA32I R0, R3, 0.25, R0 ;
        /*0018*/                   LDG.E.CI R8, [R4+0x24]         }
        /*0028*/         {    @!P0 FFMA R0, R3, c[0x3][0x4], R0 ;
        /*0030*/                   LDS.U.32 R8, [R4]         }
        /*0038*/                   EXIT ;
        /*0048*/                   BRA `(.L_1) ;
"""
    (kernel,) = cubin_file.parse(recorded_counts.as_of_today(listing)).values()
    row = recorded_counts._count_kernel(kernel, "const", "sm_60")
    assert (row.total, row.multiply_adds, row.immediate, row.constant_bank) == (7, 2, 1, 1)
    assert (row.global_loads, row.shared_loads) == (1, 1)


def test_the_old_compiler_that_is_missing_is_named_with_the_command_that_fetches_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"uv pip install --target .* nvidia-cuda-nvrtc-cu12==12\.8"
    ):
        recorded_counts.count_old(tmp_path)
