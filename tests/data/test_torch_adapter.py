from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.sampler import SubsetRandomSampler

from otdd_flash import from_torch
from otdd_flash.data import TextDataset
from otdd_flash.data.streams import STREAM_LIMIT
from otdd_flash.data.torch_sets import find_labels

X = torch.arange(40, dtype=torch.float32).reshape(20, 2)
Y = torch.arange(20) % 4


class Counting(Dataset):
    """Says how many samples were read; labels under a name of choice."""

    def __init__(self, n, attribute="targets", values=None):
        self.n, self.read = n, 0
        setattr(self, attribute, [i % 7 for i in range(n)] if values is None else values)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read += 1
        return torch.full((3,), float(index)), index % 7


class Stream(IterableDataset):
    def __init__(self, n=None):
        self.n = n

    def __iter__(self):
        i = 0
        while self.n is None or i < self.n:
            yield torch.tensor([float(i)]), i % 3
            i += 1


def test_labels_of_a_nested_subset_of_sixty_thousand_are_found_without_reading_a_sample():
    base = Counting(60_000)
    rng = np.random.default_rng(0)
    first = rng.permutation(60_000)
    second = rng.permutation(50_000)
    nested = Subset(Subset(base, first.tolist()), second.tolist())
    start = time.perf_counter()
    labels = find_labels(nested)
    assert time.perf_counter() - start < 1
    assert base.read == 0
    assert np.array_equal(labels, first[second] % 7)
    data = from_torch(nested, max_samples=25, seed=3)
    assert base.read == 25
    assert np.array_equal(data.x[:, 0].numpy(), first[second][data.ids.numpy()])
    assert np.array_equal(data.y.numpy(), first[second][data.ids.numpy()] % 7)


@pytest.mark.parametrize("attribute", ["targets", "labels", "_labels", "y"])
@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor])
def test_labels_are_found_under_the_names_in_use(attribute, kind):
    dataset = Counting(14, attribute, kind([i % 7 for i in range(14)]))
    assert find_labels(dataset).tolist() == [i % 7 for i in range(14)]
    assert dataset.read == 0


@pytest.mark.parametrize("attribute", ["samples", "_samples", "imgs"])
def test_labels_are_found_among_samples(attribute):
    dataset = Counting(14, attribute, [(f"{i}.png", i % 7) for i in range(14)])
    assert find_labels(dataset).tolist() == [i % 7 for i in range(14)]


def test_joined_split_and_tensor_sets_keep_their_labels():
    left, right = random_split(TensorDataset(X, Y), [12, 8], generator=torch.Generator().manual_seed(1))
    joined = ConcatDataset([right, left])
    order = torch.tensor([*right.indices, *left.indices])
    data = from_torch(joined)
    assert torch.equal(data.x, X[order])
    assert torch.equal(data.y, Y[order])


def test_a_target_transform_is_applied_to_found_labels():
    class Halved(Counting):
        target_transform = staticmethod(lambda label: label // 2)
        classes = tuple(map(str, range(7)))

        def __getitem__(self, index):
            return torch.full((3,), float(index)), index % 7 // 2

    assert from_torch(Halved(14)).class_names == ("0", "1", "2", "3")


def test_labels_that_contradict_the_samples_are_refused():
    dataset = Counting(14, values=[0] * 14)
    with pytest.raises(
        ValueError, match=r"sample 1 has the label 1, but the data set's attribute says 0.*pass labels="
    ):
        from_torch(dataset)
    assert from_torch(dataset, labels=[0, 1] * 7).num_classes == 2


def test_labels_in_no_attribute_are_read_from_the_samples_and_said():
    data = from_torch([(torch.ones(2), "b"), (torch.zeros(2), "a"), (torch.ones(2), None)])
    assert data.class_names == ("a", "b")
    assert data.dropped == {"unlabelled": 1}
    assert "read sample by sample" in data.notes[0]


def test_mappings_and_keys():
    items = [{"pixel_values": torch.full((2,), float(i)), "label": i % 2, "other": 9 - i} for i in range(6)]
    assert from_torch(items).y.tolist() == [0, 1] * 3
    assert from_torch(items, keys=("pixel_values", "other")).num_classes == 6
    with pytest.raises(ValueError, match=r"items have the keys .*'other'.* got 'colour'"):
        from_torch(items, keys=("pixel_values", "colour"))
    triples = [(i, torch.full((2,), float(i)), i % 2) for i in range(6)]
    assert from_torch(triples, keys=(1, 2)).x[5].tolist() == [5, 5]


def test_loaders_stand_for_their_data_set_in_its_order():
    dataset = TensorDataset(X, Y)
    for loader in (DataLoader(dataset, 3), DataLoader(dataset, 7, shuffle=True), DataLoader(dataset, batch_size=None)):
        assert torch.equal(from_torch(loader).x, X)
    part = from_torch(DataLoader(dataset, 4, sampler=SubsetRandomSampler([9, 2, 5, 4])))
    assert part.x[:, 0].tolist() == [4, 8, 10, 18]


def test_loaders_that_repeat_or_recombine_samples_are_read_as_streams():
    weighted = WeightedRandomSampler([1.0] + [0.0] * 19, num_samples=6)
    repeated = from_torch(DataLoader(TensorDataset(X, Y), 4, sampler=weighted))
    assert torch.equal(repeated.x, X[:1].expand(6, 2))

    def doubled(batch):
        return torch.stack([2 * x for x, _ in batch]), torch.stack([y for _, y in batch])

    assert torch.equal(from_torch(DataLoader(TensorDataset(X, Y), 6, collate_fn=doubled)).x, 2 * X)
    assert torch.equal(from_torch(DataLoader(Stream(10), 4)).x.flatten(), torch.arange(10.0))


def test_a_stream_is_drawn_by_a_seeded_reservoir():
    """C12."""
    whole = from_torch(Stream(300))
    assert whole.n == 300
    one, again, other = (from_torch(Stream(300), max_samples=40, seed=s) for s in (1, 1, 2))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert torch.equal(one.ids, one.x.flatten().long())
    assert (one.ids.diff() > 0).all()
    assert "40 of 300 streamed samples" in one.notes[0]
    counts = np.zeros(30)
    for seed in range(600):
        counts[from_torch(Stream(30), max_samples=10, seed=seed).ids.numpy()] += 1
    assert ((counts - 200) ** 2 / (200 * 2 / 3)).sum() < 58.3  # chi-square, 29 degrees of freedom, 99.9 %


def test_an_endless_stream_needs_a_limit():
    """C12."""
    with pytest.raises(
        ValueError, match=r"has not ended after 100000 samples and no limit was given; pass max_samples="
    ):
        from_torch(Stream())
    with pytest.warns(UserWarning, match="the first 100000 samples of a stream that goes on"):
        data = from_torch(Stream(), max_samples=50)
    assert data.n == 50
    assert STREAM_LIMIT / 4 < data.ids.double().mean() < STREAM_LIMIT * 3 / 4
    assert from_torch(Stream(), stream_limit=70).n == 70
    assert from_torch(Stream(), max_samples=10, stream_limit=70, classes=[1]).y.tolist() == [0] * 10


def test_streamed_samples_without_label_are_dropped_and_counted():
    class Holes(IterableDataset):
        def __iter__(self):
            yield from ((torch.ones(1), label) for label in (0, None, 1, -1, 1))

    data = from_torch(Holes())
    assert data.dropped == {"unlabelled": 2}
    assert data.ids.tolist() == [0, 2, 4]


def test_random_transforms_are_warned_of_wherever_they_stand():
    from torchvision.transforms import v2

    dataset = Counting(14)
    dataset.transform = v2.Compose([v2.ToImage(), torch.nn.Sequential(v2.Identity(), v2.ColorJitter())])
    with pytest.warns(UserWarning, match=r"random transforms \(ColorJitter\)"):
        from_torch(Subset(ConcatDataset([dataset]), [0, 1]))
    dataset.transform = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip()])
    with pytest.warns(UserWarning, match="RandomHorizontalFlip"):
        from_torch(dataset)


@pytest.mark.filterwarnings("error")
def test_fixed_transforms_are_not_warned_of():
    from torchvision.transforms import v2

    dataset = Counting(14)
    dataset.transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])])
    assert from_torch(dataset).n == 14


def test_texts_become_a_text_set_that_has_no_features():
    data = from_torch([("good film", 1), ("bad film", 0), ("fine", 1)])
    assert isinstance(data, TextDataset)
    assert data.texts == ("good film", "bad film", "fine")
    assert data.y.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="embedder"):
        _ = data.x
    part = data.subset([2, 0])
    assert (part.texts, part.class_names, part.ids.tolist()) == (("fine", "good film"), ("1",), [2, 0])
    assert part.fingerprint != data.fingerprint
    assert data.with_features(torch.eye(3)).class_counts.tolist() == [1, 2]


def test_what_is_no_data_set_is_refused():
    with pytest.raises(ValueError, match="labels= is for map-style"):
        from_torch(Stream(4), labels=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="features of a sample are several arrays"):
        from_torch([((torch.ones(2), torch.ones(3)), 0)])
    with pytest.raises(ValueError, match=r"samples differ in shape: \[\(2,\), \(3,\)\]"):
        from_torch([(torch.ones(2), 0), (torch.ones(3), 1)])
    with pytest.raises(ValueError, match="must be a torch Dataset"):
        from_torch(iter([(torch.ones(1), 0)]))
    with pytest.raises(ValueError, match=r"items must be \(features, label\)"):
        from_torch([torch.tensor(1.0)])
