"""A prompt's hidden state depends on its own token ids: the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adjudge.buckets import Bucket
from adjudge.device_tables import to_device
from adjudge.forest import plan
from adjudge.layout import layout
from adjudge.models.qwen3_5 import Qwen3_5
from adjudge.ops.attention import SLOTS
from tests.small_models import CPU, LIKE_9B, LIKE_27B, Ids, hidden, ours, token_ids

FOUR_LAYERS = {
    "9b": replace(LIKE_9B, num_hidden_layers=4, layer_types=LIKE_9B.layer_types[:4]),
    "27b": replace(LIKE_27B, num_hidden_layers=4, layer_types=LIKE_27B.layer_types[:4]),
}


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def model(request: pytest.FixtureRequest) -> Qwen3_5:
    return ours(FOUR_LAYERS["9b"], request.param)


def join(*parts: Ids) -> Ids:
    return np.concatenate(parts)


def alone(model: Qwen3_5, prompts: list[Ids]) -> list[Tensor]:
    return [hidden(model, [prompt])[0] for prompt in prompts]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    different = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not a.equal(b)]
    assert not different
    assert all(bool(row.isfinite().all()) for row in expected)


def test_results_of_different_prompts_differ(model: Qwen3_5) -> None:
    first, second = alone(model, [token_ids(0, 40), join(token_ids(0, 39), token_ids(1, 1))])
    assert not first.equal(second)


def test_packed_in_any_order(model: Qwen3_5) -> None:
    prompts = [
        token_ids(seed, count) for seed, count in enumerate((1, 2, 17, 33, 64, 65, 150, 200))
    ]
    expected = alone(model, prompts)
    rng = np.random.default_rng(0)
    for _ in range(4):
        order = rng.permutation(len(prompts))
        found = hidden(model, [prompts[i] for i in order])
        assert_same(found, [expected[i] for i in order])


def test_shared_at_every_split_point(model: Qwen3_5) -> None:
    """A pair that shares 0 … 130 tokens, and all those prompts in one forest."""
    trunk = token_ids(0, 160)
    branches = [join(trunk[:split], token_ids(1 + split, 21)) for split in range(131)]
    expected = alone(model, branches)
    (expected_trunk,) = alone(model, [trunk])
    for branch, state in zip(branches, expected, strict=True):
        assert_same(hidden(model, [trunk, branch]), [expected_trunk, state])
    assert_same(hidden(model, [trunk, *branches]), [expected_trunk, *expected])


def test_prefix_of_another(model: Qwen3_5) -> None:
    trunk = token_ids(2, 200)
    prompts = [trunk[:end] for end in (1, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200)]
    assert_same(hidden(model, prompts), alone(model, prompts))


def test_duplicates(model: Qwen3_5) -> None:
    first, second = token_ids(3, 70), token_ids(4, 64)
    expected = alone(model, [first, second])
    assert_same(
        hidden(model, [first, second, first, second, first]),
        [expected[0], expected[1], expected[0], expected[1], expected[0]],
    )


def test_255_candidates(model: Qwen3_5) -> None:
    state = token_ids(5, 93)
    prompts = [join(state, token_ids(100 + i, 1 + i % 40)) for i in range(255)]
    together = hidden(model, prompts)
    chosen = list(range(0, 255, 17))
    assert_same([together[i] for i in chosen], alone(model, [prompts[i] for i in chosen]))
    backwards = hidden(model, prompts[::-1])[::-1]
    assert_same(backwards, together)
    assert_same(hidden(model, prompts[:100]), together[:100])


def test_after_a_larger_batch(model: Qwen3_5) -> None:
    prompt = token_ids(6, 75)
    before = alone(model, [prompt])
    hidden(model, [token_ids(50 + i, 100) for i in range(12)])
    assert_same(alone(model, [prompt]), before)


def test_padded_to_a_bucket(model: Qwen3_5) -> None:
    trunk = token_ids(7, 100)
    prompts = [trunk, join(trunk[:70], token_ids(8, 30)), token_ids(9, 20)]
    forest = plan(prompts)
    expected = alone(model, prompts)
    for more in (1, 40, 300):
        bucket = Bucket(
            forest.num_rows + more,
            forest.num_chunks + more,
            forest.path_chunks.shape[1] + more,
            forest.num_levels + 2,
        )
        tables = to_device(layout(forest, height=SLOTS, bucket=bucket), CPU)
        hidden_QH = model.forward(tables)
        assert_same([hidden_QH[i] for i in forest.prompt_readout], expected)


@pytest.fixture(params=[2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_with_more_threads(model: Qwen3_5, threads: int) -> None:
    state = token_ids(10, 130)
    prompts = [join(state[:cut], token_ids(cut, 30)) for cut in (5, 64, 77, 128, 130)]
    assert_same(hidden(model, [state, *prompts]), alone(model, [state, *prompts]))


def test_three_value_heads_to_a_key_head() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        model = ours(FOUR_LAYERS["27b"], dtype)
        state = token_ids(11, 140)
        prompts = [state, *(join(state[:cut], token_ids(cut, 40)) for cut in (1, 31, 64, 100))]
        assert_same(hidden(model, prompts), alone(model, prompts))


@cache
def known(prompt: bytes) -> Tensor:
    model = ours(FOUR_LAYERS["9b"], torch.bfloat16)
    return hidden(model, [np.frombuffer(prompt, np.int32)])[0]


@settings(max_examples=25)
@given(st.data())
def test_any_tree(data: st.DataObject) -> None:
    """Each prompt continues a cut of an earlier one."""
    prompts: list[Ids] = [token_ids(0, data.draw(st.integers(1, 140)))]
    for seed in range(1, data.draw(st.integers(2, 8))):
        parent = prompts[data.draw(st.integers(0, len(prompts) - 1))]
        cut = data.draw(st.integers(0, len(parent)))
        tail = token_ids(seed, data.draw(st.integers(0 if cut else 1, 70)))
        prompts.append(join(parent[:cut], tail))
    model = ours(FOUR_LAYERS["9b"], torch.bfloat16)
    assert_same(hidden(model, prompts), [known(prompt.tobytes()) for prompt in prompts])
