"""Torch versions of the ``sgl_kernel`` functions that SGLang 0.5.23 calls on a CPU.

Signatures are those of the CPU build of ``sgl_kernel``. Chains (topk = 1) and trees are both right;
of them ``SGL_SPEC``, which writes its own round, needs only the one that hands out slots.
"""

import torch

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

ABSENT = ("tree_speculative_sampling_target_only", "top_k_renorm_prob", "top_p_renorm_prob")
"""Names that SGLang imports but never calls on a CPU: None in the stand-in."""

FULL_MASK, QLEN_ONLY = 0, 1
MASK_32 = 0xFFFFFFFF


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Write the ``topk * num_steps`` slots after each request's length into `out_cache_loc` (flat)."""
    columns = seq_lens.long()[:, None] + torch.arange(topk * num_steps)
    out_cache_loc.copy_(req_to_token[req_pool_indices.long()[:, None], columns].reshape(-1))


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's slots [start, end) into `out_cache_loc`, request after request."""
    done, table, slots = 0, req_to_token.numpy(), out_cache_loc.numpy()
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        slots[done : done + end - start] = table[row, start:end]
        done += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write `out_cache_loc` (request after request) into the requests' columns [start, end)."""
    done, table, slots = 0, req_to_token.numpy(), out_cache_loc.numpy()
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        table[row, start:end] = slots[done : done + end - start]
        done += end - start


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Return one row of slots per draft branch: the prefix, then the branch's own `num_steps` slots.

    Shape [B * topk, pool_len], the type of `req_to_token`.
    """
    rows = req_to_token[req_pool_indices.long()].repeat_interleave(topk, dim=0).clone()
    for row in range(len(rows)):
        start = int(seq_lens[row // topk])
        source = start + (row % topk) * num_steps
        own = req_to_token[req_pool_indices[row // topk].long(), source : source + num_steps]
        rows[row, start : start + num_steps] = own
    return rows


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill positions, links and mask of the verify tree (all outputs are written in place).

    `parent_list` [B, topk * (depth - 1) + 1] holds, per expanded node, the flat index of its parent;
    `selected_index` [B, draft_token_num - 1] holds the flat indices of the nodes that are verified.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise ValueError(f"tree mask mode {tree_mask_mode} has no CPU version; use FULL_MASK or QLEN_ONLY")
    offset = 0
    for request, length in enumerate(verified_seq_len.tolist()):
        parents = _tree_parents(parent_list[request].tolist(), selected_index[request].tolist(), topk)
        ancestors = _ancestors(parents)
        base = request * draft_token_num
        retrive_index[request] = torch.arange(base, base + draft_token_num)
        last_child: dict[int, int] = {}
        for node in range(1, draft_token_num):
            parent = parents[node]
            if parent in last_child:
                retrive_next_sibling[request, last_child[parent]] = node
            else:
                retrive_next_token[request, parent] = node
            last_child[parent] = node
        width = draft_token_num + (length if tree_mask_mode == FULL_MASK else 0)
        mask = tree_mask[offset : offset + draft_token_num * width].view(draft_token_num, width)
        offset += draft_token_num * width
        for node, seen in enumerate(ancestors):
            positions[base + node] = length + len(seen) - 1
            mask[node, width - draft_token_num :] = False
            mask[node, [width - draft_token_num + a for a in seen]] = True


def _tree_parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """Return the parent's number (0 = root) of each of the verified nodes; the root's is -1."""
    place = {flat: number + 1 for number, flat in enumerate(selected)}
    parents = [-1]
    for flat in selected:
        group = flat // topk
        parents.append(0 if group == 0 else place[parent_list[group]])
    return parents


def _ancestors(parents: list[int]) -> list[list[int]]:
    """Return for each node the nodes that it may attend to: itself and its ancestors."""
    seen: list[list[int]] = []
    for node, parent in enumerate(parents):
        seen.append([node] if parent < 0 else [*seen[parent], node])
    return seen


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slots `src_loc` to `tgt_loc` in the KV buffers at `data_ptrs` (`strides`: bytes per slot)."""
    import ctypes

    for pointer, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for source in src_loc.tolist()]
        for target, row in zip(tgt_loc.tolist(), rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Compact ``out_cache_loc[accept_index]``, skipping -1, to the front of `accept_out_cache_loc`."""
    kept = accept_index.reshape(-1)
    kept = kept[kept >= 0].long()
    accept_out_cache_loc[: len(kept)] = out_cache_loc[kept]


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Write each request's last accepted token, the bonus token, into `bonus_tokens` [B]."""
    rows = torch.arange(len(accept_lens)) * accept_stride
    bonus_tokens.copy_(accept_tokens.reshape(-1)[rows + accept_lens.long() - 1])


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids left by one and put its next token at the end, or at `select_index`."""
    for request, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index[request])
        input_ids[last] = topk_index[request].reshape(-1)[0]


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree from its root along the target's argmax; outputs are written in place.

    `predicts` [B * D], `accept_index` [B, depth + 1] (-1 padded), `accept_token_num` [B] (drafts only).
    """
    rows = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        target_predict.tolist(),
        strict=True,
    )
    for request, (tokens, index, child, sibling, target) in enumerate(rows):
        node, path = 0, [index[0]]
        while len(path) < accept_index.shape[1]:
            following = child[node]
            while following >= 0 and tokens[following] != target[node]:
                following = sibling[following]
            if following < 0:
                break
            predicts[index[node]] = target[node]
            node = following
            path.append(index[node])
        predicts[index[node]] = target[node]
        accept_index[request, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        accept_token_num[request] = len(path) - 1


def murmur_hash32_cpu(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """Return MurmurHash3 (32 bit) of (seed, position, column): uint32 [N, M], as SGLang's GPU kernel.

    The 64-bit seed, the position and the column are four 32-bit blocks (Appleby 2011, public domain).
    """
    seeds, at = seed.to(torch.int64)[:, None], positions.to(torch.int64)[:, None]
    columns = col_indices.to(torch.int64)[None, :]
    value = torch.zeros_like(seeds)
    for block in (seeds & MASK_32, (seeds >> 32) & MASK_32, at & MASK_32, columns & MASK_32):
        value = _murmur_mix(value, block)
    value = value ^ 16
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & MASK_32
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & MASK_32
    return (value ^ (value >> 16)).to(torch.uint32)


def _murmur_mix(value: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = (block * 0xCC9E2D51) & MASK_32
    block = ((block << 15) | (block >> 17)) & MASK_32
    block = (block * 0x1B873593) & MASK_32
    value = value ^ block
    value = ((value << 13) | (value >> 19)) & MASK_32
    return (value * 5 + 0xE6546B64) & MASK_32


_library: torch.library.Library | None = None


def register_operators() -> None:
    """Define ``torch.ops.sgl_kernel.murmur_hash32_cpu``, once per process."""
    global _library  # noqa: PLW0603 - torch drops the operator with the last reference to its library
    if _library is None:
        _library = torch.library.Library("sgl_kernel", "FRAGMENT")
        _library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
        _library.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")
