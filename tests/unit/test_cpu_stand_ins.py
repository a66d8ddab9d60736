"""The stand-ins for `sgl_kernel`'s CPU functions against plain loops."""

import torch

from sgl_spec.sglang_plugin import cpu_kernels as k

TABLE = torch.arange(4 * 20, dtype=torch.int32).reshape(4, 20) * 3 + 1
ROWS = torch.tensor([2, 0, 3])
LENS = torch.tensor([5, 0, 9])


def test_draft_locations_follow_each_length():
    out = torch.empty(3 * 4, dtype=torch.int64)
    k.assign_draft_cache_locs_contiguous_cpu(ROWS, TABLE, LENS, out, 20, 1, 4)
    expected = [int(TABLE[r, n + j]) for r, n in zip(ROWS, LENS, strict=True) for j in range(4)]
    assert out.tolist() == expected


def test_extend_locations_and_their_inverse():
    ends = torch.tensor([8, 2, 9])
    cells = [(int(r), c) for r, a, b in zip(ROWS, LENS, ends, strict=True) for c in range(int(a), int(b))]
    out = torch.empty(len(cells), dtype=torch.int64)
    k.assign_extend_cache_locs_cpu(ROWS, TABLE, LENS, ends, out, 20)
    assert out.tolist() == [int(TABLE[cell]) for cell in cells]
    table = torch.zeros_like(TABLE)
    k.assign_req_to_token_pool_cpu(ROWS, table, LENS, ends, out, 20)
    assert all(int(table[cell]) == int(TABLE[cell]) for cell in cells)
    assert int((table != 0).sum()) == len(cells)


def test_draft_rows_hold_prefix_and_own_slots():
    rows = k.build_draft_decode_metadata_cpu(TABLE, ROWS, LENS, 2, 3, 20)
    for i, (r, n) in enumerate(zip(ROWS.tolist(), LENS.tolist(), strict=True)):
        for branch in range(2):
            row = rows[2 * i + branch]
            assert row[:n].tolist() == TABLE[r, :n].tolist()
            start = n + branch * 3
            assert row[n : n + 3].tolist() == TABLE[r, start : start + 3].tolist()


def test_bonus_tokens_and_accepted_slots():
    accepted = torch.tensor([[7, 8, 9], [5, 0, 0], [1, 2, 0]])
    bonus = torch.empty(3, dtype=torch.int32)
    k.fill_bonus_tokens_cpu(accepted.flatten(), torch.tensor([3, 1, 2]), bonus, 3)
    assert bonus.tolist() == [9, 5, 2]
    out = torch.zeros(6, dtype=torch.int64)
    k.fill_accept_out_cache_loc_cpu(torch.tensor([0, -1, 3, 4, -1, -1]), torch.arange(10, 16), out)
    assert out.tolist() == [10, 13, 14, 0, 0, 0]


def test_ids_shift_left():
    ids = torch.tensor([1, 2, 3, 4, 5])
    k.rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[8], [9]]))
    assert ids.tolist() == [2, 3, 8, 5, 9]


def chain(length: int, drafts: int):
    """Links, positions and mask of a chain of `drafts` guesses after `length` tokens."""
    width = drafts + 1
    parents = torch.arange(-1, drafts - 1)[None]
    selected = torch.arange(drafts)[None]
    mask = torch.ones(width * (length + width), dtype=torch.bool)
    links = [torch.full((1, width), -1) for _ in range(3)]
    positions = torch.empty(width, dtype=torch.int64)
    k.build_tree_kernel_efficient_cpu(
        parents, selected, torch.tensor([length]), mask, positions, *links, 1, drafts, width, k.FULL_MASK
    )
    return links, positions, mask.view(width, length + width)


def test_a_chain_is_causal():
    (index, child, sibling), positions, mask = chain(4, 3)
    assert index[0].tolist() == [0, 1, 2, 3]
    assert child[0].tolist() == [1, 2, 3, -1]
    assert sibling[0].tolist() == [-1] * 4
    assert positions.tolist() == [4, 5, 6, 7]
    assert torch.equal(mask, torch.ones(4, 8).tril(4).bool())


def test_greedy_verification_stops_at_the_first_wrong_guess():
    (index, child, sibling), _, _ = chain(4, 3)
    for target, kept in (([11, 12, 13, 14], 3), ([11, 12, 99, 14], 2), ([99, 12, 13, 14], 0)):
        predicts, accepted = torch.zeros(4, dtype=torch.int32), torch.full((1, 4), -1, dtype=torch.int32)
        count = torch.empty(1, dtype=torch.int32)
        k.verify_tree_greedy_cpu(
            predicts, accepted, count, torch.tensor([[10, 11, 12, 13]]), index, child, sibling, torch.tensor([target])
        )
        assert int(count) == kept
        assert accepted[0, : kept + 1].tolist() == list(range(kept + 1))
        assert predicts[: kept + 1].tolist() == target[: kept + 1]


def test_kv_copies_move_whole_slots():
    pools = [torch.arange(12.0).reshape(4, 3), torch.arange(8.0).reshape(4, 2)]
    expected = [pool.clone() for pool in pools]
    for pool in expected:
        pool[[0, 1]] = pool[[2, 0]].clone()
    pointers = torch.tensor([pool.data_ptr() for pool in pools])
    strides = torch.tensor([pool.stride(0) * 4 for pool in pools])
    k.copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor([0, 1]), torch.tensor([2, 0]))
    assert all(torch.equal(a, b) for a, b in zip(pools, expected, strict=True))


def test_the_hash_is_murmur3():
    # The reference vector of MurmurHash3 x86_32 for 16 bytes, computed from its published definition.
    def reference(blocks: list[int]) -> int:
        h = 0
        for block in blocks:
            b = block * 0xCC9E2D51 & 0xFFFFFFFF
            b = (b << 15 | b >> 17) & 0xFFFFFFFF
            h ^= b * 0x1B873593 & 0xFFFFFFFF
            h = (h << 13 | h >> 19) & 0xFFFFFFFF
            h = (h * 5 + 0xE6546B64) & 0xFFFFFFFF
        h ^= 16
        h ^= h >> 16
        h = h * 0x85EBCA6B & 0xFFFFFFFF
        h ^= h >> 13
        h = h * 0xC2B2AE35 & 0xFFFFFFFF
        return h ^ h >> 16

    seeds, positions, columns = torch.tensor([42, (7 << 32) + 5]), torch.tensor([3, 900]), torch.tensor([0, 1, 49151])
    hashed = k.murmur_hash32_cpu(seeds, positions, columns).to(torch.int64)
    for i in range(2):
        seed = int(seeds[i])
        for j, column in enumerate(columns.tolist()):
            assert int(hashed[i, j]) == reference([seed & 0xFFFFFFFF, seed >> 32, int(positions[i]), column])
