"""The tree, the tables and JSON say the same as the numbers."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
import torch
from operation_samples import Functional, weight
from torch import nn

from helpers.operations import OperationProfile, profile_ops
from helpers.results import cell, from_dict


class _Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.first(self.act(x))) + x


@pytest.fixture(scope="module")
def profile():
    model = Functional(
        lambda m, x: m.inner(x) @ m.w, inner=_Inner(), w=weight(4, 2), idle=nn.Linear(2, 2)
    )
    return profile_ops(model, (3, 4), optimizer=torch.optim.AdamW)


def test_the_tree_follows_the_modules(profile):
    assert [(row.layer, row.depth, row.calls) for row in profile.layers] == [
        ("", 0, 1),
        ("inner", 1, 1),
        ("inner.first", 2, 1),
        ("inner.act", 2, 2),
        ("inner.(functional)", 2, 1),
        ("idle", 1, 0),
        ("(functional)", 1, 1),
    ]
    assert profile.layer("inner.(functional)").forward_flops == 12
    assert profile.layer("inner.act").forward_flops == 2 * 12
    assert profile.layer("(functional)").forward_macs == 24
    with pytest.raises(KeyError, match=r"no layer 'outer'; the layers are .*'inner.first'"):
        profile.layer("outer")


def test_children_add_up_to_their_parent(profile):
    for column in (
        "forward_macs",
        "forward_flops",
        "backward_flops",
        "input_bytes",
        "weight_bytes",
        "output_bytes",
        "backward_read_bytes",
        "backward_written_bytes",
        "optimizer_flops",
    ):
        top = sum(getattr(row, column) for row in profile.layers if row.depth == 1)
        assert top == getattr(profile.layers[0], column)
    by_operator = profile.table("operator").groupby("phase")["flops"].sum()
    assert by_operator["forward"] == profile.forward_flops
    assert by_operator["backward"] == profile.backward_flops
    assert by_operator["optimizer"] == profile.optimizer_flops
    assert profile.forward_flops_per_byte == pytest.approx(
        profile.forward_flops / (profile.forward_read_bytes + profile.forward_written_bytes)
    )


def test_tables_and_json(profile):
    assert len(profile.table()) == len(profile.layers)
    assert profile.table()["forward_macs"].iloc[0] == profile.forward_macs
    assert set(profile.table("operator")["treatment"]) == {"counted", "free"}
    with pytest.raises(
        ValueError, match="by='module' is not known; give one of 'layer', 'operator'"
    ):
        profile.table("module")
    assert from_dict(OperationProfile, json.loads(profile.to_json())) == profile


def test_a_part_of_the_tree(profile):
    assert [row.layer for row in profile.to_depth(1).layers] == [
        "",
        "inner",
        "idle",
        "(functional)",
    ]
    assert str(profile.to_depth(0)).splitlines()[:5] == str(profile).splitlines()[:5]
    for depth, error in ((-1, ValueError), ("2", TypeError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=r"depth=.*; give a whole number, 0 or more"):
            profile.to_depth(depth)


def test_layer_by_operator(profile):
    for phase in ("forward", "backward", "optimizer"):
        frame = profile.cross_table("flops", phase)
        assert frame.to_numpy().sum() == getattr(profile, f"{phase}_flops")
    assert profile.cross_table().loc["inner.first", "aten.addmm.default"] == 3 * 4 * 4
    assert profile.cross_table("calls").loc["inner.act", "aten.relu.default"] == 2
    with pytest.raises(ValueError, match="what='bytes' is not known; use one of 'macs', 'flops'"):
        profile.cross_table("bytes")


def test_rows_have_the_shapes_of_results(profile):
    shapes = {row.layer: row.output_shape for row in profile.layers}
    assert (shapes[""], shapes["inner.act"], shapes["idle"], shapes["(functional)"]) == (
        "(3, 2)",
        "(3, 4)",
        "",
        "",
    )
    assert (
        profile_ops(nn.LSTM(4, 5), (2, 3, 4)).layer("").output_shape
        == "(2, 3, 5), (1, 3, 5), (1, 3, 5)"
    )


def test_text(profile):
    lines = str(profile).splitlines()
    assert lines[0] == "Functional for (3, 4) float32: 34 parameters"
    assert lines[4] == "  every operator is counted"
    assert (
        lines[5]
        == "  (functional): operators called directly, outside of the modules beside this row"
    )
    assert "(functional)" not in str(profile_ops(nn.Linear(4, 4), (2, 4)))
    tree = lines[6:]
    assert tree[0].split()[0] == "layer"
    assert [line.split()[0] for line in tree[1:]] == [
        "Functional",
        "inner",
        "first",
        "act",
        "(functional)",
        "idle",
        "(functional)",
    ]
    assert tree[1].rstrip().endswith("█" * 12)


class _Balance(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.counts = [], {}

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_a_tree_that_folds(profile):
    page = profile._repr_html_()
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.counts["details"] == parser.counts["summary"] == 2
    assert "<script" not in page
    # colours come from the page
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(|white|black", page)


def test_names_are_escaped():
    model = nn.Sequential()
    model.add_module("<b>", nn.Linear(2, 2))
    assert "<b>" not in profile_ops(model, (1, 2))._repr_html_()


def test_a_model_without_parameters_or_operators():
    profile = profile_ops(nn.Identity(), (1, 2))
    assert (profile.forward_flops, profile.not_counted, profile.forward_flops_per_byte) == (
        0,
        (),
        None,
    )
    assert "unknown" not in str(profile)
    assert profile._repr_html_()


def test_nothing_is_kept_between_calls():
    model = nn.Sequential(nn.Linear(4, 4))
    assert profile_ops(model, (1, 4)).forward_macs == 16
    model[0] = nn.Linear(4, 8)
    assert profile_ops(model, (1, 4)).forward_macs == 32
    model[0].requires_grad_(False)
    assert profile_ops(model, (1, 4)).backward_macs == 0


class Block(nn.Module):
    """Two layers and a sum."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x):
        return x + self.down(self.up(x))


def _shown(profile):
    """Return the names of the rows that the text has, with their indents."""
    lines = str(profile).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("layer "))
    width = lines[start].index("output")
    return [line[:width].rstrip() for line in lines[start + 1 :]]


def _shown_below(profile):
    """Return the names of the rows right below the model's, but for its own operators."""
    names = [name[2:] for name in _shown(profile)[1:]]
    return [name for name in names if not name.startswith((" ", "(functional)"))]


def test_equal_blocks_are_shown_once():
    blocks = nn.Sequential(*(Block(16) for _ in range(80)))
    profile = profile_ops(nn.Sequential(nn.Linear(8, 8), blocks), (2, 8))
    inside = ["      up", "      down", "      (functional)"]
    assert _shown(profile) == ["Sequential", "  0", "  1", "    0-79 x 80", *inside]
    assert "0-79 x 80" in profile._repr_html_()
    assert profile._repr_html_().count("<details") == 3
    assert len(profile.table()) == len(profile.layers) == 3 + 80 * 4
    assert len(_shown(profile.to_depth(2))) == 3 + 80
    assert len(_shown(profile.to_depth(3))) == 3 + 80 * 4
    assert profile.to_depth(2)._repr_html_().count("<div style='padding-left:1.2em'><span") == 81
    row = next(line for line in str(profile).splitlines() if "x 80" in line)
    assert cell("forward_macs", 2 * 2 * 8 * 16) in row


@pytest.mark.parametrize(
    ("layers", "shown"),
    [
        ([Block(16) for _ in range(2)], ["0", "1"]),
        ([Block(16), Block(32), Block(16), Block(32), Block(16)], ["0, 2, ... x 3", "1", "3"]),
        ([Block(16), Block(16), Block(16), Block(32), Block(16)], ["0-2, 4 x 4", "3"]),
        ([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)], ["0", "1", "2"]),
        ([nn.Linear(8, 8) for _ in range(4)], ["0", "1-3 x 3"]),
        (
            [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU())],
            ["0", "1", "2", "3", "4", "5"],
        ),
    ],
)
def test_which_blocks_are_equal(layers, shown):
    inputs_need_grad = isinstance(layers[0], Block)
    profile = profile_ops(nn.Sequential(*layers), (2, 8), inputs_need_grad=inputs_need_grad)
    assert _shown_below(profile) == shown


def test_blocks_whose_names_have_no_number_are_shown_each():
    model = nn.Sequential()
    for name in ("left", "right", "middle"):
        model.add_module(name, Block(16))
    assert _shown_below(profile_ops(model, (2, 8), inputs_need_grad=True)) == [
        "left",
        "right",
        "middle",
    ]
