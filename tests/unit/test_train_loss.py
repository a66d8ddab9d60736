"""The hand-made gradient of the hot-head loss against autograd."""

import torch

from sgl_spec.train.loss import HotHeadLoss, labels


def test_loss_and_gradient_equal_autograd():
    torch.manual_seed(0)
    head = torch.randn(40, 16)
    hidden = torch.randn(700, 16, requires_grad=True)
    hot_index = torch.full((60,), -1)
    hot_index[torch.arange(0, 60, 3)] = torch.arange(20)
    hot_index[torch.arange(1, 60, 3)] = torch.arange(20, 40)
    top_ids = torch.stack([torch.randperm(60)[:8] for _ in range(700)])
    top_logp = torch.randn(700, 8).log_softmax(-1)
    index, weight = labels(top_ids, top_logp, hot_index, 0.5)
    loss = HotHeadLoss.apply(hidden, head, index, weight)
    loss.backward()
    twin = hidden.detach().clone().requires_grad_()
    target = torch.zeros(700, 40).scatter_add_(1, index, weight)
    expected = -(target * (twin @ head.T).log_softmax(-1)).sum() / 700
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(hidden.grad, twin.grad, atol=1e-6, rtol=1e-4)


def test_labels_drop_what_the_head_lacks():
    hot_index = torch.tensor([0, -1, 1])
    index, weight = labels(
        torch.tensor([[1, 0, 2]]), torch.log(torch.tensor([[0.5, 0.3, 0.2]])), hot_index, 0.5
    )
    torch.testing.assert_close(weight, torch.tensor([[0.0, 0.15, 0.1]]))
    assert index.tolist() == [[0, 0, 1]]
