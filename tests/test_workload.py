"""Workload: reproducible matrices, independent products, and their exact cost."""

import pytest
import torch

from autopar import workload


def test_a_seed_gives_the_same_matrix_and_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    x = workload.matrix(32, seed=3)
    assert torch.equal(torch.rand(4), expected)
    assert (x.shape, x.dtype) == ((32, 32), torch.float32)
    assert torch.equal(x, workload.matrix(32, seed=3))
    assert not torch.equal(x, workload.matrix(32, seed=4))


def test_products_keep_their_magnitude():
    x = workload.matrix(256)
    for _ in range(3):
        x = x.mm(x)
    assert 0.3 < x.std().item() * 256**0.5 < 3


def test_products_are_independent_and_right_and_their_cost_is_exact():
    x = workload.matrix(16)
    results = workload.products(x, 3)
    assert len({result.data_ptr() for result in results}) == 3
    assert workload.equal(results, [x @ x] * 3)
    assert workload.product_flops(16, 3) == 2 * 16 * 16 * 16 * 3
    assert workload.product_bytes(16, 3) == 3 * x.nbytes


def test_equal_sees_one_bit_and_a_missing_result():
    x = workload.matrix(4)
    other = x.clone()
    other[1, 2] = torch.nextafter(other[1, 2], torch.tensor(9.0))
    assert not workload.equal([x, other], [x, x])
    with pytest.raises(ValueError, match="shorter|longer"):
        workload.equal([x, x], [x])


@pytest.mark.gpu
def test_a_delay_keeps_the_stream_and_not_the_host():
    x, done = torch.zeros(1, device="cuda:0"), torch.cuda.Event()
    workload.delay(x.device, 200_000_000)
    done.record()
    assert not done.query()
    done.synchronize()


@pytest.mark.gpu
def test_a_seed_gives_the_same_matrix_on_a_gpu():
    assert torch.equal(workload.matrix(64, "cuda:0", seed=1).cpu(), workload.matrix(64, seed=1))
