"""Operations on single rows: their formulas, their rounding, and that a row stands alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from adjudge.ops import activation, cpu_products, linear, norm, rotary, stage
from tests.small_models import distance

EPS = 1e-6
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rows_stand_alone(run: Callable[[slice], Tensor], num_rows: int) -> None:
    """Any slice of the rows has the bits that the rows have among all."""
    whole = run(slice(0, num_rows))
    for start, stop in ((0, 1), (1, 2), (3, 40), (num_rows - 1, num_rows), (64, 129), (5, 133)):
        assert run(slice(start, stop)).equal(whole[start:stop]), (start, stop)


@dtypes
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = normal(150, 96, dtype=dtype), normal(96, seed=2, dtype=dtype) * 0.1
    normed = norm.rms_norm(x, weight, eps=EPS)
    exact = x.double()
    exact = exact * (exact.square().mean(-1, keepdim=True) + EPS).rsqrt() * (1 + weight.double())
    assert distance(normed, exact.to(dtype)) < (1e-3 if dtype == torch.bfloat16 else 1e-6)
    assert normed.dtype == dtype
    assert_rows_stand_alone(lambda s: norm.rms_norm(x[s], weight, eps=EPS), 150)


@dtypes
def test_gated_rms_norm(dtype: torch.dtype) -> None:
    V, D = 3, 32
    o, z = normal(150, V, D, dtype=dtype), normal(150, 2 * V * D, seed=1, dtype=dtype)[:, V * D :]
    weight = normal(D, seed=2, dtype=dtype)
    found = norm.gated_rms_norm(o, z, weight, eps=EPS)
    exact = o.double() * (o.double().square().mean(-1, keepdim=True) + EPS).rsqrt()
    gate = functional.silu(z.double()).view(o.shape)
    weighted = exact.to(dtype) * weight
    expected = (weighted.double() * gate).to(dtype)
    assert distance(found, expected) < (1e-3 if dtype == torch.bfloat16 else 1e-6)
    assert_rows_stand_alone(lambda s: norm.gated_rms_norm(o[s], z[s], weight, eps=EPS), 150)


@dtypes
def test_silu_mul(dtype: torch.dtype) -> None:
    x = normal(150, 2 * 88, dtype=dtype) * 3
    gate, up = x.chunk(2, dim=1)
    expected = functional.silu(gate.double()).to(dtype) * up
    found = activation.silu_mul(x)
    assert distance(found, expected) < (1e-4 if dtype == torch.bfloat16 else 1e-6)
    assert_rows_stand_alone(lambda s: activation.silu_mul(x[s]), 150)


@dtypes
def test_qk_norm_rope(dtype: torch.dtype) -> None:
    """Against the same steps written as in transformers, rounded where it rounds."""
    N, K, D, F = 4, 2, 32, 8
    x = normal(150, N * 2 * D + K * D + 7, dtype=dtype)
    q_norm, k_norm = normal(D, seed=1, dtype=dtype) * 0.1, normal(D, seed=2, dtype=dtype) * 0.1
    angle = torch.rand(300, F, generator=torch.Generator().manual_seed(3)) * 6
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    positions = torch.stack([torch.arange(150), torch.arange(150) + 50, torch.arange(150) * 2])
    axis = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0], dtype=torch.int32)

    def run(s: slice, heads: int = N, kv_heads: int = K, skip: int = 0) -> tuple[Tensor, Tensor]:
        return rotary.qk_norm_rope(
            x[s, skip:], q_norm, k_norm, cos, sin, positions[:, s].int(), axis,
            num_heads=heads, num_kv_heads=kv_heads, eps=EPS,
        )  # fmt: skip

    q, k = run(slice(0, 150))
    place = positions[axis.long()].T
    cos_R = torch.cat([cos[place, torch.arange(F)]] * 2, 1)[:, None]
    sin_R = torch.cat([sin[place, torch.arange(F)]] * 2, 1)[:, None]
    raw_q = x[:, : N * 2 * D].unflatten(1, (N, 2 * D))[..., :D]
    raw_k = x[:, N * 2 * D :][:, : K * D].unflatten(1, (K, D))
    for found, raw, weight in ((q, raw_q, q_norm), (k, raw_k, k_norm)):
        y = raw.double() * (raw.double().square().mean(-1, keepdim=True) + EPS).rsqrt()
        y = (y * (1 + weight.double())).to(dtype)
        turn, rest = y[..., : 2 * F], y[..., 2 * F :]
        half = torch.cat([-turn[..., F:], turn[..., :F]], -1)
        expected = torch.cat([turn * cos_R + half * sin_R, rest], -1)
        assert distance(found, expected) < (1e-3 if dtype == torch.bfloat16 else 1e-6)
    assert run(slice(0, 150), kv_heads=0)[0].equal(q)
    assert run(slice(0, 150), heads=0, skip=N * 2 * D)[1].equal(k)
    for part in (0, 1):
        assert_rows_stand_alone(lambda s, part=part: run(s)[part], 150)


@dtypes
@pytest.mark.parametrize("pack", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize(("K", "N"), [(32, 48), (96, 352), (100, 33), (512, 64), (7, 5)])
def test_linear_rows_stand_alone(dtype: torch.dtype, K: int, N: int, pack: bool) -> None:
    x, plain = normal(1100, K, dtype=dtype), normal(N, K, seed=1, dtype=dtype)
    with cpu_products.fast_products():
        weight = cpu_products.packed(plain) if pack else plain
        plan = linear.LinearPlan(linear.agreeing_blocks([weight]))
        whole = linear.linear(x, weight, plan)
        exact = x.double() @ plain.double().T
        assert distance(whole, exact) < (3e-3 if dtype == torch.bfloat16 else 1e-6)
        for count in (0, 1, 2, 31, 32, 33, 63, 65, 200, 511, 513, 1099):
            part = linear.linear(x[:count], weight, plan)
            assert part.equal(whole[:count]), count
            tail = linear.linear(x[1100 - count :], weight, plan)
            assert tail.equal(whole[1100 - count :]), count


@dtypes
def test_a_product_that_is_added(dtype: torch.dtype) -> None:
    """To the rows that are given, each step rounded; a row alone has its bits among all."""
    x, weight = normal(100, 64, dtype=dtype), normal(48, 64, seed=1, dtype=dtype)
    before = normal(100, 48, seed=2, dtype=dtype)
    y = before.clone()
    linear.add_linear(y, x, weight)
    assert y.equal(before + linear.linear(x, weight))
    one = before[7:8].clone()
    linear.add_linear(one, x[7:8], weight)
    assert one.equal(y[7:8])


def test_blocks_that_disagree_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    product = functional.linear

    def fickle(x: Tensor, weight: Tensor) -> Tensor:
        """Another order of sums for blocks of 64 and 128 rows."""
        y = product(x, weight)
        return y * (1 + 2**-20) if x.shape[0] in (64, 128) else y

    monkeypatch.setattr(linear.functional, "linear", fickle)
    assert linear.agreeing_blocks([normal(8, 16)]) == (512, 256, 32)


def test_add_lora_is_fp32_and_rounded_once() -> None:
    x, weight = normal(70, 64, dtype=torch.bfloat16), normal(96, 64, seed=1, dtype=torch.bfloat16)
    a, b = normal(4, 64, seed=2) * 0.1, normal(32, 4, seed=3) * 0.1
    base = linear.linear(x, weight)
    y = base.clone()
    linear.add_lora(y[:, 32:64], x, a, b, scale=1.5)
    delta = 1.5 * (x.double() @ a.double().T @ b.double().T)
    expected = (base[:, 32:64].double() + delta).to(torch.bfloat16)
    assert y[:, :32].equal(base[:, :32])
    assert y[:, 64:].equal(base[:, 64:])
    assert (y[:, 32:64] == expected).float().mean() > 0.999
    one = base[3:4].clone()
    linear.add_lora(one[:, 32:64], x[3:4], a, b, scale=1.5)
    assert one.equal(y[3:4])


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 63, 64, 5000, 32_768, 32_769, 70_000, 250_001])
def test_padding_splits_into_whole_vectors(size: int, threads: int) -> None:
    length = stage.padded(size, threads)
    shares = max(1, min(threads, -(-length // stage.GRAIN)))
    assert size <= length < size + 2 * stage.VECTOR * threads
    assert length % shares == 0
    assert (length // shares) % stage.VECTOR == 0


def test_a_stage_where_shares_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions put together from exp are as good, and as free of position."""
    monkeypatch.setattr(stage, "share_is_vectors", lambda threads: False)
    x = normal(1000) * 5
    for name, function in (("silu_", functional.silu), ("sigmoid_", torch.sigmoid)):
        whole = x.clone()
        getattr(stage, name)(whole)
        assert distance(whole, function(x.double())) < 1e-6
        part = x[17:54].clone()
        getattr(stage, name)(part)
        assert part.equal(whole[17:54])


def test_blocks_are_native_only_where_every_number_of_them_is_even() -> None:
    assert stage.all_even(1 << 15, 2)
    assert not stage.all_even(33, 2)
    assert not stage.all_even(64 * 5, 2)
    x = normal(9, 33)
    for count in (1, 2, 9):
        part = x[:count].clone()
        stage.silu_blocks_(part)
        assert distance(part, functional.silu(x[:count].double())) < 1e-6


def test_fast_products_restore_the_setting() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    with pytest.raises(RuntimeError, match="inside"), cpu_products.fast_products():
        raise RuntimeError("inside")
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_lower_precision_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.bmm
    monkeypatch.setattr(
        cpu_products.torch,
        "bmm",
        lambda a, b: (
            exact(a.bfloat16().to(a.dtype), b) if a.dtype == torch.float32 else exact(a, b)
        ),
    )
    assert not cpu_products.faithful.__wrapped__()
