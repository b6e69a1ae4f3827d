"""Items of known cost, image files, loader settings one factor at a time, and workers that end."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from process_watch import wait_until
from torch.utils.data import Dataset

from helpers.links import Link
from helpers.studies import input_pipeline
from helpers.studies.input_pipeline import (
    LoaderSettings,
    _fairness as fairness,
    _loading as loading,
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six small JPEG files."""
    return input_pipeline.write_images(tmp_path_factory.mktemp("pictures"), images=6, side=48)


# Items.


WAITING = input_pipeline.WaitingItems(12, wait_s=0.004, late_every=4, late_s=0.02)


def test_items_cost_what_they_say() -> None:
    assert [WAITING.cost_s(i) for i in range(5)] == [0.004, 0.004, 0.004, 0.02, 0.004]
    cost = input_pipeline.item_cost(WAITING)
    assert cost.items == 12
    assert cost.median_s >= 0.004
    assert cost.mean_s >= (9 * 0.004 + 3 * 0.02) / 12


@pytest.mark.timed
def test_what_waits_computes_and_is_free_is_told_apart(pictures) -> None:
    assert input_pipeline.item_cost(WAITING).kind == "waits"
    assert input_pipeline.item_cost(input_pipeline.FreeItems(40)).kind == "free"
    assert (
        input_pipeline.item_cost(input_pipeline.DecodedImages(pictures, crop=32, repeats=5)).kind
        == "computes"
    )


def test_items_are_refused_where_they_are_not() -> None:
    free = input_pipeline.FreeItems(3, shape=(2, 2))
    image, label = free[2]
    assert image.shape == (2, 2)
    assert label == 2
    assert len(list(free)) == 3  # iterating ends by IndexError
    with pytest.raises(IndexError, match="0 to 2"):
        free[3]
    with pytest.raises(ValueError, match="wait_s=-1; give a finite number, 0 or more"):
        input_pipeline.WaitingItems(3, wait_s=-1)
    with pytest.raises(ValueError, match="too small"):
        input_pipeline.FreeItems(0)


def test_one_disk_serves_one_after_the_other_whoever_asks(pictures) -> None:
    """Workers cannot make one disk faster: planted, a disk for each worker would take half the
    time.
    """
    disk = Link(1e6, 0.01)
    files = input_pipeline.FilesOnOneDisk(pictures, disk)
    sizes = [path.stat().st_size for path in pictures]
    assert [files.disk_s(i) for i in range(6)] == [0.01 + size / 1e6 for size in sizes]
    whole_s = sum(map(files.disk_s, range(6)))
    start_s = time.perf_counter()
    with ThreadPoolExecutor(3) as pool:
        assert [label for _, label in pool.map(files.__getitem__, range(6))] == list(range(6))
    assert time.perf_counter() - start_s >= whole_s
    free_s = files._free_s.value
    with input_pipeline.workers_end(
        input_pipeline.make_loader(files, LoaderSettings(batch_size=1, workers=2))
    ) as loader:
        assert len(list(loader)) == 6
    assert files._free_s.value >= free_s + whole_s  # the workers' disk is this one
    with pytest.raises(FileNotFoundError):
        input_pipeline.FilesOnOneDisk(["no such file"], disk)
    with pytest.raises(ValueError, match="paths is empty"):
        input_pipeline.FilesOnOneDisk([], disk)


@pytest.mark.parametrize("file_format", ["jpeg", "png"])
def test_image_files_are_decoded_as_torchvision_does(tmp_path, file_format) -> None:
    from torchvision.io import ImageReadMode, image as torchvision_image, read_file

    paths = input_pipeline.write_images(tmp_path, images=2, side=40, file_format=file_format)
    dataset = input_pipeline.DecodedImages(paths, crop=24, augment=False)
    decode = {"jpeg": torchvision_image.decode_jpeg, "png": torchvision_image.decode_png}[
        file_format
    ]
    for index, path in enumerate(paths):
        oracle = (
            decode(read_file(str(path)), mode=ImageReadMode.RGB)[:, 8:32, 8:32].float() / 127.5 - 1
        )
        item, label = dataset[index]
        assert label == index
        # two JPEG decoders round differently
        assert (item - oracle).abs().max() <= 2 / 127.5 + 1e-6
        assert item.shape == (3, 24, 24)
        assert item.std() > 0.05


def test_augmentation_depends_on_seed_and_index_alone(pictures) -> None:
    first, again, other = (
        input_pipeline.DecodedImages(pictures, crop=32, seed=seed, repeats=3) for seed in (1, 1, 2)
    )
    assert len(first) == 18
    assert all(torch.equal(first[i][0], again[i][0]) for i in range(18))
    assert not torch.equal(first[0][0], first[6][0])  # the same file, another index
    assert not torch.equal(first[0][0], other[0][0])
    pixels = np.arange(48 * 48 * 3, dtype=np.int64).reshape(48, 48, 3)
    cuts = [first.transformed(pixels, index).add(1).mul(127.5).round() for index in range(18)]
    # mirrored or not
    assert {tuple(set(cut.diff(dim=2).flatten().tolist())) for cut in cuts} == {(3.0,), (-3.0,)}
    # never upside down
    assert {tuple(set(cut.diff(dim=1).flatten().tolist())) for cut in cuts} == {(48 * 3.0,)}
    assert len({cut.min().item() for cut in cuts}) > 10  # and cut at many places


def test_images_are_refused_with_what_to_do(tmp_path, pictures, monkeypatch) -> None:
    with pytest.raises(ValueError, match="give at most 48"):
        input_pipeline.DecodedImages(pictures, crop=64)[0]
    with pytest.raises(IndexError, match="0 to"):
        input_pipeline.DecodedImages(pictures, crop=16)[-1]
    with pytest.raises(ValueError, match="seed=-1 is too small"):
        input_pipeline.DecodedImages(pictures, crop=16, seed=-1)
    with pytest.raises(TypeError, match=r"disk is a helpers\.links\.Link"):
        input_pipeline.FilesOnOneDisk(pictures, 1e6)
    with pytest.raises(ValueError, match="'jpeg', 'png'"):
        input_pipeline.write_images(tmp_path, file_format="gif")
    with pytest.raises(FileNotFoundError, match="make it first"):
        input_pipeline.write_images(tmp_path / "no")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match="Pillow, which comes with torchvision"):
        loading.DecodedImages(pictures)


# Settings: one factor at a time.


def test_vary_changes_one_factor_and_refuses_two() -> None:
    base = LoaderSettings(batch_size=8)
    assert input_pipeline.vary(base, workers=(0, 2)) == (LoaderSettings(8, 0), LoaderSettings(8, 2))
    with pytest.raises(ValueError, match="was given workers and batch_size"):
        input_pipeline.vary(base, workers=(0, 2), batch_size=(8, 16))
    for factor, said in (
        ({}, "was given none"),
        ({"worker": (1, 2)}, "no factor 'worker'; it has batch_size, workers"),
        ({"workers": ()}, "no values to vary"),
        ({"workers": (1, 1)}, "each once"),
    ):
        with pytest.raises(ValueError, match=said):
            input_pipeline.vary(base, **factor)


def test_one_value_is_not_several() -> None:
    for value in (3, "fork"):
        with pytest.raises(TypeError, match="is one value; give all that it takes"):
            input_pipeline.vary(LoaderSettings(), workers=value)


def test_the_lectures_starvation_experiment_changed_two_factors() -> None:
    assert input_pipeline.changed(LoaderSettings(128, 4), LoaderSettings(64, 1)) == (
        "batch_size",
        "workers",
    )
    assert input_pipeline.changed(LoaderSettings(), LoaderSettings()) == ()
    with pytest.raises(TypeError, match="no factors in common"):
        input_pipeline.changed(LoaderSettings(), fairness.Setup())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": -1}, "workers=-1 is too small"),
        ({"batch_size": 0}, "batch_size=0 is too small"),
        ({"prefetch_factor": 0}, "prefetch_factor=0 is too small"),
        ({"start_method": "thread"}, "not one of this system's"),
    ],
)
def test_settings_are_refused_with_what_is_accepted(wrong, said) -> None:
    with pytest.raises(ValueError, match=said):
        LoaderSettings(**wrong)
    with pytest.raises(TypeError, match="give True or False"):
        LoaderSettings(pin_memory=1)


def test_pinned_memory_without_cuda_is_refused_not_ignored(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs a CUDA device"):
        input_pipeline.make_loader(input_pipeline.FreeItems(4), LoaderSettings(pin_memory=True))


# Loaders and their workers.


def test_a_loader_gives_the_same_batches_with_and_without_workers(recwarn) -> None:
    dataset = input_pipeline.FreeItems(23, shape=(3,))
    orders = []
    for settings in (
        LoaderSettings(4),
        LoaderSettings(4, 3, prefetch_factor=1),
        LoaderSettings(4, 1, 2, False, True),
    ):
        with input_pipeline.workers_end(
            input_pipeline.make_loader(dataset, settings, shuffle=True, seed=5)
        ) as loader:
            orders.append([labels.tolist() for _, labels in loading.loader_iterator(loader)])
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == 6
    assert orders[0] != [
        labels.tolist() for _, labels in input_pipeline.make_loader(dataset, LoaderSettings(4))
    ]
    assert not [each for each in recwarn if "worker processes" in str(each.message)]


def test_workers_end_with_the_block_also_after_an_exception() -> None:
    dataset, persistent = input_pipeline.FreeItems(8), LoaderSettings(2, 2, persistent_workers=True)
    before = set(multiprocessing.active_children())

    def have_ended() -> bool:
        """A worker that does not end within five seconds PyTorch ends, and does not wait for
        that.
        """
        return wait_until(lambda: set(multiprocessing.active_children()) <= before)

    loader = input_pipeline.make_loader(dataset, persistent)
    seen = []

    def fails() -> None:
        with input_pipeline.workers_end(loader):
            for _ in loader:
                seen.append(set(multiprocessing.active_children()) - before)
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(seen[0]) == 2
    assert have_ended()
    input_pipeline.end_workers(loader)  # a second time is no error
    held = iter(loader)  # as by a traceback, or Out[n]
    input_pipeline.end_workers(loader)
    assert have_ended()
    del held
    input_pipeline.end_workers([1, 2])  # nor where there are none
    for _ in input_pipeline.feed(
        loader, input_pipeline.SleepingAccelerator(0.0), steps=2, epochs=2, warm_up=0
    ).epochs:
        # they stay from epoch to epoch
        assert len(set(multiprocessing.active_children()) - before) == 2
    input_pipeline.end_workers(loader)
    assert have_ended()


def test_a_worker_that_is_not_forked_gets_datasets_from_files(pictures) -> None:
    """As on macOS, Windows and with CUDA: a fresh Python that imports the dataset's module."""
    files = input_pipeline.FilesOnOneDisk(pictures[:2], Link(1e9))
    settings = LoaderSettings(1, 1, start_method="spawn")
    with input_pipeline.workers_end(input_pipeline.make_loader(files, settings)) as loader:
        labels = [int(label) for _, label in loading.loader_iterator(loader)]
    assert labels == [0, 1]
    for dataset in (
        input_pipeline.FreeItems(2),
        input_pipeline.WaitingItems(2, wait_s=0),
        input_pipeline.DecodedImages(pictures),
    ):
        assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset)


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_dataset_that_cannot_go_to_a_worker_is_one_clear_error(monkeypatch) -> None:
    class InFunction(Dataset):
        def __len__(self) -> int:
            return 2

    settings = LoaderSettings(1, 1, start_method="spawn")
    with pytest.raises(TypeError, match=r"InFunction cannot be sent to a worker.*workers=0"):
        loading.loader_iterator(input_pipeline.make_loader(InFunction(), settings))
    in_cell = type("InCell", (loading.FreeItems,), {"__module__": "__main__"})(4)
    # a notebook's has no file
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with pytest.raises(
        TypeError, match=r"InCell is defined in a notebook.*write the class to a file"
    ):
        input_pipeline.make_loader(in_cell, settings)
    input_pipeline.make_loader(in_cell, LoaderSettings(1, 0, start_method="spawn"))
    if "fork" in multiprocessing.get_all_start_methods():
        input_pipeline.make_loader(in_cell, LoaderSettings(1, 1, start_method="fork"))
    with pytest.raises(TypeError, match="gives no batches"):
        loading.loader_iterator(5)


def test_every_public_name_is_there_and_documented() -> None:
    for name in input_pipeline.__all__:
        value = getattr(input_pipeline, name)
        if name != "LECTURE_SETUPS":
            assert value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'fed'; it has"):
        input_pipeline.fed  # noqa: B018
